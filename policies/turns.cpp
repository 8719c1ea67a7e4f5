// SPDX-License-Identifier: Apache-2.0
//
// Baselines that give all processors to one client at a time; they differ in when they hand over:
//
//   exclusive   when the client has nothing more to run
//   temporal    after a quantum, as the driver's time slices do
//   salus       at the end of an iteration (a training step, a request), as Salus (MLSys '20) does
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
  Turns(const char* name, HandOver when, std::uint64_t quantum_ns)
      : name_(name), when_(when), quantum_ns_(quantum_ns) {}
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
    return {free ? all : kNoEntry, runtime::kUntilChanged};
  }

  // Salus: the holder has just ended an iteration and somebody else has waited for it.
  runtime::Plan prepare(const runtime::Hint& hint, const PoolView& pool) override {
    if (when_ != HandOver::kIteration || pool.epoch == 0 || pool.holdings.empty()) return {};
    const runtime::Holding& holder = pool.holdings.front();
    if (!holder.next.iteration_end || holder.next.client == hint.client) return {};
    const auto oldest =
        std::min_element(pool.waiting.begin(), pool.waiting.end(),
                         [](const auto& a, const auto& b) { return a.since_ns < b.since_ns; });
    if (oldest == pool.waiting.end() || oldest->client != hint.client) return {};
    return {pool.entries.back().id, true, 0};
  }

  // These baselines make others wait; that is what they are compared for.
  runtime::Terms terms() const override {
    return {when_ == HandOver::kQuantum ? quantum_ns_ : kNever, kNever};
  }

 private:
  const char* name_;
  HandOver when_;
  std::uint64_t quantum_ns_;
};

constexpr Parameter kTemporalParameters[] = {
    {"quantum", "microseconds of a turn while others wait (default 2000)"}};

}  // namespace

const Description kExclusive = {
    "exclusive", "everything to one client until it has nothing to run: a baseline", {}};
const Description kTemporal = {"temporal",
                               "everything to each client in turn, for a quantum: a baseline",
                               kTemporalParameters};
const Description kSalus = {
    "salus", "everything to each client in turn, for an iteration: a baseline", {}};

std::unique_ptr<runtime::Policy> make_exclusive(Parameters&, std::uint64_t) {
  return std::make_unique<Turns>("exclusive", HandOver::kWhenIdle, kNever);
}

std::unique_ptr<runtime::Policy> make_temporal(Parameters& parameters, std::uint64_t) {
  std::uint32_t quantum_us = 2000;
  parameters.number("quantum", 1, 10'000'000, &quantum_us);
  return std::make_unique<Turns>("temporal", HandOver::kQuantum, std::uint64_t{quantum_us} * 1000);
}

std::unique_ptr<runtime::Policy> make_salus(Parameters&, std::uint64_t) {
  return std::make_unique<Turns>("salus", HandOver::kIteration, kNever);
}

}  // namespace vitamin::policies
