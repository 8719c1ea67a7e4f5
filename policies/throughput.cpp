// SPDX-License-Identifier: Apache-2.0
//
// throughput: as many operations at once as there is room for, then the processors that are left
// to those that gain most from them (the paper's Algorithm 1; policies/assignment.h); or everybody
// on the whole device, where that is measured to be no worse (policies/whole_or_parts.h).
#include "policies/builtin.h"
#include "policies/planner.h"
#include "policies/whole_or_parts.h"

namespace vitamin::policies {
namespace {

using runtime::Choice;
using runtime::EntryId;
using runtime::kNoEntry;
using runtime::PoolView;
using runtime::ReadyOperation;

class Throughput final : public runtime::Policy {
 public:
  Throughput(std::uint32_t launches, Objective objective, const WholeOrParts::Options& options)
      : planner_(objective), whole_or_parts_(options), launches_(launches) {}
  std::string_view name() const override { return "throughput"; }
  bool wants_profile() const override { return true; }
  bool remembers() const override { return true; }
  // Where everybody is always on the whole device there is nothing to plan; who is kept to a part
  // is Bounded's.
  bool plans() const override { return !whole_or_parts_.always(); }

  std::optional<std::size_t> pick(std::span<const ReadyOperation> ready,
                                  const PoolView& pool) override {
    if (pool.epoch == 0) return 0;
    plan(pool);
    if (whole_) return 0;  // nobody stands in anybody's way
    // What no entry can hold runs on the whole device and waits for nobody.
    const auto whole = first_beyond_entries(ready, pool);
    return whole ? whole : planner_.next(ready);
  }

  Choice select(const ReadyOperation& operation, std::span<const EntryId> eligible,
                const PoolView& pool) override {
    if (pool.epoch == 0) return {fastest(operation, eligible, pool), runtime::kUntilChanged};
    if (eligible.front() == runtime::kWholeDevice &&
        operation.processors > pool.entries.back().processors)
      return {runtime::kWholeDevice, 1};
    return {within_target(target(operation.client, operation.lane), eligible, pool), launches_};
  }

  runtime::Plan prepare(const runtime::Hint& hint, const PoolView& pool) override {
    if (pool.epoch == 0) return {};
    plan(pool);
    const EntryId target = this->target(hint.client, hint.lane);
    if (target == kNoEntry) return {};
    return {target, true, 0};
  }

  std::uint64_t look_at() const override { return whole_or_parts_.look_at(); }
  void forget(runtime::ClientId client) override { whole_or_parts_.forget(client); }

 private:
  void plan(const PoolView& pool) {
    if (pool.epoch == planned_) return;
    planned_ = pool.epoch;
    whole_ = whole_or_parts_.whole(pool);
    if (whole_) return;
    planner_.begin(pool);
    for (Planner::Lane& lane : planner_.lanes())
      lane.left_out = whole_or_parts_.asleep(lane.operation.client);
    planner_.assign(pool, pool.entries.front().compute - pool.set_aside);
  }

  EntryId target(runtime::ClientId client, runtime::LaneId lane) const {
    if (whole_) return runtime::kWholeDevice;
    const Planner::Lane* const planned = planner_.find(client, lane);
    return planned != nullptr ? planned->target : kNoEntry;
  }

  static std::optional<std::size_t> first_beyond_entries(std::span<const ReadyOperation> ready,
                                                         const PoolView& pool) {
    for (std::size_t i = 0; i < ready.size(); ++i)
      if (ready[i].processors > pool.entries.back().processors) return i;
    return std::nullopt;
  }

  // A client that decides for itself alone: the narrowest of the fastest.
  EntryId fastest(const ReadyOperation& operation, std::span<const EntryId> eligible,
                  const PoolView& pool) {
    const std::span<const float> curve = planner_.curves().of(operation.kernel, pool);
    EntryId best = eligible.back();
    for (std::size_t i = eligible.size(); i-- > 0;)
      if (curve[eligible[i]] <= curve[best]) best = eligible[i];
    return planner_.curves().known(operation.kernel, pool) ? best : eligible.back();
  }

  Planner planner_;
  WholeOrParts whole_or_parts_;
  std::uint64_t planned_ = 0;
  bool whole_ = false;
  std::uint32_t launches_;
};

constexpr Parameter kParameters[] = {
    {"whole",
     "everybody on the whole device: measured (default: where parts do not gain), never, "
     "always"},
    {"objective",
     "of parts; alone (default: progress against each alone), paper (against the "
     "narrowest part)"},
    {"look", "microseconds between two looks at who gets on (default 100000)"},
    {"launches", "decide again after this many launches (default 0: when something changes)"}};

}  // namespace

const Description kThroughput = {
    "throughput", "as many at once as there is room for, on parts or on all, whichever gains",
    kParameters};

std::unique_ptr<runtime::Policy> make_throughput(Parameters& parameters, std::uint64_t) {
  std::uint32_t launches = 0, look_us = 100'000;
  std::size_t whole = 0, objective = 0;
  parameters.word("whole", {"measured", "never", "always"}, &whole);
  parameters.word("objective", {"alone", "paper"}, &objective);
  parameters.number("look", 1, 1'000'000'000, &look_us);
  parameters.number("launches", 0, 1'000'000, &launches);
  return std::make_unique<Throughput>(
      launches == 0 ? runtime::kUntilChanged : launches, static_cast<Objective>(objective),
      WholeOrParts::Options{static_cast<WholeOrParts::Mode>(whole), std::uint64_t{look_us} * 1000});
}

}  // namespace vitamin::policies
