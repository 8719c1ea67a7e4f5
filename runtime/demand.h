// SPDX-License-Identifier: Apache-2.0
//
// What a client asks of the arbiter (runtime/arbiter.h), and the answer. No behavior.
//
// Units: nanoseconds of CLOCK_MONOTONIC; `sms` counts SMs or CUs.
#pragma once

#include <cstdint>

#include "runtime/pool/layout.h"

namespace vitamin::runtime {

using StreamId = std::uint32_t;  // one logical stream of one virtual context

inline constexpr std::uint64_t kNever = ~0ULL;

// What an operation is part of, as far as the program said so (advice). The numbers are those of
// records and of vitamin_work_kind (interpose/advice/); scheduler::StepKind has others.
enum class WorkKind : std::uint8_t { kUnknown, kPrefill, kDecode, kBestEffort };

// A bindable operation: every predecessor is complete or already submitted.
struct ReadyOperation {
  std::uint64_t id = 0;  // of its stream; the same when it is asked for again
  StreamId stream = 0;
  std::uint64_t kernel = 0;        // equal for equal (kernel, grid, block, shared memory)
  std::uint32_t sms = 1;           // narrowest width that runs it unchanged
  std::uint64_t predicted_ns = 0;  // on the whole device; 0: unknown
  std::uint64_t ready_at_ns = 0;   // predicted time at which its predecessors end; 0: now
  PartitionId last_partition = kNoPartition;  // where the stream's previous operation went
  WorkKind kind = WorkKind::kUnknown;
  std::uint64_t deadline_ns = 0;  // 0: none
  // Predicted time, alone on the whole device, of all that must be done by the deadline; 0: not
  // said.
  std::uint64_t queued_ns = 0;
  bool iteration_end = false;  // the stream has just ended an iteration (a training step)
};

// GrantTerms::launches: until the grant is revoked. Not scheduler::kNoLaunchBound, which is 0.
inline constexpr std::uint32_t kUntilRevoked = 0xffffffff;
// The answer of Arbiter::grant(). `partition`: kNoPartition: no grant now. `launches`: how many
// launches of the stream it covers while the partition stays eligible; 0: none are left.
struct GrantTerms {
  // NOLINTNEXTLINE(google-explicit-constructor): one launch, as a default
  constexpr GrantTerms(PartitionId of = kWholeDevice, std::uint32_t count = 1,
                       std::uint64_t ahead = kNever, bool counts = false)
      : partition(of), counts_outstanding(counts), launches(count), ahead_ns(ahead) {}
  // No grant now.
  static constexpr GrantTerms none() { return {kNoPartition, 0}; }
  PartitionId partition;
  // What is launched under the answer counts as outstanding until it was seen to end
  // (Arbiter::submitted). Of a part it always does, whatever is said here.
  bool counts_outstanding;
  // The arbiter has taken what the operation says of its step (`kind` to `iteration_end`). False:
  // an arbiter elsewhere was sent nothing; the caller says it again.
  bool heard = true;
  std::uint32_t launches;
  // While the answer stands, submission runs ahead of completion by no more predicted time than
  // this: what is still to drain when it ends. kNever: as far as is configured.
  std::uint64_t ahead_ns;
};
static_assert(sizeof(GrantTerms) == 16);  // answered in registers

// An operation that is expected and not yet bindable; or the next one of a stream that waits or has
// a grant, when its demand has changed. For Arbiter::expect(). Times 0: now, or none.
struct ExpectedOperation {
  StreamId stream = 0;
  std::uint32_t sms = 0;
  std::uint64_t ready_at_ns = 0;
  std::uint64_t deadline_ns = 0;
  bool cancelled = false;
  std::uint64_t kernel = 0;
  WorkKind kind = WorkKind::kUnknown;
  std::uint64_t queued_ns = 0;  // as in ReadyOperation
};

}  // namespace vitamin::runtime
