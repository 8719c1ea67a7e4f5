// SPDX-License-Identifier: Apache-2.0
//
// QueueManager: queues of partitions for streams, and how their number grows. Making a queue is
// slow and is done by the worker, without the lock; where queues are scarce (hal::DeviceInfo::
// pool_queues_max) each new one takes the slot of one that is idle, one at a time, because making a
// queue stops every queue of some devices for a moment.
#pragma once

#include <chrono>
#include <utility>
#include <vector>

#include "runtime/submission/completion.h"

namespace vitamin::runtime {

class QueueManager {
 public:
  QueueManager(Core& core, Completion& completion) : core_(core), completion_(completion) {}

  // A queue of the partition that the stream may use now; null: there is none, one was asked for
  // where that is possible. The whole device is the stream's own queue.
  PhysicalQueue* free_queue(Stream& stream, PartitionId partition);
  // A launch that found no queue is deferred meanwhile: its stream's work ends, so a slot comes
  // free.
  bool awaits_queue(Stream& stream) const;
  // With as many streams as slots each would sit on its own for ever, whatever the policy draws. So
  // where a policy decides launch by launch, and not for this partition, the stream gives its slot
  // up.
  bool gives_up_slot(const Stream& stream) const;

  // --- the worker ------------------------------------------------------------------------------
  bool awaited() const { return !wanted_.empty(); }
  // Makes the queues that were asked for. Drops the lock.
  void grow(Lock& lock);
  // Other processes on the device come and go, and their streams: what is beyond this process's
  // share by now is given back, as it comes idle. Drops the lock.
  void keep_to_share(Lock& lock);

 private:
  using Wanted = std::pair<PartitionId, int>;  // and the priority
  bool may_want() const;

  Core& core_;
  Completion& completion_;
  std::vector<Wanted> wanted_;  // the one at hand stands in it, too
  std::chrono::steady_clock::time_point slots_stay_until_;
};

}  // namespace vitamin::runtime
