// SPDX-License-Identifier: Apache-2.0
#include "runtime/lease_table.h"

#include <algorithm>
#include <cassert>

namespace vitamin::runtime {

using hal::ComputeSet;

LeaseTable::LeaseTable(const PoolLayout& layout) : layout_(layout), leases_(layout.size()) {}

LeaseVerdict LeaseTable::acquire(EntryId entry, LesseeId lessee) {
  if (entry == kWholeDevice) return LeaseVerdict::kWhole;
  Lease& lease = leases_[entry];
  if (lease.lessee == lessee)
    return lease.gate_open ? LeaseVerdict::kGranted : LeaseVerdict::kGateClosed;
  if (layout_.at(entry).compute.overlaps(barred(lessee))) return LeaseVerdict::kConflict;
  note(lessee);
  assert(lease.lessee == kNobody);  // another holder of this very entry would have been a conflict
  use(entry);
  lease.lessee = lessee;
  lease.outstanding = 0;
  lease.gate_open = true;
  return LeaseVerdict::kGranted;
}

LeaseVerdict LeaseTable::submitted(EntryId entry, LesseeId lessee) {
  if (entry == kWholeDevice) return LeaseVerdict::kWhole;
  Lease& lease = leases_[entry];
  if (lease.lessee != lessee) return LeaseVerdict::kNotHeld;
  if (!lease.gate_open) return LeaseVerdict::kGateClosed;
  ++lease.outstanding;
  return LeaseVerdict::kGranted;
}

void LeaseTable::retired(EntryId entry, LesseeId lessee, std::uint32_t operations) {
  if (entry == kWholeDevice) return;
  Lease& lease = leases_[entry];
  // A lease that was forgotten or granted again in the meantime: the old work is nobody's.
  if (lease.lessee != lessee) return;
  lease.outstanding -= std::min(operations, lease.outstanding);
  if (lease.outstanding == 0 && !lease.gate_open) end(entry);
}

void LeaseTable::release(EntryId entry, LesseeId lessee) {
  if (entry == kWholeDevice || leases_[entry].lessee != lessee) return;
  close_gate(entry);
}

void LeaseTable::close_gate(EntryId entry) {
  Lease& lease = leases_[entry];
  if (lease.lessee == kNobody) return;
  lease.gate_open = false;
  if (lease.outstanding == 0) end(entry);
}

LeaseVerdict LeaseTable::open_gate(EntryId entry) {
  Lease& lease = leases_[entry];
  if (lease.lessee == kNobody) return LeaseVerdict::kNotHeld;
  // Somebody else's reservation keeps the gate shut: it would otherwise never come about.
  if (reserved_by_others(entry, lease.lessee)) return LeaseVerdict::kConflict;
  lease.gate_open = true;
  return LeaseVerdict::kGranted;
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
  for (Lease& lease : leases_) {
    if (lease.lessee == lessee) lease = Lease{.reserved_for = lease.reserved_for};
    if (lease.reserved_for == lessee) lease.reserved_for = kNobody;
  }
  std::erase_if(used_, [&](EntryId entry) { return state(entry) == LeaseState::kIdle; });
}

LeaseState LeaseTable::state(EntryId entry) const {
  const Lease& lease = leases_[entry];
  if (lease.lessee != kNobody) return lease.gate_open ? LeaseState::kLeased : LeaseState::kDraining;
  return lease.reserved_for != kNobody ? LeaseState::kReserved : LeaseState::kIdle;
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

void LeaseTable::end(EntryId entry) {
  Lease& lease = leases_[entry];
  lease.lessee = kNobody;
  lease.outstanding = 0;
  lease.gate_open = false;
  disuse(entry);
}

void LeaseTable::use(EntryId entry) {
  if (state(entry) == LeaseState::kIdle) used_.push_back(entry);
}

void LeaseTable::disuse(EntryId entry) {
  if (state(entry) == LeaseState::kIdle) std::erase(used_, entry);
}

}  // namespace vitamin::runtime
