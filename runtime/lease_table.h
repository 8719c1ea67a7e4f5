// SPDX-License-Identifier: Apache-2.0
//
// Who holds which part of the device: pure, one writer, no clock.
//
// How a lease moves is written once, in lease_moves.def, which the model of the protocol includes,
// too (tests/protocol/lease.pml): no other move is made.
//
// States of an entry (the paper, figure "State transitions of a pCtx"); who makes each move:
//
//            acquire (arbiter)                close_gate (policy, revocation)
//     idle -------------------> leased --------------------------------------+
//      ^ \                        |  ^                                       |
//      |  \ reserve (policy)      |  | open_gate (reservation cancelled)     v
//      |   \                      |  +------------------------------------ draining
//      |    v                     | last operation retired, released         |
//      | reserved --------------> |                                          |
//      |    | acquire by holder   |                                          |
//      |    | cancel / expire     |                                          |
//      +----+---------------------+------------------------------------------+
//                                   last operation retired: idle, or reserved for
//                                   whoever holds a reservation on it
//
// Rules (DESIGN "lease"): conflicts are tested between lessees by one AND of ComputeSets; within
// its lease a lessee may use any entry that is a subset of what it holds, overlapping ones too. A
// unit is released when no outstanding operation of the lessee covers it and the lease was given
// up. The whole device is never leased: work on it is shared and counted (see stats.h).
#pragma once

#include <cstdint>
#include <vector>

#include "hal/result.h"
#include "runtime/pool_layout.h"

namespace vitamin::runtime {

using LesseeId = std::uint32_t;
inline constexpr LesseeId kNobody = 0;

enum class LeaseState : std::uint8_t { kIdle, kLeased, kDraining, kReserved };

// Why a move was not made. Nothing changed in that case.
enum class LeaseVerdict : std::uint8_t {
  kGranted,
  kConflict,    // units held by or reserved for another lessee
  kGateClosed,  // draining: no new submission
  kNotHeld,     // the lessee has no lease on this entry
  kWhole,       // the whole device cannot be leased or reserved
};

class LeaseTable {
 public:
  explicit LeaseTable(const PoolLayout& layout);

  // idle or reserved-for-lessee -> leased. Granted again and again while the lessee holds it.
  LeaseVerdict acquire(EntryId entry, LesseeId lessee);
  // One more outstanding operation. The gate must be open.
  LeaseVerdict submitted(EntryId entry, LesseeId lessee);
  // `operations` of them ended. A draining lease that reaches 0 becomes idle or reserved.
  void retired(EntryId entry, LesseeId lessee, std::uint32_t operations);
  // Gives the entry up: at once when nothing is outstanding, else it drains first.
  void release(EntryId entry, LesseeId lessee);
  void close_gate(EntryId entry);
  // Reopens the gate of a draining lease (a reservation was cancelled or expired).
  LeaseVerdict open_gate(EntryId entry);
  // Holds the entry for `lessee` against everybody else from now on. Units that others still hold
  // stay theirs until they drain; nobody else can acquire them any more.
  LeaseVerdict reserve(EntryId entry, LesseeId lessee);
  void cancel_reservation(EntryId entry);
  // Frees everything a dead or finished lessee held, outstanding or not.
  void forget(LesseeId lessee);

  LeaseState state(EntryId entry) const;
  // Of the entry: who leases it, or else holds the reservation on it.
  LesseeId lessee(EntryId entry) const;
  std::uint32_t outstanding(EntryId entry, LesseeId lessee) const;
  // Units that some other lessee holds or has reserved: what `lessee` must not be given.
  hal::ComputeSet barred(LesseeId lessee) const;
  hal::ComputeSet held(LesseeId lessee) const;

 private:
  enum class Event : std::uint8_t { kAcquire, kSubmit, kRetire, kClose, kReopen, kForget };
  enum class When : std::uint8_t { kAlways, kFree, kUnreserved, kBusy, kQuiet };
  struct Moves;

  // One lessee's lease on one entry. Several lessees never overlap, one lessee may hold many.
  struct Lease {
    LeaseState state = LeaseState::kIdle;  // never kReserved: that is kIdle and a reservation
    LesseeId lessee = kNobody;             // of a lease that is not idle
    std::uint32_t outstanding = 0;
    LesseeId reserved_for = kNobody;
  };
  // Makes the move that lease_moves.def has for this event of the lessee. False: it has none.
  bool move(Event event, EntryId entry, LesseeId lessee);
  void change(EntryId entry, LesseeId lessee, LeaseState to);
  void use(EntryId entry);
  void disuse(EntryId entry);
  bool reserved_by_others(EntryId entry, LesseeId lessee) const;

  void note(LesseeId lessee);

  const PoolLayout& layout_;
  std::vector<Lease> leases_;  // index = EntryId: an entry has one lessee at a time
  // Entries that are leased or reserved, in no order: few of many, and all that others collide
  // with.
  std::vector<EntryId> used_;
  // The only lessee that ever came, or kNobody when there were several: a client alone, the
  // common case, is barred from nothing and need not scan the table.
  LesseeId sole_ = kNobody;
  bool several_ = false;
};

}  // namespace vitamin::runtime
