// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the CI programs: a software module (test_kernels.so) and, where nvcc is, a
// test_kernels.fatbin for GPUs. Names and parameters are the same in both.
#include "backends/soft/kernel.h"

namespace vk = vitamin::kernel;

// A variable of the module.
#if defined(__CUDACC__)
extern "C" __device__ std::uint32_t module_counter = 5;
#else
extern "C" __attribute__((visibility("default"))) std::uint32_t module_counter;
std::uint32_t module_counter = 5;
#endif

VITAMIN_KERNEL(fill, std::uint32_t* data, std::uint32_t value, std::uint32_t count) {
  VITAMIN_THREADS(t) {
    const std::uint32_t i = block.linear_index() * block.threads() + t;
    if (i < count) data[i] = value;
  }
}

VITAMIN_KERNEL(add, std::uint32_t* data, std::uint32_t value, std::uint32_t count) {
  VITAMIN_THREADS(t) {
    const std::uint32_t i = block.linear_index() * block.threads() + t;
    if (i < count) data[i] += value;
  }
}

VITAMIN_KERNEL(copy, std::uint32_t* target, const std::uint32_t* source, std::uint32_t count) {
  VITAMIN_THREADS(t) {
    const std::uint32_t i = block.linear_index() * block.threads() + t;
    if (i < count) target[i] = source[i];
  }
}

VITAMIN_KERNEL(axpy, float* y, const float* x, float a, std::uint32_t count) {
  VITAMIN_THREADS(t) {
    const std::uint32_t i = block.linear_index() * block.threads() + t;
    if (i < count) y[i] = a * x[i] + y[i];
  }
}

// log[0] counts; log[1 ...] are the values in the order in which the kernels ran.
VITAMIN_KERNEL(append, std::uint32_t* log, std::uint32_t value) {
  VITAMIN_ONCE {
    if (block.linear_index() == 0) log[1 + vk::atomic_add(&log[0], std::uint32_t{1})] = value;
  }
}

VITAMIN_KERNEL(add_to_module_counter, std::uint32_t* seen, std::uint32_t value) {
  VITAMIN_ONCE {
    module_counter += value;
    *seen = module_counter;
  }
}

struct Odd {
  std::int8_t a;
  double b;
  short c;
};

// Parameters with holes between them.
VITAMIN_KERNEL(parameters, std::uint64_t* out, std::int8_t small, double wide, Odd odd,
               std::uint8_t last) {
  VITAMIN_ONCE {
    out[0] = static_cast<std::uint64_t>(small);
    out[1] = static_cast<std::uint64_t>(wide);
    out[2] = static_cast<std::uint64_t>(odd.a);
    out[3] = static_cast<std::uint64_t>(odd.b);
    out[4] = static_cast<std::uint64_t>(odd.c);
    out[5] = last;
  }
}

VITAMIN_KERNEL(nothing) {
  VITAMIN_ONCE {}
}

// out[block] = the sum of 0 ... threads-1, through dynamic shared memory.
VITAMIN_KERNEL(shared_sum, std::uint32_t* out) {
  VITAMIN_DYNAMIC_SHARED(std::uint32_t, values);
  VITAMIN_THREADS(t) { values[t] = t; }
  VITAMIN_ONCE {
    std::uint32_t sum = 0;
    for (std::uint32_t i = 0; i < block.threads(); ++i) sum += values[i];
    out[block.linear_index()] = sum;
  }
}

// Which SM each block ran on.
VITAMIN_KERNEL(where, std::uint32_t* sm_of_block) {
  VITAMIN_ONCE { sm_of_block[block.linear_index()] = block.sm_id(); }
}

// A result that depends on the order of the blocks: what a correct program never computes. Shows
// that placements differ.
VITAMIN_KERNEL(order_of_blocks, std::uint64_t* hash) {
  VITAMIN_ONCE {
    std::uint64_t seen, next;
    do {
      seen = vk::load_acquire(hash);
      next = seen * 1099511628211u + block.linear_index() + 1;
    } while (vk::atomic_cas(reinterpret_cast<unsigned long long*>(hash),
                            static_cast<unsigned long long>(seen),
                            static_cast<unsigned long long>(next)) != seen);
  }
}

VITAMIN_KERNEL(cluster_ranks, std::uint32_t* rank_of_block) {
  VITAMIN_ONCE { rank_of_block[block.linear_index()] = block.cluster_rank(); }
}

// Takes time.
VITAMIN_WAITING_KERNEL(busy, std::uint64_t ns) { VITAMIN_BUSY_NS(ns); }

// Takes time, then adds: a reader that did not wait sees the old value.
VITAMIN_WAITING_KERNEL(slow_add, std::uint32_t* data, std::uint32_t value, std::uint64_t ns) {
  VITAMIN_BUSY_NS(ns);
  VITAMIN_ONCE { vk::atomic_add(data, value); }
}

// Takes time, then copies.
VITAMIN_WAITING_KERNEL(slow_copy, std::uint32_t* target, const std::uint32_t* source,
                       std::uint32_t count, std::uint64_t ns) {
  VITAMIN_BUSY_NS(ns);
  VITAMIN_THREADS(t) {
    for (std::uint32_t i = t; i < count; i += block.threads()) target[i] = source[i];
  }
}

// Ends when the host, or another kernel, says so.
VITAMIN_WAITING_KERNEL(spin_until_equal, const std::uint32_t* word, std::uint32_t value) {
  VITAMIN_SPIN_UNTIL(vk::load_acquire(word) == value);
}

// Two phases with a barrier across the whole grid between them: hangs unless every block is
// resident. `arrived` starts at zero.
VITAMIN_WAITING_KERNEL(grid_barrier, std::uint32_t* arrived, std::uint32_t* out) {
  VITAMIN_ONCE { vk::atomic_add(arrived, std::uint32_t{1}); }
  VITAMIN_SPIN_UNTIL(vk::load_acquire(arrived) >= block.blocks());
  VITAMIN_ONCE { out[block.linear_index()] = 1; }
}

VITAMIN_KERNEL(fault, [[maybe_unused]] std::uint32_t* word) {
  VITAMIN_ONCE { VITAMIN_ILLEGAL_ADDRESS(); }
}

VITAMIN_KERNEL(trap, [[maybe_unused]] std::uint32_t* word) {
  VITAMIN_ONCE { VITAMIN_TRAP(); }
}
