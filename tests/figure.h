// SPDX-License-Identifier: Apache-2.0
//
// For tests of a speed. Tests share their machine, and a loaded one makes a run slower, never
// faster: a figure that the code can reach shows in one of several tries, and one that it cannot
// reach shows in none.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace vitamin::test {

// The lowest of what `measure()` answers, asked until it is at most `enough`; waits longer and
// longer between tries, so that what disturbs has time to pass. `tries` bounds a failure's time.
template <class Measure>
double lowest(double enough, Measure measure, int tries = 12) {
  double best = measure();
  for (int i = 1; i < tries && best > enough; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20) * i);
    best = std::min(best, static_cast<double>(measure()));
  }
  return best;
}

// Seconds that `work()` takes.
template <class Work>
double seconds(Work work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace vitamin::test
