// SPDX-License-Identifier: Apache-2.0
//
// How many SMs a set of a pool's units has. Exact for unions of the pool's partitions.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "scheduler/types.h"

namespace vitamin::scheduler {

class UnitWidths {
 public:
  // `pool`: [0] the whole device, then narrowest first.
  explicit UnitWidths(std::span<const Partition> pool) {
    hal::ComputeSet known;
    const auto learn = [&](const Partition& partition) {
      const hal::ComputeSet rest = partition.compute - known;
      if (rest.empty()) return;
      const std::uint32_t sms = partition.sms - of(partition.compute & known);
      std::uint32_t left = static_cast<std::uint32_t>(rest.count());
      std::uint32_t given = 0;
      for (std::uint64_t bits = rest.bits(); bits != 0; bits &= bits - 1, --left) {
        const std::uint32_t each = (sms - given + left - 1) / left;
        sms_[static_cast<std::size_t>(std::countr_zero(bits))] = each;
        given += each;
      }
      known |= partition.compute;
    };
    for (const Partition& partition : pool.subspan(1)) learn(partition);
    learn(pool.front());
  }

  std::uint32_t of(hal::ComputeSet units) const {
    std::uint32_t sms = 0;
    for (std::uint64_t bits = units.bits(); bits != 0; bits &= bits - 1)
      sms += sms_[static_cast<std::size_t>(std::countr_zero(bits))];
    return sms;
  }

 private:
  std::array<std::uint32_t, hal::ComputeSet::kMaxUnits> sms_{};
};

}  // namespace vitamin::scheduler
