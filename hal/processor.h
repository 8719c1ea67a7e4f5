// SPDX-License-Identifier: Apache-2.0
//
// What the processors that run us, x86-64 and arm64, do in different ways.
#pragma once

#include <cstdint>

namespace vitamin::hal {

// Between two looks at memory that another thread writes: leaves the core to its other thread.
// Takes between a cycle and 40 ns.
inline void spin_pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // a `yield` is no more than a nop on the cores that there are
#else
#error "only x86-64 and arm64 are known"
#endif
}

// A counter of constant rate, the same on all cores. The rate is the machine's own.
inline std::uint64_t time_stamp() {
#ifdef __x86_64__
  return __builtin_ia32_rdtsc();
#else
  std::uint64_t count = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#endif
}

}  // namespace vitamin::hal
