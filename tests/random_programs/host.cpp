// SPDX-License-Identifier: Apache-2.0
#include "host.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace vitamin::random_programs {

std::uint64_t Random::next() {
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void Log::say(const char* format, ...) {
  char line[256];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  const std::lock_guard lock(mutex_);
  text_ += line;
  text_ += '\n';
}

void Log::begin(std::string what) {
  const std::lock_guard lock(mutex_);
  doing_ = std::move(what);
}

std::string Log::doing() {
  const std::lock_guard lock(mutex_);
  return doing_;
}

void Log::flush() {
  const std::lock_guard lock(mutex_);
  std::fwrite(text_.data(), 1, text_.size(), stdout);
  std::fflush(stdout);
  text_.clear();
}

Watchdog::Watchdog(Log& log, std::chrono::milliseconds limit)
    : log_(log),
      limit_(limit),
      deadline_(std::chrono::steady_clock::now() + limit),
      thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Watchdog::begin() {
  const std::lock_guard lock(mutex_);
  deadline_ = std::chrono::steady_clock::now() + limit_;
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    wake_.wait_until(lock, deadline_);
    if (stopping_ || std::chrono::steady_clock::now() < deadline_) continue;
    log_.say("hang: %s", log_.doing().c_str());
    log_.flush();
    std::_Exit(9);
  }
}

Worker::Worker() : thread_([this] { run(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Worker::post(Task task) {
  {
    const std::lock_guard lock(mutex_);
    task_ = std::move(task);
    done_ = false;
  }
  posted_ = true;
  wake_.notify_all();
}

void Worker::join() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return done_; });
  posted_ = false;
}

void Worker::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !done_; });
    if (done_) return;
    lock.unlock();
    task_();
    lock.lock();
    done_ = true;
    wake_.notify_all();
  }
}

void sleep_us(std::uint64_t us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

void must_at(CUresult status, const char* what, const char* file, int line) {
  if (status == CUDA_SUCCESS) return;
  std::printf("%s:%d: %s answers %d\n", file, line, what, static_cast<int>(status));
  std::fflush(stdout);
  std::_Exit(4);
}

}  // namespace vitamin::random_programs
