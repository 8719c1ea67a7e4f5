// SPDX-License-Identifier: Apache-2.0
//
// DeferredQueue: operations that could not be submitted when their calls were made. Keeps
// Stream::deferral (stream.h).
//
// The operations of a stream are submitted in their order, and an operation only when what it comes
// behind was: the order of submission is a linear extension of happens-before, so no set of waits
// can form a cycle.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/submission/completion.h"
#include "runtime/submission/submit_result.h"

namespace vitamin::runtime {

class DeferredQueue {
 public:
  DeferredQueue(Core& core, Completion& completion, SubmitsNow& submits)
      : core_(core), completion_(completion), submits_(submits) {}

  void push(Stream& stream, Submission submission);
  // Tries each stream's operations once, oldest first; true when any was submitted.
  bool retry();
  // The same for one stream, and for what its operations come behind.
  void retry(Stream& stream);
  // Submits what is deferred of the stream, up to a serial, and whatever that waits for: each
  // operation where it would go if it had to wait for no cheaper move; where it is blocked even so
  // (a grant, the window, a host wait), on its stream's own queue with waits on the device. Waits
  // for nothing; false when a queue of the driver has no room.
  bool flush(Stream& stream, std::uint64_t up_to_serial = ~0ULL);

  // Streams with deferred operations.
  std::span<Stream* const> streams() const { return streams_; }
  // In the last retry() something waited for work that may need the host to end. Everything else
  // that is deferred goes on by itself.
  bool waits_for_host() const { return waits_for_host_; }
  // What the driver answered to deferred operations that it refused, the first of them, once. As
  // natively, a failure that the call itself could not tell is told by a later one that waits.
  hal::NativeStatus take_error() { return std::exchange(error_, hal::kNativeOk); }

 private:
  SubmitResult submit_front(Stream& stream, bool own_stream);
  void pop_front(Stream& stream);

  Core& core_;
  Completion& completion_;
  SubmitsNow& submits_;
  std::vector<Stream*> streams_;
  bool waits_for_host_ = false;
  hal::NativeStatus error_ = hal::kNativeOk;
};

}  // namespace vitamin::runtime
