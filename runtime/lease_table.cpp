// SPDX-License-Identifier: Apache-2.0
#include "runtime/lease_table.h"

#include <algorithm>

namespace vitamin::runtime {

using hal::ComputeSet;

// lease_moves.def by what happened, the state, and whether operations are outstanding. That no two
// rows say different things of one case is checked when this is compiled.
struct LeaseTable::Moves {
  struct Move {
    bool listed = false;
    LeaseState to = LeaseState::kIdle;
    When when = When::kAlways;  // kFree, kUnreserved: still to be asked
  };
  Move of[6][3][2];

  constexpr void add(Event event, LeaseState from, When when, LeaseState to) {
    for (const bool busy : {false, true}) {
      if (when == When::kBusy && !busy) continue;
      if (when == When::kQuiet && busy) continue;
      Move& move = of[static_cast<int>(event)][static_cast<int>(from)][busy];
      if (move.listed) throw "two rows for one case";
      move = {true, to, when};
    }
  }
  constexpr Moves() : of{} {
#define LEASE_MOVE(event, from, when, to) \
  add(Event::k##event, LeaseState::k##from, When::k##when, LeaseState::k##to);
#include "runtime/lease_moves.def"
#undef LEASE_MOVE
  }
};

LeaseTable::LeaseTable(const PoolLayout& layout) : layout_(layout), leases_(layout.size()) {}

// Every launch makes two moves that lead nowhere else, so these are a look into the table.
[[gnu::always_inline]] inline bool LeaseTable::move(Event event, EntryId entry, LesseeId lessee) {
  static constexpr Moves kMoves;
  const Lease& lease = leases_[entry];
  const Moves::Move& move =
      kMoves.of[static_cast<int>(event)][static_cast<int>(lease.state)][lease.outstanding > 0];
  if (!move.listed) return false;
  if (move.when == When::kFree && layout_.at(entry).compute.overlaps(barred(lessee))) return false;
  if (move.when == When::kUnreserved && reserved_by_others(entry, lessee)) return false;
  if (lease.state != move.to) change(entry, lessee, move.to);
  return true;
}

void LeaseTable::change(EntryId entry, LesseeId lessee, LeaseState to) {
  Lease& lease = leases_[entry];
  if (lease.state == LeaseState::kIdle) {
    note(lessee);
    use(entry);
    lease.lessee = lessee;
  }
  lease.state = to;
  if (to != LeaseState::kIdle) return;
  lease.lessee = kNobody;
  lease.outstanding = 0;
  disuse(entry);
}

LeaseVerdict LeaseTable::acquire(EntryId entry, LesseeId lessee) {
  if (entry == kWholeDevice) return LeaseVerdict::kWhole;
  const LesseeId holder = leases_[entry].lessee;
  if (holder != kNobody && holder != lessee) return LeaseVerdict::kConflict;
  if (move(Event::kAcquire, entry, lessee)) return LeaseVerdict::kGranted;
  return holder == lessee ? LeaseVerdict::kGateClosed : LeaseVerdict::kConflict;
}

LeaseVerdict LeaseTable::submitted(EntryId entry, LesseeId lessee) {
  if (entry == kWholeDevice) return LeaseVerdict::kWhole;
  if (leases_[entry].lessee != lessee) return LeaseVerdict::kNotHeld;
  if (!move(Event::kSubmit, entry, lessee)) return LeaseVerdict::kGateClosed;
  ++leases_[entry].outstanding;
  return LeaseVerdict::kGranted;
}

void LeaseTable::retired(EntryId entry, LesseeId lessee, std::uint32_t operations) {
  if (entry == kWholeDevice) return;
  Lease& lease = leases_[entry];
  // A lease that was forgotten or granted again in the meantime: the old work is nobody's.
  if (lease.lessee != lessee) return;
  lease.outstanding -= std::min(operations, lease.outstanding);
  move(Event::kRetire, entry, lessee);
}

void LeaseTable::release(EntryId entry, LesseeId lessee) {
  if (entry == kWholeDevice || leases_[entry].lessee != lessee) return;
  close_gate(entry);
}

void LeaseTable::close_gate(EntryId entry) { move(Event::kClose, entry, leases_[entry].lessee); }

LeaseVerdict LeaseTable::open_gate(EntryId entry) {
  const LesseeId lessee = leases_[entry].lessee;
  if (lessee == kNobody) return LeaseVerdict::kNotHeld;
  // Somebody else's reservation keeps the gate shut: it would otherwise never come about.
  return move(Event::kReopen, entry, lessee) ? LeaseVerdict::kGranted : LeaseVerdict::kConflict;
}

LeaseVerdict LeaseTable::reserve(EntryId entry, LesseeId lessee) {
  if (entry == kWholeDevice) return LeaseVerdict::kWhole;
  if (reserved_by_others(entry, lessee)) return LeaseVerdict::kConflict;
  note(lessee);
  use(entry);
  leases_[entry].reserved_for = lessee;
  return LeaseVerdict::kGranted;
}

bool LeaseTable::reserved_by_others(EntryId entry, LesseeId lessee) const {
  return std::any_of(used_.begin(), used_.end(), [&](EntryId other) {
    const LesseeId holder = leases_[other].reserved_for;
    return holder != kNobody && holder != lessee &&
           layout_.at(other).compute.overlaps(layout_.at(entry).compute);
  });
}

void LeaseTable::cancel_reservation(EntryId entry) {
  leases_[entry].reserved_for = kNobody;
  disuse(entry);
}

void LeaseTable::forget(LesseeId lessee) {
  const std::vector<EntryId> used = used_;  // which moves change
  for (const EntryId entry : used) {
    if (leases_[entry].lessee == lessee) move(Event::kForget, entry, lessee);
    if (leases_[entry].reserved_for == lessee) cancel_reservation(entry);
  }
}

LeaseState LeaseTable::state(EntryId entry) const {
  const Lease& lease = leases_[entry];
  if (lease.state == LeaseState::kIdle && lease.reserved_for != kNobody)
    return LeaseState::kReserved;
  return lease.state;
}

LesseeId LeaseTable::lessee(EntryId entry) const {
  const Lease& lease = leases_[entry];
  return lease.lessee != kNobody ? lease.lessee : lease.reserved_for;
}

std::uint32_t LeaseTable::outstanding(EntryId entry, LesseeId lessee) const {
  return leases_[entry].lessee == lessee ? leases_[entry].outstanding : 0;
}

ComputeSet LeaseTable::barred(LesseeId lessee) const {
  ComputeSet barred;
  if (!several_ && (sole_ == kNobody || sole_ == lessee)) return barred;
  for (const EntryId entry : used_) {
    const Lease& lease = leases_[entry];
    if ((lease.lessee != kNobody && lease.lessee != lessee) ||
        (lease.reserved_for != kNobody && lease.reserved_for != lessee))
      barred |= layout_.at(entry).compute;
  }
  return barred;
}

ComputeSet LeaseTable::held(LesseeId lessee) const {
  ComputeSet held;
  for (const EntryId entry : used_)
    if (leases_[entry].lessee == lessee) held |= layout_.at(entry).compute;
  return held;
}

void LeaseTable::note(LesseeId lessee) {
  several_ = several_ || (sole_ != kNobody && sole_ != lessee);
  sole_ = lessee;
}

void LeaseTable::use(EntryId entry) {
  if (state(entry) == LeaseState::kIdle) used_.push_back(entry);
}

void LeaseTable::disuse(EntryId entry) {
  if (state(entry) == LeaseState::kIdle) std::erase(used_, entry);
}

}  // namespace vitamin::runtime
