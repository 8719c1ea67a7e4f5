// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/libcuda/clock.h"

#include <dirent.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

namespace vitamin::soft::driver {
namespace {

constexpr unsigned kMaxStepsPerCall = 6;

bool advance_all() {
  bool moved = false;
  for (const auto& device : driver().devices)
    moved |= device->engine->advance() == AdvanceResult::kMoved;
  return moved;
}

bool process_has_other_threads() {
  unsigned threads = 0;
  if (DIR* tasks = opendir("/proc/self/task")) {
    while (const dirent* entry = readdir(tasks)) threads += entry->d_name[0] != '.' ? 1 : 0;
    closedir(tasks);
  }
  return threads != 1;
}

void describe_stream(const Stream& stream) {
  const std::uint64_t last = stream.engine().last_ticket(stream.queue.get());
  std::uint64_t done = 0;
  // Tickets of a queue complete in order: find the newest complete one.
  for (std::uint64_t low = 0, high = last; low < high;) {
    const std::uint64_t middle = low + (high - low + 1) / 2;
    if (stream.engine().query(stream.queue.get(), middle) == kNotReady) {
      high = middle - 1;
    } else {
      low = done = middle;
    }
  }
  if (done == last) return;
  std::fprintf(stderr, "  device %d stream %llu (%p): %llu of %llu operations done\n",
               stream.context->device->ordinal, static_cast<unsigned long long>(stream.id),
               static_cast<const void*>(&stream), static_cast<unsigned long long>(done),
               static_cast<unsigned long long>(last));
}

[[noreturn]] void report_deadlock() {
  Driver& self = driver();
  std::fputs("software driver: deadlock: a call waits for work that nothing can finish\n", stderr);
  const std::lock_guard lock(self.mutex);
  for (const auto& context : self.contexts) {
    if (!context->alive) continue;
    for (const Stream* stream : context->streams) describe_stream(*stream);
  }
  std::abort();
}

}  // namespace

void step_virtual_clock() {
  Driver& self = driver();
  if (self.settings.clock != Clock::kVirtual) return;
  unsigned steps;
  {
    static std::mutex mutex;
    static std::minstd_rand random(static_cast<unsigned>(self.settings.seed * 2654435761u + 1));
    const std::lock_guard lock(mutex);
    steps = static_cast<unsigned>(random() % (kMaxStepsPerCall + 1));
  }
  for (unsigned i = 0; i < steps; ++i)
    if (!advance_all()) return;
}

int wait_until(const std::function<int()>& status) {
  using std::chrono::steady_clock;
  Driver& self = driver();
  const bool is_virtual = self.settings.clock == Clock::kVirtual;
  steady_clock::time_point stuck_since{};
  for (;;) {
    if (const int answer = status(); answer != kNotReady) return answer;
    if (!is_virtual) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      continue;
    }
    if (advance_all()) {
      stuck_since = {};
      continue;
    }
    if (!process_has_other_threads()) report_deadlock();
    // Another thread of the application may still open what the devices wait for.
    const auto now = steady_clock::now();
    if (stuck_since == steady_clock::time_point{}) stuck_since = now;
    if (now - stuck_since > std::chrono::milliseconds(self.settings.deadlock_ms)) report_deadlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace vitamin::soft::driver
