// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the conformance suite, one source for every device (backends/soft/kernel.h).
#include "backends/soft/kernel.h"

// *out = *in + add, once the host has stored something in *go.
VITAMIN_WAITING_KERNEL(add_later, const std::uint64_t* in, std::uint64_t* out, std::uint64_t add,
                       const std::uint32_t* go) {
  VITAMIN_SPIN_UNTIL(vitamin::kernel::load_acquire(go) != 0);
  VITAMIN_ONCE { *out = *in + add; }
}

// *out = *in + add, after `ns`.
VITAMIN_WAITING_KERNEL(add_slowly, const std::uint64_t* in, std::uint64_t* out, std::uint64_t add,
                       std::uint64_t ns) {
  VITAMIN_BUSY_NS(ns);
  VITAMIN_ONCE { *out = *in + add; }
}

// Which processor each block ran on.
VITAMIN_KERNEL(places, unsigned* seen) {
  VITAMIN_ONCE { seen[block.linear_index()] = block.sm_id(); }
}

// A sum whose order is the launch's: one partial sum a block.
VITAMIN_KERNEL_WITH((.static_shared = 64 * 4, .max_threads = 64), partial_sums, float* sums,
                    unsigned count) {
  VITAMIN_SHARED(float, cells, [64]);
  VITAMIN_THREADS(t) {
    float sum = 0;
    for (unsigned i = block.linear_index() * 64 + t; i < count; i += block.blocks() * 64)
      sum += 1.0f / static_cast<float>(i + 1);
    cells[t] = sum;
  }
  for (unsigned half = 32; half > 0; half /= 2) {
    VITAMIN_THREADS(t) {
      if (t < half) cells[t] += cells[t + half];
    }
  }
  VITAMIN_ONCE { sums[block.linear_index()] = cells[0]; }
}
