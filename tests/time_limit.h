// SPDX-License-Identifier: Apache-2.0
//
// Limits of wall-clock time in tests. A limit ends a test that hangs; it is no verdict on speed,
// and costs nothing while the test passes. Callers pass a generous time for an idle machine; it is
// multiplied here by what slows a test down: VITAMIN_TEST_TIME_SCALE=F sets the factor, else it
// follows from sanitizers and from how many runnable threads share a processor. The same for
// Python: tests/time_limit.py.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace vitamin::test {

// For machines that say nothing of what slows them: CPU quotas, other virtual machines.
inline constexpr double kUsualTimeScale = 4;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr double kBuildTimeScale = 3;
#else
inline constexpr double kBuildTimeScale = 1;
#endif

inline double time_scale() {
  if (const char* set = std::getenv("VITAMIN_TEST_TIME_SCALE"); set != nullptr && *set != '\0') {
    char* end = nullptr;
    const double given = std::strtod(set, &end);
    if (*end == '\0' && given > 0) return given;
    std::fprintf(stderr, "VITAMIN_TEST_TIME_SCALE=%s is not a factor\n", set);
    std::exit(2);
  }
  double minute = 0, running = 0;
  if (std::FILE* file = std::fopen("/proc/loadavg", "r")) {
    if (std::fscanf(file, "%lf %*s %*s %lf", &minute, &running) != 2) minute = running = 0;
    std::fclose(file);
  }
  const double per_processor =
      std::max(minute, running) / std::max(1u, std::thread::hardware_concurrency());
  return kUsualTimeScale * kBuildTimeScale * std::clamp(per_processor, 1.0, 10.0);
}

// The limit for what takes at most `plenty` on an idle machine.
template <class Rep, class Period>
std::chrono::nanoseconds time_limit(std::chrono::duration<Rep, Period> plenty) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double, Period>(plenty) * time_scale());
}

// Waits until `condition()` is true, and answers whether it became so within the limit.
template <class Condition>
bool eventually(Condition condition, std::chrono::nanoseconds plenty = std::chrono::seconds(10)) {
  const auto limit = std::chrono::steady_clock::now() + time_limit(plenty);
  while (!condition()) {
    // Asked once more: this thread may have been off its processor since the question.
    if (std::chrono::steady_clock::now() > limit) return condition();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace vitamin::test
