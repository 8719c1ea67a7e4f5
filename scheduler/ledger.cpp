// SPDX-License-Identifier: Apache-2.0
#include "scheduler/ledger.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace vitamin::scheduler {

using hal::ComputeSet;

namespace {

// Calls `visit` with each unit of the set.
template <class Visit>
void for_each_unit(ComputeSet units, Visit visit) {
  for (std::uint64_t bits = units.bits(); bits != 0; bits &= bits - 1)
    visit(static_cast<unsigned>(std::countr_zero(bits)));
}

ComputeSet unit(unsigned number) { return ComputeSet(std::uint64_t{1} << number); }

std::uint32_t take_index(std::vector<std::uint32_t>& free) {
  const std::uint32_t index = free.back();
  free.pop_back();
  return index;
}

}  // namespace

std::string_view to_string(Reason reason) {
  switch (reason) {
    case Reason::kNone:
      return "none";
    case Reason::kPolicy:
      return "policy";
    case Reason::kPlacement:
      return "placement";
    case Reason::kFallback:
      return "fallback";
    case Reason::kQuota:
      return "quota";
    case Reason::kNotShared:
      return "not shared";
    case Reason::kOverlap:
      return "overlap";
    case Reason::kReservation:
      return "reservation";
    case Reason::kStarving:
      return "aged";  // the published word
    case Reason::kNeedsWidth:
      return "needs width";
    case Reason::kNeedsWhole:
      return "needs the whole device";
    case Reason::kMeanwhile:
      return "meanwhile";
    case Reason::kBesideOwnDrain:
      return "beside own drain";
    case Reason::kAdopted:
      return "adopted";
    case Reason::kPaused:
      return "paused";
    case Reason::kNoRoom:
      return "no room";
    case Reason::kMoved:
      return "moved";
    case Reason::kRowChanged:
      return "allocation changed";
    case Reason::kQuantumEnded:
      return "quantum ended";
    case Reason::kTooNarrow:
      return "too narrow";
    case Reason::kMadeWay:
      return "made way";
    case Reason::kIdle:
      return "idle";
  }
  return "unknown";
}

Ledger::Ledger(std::span<const Partition> pool, std::uint32_t grants_per_stream)
    : pool_(pool), grants_per_stream_(grants_per_stream), widths_(pool) {
  assert(grants_per_stream >= 2 && grants_per_stream <= kGrantsMost);
}

Ledger::HolderIndex Ledger::add_holder() {
  HolderIndex index = static_cast<HolderIndex>(holders_.size());
  if (free_holders_.empty())
    holders_.emplace_back();
  else
    holders_[index = take_index(free_holders_)] = {};
  holders_[index].used = true;
  return index;
}

Ledger::StreamIndex Ledger::add_stream(HolderIndex holder, ClientId client, StreamId id) {
  StreamIndex index = static_cast<StreamIndex>(streams_.size());
  if (free_streams_.empty())
    streams_.emplace_back();
  else
    streams_[index = take_index(free_streams_)] = {};
  StreamGrants& stream = streams_[index];
  stream.holder = holder;
  stream.client = client;
  stream.id = id;
  stream.next = std::exchange(holders_[holder].first, index);
  return index;
}

void Ledger::forget(HolderIndex holder_index) {
  Holder& holder = holders_[holder_index];
  if (!std::exchange(holder.used, false)) return;
  for (StreamIndex index = holder.first; index != kNone; index = streams_[index].next) {
    StreamGrants& stream = streams_[index];
    cancel(index);
    while (stream.count != 0) detach(stream, stream.slots[stream.count - 1]);
    set_quotas(index, {});
    free_streams_.push_back(index);
  }
  holder.first = kNone;
  free_holders_.push_back(holder_index);
}

void Ledger::set_holder(StreamIndex index, HolderIndex to) {
  StreamGrants& stream = streams_[index];
  if (stream.holder == to) return;
  StreamIndex* link = &holders_[stream.holder].first;
  while (*link != index) link = &streams_[*link].next;
  *link = stream.next;
  for (std::uint32_t i = 0; i < stream.count; ++i) {
    const Grant& grant = grant_of(stream.slots[i]);
    if (grant.mode != Mode::kExclusive) continue;
    release(holders_[stream.holder], pool_[grant.partition].compute);
    take(holders_[to], pool_[grant.partition].compute);
  }
  stream.holder = to;
  stream.next = std::exchange(holders_[to].first, index);
}

// --- quotas ----------------------------------------------------------------------------------

std::uint32_t Ledger::find_or_add_quota(const QuotaTerms& terms) {
  std::uint32_t unused = static_cast<std::uint32_t>(quotas_.size());
  for (std::uint32_t i = 0; i < quotas_.size(); ++i) {
    if (quotas_[i].streams == 0)
      unused = i;
    else if (quotas_[i].terms.key == terms.key)
      return i;
  }
  if (unused == quotas_.size()) quotas_.emplace_back();
  quotas_[unused] = {};
  return unused;
}

void Ledger::set_quotas(StreamIndex index, std::span<const QuotaTerms> terms) {
  assert(terms.size() <= kQuotasMost);
  StreamGrants& stream = streams_[index];
  Quotas quotas = no_quotas();
  for (std::size_t i = 0; i < terms.size(); ++i) {
    quotas[i] = find_or_add_quota(terms[i]);
    Quota& quota = quotas_[quotas[i]];
    quota_freed_ = quota_freed_ || terms[i].max_sms > quota.terms.max_sms;
    quota.terms = terms[i];
    ++quota.streams;
  }
  for (std::uint32_t i = 0; i < stream.count; ++i) {
    count_in(quotas, grant_of(stream.slots[i]));
    count_out(stream.quotas, grant_of(stream.slots[i]));
  }
  for (const std::uint32_t quota : stream.quotas)
    if (quota != kNone) --quotas_[quota].streams;
  stream.quotas = quotas;
}

bool Ledger::have_common_quota(StreamIndex a, StreamIndex b) const {
  const Quotas& others = streams_[b].quotas;
  return std::any_of(streams_[a].quotas.begin(), streams_[a].quotas.end(), [&](auto quota) {
    return quota != kNone && std::find(others.begin(), others.end(), quota) != others.end();
  });
}

bool Ledger::within_quotas(StreamIndex index, PartitionId partition) const {
  const ComputeSet units = pool_[partition].compute;
  for (const std::uint32_t index_of_quota : streams_[index].quotas) {
    if (index_of_quota == kNone) break;
    const Quota& quota = quotas_[index_of_quota];
    // Around all that they have it is as wide as a launch needs, or as the allocation says.
    if (quota.units.contains(units) || units.contains(quota.units)) continue;
    if (widths_.of(quota.units | units) > quota.terms.max_sms) return false;
  }
  return true;
}

ComputeSet Ledger::draining(StreamIndex index, std::uint64_t revoked_by_ns) const {
  const StreamGrants& stream = streams_[index];
  ComputeSet units;
  for (std::uint32_t i = 0; i < stream.count; ++i) {
    const Grant& grant = *at(stream.slots[i]);
    if (grant.state == Grant::State::kRevoked && !is_interim(grant.reason) &&
        grant.revoked_ns <= revoked_by_ns)
      units |= pool_[grant.partition].compute;
  }
  return units;
}

void Ledger::count_in(const Quotas& quotas, const Grant& grant) {
  if (quotas[0] == kNone || !is_counted(grant)) return;
  for (const std::uint32_t index : quotas) {
    if (index == kNone) return;
    Quota& quota = quotas_[index];
    quota.units |= pool_[grant.partition].compute;
    for_each_unit(pool_[grant.partition].compute, [&](unsigned number) { ++quota.grants[number]; });
  }
}

void Ledger::count_out(const Quotas& quotas, const Grant& grant) {
  if (quotas[0] == kNone || !is_counted(grant)) return;
  quota_freed_ = true;
  for (const std::uint32_t index : quotas) {
    if (index == kNone) return;
    Quota& quota = quotas_[index];
    for_each_unit(pool_[grant.partition].compute, [&](unsigned number) {
      assert(quota.grants[number] > 0 && quota.units.overlaps(unit(number)));
      if (--quota.grants[number] == 0) quota.units = quota.units - unit(number);
    });
  }
}

// --- grants ----------------------------------------------------------------------------------

bool Ledger::can_open(StreamIndex stream, PartitionId partition, Mode mode, Reason reason) const {
  return !full(stream) && mode != Mode::kPaused &&
         (mode == Mode::kShared || !conflicts(streams_[stream].holder, partition)) &&
         (reason == Reason::kNeedsWhole || within_quotas(stream, partition));
}

GrantId Ledger::open(StreamIndex index, const Terms& terms, std::uint64_t now_ns) {
  if (!can_open(index, terms.partition, terms.mode, terms.reason)) return kNoGrant;
  StreamGrants& stream = streams_[index];
  if (stream.open != kNone) {
    revoke(index, Reason::kMoved, now_ns);
    ++counters_.moved;
  }
  const std::uint32_t slot = add(stream, terms, Grant::State::kOpen, now_ns);
  grant_of(slot).opened_ns = now_ns;
  attach(stream, slot);
  stream.open = slot;
  ++counters_.opened;
  return grant_of(slot).id;
}

GrantId Ledger::pend(StreamIndex index, const Terms& terms, std::uint64_t now_ns) {
  if (terms.mode == Mode::kPaused) return kNoGrant;
  cancel(index);
  StreamGrants& stream = streams_[index];
  stream.pending = add(stream, terms, Grant::State::kPending, now_ns);
  return grant_of(stream.pending).id;
}

GrantId Ledger::promote(StreamIndex index, std::uint64_t now_ns) {
  StreamGrants& stream = streams_[index];
  if (stream.pending == kNone) return kNoGrant;
  const std::uint32_t slot = stream.pending;
  const Grant& wanted = grant_of(slot);
  if (!can_open(index, wanted.partition, wanted.mode, wanted.reason)) return kNoGrant;
  if (stream.open != kNone) {
    revoke(index, Reason::kMoved, now_ns);
    ++counters_.moved;
  }
  stream.pending = kNone;
  Grant& grant = grant_of(slot);
  grant.state = Grant::State::kOpen;
  grant.opened_ns = now_ns;
  attach(stream, slot);
  stream.open = slot;
  ++counters_.opened;
  return grant.id;
}

bool Ledger::cancel(StreamIndex index) {
  const std::uint32_t slot = std::exchange(streams_[index].pending, kNone);
  if (slot == kNone) return false;
  remove(slot);
  return true;
}

bool Ledger::revoke(StreamIndex index, Reason reason, std::uint64_t now_ns) {
  const std::uint32_t slot = std::exchange(streams_[index].open, kNone);
  if (slot == kNone) return false;
  Grant& grant = grant_of(slot);
  grant.state = Grant::State::kRevoked;
  grant.revoked = reason;
  grant.revoked_ns = now_ns;
  ++counters_.revoked;
  return true;
}

bool Ledger::amend(StreamIndex index, const Terms& terms) {
  const std::uint32_t slot = streams_[index].open;
  if (slot == kNone) return false;
  Grant& grant = grant_of(slot);
  grant.launches = terms.launches;
  grant.run_ahead_ns = terms.run_ahead_ns;
  const bool counts = terms.reason != Reason::kNeedsWhole, counted = is_counted(grant);
  if (counted && !counts) count_out(streams_[index].quotas, grant);
  grant.reason = terms.reason;
  if (counts && !counted) count_in(streams_[index].quotas, grant);
  return true;
}

bool Ledger::returned(StreamIndex index, GrantId id) {
  StreamGrants& stream = streams_[index];
  const auto end = stream.slots.begin() + stream.count;
  const std::uint32_t slot = slot_of(id);
  if (std::find(stream.slots.begin(), end, slot) == end || grant_of(slot).id != id) return false;
  detach(stream, slot);
  ++counters_.returned;
  return true;
}

GrantId Ledger::adopt(StreamIndex index, PartitionId partition, Mode mode, std::uint64_t now_ns) {
  StreamGrants& stream = streams_[index];
  if (stream.count == kGrantsMost || mode == Mode::kPaused) return kNoGrant;
  if (mode == Mode::kExclusive && conflicts(stream.holder, partition)) ++counters_.overlaps;
  Terms terms;
  terms.partition = partition;
  terms.mode = mode;
  terms.reason = Reason::kAdopted;
  const std::uint32_t slot = add(stream, terms, Grant::State::kRevoked, now_ns);
  Grant& grant = grant_of(slot);
  grant.revoked = Reason::kAdopted;
  grant.opened_ns = grant.revoked_ns = now_ns;
  attach(stream, slot);
  ++counters_.adopted;
  return grant.id;
}

const Grant* Ledger::find(GrantId id) const {
  const std::uint32_t slot = slot_of(id);
  if (id == kNoGrant || slot >= slots_.size() || slots_[slot].index == kNone) return nullptr;
  const Grant& grant = grants_[slots_[slot].index];
  return grant.id == id ? &grant : nullptr;
}

// --- records ---------------------------------------------------------------------------------

std::uint32_t Ledger::add(const StreamGrants& stream, const Terms& terms, Grant::State state,
                          std::uint64_t now_ns) {
  std::uint32_t slot = static_cast<std::uint32_t>(slots_.size());
  if (free_slots_.empty())
    slots_.emplace_back();
  else
    slot = take_index(free_slots_);
  slots_[slot].index = static_cast<std::uint32_t>(grants_.size());
  Grant& grant = grants_.emplace_back();
  grant.id = std::uint64_t{slots_[slot].generation} << 32 | slot;
  grant.client = stream.client;
  grant.stream = stream.id;
  grant.partition = terms.partition;
  grant.mode = terms.mode;
  grant.state = state;
  grant.reason = terms.reason;
  grant.launches = terms.launches;
  grant.run_ahead_ns = terms.run_ahead_ns;
  grant.requested_ns = now_ns;
  return slot;
}

void Ledger::remove(std::uint32_t slot) {
  const std::uint32_t index = std::exchange(slots_[slot].index, kNone);
  if (++slots_[slot].generation == 0) slots_[slot].generation = 1;
  free_slots_.push_back(slot);
  if (index + 1 != grants_.size()) {
    grants_[index] = grants_.back();
    slots_[slot_of(grants_[index].id)].index = index;
  }
  grants_.pop_back();
}

// The grant is open or revoked from now on: it counts, and holds its units if it is exclusive.
void Ledger::attach(StreamGrants& stream, std::uint32_t slot) {
  assert(stream.count < kGrantsMost && grant_of(slot).state != Grant::State::kPending);
  stream.slots[stream.count++] = slot;
  const Grant& grant = grant_of(slot);
  if (grant.mode == Mode::kExclusive) take(holders_[stream.holder], pool_[grant.partition].compute);
  count_in(stream.quotas, grant);
}

void Ledger::detach(StreamGrants& stream, std::uint32_t slot) {
  std::uint32_t* const slots = stream.slots.data();
  std::uint32_t* const found = std::find(slots, slots + stream.count, slot);
  assert(found != slots + stream.count);
  *found = slots[stream.count - 1];
  --stream.count;
  if (stream.open == slot) stream.open = kNone;
  const Grant& grant = grant_of(slot);
  if (grant.mode == Mode::kExclusive)
    release(holders_[stream.holder], pool_[grant.partition].compute);
  count_out(stream.quotas, grant);
  remove(slot);
}

void Ledger::take(Holder& holder, ComputeSet units) {
  const ComputeSet first = units - holder.units;  // of the holder's grants
  for_each_unit(units, [&](unsigned number) { ++holder.grants[number]; });
  for_each_unit(first, [&](unsigned number) {
    ++holders_on_[number];
    assert(holders_on_[number] <= holders_.size());
  });
  contested_ |= held_ & first;
  held_ |= first;
  holder.units |= first;
}

void Ledger::release(Holder& holder, ComputeSet units) {
  assert(holder.units.contains(units) && held_.contains(units));
  ComputeSet last;  // of the holder's grants
  for_each_unit(units, [&](unsigned number) {
    assert(holder.grants[number] > 0);
    if (--holder.grants[number] == 0) last |= unit(number);
  });
  for_each_unit(last, [&](unsigned number) {
    assert(holders_on_[number] > 0);
    --holders_on_[number];
  });
  holder.units = holder.units - last;
  held_ = held_ - (last - contested_);
  for_each_unit(last & contested_, [&](unsigned number) {
    if (holders_on_[number] == 1) contested_ = contested_ - unit(number);
  });
  freed_ |= last;
}

}  // namespace vitamin::scheduler
