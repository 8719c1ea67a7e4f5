// SPDX-License-Identifier: Apache-2.0
//
// The pool of physical contexts, realised once at start, and its queues.
//
// Slots. Where pool queues are scarce (DeviceInfo::pool_queues_max), the partitions are made as
// always, which costs nothing there, but only so many of them have a queue at a time: at start some
// that are spread over the widths, later what policies ask for, each in the place of the queue that
// was made longest ago and is idle. Queues come and go off the launch path
// (QueueManager::grow).
//
// A physical queue belongs to one logical stream at a time. It changes hands only when the work of
// the old owner was observed complete: work of strangers is never queued behind each other, so a
// kernel that spins on a flag which another stream sets cannot lock itself out.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "hal/device.h"
#include "runtime/marker.h"
#include "runtime/pool/layout.h"

namespace vitamin::runtime {

struct Stream;

struct PhysicalQueue {
  std::unique_ptr<hal::Queue> queue;
  PartitionId partition = kWholeDevice;
  std::uint32_t sms = 0;
  int priority = 0;
  Stream* owner = nullptr;  // null: free
  Stream* last_owner = nullptr;
  MarkerRef last;          // behind the last operation of last_owner
  std::uint64_t made = 0;  // in which order
  std::uint32_t pins = 0;  // host threads that block on the queue without the lock

  bool whole() const { return partition == kWholeDevice; }
};

class PhysicalContextPool {
 public:
  // Realises every partition of the layout with one queue of the default priority, or as many
  // queues as there are slots. A partition that the driver refuses is left out (its place stays
  // empty); no partition at all is an error. Fewer slots than were promised are not.
  static hal::Result<PhysicalContextPool> realise(hal::Device& device, const PoolLayout& layout);

  bool has(PartitionId partition) const { return contexts_[partition] != nullptr; }
  hal::PhysicalContext& context(PartitionId partition) { return *contexts_[partition]; }
  std::vector<std::unique_ptr<PhysicalQueue>>& queues(PartitionId partition) {
    return queues_[partition];
  }
  // Slow (about 1 ms); call it without the device lock, then add() under it.
  hal::Result<std::unique_ptr<PhysicalQueue>> make_queue(PartitionId partition, int priority);
  void add(std::unique_ptr<PhysicalQueue> queue) {
    queue->made = ++queues_made_;
    queues_[queue->partition].push_back(std::move(queue));
  }
  std::size_t realised() const;
  std::size_t queue_count() const;

  bool has_queue(PartitionId partition) const {
    return partition == kWholeDevice || !queues_[partition].empty();
  }
  bool serves(const PhysicalQueue& queue, int priority) const {
    return !priorities_ || queue.priority == priority;
  }
  bool slots() const { return slots_; }  // pool queues are scarce
  bool full() const { return slots_ && queue_count() >= queues_max_; }
  // A queue could not be created: there are as many slots as there are queues now, for good.
  void shrink() { queues_made_max_ = queues_max_ = queue_count(); }
  // As many slots as the device has for this process now (hal::Device::pool_queues_now).
  void limit(std::size_t queues) { queues_max_ = std::min(queues_made_max_, queues); }
  bool over_limit() const { return slots_ && queue_count() > queues_max_; }
  // No queue of the pool is without a stream that it belongs to.
  bool all_owned() const;
  // Takes out the oldest queue whose work has ended; null: none is idle.
  std::unique_ptr<PhysicalQueue> take_idle(MarkerPool& markers);

 private:
  void fill_slots(const PoolLayout& layout);

  std::vector<std::unique_ptr<hal::PhysicalContext>> contexts_;  // index = PartitionId; [0] is null
  std::vector<std::vector<std::unique_ptr<PhysicalQueue>>> queues_;
  bool slots_ = false, priorities_ = true;
  std::size_t queues_max_ = 0;       // where there are slots: how many now,
  std::size_t queues_made_max_ = 0;  // and how many could be made
  std::uint64_t queues_made_ = 0;
};

}  // namespace vitamin::runtime
