// SPDX-License-Identifier: Apache-2.0
//
// static: one fixed partition for the whole life of the process, as MPS percentages or a green
// context would give it. A baseline, and a way to share a device by hand.
#include "policies/builtin.h"

namespace vitamin::policies {
namespace {

using runtime::EntryId;

class Static final : public runtime::Policy {
 public:
  explicit Static(hal::ComputeSet units) : units_(units) {}
  std::string_view name() const override { return "static"; }

  runtime::Choice select(const runtime::ReadyOperation&, std::span<const EntryId> eligible,
                         const runtime::PoolView& pool) override {
    // The widest eligible entry inside the partition; the exact one where the pool has it.
    EntryId best = eligible.back();
    std::uint32_t processors = 0;
    for (const EntryId id : eligible) {
      const runtime::PoolEntry& entry = pool.entries[id];
      if (entry.whole() || !partition(pool).contains(entry.compute)) continue;
      if (entry.processors > processors) {
        best = id;
        processors = entry.processors;
      }
    }
    // A launch that does not fit is an exception, not a reason to leave the partition.
    return {best, best == eligible.back() ? 1 : runtime::kUntilChanged};
  }

 private:
  hal::ComputeSet partition(const runtime::PoolView& pool) const {
    if (!units_.empty()) return units_;
    const unsigned units = pool.entries.front().compute.count();
    return hal::ComputeSet::range(0, units > 1 ? units / 2 : 1);
  }
  hal::ComputeSet units_;  // empty: the first half
};

constexpr Parameter kParameters[] = {
    {"units", "allocation units of the partition, like 0-7 or 0-3+8-11 (default: the first half)"}};

}  // namespace

const Description kStatic = {"static", "one fixed partition: a baseline", kParameters};

std::unique_ptr<runtime::Policy> make_static(Parameters& parameters, std::uint64_t) {
  hal::ComputeSet units;
  parameters.units("units", &units);
  return std::make_unique<Static>(units);
}

}  // namespace vitamin::policies
