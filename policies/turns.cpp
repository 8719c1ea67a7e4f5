// SPDX-License-Identifier: Apache-2.0
//
// Baselines that give all processors to one client at a time; they differ in when they hand over:
//
//   exclusive   when the client has submitted nothing for a while: what it submitted before ends
//   temporal    after a quantum, as the driver's time slices do
//   salus       at the end of an iteration (a training step, a request), as Salus (MLSys '20) does,
//               or in a pause, as the first
//
// A client that holds a grant says nothing more. So an iteration's end is heard because a turn is
// granted for so many launches that only the end of an iteration ends it, and a pause is seen from
// what the client submits (PoolView::progress): found on an H200, a job that was stopped between
// two iterations, told to go on only when the other one had answered, held the device for ever.
#include <algorithm>

#include "policies/builtin.h"
#include "policies/whole_device.h"

namespace vitamin::policies {
namespace {

using runtime::Choice;
using runtime::EntryId;
using runtime::kNever;
using runtime::kNoEntry;
using runtime::PoolView;
using runtime::ReadyOperation;

enum class HandOver : std::uint8_t { kWhenIdle, kQuantum, kIteration };

class Turns final : public runtime::Policy {
 public:
  Turns(const char* name, HandOver when, std::uint64_t quantum_ns, std::uint64_t quiet_ns)
      : name_(name), when_(when), quantum_ns_(quantum_ns), quiet_ns_(quiet_ns) {}
  std::string_view name() const override { return name_; }

  // The client that has waited longest; nobody while another one holds the device.
  std::optional<std::size_t> pick(std::span<const ReadyOperation> ready,
                                  const PoolView& pool) override {
    if (pool.epoch == 0) return 0;
    std::optional<std::size_t> oldest;
    for (std::size_t i = 0; i < ready.size(); ++i) {
      if (!pool.holdings.empty() && pool.holdings.front().next.client != ready[i].client) continue;
      if (!oldest || ready[i].since_ns < ready[*oldest].since_ns) oldest = i;
    }
    return oldest;
  }

  // The widest entry made of units: a lease on all of them. Not the whole device beside others.
  Choice select(const ReadyOperation& operation, std::span<const EntryId> eligible,
                const PoolView& pool) override {
    if (!waits_for_a_part(operation, pool)) return {eligible.back(), runtime::kUntilChanged};
    const EntryId all = pool.entries.back().id;
    const bool free = std::find(eligible.begin(), eligible.end(), all) != eligible.end();
    return {free ? all : kNoEntry,
            when_ == HandOver::kIteration ? kAnIteration : runtime::kUntilChanged};
  }

  // Somebody else has waited for the holder, which has just ended an iteration or pauses.
  runtime::Plan prepare(const runtime::Hint& hint, const PoolView& pool) override {
    if (quiet_ns_ == kNever || pool.epoch == 0) return {};
    if (pool.epoch != seen_) look(pool);
    if (!hands_over_ || next_ != hint.client) return {};
    return {pool.entries.back().id, true, 0};
  }
  std::uint64_t look_at() const override { return look_at_; }

  // These baselines make others wait; that is what they are compared for.
  runtime::Terms terms() const override {
    return {when_ == HandOver::kQuantum ? quantum_ns_ : kNever, kNever};
  }

 private:
  // More launches than an iteration has, and not "until changed".
  static constexpr std::uint32_t kAnIteration = 1U << 30;
  static constexpr std::uint64_t kLooks = 4;  // within `quiet`

  void look(const PoolView& pool) {
    seen_ = pool.epoch;
    hands_over_ = false;
    // Progress is told at look_at(), not in between.
    const bool looked = look_at_ <= pool.now_ns;
    if (pool.holdings.empty()) {
      look_at_ = kNever;
      return;
    }
    const runtime::ClientId holder = pool.holdings.front().next.client;
    const ReadyOperation* oldest = nullptr;
    for (const ReadyOperation& operation : pool.waiting)
      if (operation.client != holder && (!oldest || operation.since_ns < oldest->since_ns))
        oldest = &operation;
    // Who tells of no progress at all is not known to pause.
    const auto said =
        std::find_if(pool.progress.begin(), pool.progress.end(),
                     [&](const runtime::Progress& of) { return of.client == holder; });
    const std::uint64_t operations = said != pool.progress.end() ? said->operations : 0;
    if (oldest == nullptr || holder != holder_ || said == pool.progress.end() ||
        operations != operations_ || !watched_)
      busy_ns_ = pool.now_ns;
    holder_ = holder, operations_ = operations, watched_ = oldest != nullptr;
    if (oldest == nullptr) {
      look_at_ = kNever;
      return;
    }
    next_ = oldest->client;
    hands_over_ = (looked && pool.now_ns - busy_ns_ >= quiet_ns_) ||
                  (when_ == HandOver::kIteration && ended(holder, pool));
    if (looked || look_at_ == kNever)
      look_at_ = pool.now_ns + std::max<std::uint64_t>(1, quiet_ns_ / kLooks);
  }

  // The lane that ended an iteration asks again, and others of its client may hold what they have;
  // or it says so while it holds a grant. What was said before the grant was of an earlier turn.
  static bool ended(runtime::ClientId holder, const PoolView& pool) {
    return std::any_of(pool.waiting.begin(), pool.waiting.end(),
                       [&](const ReadyOperation& operation) {
                         return operation.client == holder && operation.iteration_end;
                       }) ||
           std::any_of(pool.holdings.begin(), pool.holdings.end(),
                       [&](const runtime::Holding& holding) {
                         return holding.next.client == holder && holding.next.iteration_end &&
                                holding.next.since_ns > holding.granted_at_ns;
                       });
  }

  const char* name_;
  HandOver when_;
  std::uint64_t quantum_ns_, quiet_ns_;
  std::uint64_t seen_ = 0;  // the epoch of the last look
  bool hands_over_ = false;
  runtime::ClientId next_ = 0;  // to whom
  // Whose turn it is, and since when it has submitted nothing, while somebody waited.
  runtime::ClientId holder_ = 0;
  std::uint64_t operations_ = 0, busy_ns_ = 0;
  bool watched_ = false;
  std::uint64_t look_at_ = kNever;
};

constexpr Parameter kQuietParameters[] = {
    {"quiet", "microseconds without a launch after which a turn ends (default 20000)"}};

std::unique_ptr<runtime::Policy> with_pauses(const char* name, HandOver when,
                                             Parameters& parameters) {
  std::uint32_t quiet_us = 20'000;
  parameters.number("quiet", 100, 10'000'000, &quiet_us);
  return std::make_unique<Turns>(name, when, kNever, std::uint64_t{quiet_us} * 1000);
}

constexpr Parameter kTemporalParameters[] = {
    {"quantum", "microseconds of a turn while others wait (default 2000)"}};

}  // namespace

const Description kExclusive = {
    "exclusive", "everything to one client until it submits nothing: a baseline", kQuietParameters};
const Description kTemporal = {"temporal",
                               "everything to each client in turn, for a quantum: a baseline",
                               kTemporalParameters};
const Description kSalus = {
    "salus", "everything to each client in turn, for an iteration: a baseline", kQuietParameters};

std::unique_ptr<runtime::Policy> make_exclusive(Parameters& parameters, std::uint64_t) {
  return with_pauses("exclusive", HandOver::kWhenIdle, parameters);
}

std::unique_ptr<runtime::Policy> make_temporal(Parameters& parameters, std::uint64_t) {
  std::uint32_t quantum_us = 2000;
  parameters.number("quantum", 1, 10'000'000, &quantum_us);
  return std::make_unique<Turns>("temporal", HandOver::kQuantum, std::uint64_t{quantum_us} * 1000,
                                 kNever);
}

std::unique_ptr<runtime::Policy> make_salus(Parameters& parameters, std::uint64_t) {
  return with_pauses("salus", HandOver::kIteration, parameters);
}

}  // namespace vitamin::policies
