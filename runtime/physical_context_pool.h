// SPDX-License-Identifier: Apache-2.0
//
// The pool of physical contexts, realised once at start, and its queues.
//
// A physical queue belongs to one logical stream at a time. It changes hands only when the work of
// the old owner was observed complete: work of strangers is never queued behind each other, so a
// kernel that spins on a flag which another stream sets cannot lock itself out.
#pragma once

#include <memory>
#include <vector>

#include "hal/device.h"
#include "runtime/marker.h"
#include "runtime/pool_layout.h"

namespace vitamin::runtime {

struct Stream;

struct PhysicalQueue {
  std::unique_ptr<hal::Queue> queue;
  EntryId entry = kWholeDevice;
  std::uint32_t processors = 0;
  int priority = 0;
  Stream* owner = nullptr;       // null: free
  Stream* last_owner = nullptr;
  MarkerRef last;                // behind the last operation of last_owner
  std::uint32_t pins = 0;        // host threads that block on the queue without the lock

  bool whole() const { return entry == kWholeDevice; }
};

class PhysicalContextPool {
 public:
  // Realises every entry of the layout with one queue of the default priority. An entry that the
  // driver refuses is left out (its slot stays empty); no entry at all is an error.
  static hal::Result<PhysicalContextPool> realise(hal::Device& device, const PoolLayout& layout);

  bool has(EntryId entry) const { return contexts_[entry] != nullptr; }
  hal::PhysicalContext& context(EntryId entry) { return *contexts_[entry]; }
  std::vector<std::unique_ptr<PhysicalQueue>>& queues(EntryId entry) { return queues_[entry]; }
  // Slow (about 1 ms); call it without the lock of the device, then add() under it.
  hal::Result<std::unique_ptr<PhysicalQueue>> make_queue(EntryId entry, int priority);
  void add(std::unique_ptr<PhysicalQueue> queue) {
    queues_[queue->entry].push_back(std::move(queue));
  }
  std::size_t realised() const;

 private:
  std::vector<std::unique_ptr<hal::PhysicalContext>> contexts_;  // index = EntryId; [0] is null
  std::vector<std::vector<std::unique_ptr<PhysicalQueue>>> queues_;
};

}  // namespace vitamin::runtime
