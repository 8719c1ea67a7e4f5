// SPDX-License-Identifier: Apache-2.0
//
// Preloaded into a program of an older Debian: uses what interpose/glibc_floor brings along, and
// says so.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>

namespace {

int thrown_and_caught() {
  try {
    throw std::runtime_error("thrown");
  } catch (const std::exception& error) {
    return error.what()[0] == 't' ? 1 : 0;
  }
}

bool waits_as_long_as_asked() {
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  const auto started = std::chrono::steady_clock::now();
  const auto until = started + std::chrono::milliseconds(20);
  while (never.wait_until(lock, until) == std::cv_status::no_timeout) {
  }
  return std::chrono::steady_clock::now() >= until;
}

bool wakes_when_told() {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::thread other([&] {
    const std::lock_guard lock(mutex);
    done = true;
    changed.notify_one();
  });
  std::unique_lock lock(mutex);
  const bool told = changed.wait_for(lock, std::chrono::hours(1), [&] { return done; });
  lock.unlock();
  other.join();
  return told;
}

bool finds_files() {
  struct stat facts {};
  return ::stat("/proc/self/exe", &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size > 0 &&
         ::lstat("/proc/self/exe", &facts) == 0 && S_ISLNK(facts.st_mode) &&
         ::fstat(STDOUT_FILENO, &facts) == 0 && ::stat("/no such file", &facts) == -1 &&
         std::filesystem::is_directory("/proc/self");
}

struct Check {
  Check() {
    std::random_device random;
    const bool differs = random() != random() || random() != random();
    const bool main_thread = ::gettid() == ::getpid();
    const bool good = thrown_and_caught() == 1 && waits_as_long_as_asked() && wakes_when_told() &&
                      finds_files() && differs && main_thread;
    std::puts(good ? "the floor holds" : "the floor does not hold");
    std::fflush(stdout);
  }
} check;

}  // namespace
