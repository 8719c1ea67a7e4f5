// SPDX-License-Identifier: Apache-2.0
#include "interpose/call_times.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "interpose/process_state.h"

namespace vitamin::interpose {
namespace {

struct Times {
  std::atomic<std::uint64_t> calls, ns;
  // By the power of two of their nanoseconds: a mean alone is that of the few long ones.
  std::array<std::atomic<std::uint32_t>, 40> by_magnitude;
};
constinit std::array<Times, kSymbols> times{};
constinit thread_local bool timing [[gnu::tls_model("initial-exec")]] = false;

std::uint64_t now_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(time.tv_nsec);
}

// With VITAMIN_CALL_TIMES_NATIVE every call goes straight to the driver.
[[gnu::constructor]] void begin_times() {
  if (std::getenv("VITAMIN_CALL_TIMES_NATIVE") != nullptr) passive.store(true);
}

// One line of JSON for each entry point that was called, into $VITAMIN_CALL_TIMES/<process>.jsonl.
[[gnu::destructor]] void write_times() {
  const char* const directory = std::getenv("VITAMIN_CALL_TIMES");
  if (directory == nullptr) return;
  std::FILE* file = nullptr;
  for (std::size_t symbol = 0; symbol < kSymbols; ++symbol) {
    const Times& of = times[symbol];
    if (of.calls.load() == 0) continue;
    if (file == nullptr) {
      char path[4096];
      std::snprintf(path, sizeof path, "%s/%d.jsonl", directory, static_cast<int>(::getpid()));
      file = std::fopen(path, "we");
      if (file == nullptr) return std::perror(path);
    }
    std::fprintf(file, "{\"entry\": \"%s\", \"calls\": %" PRIu64 ", \"ns\": %" PRIu64,
                 kSymbolInfo[symbol].name.data(), of.calls.load(), of.ns.load());
    std::fputs(", \"by_magnitude\": [", file);
    for (std::size_t i = 0; i < of.by_magnitude.size(); ++i)
      std::fprintf(file, i == 0 ? "%u" : ", %u", of.by_magnitude[i].load());
    std::fputs("]}\n", file);
  }
  if (file != nullptr && std::fclose(file) != 0) std::perror(directory);
}

}  // namespace

CallTimer::CallTimer(Symbol symbol) : symbol_(symbol), begun_ns_(0) {
  if (inside > 0 || timing) return;
  timing = true;
  begun_ns_ = now_ns();
}

CallTimer::~CallTimer() {
  if (begun_ns_ == 0) return;
  const std::uint64_t ns = now_ns() - begun_ns_;
  timing = false;
  Times& of = times[static_cast<std::size_t>(symbol_)];
  of.calls.fetch_add(1, std::memory_order_relaxed);
  of.ns.fetch_add(ns, std::memory_order_relaxed);
  const std::size_t magnitude = static_cast<std::size_t>(std::bit_width(ns));
  of.by_magnitude[std::min(magnitude, of.by_magnitude.size() - 1)].fetch_add(
      1, std::memory_order_relaxed);
}

}  // namespace vitamin::interpose
