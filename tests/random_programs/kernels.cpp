// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the random CUDA programs.
#include "backends/soft/kernel.h"

namespace vk = vitamin::kernel;

// Takes time, then makes every word of `to` depend on what it was, on `from` and on `value`, so
// that an operation that ran too early, too late or twice is seen. The reference is mixed() in
// model.h.
VITAMIN_WAITING_KERNEL(mix, std::uint32_t* to, const std::uint32_t* from, std::uint32_t value,
                       std::uint32_t count, std::uint64_t ns) {
  VITAMIN_BUSY_NS(ns);
  VITAMIN_THREADS(t) {
    const std::uint32_t first = block.linear_index() * block.threads() + t;
    for (std::uint32_t i = first; i < count; i += block.threads() * block.blocks())
      to[i] = (to[i] ^ value) * 2654435761u + from[i];
  }
}

// By one thread. Two that overlap lose one of the values; any order of several has one result.
VITAMIN_WAITING_KERNEL(add_slowly, std::uint32_t* word, std::uint32_t value, std::uint64_t ns) {
  const std::uint32_t before = *word;
  VITAMIN_BUSY_NS(ns);
  VITAMIN_ONCE { *word = before + value; }
}

VITAMIN_KERNEL(nothing) {
  VITAMIN_ONCE {}
}

// Ends when the host says so.
VITAMIN_WAITING_KERNEL(spin_until_equal, const std::uint32_t* word, std::uint32_t value) {
  VITAMIN_SPIN_UNTIL(vk::load_acquire(word) == value);
}

// Hangs unless every block is resident. `arrived` starts at zero.
VITAMIN_WAITING_KERNEL(grid_barrier, std::uint32_t* arrived) {
  VITAMIN_ONCE { vk::atomic_add(arrived, std::uint32_t{1}); }
  VITAMIN_SPIN_UNTIL(vk::load_acquire(arrived) >= block.blocks());
}
