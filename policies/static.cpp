// SPDX-License-Identifier: Apache-2.0
//
// static: one fixed partition for the whole life of the process, as MPS percentages or a green
// context would give it. A baseline, and a way to share a device by hand. Where it decides for many
// clients, the device is cut into `parts` of equal size, which clients get in the order in which
// they come; those of one part take turns.
#include <algorithm>
#include <vector>

#include "policies/builtin.h"

namespace vitamin::policies {
namespace {

using runtime::EntryId;

constexpr runtime::ClientId kNobody = 0;

class Static final : public runtime::Policy {
 public:
  Static(hal::ComputeSet units, std::uint32_t parts) : units_(units), parts_(parts) {}
  std::string_view name() const override { return "static"; }

  // The oldest whose part is not taken.
  std::optional<std::size_t> pick(std::span<const runtime::ReadyOperation> ready,
                                  const runtime::PoolView& pool) override {
    std::optional<std::size_t> oldest;
    for (std::size_t i = 0; i < ready.size(); ++i)
      if (!oldest || ready[i].since_ns < ready[*oldest].since_ns) oldest = i;
    return pool.epoch == 0 ? 0 : oldest;
  }

  runtime::Choice select(const runtime::ReadyOperation& operation,
                         std::span<const EntryId> eligible,
                         const runtime::PoolView& pool) override {
    const hal::ComputeSet mine = partition(operation.client, pool);
    // The widest eligible entry inside the partition; the exact one where the pool has it.
    EntryId best = eligible.back();
    std::uint32_t processors = 0;
    for (const EntryId id : eligible) {
      const runtime::PoolEntry& entry = pool.entries[id];
      if (entry.whole() || !mine.contains(entry.compute)) continue;
      if (entry.processors > processors) {
        best = id;
        processors = entry.processors;
      }
    }
    if (pool.epoch != 0 && processors == 0 && operation.processors <= widest_in(mine, pool))
      return {runtime::kNoEntry, 0};  // somebody else's turn
    // A launch that does not fit is an exception, not a reason to leave the partition.
    return {best, best == eligible.back() ? 1 : runtime::kUntilChanged};
  }

  void forget(runtime::ClientId client) override {
    std::replace(clients_.begin(), clients_.end(), client, kNobody);
  }

 private:
  static std::uint32_t widest_in(hal::ComputeSet part, const runtime::PoolView& pool) {
    std::uint32_t widest = 0;
    for (const runtime::PoolEntry& entry : pool.entries.subspan(1))
      if (part.contains(entry.compute)) widest = entry.processors;
    return widest;
  }

  hal::ComputeSet partition(runtime::ClientId client, const runtime::PoolView& pool) {
    if (!units_.empty()) return units_;
    const unsigned units = pool.entries.front().compute.count();
    if (pool.epoch == 0) return hal::ComputeSet::range(0, units > 1 ? units / 2 : 1);
    auto known = std::find(clients_.begin(), clients_.end(), client);
    if (known == clients_.end())  // the place of one that has gone, else the next
      known = std::find(clients_.begin(), clients_.end(), kNobody);
    const auto place = static_cast<std::size_t>(known - clients_.begin());
    if (known == clients_.end()) clients_.push_back(client);
    clients_[place] = client;
    const auto nth = static_cast<unsigned>(place) % parts_;
    const unsigned first = units * nth / parts_, last = units * (nth + 1) / parts_;
    return hal::ComputeSet::range(first, std::max(1U, last - first));
  }

  hal::ComputeSet units_;  // empty: the first half, or as many parts as were asked for
  std::uint32_t parts_;
  std::vector<runtime::ClientId> clients_;  // by place, in the order in which they came
};

constexpr Parameter kParameters[] = {
    {"units", "allocation units of the partition, like 0-7 or 0-3+8-11 (default: the first half)"},
    {"parts", "among many clients: how many parts of equal size (default 2)"}};

}  // namespace

const Description kStatic = {"static", "one fixed partition: a baseline", kParameters};

std::unique_ptr<runtime::Policy> make_static(Parameters& parameters, std::uint64_t) {
  hal::ComputeSet units;
  std::uint32_t parts = 2;
  parameters.units("units", &units);
  parameters.number("parts", 1, 16, &parts);
  return std::make_unique<Static>(units, parts);
}

}  // namespace vitamin::policies
