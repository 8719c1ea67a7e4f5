// SPDX-License-Identifier: Apache-2.0
#include "runtime/pool/layout.h"

#include <doctest/doctest.h>

#include <random>
#include <set>

namespace vitamin::runtime {
namespace {

using hal::ComputeSet;

hal::DeviceInfo device(unsigned units, std::uint32_t last_unit_sms = 0) {
  hal::DeviceInfo info;
  for (unsigned unit = 0; unit < units; ++unit) info.sms_per_unit.push_back(8);
  if (last_unit_sms != 0) info.sms_per_unit.back() = last_unit_sms;
  info.sms = info.sms_of(ComputeSet::range(0, units));
  return info;
}

TEST_CASE("The pool of an H200 has 59 entries besides the whole device") {
  const PoolLayout layout = PoolLayout::build(device(16, 12));
  CHECK(layout.size() == 60);
  CHECK(layout.at(kWholeDevice).whole());
  CHECK(layout.at(kWholeDevice).sms == 132);
  // The paper's example: an 8-SM node and its 124-SM remainder.
  const PartitionId leaf = layout.find(ComputeSet::range(0, 1));
  const PartitionId remainder = layout.find(ComputeSet::range(1, 15));
  REQUIRE(leaf != kNoPartition);
  REQUIRE(remainder != kNoPartition);
  CHECK(layout.at(leaf).sms == 8);
  CHECK(layout.at(remainder).sms == 124);
  // A union of every unit is a partition of its own, and not the whole device.
  const PartitionId root = layout.find(ComputeSet::range(0, 16));
  REQUIRE(root != kNoPartition);
  CHECK(!layout.at(root).whole());
}

TEST_CASE("Every pool holds each leaf, each remainder and the root once, narrowest first") {
  for (unsigned units = 1; units <= 64; ++units) {
    const PoolLayout layout = PoolLayout::build(device(units, 1 + units % 8));
    const ComputeSet all = ComputeSet::range(0, units);
    CHECK(layout.all() == all);
    std::set<std::uint64_t> seen;
    std::uint32_t width = 0;
    for (const Partition& partition : layout.partitions()) {
      if (partition.whole()) continue;
      CHECK(seen.insert(partition.compute.bits()).second);
      CHECK(all.contains(partition.compute));
      CHECK(!partition.compute.empty());
      CHECK(partition.sms >= width);
      width = partition.sms;
    }
    if (units == 1) continue;
    CHECK(seen.contains(all.bits()));
    for (unsigned unit = 0; unit < units; ++unit) {
      const ComputeSet leaf = ComputeSet::range(unit, 1);
      CHECK(seen.contains(leaf.bits()));
      CHECK(seen.contains((all - leaf).bits()));
    }
  }
}

// The paper's rule, spelt out on the tree: "leasing a node excludes its ancestors and descendants,
// while leasing its remainder excludes the node's ancestors and sibling branches along the path to
// the root".
struct Node {
  unsigned first, count;
  int parent;
};
void grow(unsigned first, unsigned count, int parent, std::vector<Node>& nodes) {
  const int self = static_cast<int>(nodes.size());
  nodes.push_back({first, count, parent});
  if (count <= 1) return;
  const unsigned left = std::bit_ceil(count) / 2;
  grow(first, left, self, nodes);
  grow(first + left, count - left, self, nodes);
}
bool is_ancestor_or_self(const std::vector<Node>& nodes, int ancestor, int node) {
  for (; node >= 0; node = nodes[static_cast<std::size_t>(node)].parent)
    if (node == ancestor) return true;
  return false;
}

TEST_CASE("The traversal of the paper and one AND exclude the same nodes") {
  for (const unsigned units : {1U, 2U, 3U, 5U, 8U, 9U, 16U, 17U, 38U, 64U}) {
    std::vector<Node> nodes;
    grow(0, units, -1, nodes);
    const ComputeSet all = ComputeSet::range(0, units);
    for (int a = 0; a < static_cast<int>(nodes.size()); ++a) {
      const Node& node = nodes[static_cast<std::size_t>(a)];
      const ComputeSet counts_outstanding = ComputeSet::range(node.first, node.count);
      for (int b = 0; b < static_cast<int>(nodes.size()); ++b) {
        const Node& other = nodes[static_cast<std::size_t>(b)];
        const ComputeSet set = ComputeSet::range(other.first, other.count);
        const bool related = is_ancestor_or_self(nodes, a, b) || is_ancestor_or_self(nodes, b, a);
        CHECK(counts_outstanding.overlaps(set) == related);
        // The remainder of `a` excludes all but the descendants of `a` (and itself's subtree).
        if (a != 0)
          CHECK((all - counts_outstanding).overlaps(set) == !is_ancestor_or_self(nodes, a, b));
      }
    }
  }
}

TEST_CASE("A limit on entries is kept and runs fill the room that is asked for") {
  const PoolLayout small = PoolLayout::build(device(16, 12), {.partitions_max = 20});
  CHECK(small.size() == 21);
  const PoolLayout wide =
      PoolLayout::build(device(16, 12), {.partitions_max = 127, .all_runs = true});
  CHECK(wide.size() == 128);
  const PoolLayout coarse = PoolLayout::build(device(16, 12), {.leaf_units = 4});
  for (const Partition& partition : coarse.partitions()) CHECK(partition.compute.count() >= 4);
}

TEST_CASE("Overlap of compute sets is overlap of their units") {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20'000; ++i) {
    const ComputeSet a(random() & random()), b(random() & random());
    bool common = false, inside = true;
    unsigned count = 0;
    for (unsigned unit = 0; unit < 64; ++unit) {
      common = common || (a.has(unit) && b.has(unit));
      inside = inside && (!b.has(unit) || a.has(unit));
      count += a.has(unit) ? 1 : 0;
    }
    CHECK(a.overlaps(b) == common);
    CHECK(a.contains(b) == inside);
    CHECK(a.count() == count);
  }
  CHECK(ComputeSet::range(0, 64).count() == 64);
  CHECK(ComputeSet::range(63, 1).has(63));
  CHECK(ComputeSet::range(5, 0).empty());
}

}  // namespace
}  // namespace vitamin::runtime
