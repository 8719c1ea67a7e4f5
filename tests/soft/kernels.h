// SPDX-License-Identifier: Apache-2.0
//
// Kernels that the tests of the software device share.
#pragma once

#include "backends/soft/kernel.h"

namespace vitamin::soft {

using kernel::atomic_add;
using kernel::atomic_exchange;
using kernel::load_acquire;
using kernel::PerThread;
using kernel::store_release;

// Adds 1 to *counter once a block.
VITAMIN_KERNEL_WITH((.block_ns = 100), count_blocks, std::uint32_t* counter) {
  VITAMIN_ONCE { atomic_add(counter, 1u); }
}

// *out = *in + add, after `ns`.
VITAMIN_WAITING_KERNEL(add_later, const std::uint64_t* in, std::uint64_t* out, std::uint64_t add,
                       std::uint64_t ns) {
  VITAMIN_BUSY_NS(ns);
  VITAMIN_ONCE { *out = *in + add; }
}

// Takes `ns` a block and nothing else.
VITAMIN_WAITING_KERNEL(busy, std::uint64_t ns) { VITAMIN_BUSY_NS(ns); }

// Writes each block's place in the order of execution, and its SM.
VITAMIN_KERNEL(trace_order, std::uint32_t* next, std::uint32_t* place, std::uint32_t* sm) {
  VITAMIN_ONCE {
    place[block.linear_index()] = atomic_add(next, 1u);
    sm[block.linear_index()] = block.sm_id();
  }
}

// A sum by float atomics: its bits depend on the order of blocks.
VITAMIN_KERNEL(sum_atomic, const float* in, float* out, std::uint32_t count) {
  VITAMIN_ONCE {
    float sum = 0;
    for (std::uint32_t i = block.linear_index(); i < count; i += block.blocks()) sum += in[i];
    atomic_add(out, sum);
  }
}

// One partial sum a block by a fixed tree: the same bits everywhere.
VITAMIN_KERNEL_WITH((.static_shared = 128 * sizeof(float), .max_threads = 128), sum_partial,
                    const float* in, float* partial_sums, std::uint32_t count) {
  VITAMIN_SHARED(float, tree, [128]);
  PerThread<float> sum(block);
  VITAMIN_THREADS(t) {
    const std::uint32_t stride = block.blocks() * block.threads();
    for (std::uint32_t i = block.linear_index() * block.threads() + t; i < count; i += stride)
      sum[t] += in[i];
  }
  VITAMIN_THREADS(t) { tree[t] = sum[t]; }
  for (std::uint32_t width = block.threads() / 2; width != 0; width /= 2) {
    VITAMIN_THREADS(t) {
      if (t < width) tree[t] += tree[t + width];
    }
  }
  VITAMIN_ONCE { partial_sums[block.linear_index()] = tree[0]; }
}

// Every block waits for every other, twice.
VITAMIN_WAITING_KERNEL(grid_barrier, std::uint32_t* arrived, std::uint32_t* seen) {
  VITAMIN_ONCE { atomic_add(arrived, 1u); }
  VITAMIN_SPIN_UNTIL(load_acquire(arrived) >= block.blocks());
  VITAMIN_BUSY_NS(500);
  VITAMIN_ONCE { atomic_add(arrived, 1u); }
  VITAMIN_SPIN_UNTIL(load_acquire(arrived) == 2 * block.blocks());
  VITAMIN_ONCE { seen[block.linear_index()] = load_acquire(arrived); }
}

VITAMIN_WAITING_KERNEL(spin_on, const std::uint32_t* flag) {
  VITAMIN_SPIN_UNTIL(load_acquire(flag) != 0);
}

VITAMIN_WAITING_KERNEL(signal_after, std::uint32_t* flag, std::uint64_t ns) {
  VITAMIN_BUSY_NS(ns);
  VITAMIN_ONCE { store_release(flag, 1u); }
}

VITAMIN_KERNEL(note_clusters, std::uint32_t* sm, std::uint32_t* rank) {
  VITAMIN_ONCE {
    sm[block.linear_index()] = block.sm_id();
    rank[block.linear_index()] = block.cluster_rank();
  }
}

VITAMIN_KERNEL(touch_nothing) { VITAMIN_ILLEGAL_ADDRESS(); }

VITAMIN_KERNEL_WITH((.static_shared = 16), too_little_shared) {
  VITAMIN_SHARED(float, fits, [4]);
  VITAMIN_SHARED(float, does_not, [4]);
  VITAMIN_THREADS(t) {
    fits[t % 4] = 1;
    does_not[t % 4] = fits[t % 4];
    fits[t % 4] = does_not[t % 4];
  }
}

}  // namespace vitamin::soft
