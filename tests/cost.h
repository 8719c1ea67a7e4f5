// SPDX-License-Identifier: Apache-2.0
//
// For tests of what code costs. Times are those of the machine that the limits were written for: a
// measurement is divided by how much slower than it this machine is, by the time of a fixed piece
// of work just before and just after. And tests share their machine, which makes a run slower,
// never faster: a cost that the code can reach shows in one of several tries, and one that it
// cannot reach shows in none.
#pragma once

#include <ctime>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <thread>

namespace vitamin::test {

// Seconds of this thread's processor time that `work()` takes.
template <class Work>
double seconds(Work work) {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  work();
  return now() - start;
}

// How many times as long as there a fixed piece of work takes here and now. The least of some: a
// machine is not slow for having done something else meanwhile.
inline double slowness() {
  constexpr double kThere = 13.4e-6;
  double least = 1e9;
  std::array<std::minstd_rand::result_type, 1024> values;
  for (int i = 0; i < 20; ++i)
    least = std::min(least, seconds([&] {
                       std::minstd_rand random(1);
                       for (auto& value : values) value = random();
                       std::sort(values.begin(), values.end());
                     }));
  return least / kThere;
}

#ifdef NDEBUG
constexpr int kTries = 12;  // bounds a failure's time
#else
constexpr int kTries = 1;  // no test limits what code costs that is not optimised
#endif

// The lowest of what `measure()` answers, in times of that machine, asked until it is at most
// `enough`; waits longer and longer between tries, so that what disturbs has time to pass.
template <class Measure>
double lowest(double enough, Measure measure) {
  const auto measured = [&] {
    const double before = slowness(), there = static_cast<double>(measure());
    return there / std::max(1.0, std::min(before, slowness()));
  };
  double best = measured();
  for (int i = 1; i < kTries && best > enough; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20) * i);
    best = std::min(best, measured());
  }
  return best;
}

}  // namespace vitamin::test
