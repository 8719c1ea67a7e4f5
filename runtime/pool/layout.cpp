// SPDX-License-Identifier: Apache-2.0
#include "runtime/pool/layout.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace vitamin::runtime {
namespace {

using hal::ComputeSet;

// The buddy tree over [first, first + count): a node that is no power of two splits at the largest
// power of two below it, so the left part stays aligned and odd remainders end on the right.
void add_nodes(unsigned first, unsigned count, unsigned leaf, std::vector<ComputeSet>& nodes) {
  nodes.push_back(ComputeSet::range(first, count));
  if (count <= leaf) return;
  const unsigned left = std::max(leaf, std::bit_ceil(count) / 2);
  add_nodes(first, left, leaf, nodes);
  add_nodes(first + left, count - left, leaf, nodes);
}

void add_runs(unsigned units, std::size_t wanted, std::vector<ComputeSet>& sets) {
  for (unsigned count = 1; count < units; ++count)
    for (unsigned first = 0; first + count <= units; ++first) {
      if (sets.size() >= wanted) return;
      const ComputeSet run = ComputeSet::range(first, count);
      if (std::find(sets.begin(), sets.end(), run) == sets.end()) sets.push_back(run);
    }
}

}  // namespace

PoolLayout PoolLayout::build(const hal::DeviceInfo& info, const PoolLimits& limits) {
  const unsigned units = info.units();
  assert(units >= 1 && units <= ComputeSet::kMaxUnits);
  const ComputeSet all = ComputeSet::range(0, units);

  std::vector<ComputeSet> nodes;
  if (units > 1) add_nodes(0, units, std::max(1U, limits.leaf_units), nodes);
  std::vector<ComputeSet> sets;
  auto add = [&](ComputeSet set) {
    if (!set.empty() && std::find(sets.begin(), sets.end(), set) == sets.end()) sets.push_back(set);
  };
  for (ComputeSet node : nodes) add(node);
  for (ComputeSet node : nodes) add(all - node);
  if (limits.all_runs) add_runs(units, limits.partitions_max, sets);

  // Narrowest first; a limit drops the partitions in the middle of the pack last: the narrow ones
  // are what sharing needs, the widest what a lone job needs, so it drops remainders before nodes.
  const std::size_t most = std::min<std::size_t>(limits.partitions_max, kPartitionsMax - 1);
  if (sets.size() > most) sets.resize(most);
  std::vector<Partition> parts;
  for (ComputeSet set : sets) parts.push_back({kNoPartition, set, info.sms_of(set)});
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Partition& a, const Partition& b) { return a.sms < b.sms; });

  PoolLayout layout;
  layout.partitions_.push_back({kWholeDevice, all, info.sms});
  for (Partition& part : parts) {
    part.id = static_cast<PartitionId>(layout.partitions_.size());
    layout.partitions_.push_back(part);
  }
  return layout;
}

PartitionId PoolLayout::find(hal::ComputeSet compute) const {
  for (const Partition& partition : partitions_)
    if (!partition.whole() && partition.compute == compute) return partition.id;
  return kNoPartition;
}

}  // namespace vitamin::runtime
