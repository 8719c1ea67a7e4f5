// SPDX-License-Identifier: Apache-2.0
//
// Records what happens, beside what happens: a ring of bounded room that one thread fills and a
// thread of ours empties into a file (file.h).
//
// Recording never waits: no lock, system call or allocation. What finds the ring full, or the disk,
// is dropped and counted; a reader learns how much.
//
// Threads: one at a time records (the holder of the device lock, the daemon's loop).
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "hal/device.h"
#include "hal/processor.h"
#include "runtime/pool/layout.h"
#include "runtime/trace/file.h"

namespace vitamin::runtime::trace {

class Recorder {
 public:
  static constexpr std::size_t kRoom = std::size_t{1} << 16;  // records: 4 MiB

  // A file of its own in `directory`. `header` has what the writer knows; null, with errno, when it
  // cannot be made. `room`: a power of two.
  static std::unique_ptr<Recorder> create(const char* directory, TraceHeader header,
                                          std::size_t room = kRoom);
  ~Recorder();  // writes out what is there
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void add(const TraceEntry& record) {
    if (TraceEntry* at = take(1)) {
      *at = record;
      publish(1);
    }
  }
  // A record and the 64 bytes behind it.
  void add(const TraceEntry& record, const void* bytes) {
    if (take(2) == nullptr) return;
    slot(0) = record;
    std::memcpy(static_cast<void*>(&slot(1)), bytes, sizeof(TraceEntry));
    publish(2);
  }
  void name(std::uint64_t kernel, std::string_view text);
  static std::uint64_t ticks() { return hal::time_stamp(); }

  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  // Writes out and ends the thread. Nothing is recorded any more.
  void stop();

 private:
  Recorder(int file, const TraceHeader& header, std::size_t room);
  TraceEntry* take(std::size_t count) {
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    if (head + count - seen_tail_ > ring_.size()) {
      seen_tail_ = tail_.load(std::memory_order_acquire);
      if (head + count - seen_tail_ > ring_.size()) {
        dropped_.store(dropped_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        return nullptr;
      }
    }
    return &slot(0);
  }
  TraceEntry& slot(std::size_t i) {
    return ring_[(head_.load(std::memory_order_relaxed) + i) & (ring_.size() - 1)];
  }
  void publish(std::size_t count) {
    head_.store(head_.load(std::memory_order_relaxed) + count, std::memory_order_release);
  }
  void run();
  bool flush();
  void write_header();

  const pid_t owner_ = ::getpid();
  int file_;
  TraceHeader header_;  // the thread's, once it runs
  std::vector<TraceEntry> ring_;
  // The recording thread's.
  alignas(64) std::atomic<std::uint64_t> head_{0};
  std::uint64_t seen_tail_ = 0;
  std::atomic<std::uint64_t> dropped_{0};
  // The writing thread's.
  alignas(64) std::atomic<std::uint64_t> tail_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// What both writers say of a device.
void describe(TraceHeader& header, const hal::DeviceInfo& info, const PoolLimits& limits);

}  // namespace vitamin::runtime::trace
