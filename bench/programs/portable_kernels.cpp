// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the measurements that run on the GPU and on the software device alike.
#include "backends/soft/kernel.h"

#if !defined(VITAMIN_KERNEL_ON_GPU)
#include <ctime>
#endif

namespace vk = vitamin::kernel;

namespace {

// The device's clock. The software device has the host's.
VITAMIN_DEVICE std::uint64_t clock_ns() {
#if defined(VITAMIN_KERNEL_ON_GPU)
  return vk::device_time_ns();
#else
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
#endif
}

}  // namespace

// One block: keeps its entry for `ns`, and says when it began and when it ended.
VITAMIN_WAITING_KERNEL(occupy, std::uint64_t* span, std::uint64_t ns) {
  VITAMIN_ONCE { vk::store_release(span, clock_ns()); }
  VITAMIN_BUSY_NS(ns);
  VITAMIN_ONCE { vk::store_release(span + 1, clock_ns()); }
}

// Answers a question of the host with the device's time.
VITAMIN_WAITING_KERNEL(tell_time, const std::uint32_t* asked, std::uint32_t value,
                       std::uint64_t* told) {
  VITAMIN_SPIN_UNTIL(vk::load_acquire(asked) == value);
  VITAMIN_ONCE { vk::store_release(told, clock_ns()); }
}

// `rounds` multiplications and additions in a row in every thread. On the software device, which
// has no processors to be busy, it lasts `ns` instead.
VITAMIN_WAITING_KERNEL(compute, float* out, std::uint32_t rounds, std::uint64_t ns) {
#if defined(VITAMIN_KERNEL_ON_GPU)
  (void)ns;
  float x = static_cast<float>(threadIdx.x);
  for (std::uint32_t i = 0; i < rounds; ++i) x = fmaf(x, 0.999f, 0.5f);
  if (x == -1.0f) *out = x;
#else
  (void)rounds;
  (void)out;
  VITAMIN_BUSY_NS(ns);
#endif
}

// Every block waits until all have arrived: hangs unless the whole grid is resident. `arrived`
// starts at zero. `out`: one word a block.
VITAMIN_WAITING_KERNEL(grid_barrier, std::uint32_t* arrived, std::uint32_t* out) {
  VITAMIN_ONCE { vk::atomic_add(arrived, std::uint32_t{1}); }
  VITAMIN_SPIN_UNTIL(vk::load_acquire(arrived) >= block.blocks());
  VITAMIN_ONCE { out[block.linear_index()] = 1; }
}

// As stream-K does: each block waits for the partial sum of the block behind it in the grid, which
// starts later, adds its own and hands it on. The first one has the sum.
VITAMIN_WAITING_KERNEL(carry_over, std::uint32_t* sums, std::uint32_t* out) {
  const std::uint32_t i = block.linear_index();
  if (i + 1 < block.blocks()) VITAMIN_SPIN_UNTIL(vk::load_acquire(&sums[i + 1]) != 0);
  VITAMIN_ONCE {
    const std::uint32_t behind = i + 1 < block.blocks() ? vk::load_acquire(&sums[i + 1]) : 0;
    vk::store_release(&sums[i], behind + i + 1);
    out[i] = behind + i + 1;
  }
}

// Persistent blocks take numbers from a counter until none is left, as persistent matrix products
// do: any number of resident blocks finishes.
VITAMIN_KERNEL(persistent, std::uint32_t* next, std::uint32_t count, std::uint32_t* out) {
  VITAMIN_ONCE {
    for (;;) {
      const std::uint32_t i = vk::atomic_add(next, std::uint32_t{1});
      if (i >= count) break;
      out[i] = 1;
    }
  }
}

// out[block] = its rank in its cluster + 1.
VITAMIN_KERNEL(cluster_rank, std::uint32_t* out) {
  VITAMIN_ONCE { out[block.linear_index()] = block.cluster_rank() + 1; }
}

VITAMIN_KERNEL(add_one, std::uint32_t* out) {
  VITAMIN_ONCE { vk::atomic_add(out, std::uint32_t{1}); }
}

// Two of them, in two streams or two processes, wait for each other.
VITAMIN_WAITING_KERNEL(meet, std::uint32_t* mine, const std::uint32_t* other, std::uint32_t* out) {
  VITAMIN_ONCE { vk::store_release(mine, std::uint32_t{1}); }
  VITAMIN_SPIN_UNTIL(vk::load_acquire(other) != 0);
  VITAMIN_ONCE { *out = 1; }
}

VITAMIN_KERNEL(fault, [[maybe_unused]] std::uint32_t* word) {
  VITAMIN_ONCE { VITAMIN_ILLEGAL_ADDRESS(); }
}

VITAMIN_KERNEL(fault_by_trap, [[maybe_unused]] std::uint32_t* word) {
  VITAMIN_ONCE { VITAMIN_TRAP(); }
}

// One rank's part of a collective: hands over `count` floats, waits until every rank has handed
// over those of this round, and takes all of them in the order of the ranks. `board`: two halves
// of world * count floats, and `rounds`: a word for each rank and block, in memory that all ranks
// see. As NCCL's kernels it ends only if those of all ranks run at one time.
VITAMIN_WAITING_KERNEL(all_gather, const float* mine, float* all, std::uint32_t count, float* board,
                       std::uint32_t* rounds, std::uint32_t rank, std::uint32_t world,
                       std::uint32_t round) {
  const std::uint32_t i = block.linear_index(), blocks = block.blocks();
  const std::uint32_t begin = count / blocks * i;
  const std::uint32_t end = i + 1 < blocks ? begin + count / blocks : count;
  // A rank is at most a round ahead of the slowest, which may still read the other half.
  float* const half = board + round % 2 * world * count;
  VITAMIN_THREADS(t) {
    for (std::uint32_t n = begin + t; n < end; n += block.threads())
      half[rank * count + n] = mine[n];
  }
  VITAMIN_ONCE { vk::store_release(rounds + rank * blocks + i, round); }
  for (std::uint32_t other = 0; other < world; ++other)
    VITAMIN_SPIN_UNTIL(vk::load_acquire(rounds + other * blocks + i) >= round);
  VITAMIN_THREADS(t) {
    for (std::uint32_t other = 0; other < world; ++other)
      for (std::uint32_t n = begin + t; n < end; n += block.threads())
        all[other * count + n] = half[other * count + n];
  }
}

// A layer of a rank's model: every weight moves towards a function of itself and its neighbour.
VITAMIN_KERNEL(rank_layer, const float* weights, float* moved, std::uint32_t count, float rate) {
  VITAMIN_THREADS(t) {
    for (std::uint32_t n = block.linear_index() * block.threads() + t; n < count;
         n += block.blocks() * block.threads()) {
      const float x = weights[n], next = weights[n + 1 < count ? n + 1 : 0];
      moved[n] = x + rate * (next * (1.0f - x * x) - 0.3f * x);
    }
  }
}

// The mean of what the ranks handed over, added up from rank `first` on.
VITAMIN_KERNEL(rank_mean, const float* all, float* weights, std::uint32_t count,
               std::uint32_t world, std::uint32_t first) {
  VITAMIN_THREADS(t) {
    for (std::uint32_t n = block.linear_index() * block.threads() + t; n < count;
         n += block.blocks() * block.threads()) {
      float sum = 0.0f;
      for (std::uint32_t i = 0; i < world; ++i) sum += all[(first + i) % world * count + n];
      weights[n] = sum / static_cast<float>(world);
    }
  }
}
