// SPDX-License-Identifier: Apache-2.0
//
// What a random program needs of the host: draws, a log, threads, and a limit on its time.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace vitamin::random_programs {

// SplitMix64: a draw is the same on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  template <class T>
  const T& of(const std::vector<T>& items) {
    return items[below(items.size())];
  }

 private:
  std::uint64_t state_;
};

// The answers of one program, a line each. Lines are added by the thread that directs the program;
// the watchdog reads them from its own.
class Log {
 public:
  [[gnu::format(printf, 2, 3)]] void say(const char* format, ...);
  // What is being done, for the line that the watchdog adds.
  void begin(std::string what);
  std::string doing();
  // Writes all lines to stdout and forgets them.
  void flush();

 private:
  std::mutex mutex_;
  std::string text_, doing_;
};

// Ends the process with exit code 9 when a program takes longer than the limit.
class Watchdog {
 public:
  Watchdog(Log& log, std::chrono::milliseconds limit);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  void begin();

 private:
  void run();
  Log& log_;
  const std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::chrono::steady_clock::time_point deadline_;
  bool stopping_ = false;
  std::thread thread_;
};

// A host thread of the program. It runs one task at a time.
class Worker {
 public:
  using Task = std::function<void()>;
  Worker();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  void post(Task task);
  void join();  // waits for the posted task
  bool busy() const { return posted_; }

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable wake_;
  Task task_;
  bool stopping_ = false, done_ = true;
  bool posted_ = false;  // of the directing thread
  std::thread thread_;
};

void sleep_us(std::uint64_t us);

// For calls that must succeed whatever the program: prints what failed and ends the process.
void must_at(CUresult status, const char* what, const char* file, int line);
#define MUST(call) ::vitamin::random_programs::must_at((call), #call, __FILE__, __LINE__)

}  // namespace vitamin::random_programs
