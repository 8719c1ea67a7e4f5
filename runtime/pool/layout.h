// SPDX-License-Identifier: Apache-2.0
//
// Which ComputeSets a device's pool offers: pure, computed once at start.
//
// The paper's hierarchical pool (section "Physical Contexts"): a buddy tree over the units, every
// node, and for every node but the root its remainder (all other units); equal sets are kept once.
// An H200 (16 units) gives 59, and partition 0 beside them, the whole device: every unit, through
// the program's own streams, so a program alone loses nothing. The tree's root has every unit, too,
// but through queues of the pool.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hal/compute_set.h"
#include "hal/device.h"

namespace vitamin::runtime {

using PartitionId = std::uint16_t;
inline constexpr PartitionId kWholeDevice = 0;
inline constexpr PartitionId kNoPartition = 0xffff;
inline constexpr std::size_t kPartitionsMax = 512;  // of one pool, the whole device included

struct Partition {
  PartitionId id = kNoPartition;
  hal::ComputeSet compute;  // of the whole device and of the tree's root: every unit
  std::uint32_t sms = 0;    // SMs or CUs
  bool whole() const { return id == kWholeDevice; }
};

struct PoolLimits {
  std::uint32_t partitions_max = 256;  // besides the whole device
  std::uint32_t leaf_units = 1;        // units of the smallest partition
  // Also every run of neighbouring units, narrowest first, until partitions_max: more sizes for
  // more memory (5.5 MiB of GPU memory a partition on an H200). Off: the paper's tree.
  bool all_runs = false;
  friend bool operator==(const PoolLimits&, const PoolLimits&) = default;
};

class PoolLayout {
 public:
  PoolLayout() = default;
  // Requires 1 <= info.units() <= 64; a device of one unit has only the whole device.
  static PoolLayout build(const hal::DeviceInfo& info, const PoolLimits& limits = {});

  std::span<const Partition> partitions() const { return partitions_; }
  const Partition& at(PartitionId id) const { return partitions_[id]; }
  std::size_t size() const { return partitions_.size(); }
  hal::ComputeSet all() const { return partitions_.front().compute; }
  // The partition with exactly this set, or kNoPartition. The whole device is never the answer.
  PartitionId find(hal::ComputeSet compute) const;

 private:
  std::vector<Partition> partitions_;  // [0] the whole device, then narrowest first
};

}  // namespace vitamin::runtime
