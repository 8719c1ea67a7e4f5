// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the random programs.
#include "backends/soft/kernel.h"

namespace vk = vitamin::kernel;

// Takes time, then makes every word of `to` depend on what it was, on `from` and on `value`, so
// that an operation that ran too early, too late or twice is seen. The reference is in
// random_programs.cpp.
VITAMIN_WAITING_KERNEL(mix, std::uint32_t* to, const std::uint32_t* from, std::uint32_t value,
                       std::uint32_t count, std::uint64_t ns) {
  VITAMIN_BUSY_NS(ns);
  VITAMIN_THREADS(t) {
    for (std::uint32_t i = t; i < count; i += block.threads())
      to[i] = (to[i] ^ value) * 2654435761u + from[i];
  }
}

// Of the programs that give advice: counts its launches.
VITAMIN_KERNEL(advised_kernel, std::uint32_t* launches) {
  VITAMIN_ONCE { vk::atomic_add(launches, 1u); }
}
