// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "runtime/stream.h"

namespace vitamin::runtime {

// Why an operation cannot be submitted now.
enum class Blocked : std::uint8_t {
  kNo,
  kHostWait,            // it comes behind a host wait that was not seen to end
  kTooMuchOutstanding,  // the stream's window is used up, the driver's queue is full, or too much
                        // is outstanding where the stream would move (Placer::prepare_move)
  kNoGrant,             // the stream has no grant of an eligible partition now
  kPredecessor,         // something ahead of it is deferred itself
  kGraph,               // the graph is to be looked at, or an executable to be made
                        // (GraphCache::prepare)
};

// The outcome of one try to submit: blocked and nothing changed, or the vendor's answer.
struct SubmitResult {
  Blocked blocked = Blocked::kNo;
  hal::NativeStatus status = hal::kNativeOk;
  // kGraph: that the executable is for; none: the graph is to be looked at.
  PartitionId partition = kNoPartition;
};

// What submits an operation at once, if it can be.
class SubmitsNow {
 public:
  // `own_stream`: on the program's own stream, whatever the stream's grant says.
  virtual SubmitResult submit_now(Stream& stream, Submission& submission,
                                  std::span<const Predecessor> predecessors, bool own_stream) = 0;

 protected:
  ~SubmitsNow() = default;
};

}  // namespace vitamin::runtime
