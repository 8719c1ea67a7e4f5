// SPDX-License-Identifier: Apache-2.0
//
// orion: Orion's rules (EuroSys '24, section 5) on this mechanism. Everybody shares the whole
// device. High-priority operations (prefills and decodes) go at once; a best-effort one goes when
//   * no high-priority operation runs, or
//   * it needs few processors, its profile is of the other class (compute- against memory-bound),
//     and the best-effort work in flight is shorter than a threshold.
#include "policies/builtin.h"
#include "policies/curves.h"

namespace vitamin::policies {
namespace {

using runtime::Choice;
using runtime::EntryId;
using runtime::OperationClass;
using runtime::PoolView;
using runtime::ReadyOperation;

bool high_priority(const ReadyOperation& operation) {
  return operation.kind == OperationClass::kDecode || operation.kind == OperationClass::kPrefill;
}

class Orion final : public runtime::Policy {
 public:
  Orion(std::uint32_t processors, std::uint32_t duration_us)
      : processors_(processors), duration_ns_(std::uint64_t{duration_us} * 1000) {}
  std::string_view name() const override { return "orion"; }
  bool wants_profile() const override { return true; }

  std::optional<std::size_t> pick(std::span<const ReadyOperation> ready,
                                  const PoolView& pool) override {
    if (pool.epoch == 0) return 0;
    const ReadyOperation* running = nullptr;  // of high priority
    std::uint64_t in_flight_ns = 0;           // of best effort
    for (const runtime::Holding& holding : pool.holdings) {
      if (high_priority(holding.next))
        running = &holding.next;
      else
        in_flight_ns += holding.next.predicted_ns;
    }
    for (std::size_t i = 0; i < ready.size(); ++i)
      if (high_priority(ready[i])) return i;
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < ready.size(); ++i) {
      if (running != nullptr &&
          (memory_bound(ready[i], pool) == memory_bound(*running, pool) ||
           useful(ready[i], pool) > processors_ || in_flight_ns >= duration_ns_))
        continue;
      if (!best || ready[i].since_ns < ready[*best].since_ns) best = i;
    }
    return best;
  }

  // One decision for each launch: that is how Orion schedules.
  Choice select(const ReadyOperation& operation, std::span<const EntryId> eligible,
                const PoolView&) override {
    return {eligible.back(), high_priority(operation) ? runtime::kUntilChanged : 1};
  }

  runtime::Terms terms() const override { return {runtime::kNever, runtime::kNever}; }

 private:
  // Half of the processors do (nearly) as well.
  bool memory_bound(const ReadyOperation& operation, const PoolView& pool) {
    const std::span<const float> curve = curves_.of(operation.kernel, pool);
    const std::uint32_t half = pool.entries.front().processors / 2;
    for (const runtime::PoolEntry& entry : pool.entries.subspan(1))
      if (entry.processors >= half) return curve[entry.id] < 1.5F * curve[0];
    return false;
  }

  // The narrowest width within a tenth of the best time.
  std::uint32_t useful(const ReadyOperation& operation, const PoolView& pool) {
    const std::span<const float> curve = curves_.of(operation.kernel, pool);
    for (const runtime::PoolEntry& entry : pool.entries.subspan(1))
      if (curve[entry.id] < 1.1F * curve[0]) return entry.processors;
    return pool.entries.front().processors;
  }

  Curves curves_;
  std::uint32_t processors_;
  std::uint64_t duration_ns_;
};

constexpr Parameter kParameters[] = {
    {"processors", "a best-effort operation that needs more waits (default 66)"},
    {"duration", "microseconds of best-effort work in flight beside others (default 250)"}};

}  // namespace

const Description kOrion = {
    "orion", "Orion's rules: best effort beside others when profiles differ: a baseline",
    kParameters};

std::unique_ptr<runtime::Policy> make_orion(Parameters& parameters, std::uint64_t) {
  std::uint32_t processors = 66, duration_us = 250;
  parameters.number("processors", 1, 100'000, &processors);
  parameters.number("duration", 1, 10'000'000, &duration_us);
  return std::make_unique<Orion>(processors, duration_us);
}

}  // namespace vitamin::policies
