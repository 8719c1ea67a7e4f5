// SPDX-License-Identifier: Apache-2.0
//
// Ordering: what an operation comes behind, and the waits on the device that keep it there. Keeps
// Stream::order, which others write, too (stream.h), and the order of the default streams.
//
// An operation comes behind its own stream's tail, behind what the rules of default streams say,
// and a launch of a graph behind the launch before. Where the queue itself does not keep that
// order, the device waits for a marker recorded behind the predecessor.
#pragma once

#include <span>
#include <vector>

#include "runtime/default_stream_order.h"
#include "runtime/submission/completion.h"

namespace vitamin::runtime {

class Ordering {
 public:
  Ordering(Core& core, Completion& completion) : core_(core), completion_(completion) {}

  // The context's legacy default stream, before any other stream.
  void set_legacy(Stream& legacy) { legacy_ = &legacy; }
  Stream& legacy() const { return *legacy_; }
  DefaultStreamOrder& default_streams() { return default_streams_; }
  const DefaultStreamOrder& default_streams() const { return default_streams_; }

  // What the operation comes behind besides its own stream, as long as the lock is held: the answer
  // is for who submits or flushes at once, and is overwritten by the next one.
  std::span<const Predecessor> predecessors(const Stream& stream, const Submission& submission);
  // Something that the operation comes behind is deferred itself.
  static bool any_deferred(const Stream& stream, std::span<const Predecessor> predecessors);
  // A predecessor that has not ended, or what a wait for `marker` waits for (`host_wait` unfired),
  // lies behind a host wait that was not seen to end. With a window of 0 every `marker` that has
  // not fired counts as that.
  bool others_wait_for_host(std::span<const Predecessor> predecessors, const MarkerRef& marker,
                            const MarkerRef& host_wait);
  // The stream, or a predecessor that has not ended, lies behind a host wait that was not seen to
  // end.
  bool any_waits_for_host(Stream& stream, std::span<const Predecessor> predecessors);

  // The device waits on `queue` for everything that the stream's next operation comes behind.
  // `physical`: whose queue that is; null: a queue that is not ours. `waits` counts the waits.
  hal::NativeStatus order(Stream& stream, hal::Queue& queue, const PhysicalQueue* physical,
                          std::span<const Predecessor> predecessors, unsigned& waits);
  // The stream's next operation comes behind everything that is on `queue` now. False: the driver
  // gives no more events.
  bool come_after(Stream& stream, hal::Queue& queue);
  // Where an operation that needs no compute of its own goes.
  static PhysicalQueue& follow_queue(Stream& stream, OperationKind kind, bool others_wait_for_host);

 private:
  Core& core_;
  Completion& completion_;
  Stream* legacy_ = nullptr;
  DefaultStreamOrder default_streams_;
  std::vector<Predecessor> predecessors_;  // what predecessors() answered last
};

}  // namespace vitamin::runtime
