// SPDX-License-Identifier: Apache-2.0
//
// The hardware queues (HQDs) of a GPU for compute. The scheduler firmware maps user queues to them;
// where more user queues have work than there are hardware queues, they take turns. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>

namespace vitamin::soft::amdgpu {

class HardwareQueues {
 public:
  explicit HardwareQueues(unsigned count) : count_(count) {}

  // Waits for a hardware queue, first come, first served. False: `stopped` came first.
  bool map(const std::atomic<bool>& stopped);
  void unmap();  // only after map() has returned true
  // Whether a user queue waits for a hardware queue.
  bool oversubscribed() const { return waiting_.load(std::memory_order_relaxed) != 0; }

  unsigned count() const { return count_; }
  unsigned most_mapped() const;  // at one time

 private:
  const unsigned count_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<const void*> line_;  // of those that wait in map()
  std::atomic<std::size_t> waiting_{0};
  unsigned mapped_ = 0, most_mapped_ = 0;
};

}  // namespace vitamin::soft::amdgpu
