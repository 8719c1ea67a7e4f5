// SPDX-License-Identifier: Apache-2.0
#include "runtime/submission/lock.h"

#include <chrono>
#include <thread>

#include "hal/processor.h"

namespace vitamin::runtime {
namespace {

constexpr std::chrono::microseconds kSpins{30};  // about what a sleep and a wake-up take
constexpr int kPausesBetweenLooks = 8;

}  // namespace

void Lock::lock_soon() {
  // With one processor the holder does not run meanwhile.
  static const bool spins = std::thread::hardware_concurrency() > 1;
  if (!spins) return unique_lock::lock();
  const auto until = std::chrono::steady_clock::now() + kSpins;
  while (std::chrono::steady_clock::now() < until) {
    for (int i = 0; i < kPausesBetweenLooks; ++i) hal::spin_pause();
    if (try_lock()) return;
  }
  unique_lock::lock();
}

}  // namespace vitamin::runtime
