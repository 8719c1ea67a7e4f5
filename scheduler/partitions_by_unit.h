// SPDX-License-Identifier: Apache-2.0
//
// Which partitions of a pool have a unit: those without any of some units are found at a cost of
// O(units + found), not of a look at each partition.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/types.h"

namespace vitamin::scheduler {

class PartitionsByUnit {
 public:
  // `pool`: partitions by id.
  explicit PartitionsByUnit(std::span<const Partition> pool) : words_((pool.size() + 63) / 64) {
    for (const Partition& partition : pool) {
      Word& word = words_[partition.id / 64];
      const std::uint64_t bit = std::uint64_t{1} << partition.id % 64;
      word.known |= bit;
      for (std::uint64_t units = partition.compute.bits(); units != 0; units &= units - 1)
        word.with[static_cast<std::size_t>(std::countr_zero(units))] |= bit;
    }
  }

  // Calls `visit` with the id of each partition from `first` on that has none of the units, by id.
  template <class Visit>
  void for_each_without(hal::ComputeSet units, PartitionId first, Visit visit) const {
    std::uint64_t skipped = (std::uint64_t{1} << first % 64) - 1;
    for (std::size_t i = first / 64; i < words_.size(); ++i, skipped = 0) {
      std::uint64_t found = words_[i].known & ~skipped;
      for (std::uint64_t bits = units.bits(); bits != 0; bits &= bits - 1)
        found &= ~words_[i].with[static_cast<std::size_t>(std::countr_zero(bits))];
      for (; found != 0; found &= found - 1)
        visit(static_cast<PartitionId>(i * 64 + static_cast<std::size_t>(std::countr_zero(found))));
    }
  }

 private:
  struct Word {  // of 64 partitions, a bit each
    std::uint64_t known = 0;
    std::array<std::uint64_t, hal::ComputeSet::kMaxUnits> with{};  // each unit
  };
  std::vector<Word> words_;
};

}  // namespace vitamin::scheduler
