// SPDX-License-Identifier: Apache-2.0
//
// Which ComputeSets a device's pool offers: pure, computed once at start.
//
// The paper's hierarchical pool (section "Physical Contexts"): a buddy tree over the units, every
// node, and for every node but the root its remainder (all other units); equal sets are kept once.
// An H200 (16 units) gives 59 entries. Entry 0 is always the whole device, which is not a set of
// units but the application's own streams: a job alone loses nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hal/compute_set.h"
#include "hal/device.h"

namespace vitamin::runtime {

using EntryId = std::uint16_t;
inline constexpr EntryId kWholeDevice = 0;
inline constexpr EntryId kNoEntry = 0xffff;
inline constexpr std::size_t kEntriesMax = 512;  // of one pool, the whole device included

struct PoolEntry {
  EntryId id = kNoEntry;
  hal::ComputeSet compute;       // of the whole device: every unit
  std::uint32_t processors = 0;  // SMs or CUs
  bool whole() const { return id == kWholeDevice; }
};

struct PoolLimits {
  std::uint32_t entries_max = 256;  // besides the whole device
  std::uint32_t leaf_units = 1;     // units of the smallest entry
  // Also every run of neighbouring units, narrowest first, until entries_max: more sizes for more
  // memory (5.5 MiB of GPU memory an entry on an H200). Off: the paper's tree.
  bool all_runs = false;
  friend bool operator==(const PoolLimits&, const PoolLimits&) = default;
};

class PoolLayout {
 public:
  PoolLayout() = default;
  // Requires 1 <= info.units() <= 64; a device of one unit has only the whole device.
  static PoolLayout build(const hal::DeviceInfo& info, const PoolLimits& limits = {});

  std::span<const PoolEntry> entries() const { return entries_; }
  const PoolEntry& at(EntryId id) const { return entries_[id]; }
  std::size_t size() const { return entries_.size(); }
  hal::ComputeSet all() const { return entries_.front().compute; }
  // The entry with exactly this set, or kNoEntry. The whole device is never the answer.
  EntryId find(hal::ComputeSet compute) const;

 private:
  std::vector<PoolEntry> entries_;  // [0] the whole device, then narrowest first
};

}  // namespace vitamin::runtime
