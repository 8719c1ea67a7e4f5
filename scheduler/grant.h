// SPDX-License-Identifier: Apache-2.0
//
// One grant, as the ledger records it and policies see it, and the reasons of decisions. No
// behavior.
//
// Units and ownership: as scheduler/types.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "scheduler/types.h"

namespace vitamin::scheduler {

// Names one grant for ever: a message about a grant that has ended is recognized as late.
using GrantId = std::uint64_t;
inline constexpr GrantId kNoGrant = 0;

// Why a row, a grant or a revocation is what it is.
enum class Reason : std::uint8_t {
  kNone,
  // Of rows and grants.
  kPolicy,          // the policy's row, unchanged
  kPlacement,       // PlacementPolicy::place()
  kFallback,        // fifo's row, after the policy failed
  kQuota,           // narrowed by Limits::max_sms
  kNotShared,       // exclusive because of Limits::may_share
  kOverlap,         // narrowed, or made shared, by rows before it
  kReservation,     // Limits::reserved_sms
  kStarving,        // the stream was starving
  kNeedsWidth,      // widened to the narrowest partition that runs the next launch
  kNeedsWhole,      // only the whole device can run the next launch: shared, counted
  kMeanwhile,       // inside the row's partition, until the rest of it is free
  kBesideOwnDrain,  // on units that other streams of the client drain for long
  kAdopted,         // covers earlier work
  kPaused,          // the row pauses the client, or the policy gave it no row
  kNoRoom,          // quota and rows before it leave no partition
  // Of revocations.
  kMoved,         // the stream has a grant of another partition
  kRowChanged,    // the allocation says otherwise
  kQuantumEnded,  // of a grant to a starving stream
  kTooNarrow,     // for the stream's next launch
  kMadeWay,       // for a starving stream
  kIdle,          // the client said that it has nothing to submit
};
std::string_view to_string(Reason reason);  // ledger.cpp
// Of a grant that the scheduler gives while the one of the stream's row is pending.
constexpr bool is_interim(Reason reason) {
  return reason == Reason::kMeanwhile || reason == Reason::kBesideOwnDrain;
}

struct Grant {
  // kPending  waits for units; holds none
  // kOpen     the stream submits under it
  // kRevoked  the stream submits nothing more under it; its work may still run
  enum class State : std::uint8_t { kPending, kOpen, kRevoked };
  GrantId id = kNoGrant;
  ClientId client = kNoClient;
  StreamId stream = 0;
  PartitionId partition = kNoPartition;
  Mode mode = Mode::kShared;  // never kPaused
  State state = State::kPending;
  Reason reason = Reason::kNone;   // why it was granted
  Reason revoked = Reason::kNone;  // kRevoked: why
  std::uint32_t launches = kNoLaunchBound;
  std::uint64_t run_ahead_ns = kNever;
  std::uint64_t requested_ns = 0;
  std::uint64_t opened_ns = 0;   // kOpen, kRevoked
  std::uint64_t revoked_ns = 0;  // kRevoked
};

}  // namespace vitamin::scheduler
