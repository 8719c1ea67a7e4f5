// SPDX-License-Identifier: Apache-2.0
#include "scheduler/constraints.h"

#include <algorithm>

namespace vitamin::scheduler {

using hal::ComputeSet;

namespace {

std::uint64_t key_of(ClientId client, StreamId stream) {
  return std::uint64_t{client} << 32 | stream;
}

// Calls `visit` with every stream of the client that waits or runs.
template <class Visit>
void for_each_busy(const Client& client, Visit visit) {
  for (const StreamDemand& stream : client.streams)
    if (stream.state != StreamDemand::State::kIdle) visit(stream);
}

}  // namespace

const Client* Snapshot::find(ClientId id) const {
  const auto at =
      std::lower_bound(clients.begin(), clients.end(), id,
                       [](const Client& client, ClientId wanted) { return client.id < wanted; });
  return at != clients.end() && at->id == id ? &*at : nullptr;
}

Constraints::Constraints(std::span<const Partition> pool) : pool_(pool), widths_(pool) {
  for (const Partition& partition : pool)
    if (partition.compute.count() < pool.front().compute.count())
      widest_part_ = std::max(widest_part_, partition.sms);
}

PartitionId Constraints::narrowest(std::uint32_t sms) const {
  for (const Partition& partition : pool_.subspan(1))
    if (partition.sms >= sms) return partition.id;
  return kWholeDevice;
}

const char* Constraints::clip(const Snapshot& snapshot, std::span<const Row> rows,
                              std::span<const Starving> starving, const ClipOptions& options,
                              std::vector<Planned>& out) {
  out.clear();
  prepare(snapshot);
  if (const char* problem = validate(snapshot, rows)) return problem;
  any_exclusive_ = any_exclusive_ || options.placement;
  place_starving(snapshot, starving, options.isolate_streams, out);
  starving_rows_ = out.size();
  reserve(snapshot, rows);
  place_rows(snapshot, rows, options.isolate_streams, out);
  place_missing(snapshot, options.isolate_streams, out);
  return nullptr;
}

// --- what is known ---------------------------------------------------------------------------

std::uint32_t Constraints::owner_of(const Snapshot& snapshot, ClientId client) {
  // Rows mostly come in the order of clients.
  for (std::uint32_t next = last_owner_; next < last_owner_ + 2; ++next)
    if (next < snapshot.clients.size() && snapshot.clients[next].id == client)
      return last_owner_ = next;
  const Client* const found = snapshot.find(client);
  if (found == nullptr) return kNone;
  return last_owner_ = static_cast<std::uint32_t>(found - snapshot.clients.data());
}

std::uint32_t Constraints::account_of(std::uint32_t group) {
  for (std::uint32_t i = 0; group != 0 && i < accounts_.size(); ++i)
    if (accounts_[i].group == group) return i;
  accounts_.emplace_back().group = group;
  return static_cast<std::uint32_t>(accounts_.size() - 1);
}

void Constraints::prepare(const Snapshot& snapshot) {
  exclusive_ = shared_ = shared_by_several_ = reserved_ = {};
  last_owner_ = 0;
  accounts_.clear();
  owners_.clear();
  for (const Client& client : snapshot.clients) {
    Owner& owner = owners_.emplace_back();
    const Limits& limits = client.limits;
    owner.since_ns = client.active ? client.active_since_ns : kNever;
    owner.account = account_of(limits.group);
    Account& account = accounts_[owner.account];
    if (limits.max_sms != 0) account.max_sms = limits.max_sms;
    account.reserved_sms = std::max(account.reserved_sms, limits.reserved_sms);
    if (account.max_sms != 0)
      account.reserved_sms = std::min(account.reserved_sms, account.max_sms);
    for (const GroupQuota& quota : limits.outer) {
      if (quota.group == 0 || quota.max_sms == 0) continue;
      const std::uint32_t outer = owner.outer[owner.outers++] = account_of(quota.group);
      accounts_[outer].max_sms = quota.max_sms;
    }
    for_each_busy(client, [&](const StreamDemand& stream) {
      if (!needs_whole(stream.min_sms)) owner.min_sms = std::max(owner.min_sms, stream.min_sms);
    });
  }
  if (snapshot.current == nullptr) return;
  for (const Row& row : snapshot.current->rows)
    if (row.stream == kAllStreams && row.mode != Mode::kPaused)
      if (const std::uint32_t owner = owner_of(snapshot, row.client); owner != kNone)
        owners_[owner].current = row.partition;
}

const char* Constraints::validate(const Snapshot& snapshot, std::span<const Row> rows) {
  keys_.clear();
  wishes_.clear();
  any_exclusive_ = false;
  for (std::uint32_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    if (row.mode > Mode::kPaused) return "a row has no valid mode";
    if (row.partition >= pool_.size()) return "a row names a partition that the pool lacks";
    const std::uint32_t owner = owner_of(snapshot, row.client);
    if (owner == kNone) return "a row names a client that the snapshot lacks";
    keys_.push_back(key_of(row.client, row.stream));
    const Client& client = snapshot.clients[owner];
    const bool exclusive =
        row.mode == Mode::kExclusive || (row.mode == Mode::kShared && !client.limits.may_share);
    wishes_.push_back({i, owner, exclusive});
    any_exclusive_ = any_exclusive_ || exclusive;
    if (row.stream == kAllStreams) owners_[owner].has_row = true;
  }
  if (!std::is_sorted(keys_.begin(), keys_.end())) std::sort(keys_.begin(), keys_.end());
  if (std::adjacent_find(keys_.begin(), keys_.end()) != keys_.end())
    return "two rows name the same client and stream";
  return nullptr;
}

ComputeSet Constraints::reserved_against(const Snapshot& snapshot, ClientId client) const {
  const Client* const found = snapshot.find(client);
  if (found == nullptr || owners_.size() != snapshot.clients.size()) return reserved_;
  const auto index = static_cast<std::size_t>(found - snapshot.clients.data());
  return reserved_from(owners_[index]);
}

// --- what fits -------------------------------------------------------------------------------

bool Constraints::within_quota(const Account& account, PartitionId id,
                               std::uint32_t min_sms) const {
  if (account.max_sms == 0) return true;
  const std::uint32_t sms = widths_.of(account.used | pool_[id].compute);
  return sms <= std::max(account.max_sms, pool_[narrowest(min_sms)].sms);
}

bool Constraints::within_quotas(const Owner& owner, PartitionId id, std::uint32_t min_sms) const {
  if (!within_quota(accounts_[owner.account], id, min_sms)) return false;
  for (std::uint32_t i = 0; i < owner.outers; ++i)
    if (!within_quota(accounts_[owner.outer[i]], id, min_sms)) return false;
  return true;
}

// Units that are reserved for others than the client and its groups.
ComputeSet Constraints::reserved_from(const Owner& owner) const {
  ComputeSet own = accounts_[owner.account].reserved;
  for (std::uint32_t i = 0; i < owner.outers; ++i) own |= accounts_[owner.outer[i]].reserved;
  return reserved_ - own;
}

bool Constraints::fits(std::uint32_t index, bool isolate, PartitionId id, Mode mode,
                       std::uint32_t min_sms) const {
  const Owner& owner = owners_[index];
  const ComputeSet units = pool_[id].compute;
  const ComputeSet own_exclusive = isolate ? ComputeSet() : owner.exclusive;
  if (units.overlaps(exclusive_ - own_exclusive)) return false;
  if (units.overlaps(reserved_from(owner))) return false;
  if (mode == Mode::kExclusive) {
    const ComputeSet own_shared = isolate ? ComputeSet() : owner.shared;
    if (units.overlaps((shared_ - own_shared) | shared_by_several_)) return false;
  }
  return within_quotas(owner, id, min_sms);
}

PartitionId Constraints::widest_inside(std::uint32_t index, bool isolate, PartitionId wished,
                                       Mode mode, std::uint32_t min_sms) const {
  if (fits(index, isolate, wished, mode, min_sms)) return wished;
  const ComputeSet inside = pool_[wished].compute;
  PartitionId best = kNoPartition;
  for (std::size_t i = pool_.size(); i-- > 1;) {
    const Partition& partition = pool_[i];
    if (best != kNoPartition && partition.sms < pool_[best].sms) break;
    if (!inside.contains(partition.compute) || !fits(index, isolate, partition.id, mode, min_sms))
      continue;
    // Of equal width: where the client is.
    if (best == kNoPartition || partition.id == owners_[index].current) best = partition.id;
  }
  return best;
}

PartitionId Constraints::narrowest_fit(std::uint32_t index, bool isolate, Mode mode,
                                       std::uint32_t min_sms) const {
  PartitionId best = kNoPartition;
  for (const Partition& partition : pool_.subspan(1)) {
    if (partition.sms < min_sms) continue;
    if (best != kNoPartition && partition.sms > pool_[best].sms) break;
    if (!fits(index, isolate, partition.id, mode, min_sms)) continue;
    if (best == kNoPartition || partition.id == owners_[index].current) best = partition.id;
  }
  return best;
}

void Constraints::take(std::uint32_t index, PartitionId id, Mode mode) {
  Owner& owner = owners_[index];
  const Partition& partition = pool_[id];
  if (mode == Mode::kExclusive) {
    owner.exclusive |= partition.compute;
    exclusive_ |= partition.compute;
  } else {
    shared_by_several_ |= partition.compute & (shared_ - owner.shared);
    owner.shared |= partition.compute;
    shared_ |= partition.compute;
  }
  accounts_[owner.account].used |= partition.compute;
  for (std::uint32_t i = 0; i < owner.outers; ++i)
    accounts_[owner.outer[i]].used |= partition.compute;
}

// --- starving streams ------------------------------------------------------------------------

PartitionId Constraints::choose_for(const Snapshot& snapshot, const Starving& stream,
                                    std::uint32_t owner, bool isolate, bool shared) const {
  const Mode mode = shared ? Mode::kShared : Mode::kExclusive;
  if (stream.partition != kNoPartition && pool_[stream.partition].sms >= stream.min_sms &&
      fits(owner, isolate, stream.partition, mode, stream.min_sms))
    return stream.partition;
  if (shared) return widest_inside(owner, isolate, kWholeDevice, mode, stream.min_sms);
  // Units on which no work of others has to end come first.
  ComputeSet held;
  for (const Grant& grant : snapshot.grants)
    if (grant.mode == Mode::kExclusive && grant.state != Grant::State::kPending &&
        grant.client != stream.client)
      held |= pool_[grant.partition].compute;
  PartitionId best = kNoPartition;
  for (const Partition& partition : pool_.subspan(1)) {
    if (partition.sms < stream.min_sms) continue;
    if (best != kNoPartition && partition.sms > pool_[best].sms) break;
    if (!fits(owner, isolate, partition.id, mode, stream.min_sms)) continue;
    if (!partition.compute.overlaps(held)) return partition.id;
    if (best == kNoPartition) best = partition.id;
  }
  if (best == kNoPartition && fits(owner, isolate, kWholeDevice, mode, stream.min_sms))
    best = kWholeDevice;
  return best;
}

void Constraints::place_starving(const Snapshot& snapshot, std::span<const Starving> starving,
                                 bool isolate, std::vector<Planned>& out) {
  for (const Starving& stream : starving) {
    const std::uint32_t owner = owner_of(snapshot, stream.client);
    if (owner == kNone) continue;
    Planned planned;
    planned.row.client = stream.client;
    planned.row.stream = stream.stream;
    planned.reason = Reason::kStarving;
    if (needs_whole(stream.min_sms)) {
      // The launch waits for no units; what it needs is a row at all.
      planned.row.launches = 1;
      planned.reason = Reason::kNeedsWhole;
      out.push_back(planned);
      continue;
    }
    const bool shared = snapshot.clients[owner].limits.may_share &&
                        (stream.partition != kNoPartition ? stream.mode == Mode::kShared
                                                          : !any_exclusive_ && exclusive_.empty());
    planned.row.partition = choose_for(snapshot, stream, owner, isolate, shared);
    if (planned.row.partition == kNoPartition) continue;  // behind those that wait for longer
    planned.row.mode = shared ? Mode::kShared : Mode::kExclusive;
    take(owner, planned.row.partition, planned.row.mode);
    ++corrections_.starving;
    out.push_back(planned);
  }
}

// --- reservations ----------------------------------------------------------------------------

void Constraints::reserve(const Snapshot& snapshot, std::span<const Row> rows) {
  for (std::uint32_t i = 0; i < accounts_.size(); ++i) {
    Account& account = accounts_[i];
    if (account.reserved_sms == 0) continue;
    // Inside a row of the account, if the policy gave one that is wide enough.
    ComputeSet preferred;
    for (const Wish& wish : wishes_)
      if (owners_[wish.owner].account == i && rows[wish.row].mode != Mode::kPaused)
        preferred |= pool_[rows[wish.row].partition].compute;
    ComputeSet taken = exclusive_ | reserved_;
    for (std::size_t client = 0; client < snapshot.clients.size(); ++client)
      if (owners_[client].account == i) taken = taken - owners_[client].exclusive;
    for (const Partition& partition : pool_.subspan(1)) {
      if (partition.sms < account.reserved_sms || partition.compute.overlaps(taken)) continue;
      const bool inside = preferred.contains(partition.compute);
      if (account.reserved_partition == kNoPartition || inside)
        account.reserved_partition = partition.id;
      if (inside || preferred.empty()) break;
    }
    if (account.reserved_partition == kNoPartition) {
      ++corrections_.unmet;
      continue;
    }
    account.reserved = pool_[account.reserved_partition].compute;
    reserved_ |= account.reserved;
  }
}

// --- the policy's rows -----------------------------------------------------------------------

bool Constraints::has_starving_row(ClientId client, StreamId stream,
                                   std::span<const Planned> out) const {
  const auto starving = out.first(starving_rows_);
  return std::any_of(starving.begin(), starving.end(), [&](const Planned& planned) {
    return planned.row.client == client && planned.row.stream == stream;
  });
}

// Members of a group share what is reserved for the group.
Mode Constraints::reserved_mode(const Account& account, const Client& client) {
  return account.group != 0 && client.limits.may_share ? Mode::kShared : Mode::kExclusive;
}

// A client may have thousands of streams, and a policy a row for each.
void Constraints::collect_min_sms(const Snapshot& snapshot) {
  min_sms_.clear();
  for (const Client& client : snapshot.clients)
    for_each_busy(client, [&](const StreamDemand& stream) {
      min_sms_.emplace_back(key_of(client.id, stream.id), stream.min_sms);
    });
  std::sort(min_sms_.begin(), min_sms_.end());
}

std::uint32_t Constraints::min_sms_of(ClientId client, StreamId stream) const {
  const std::uint64_t key = key_of(client, stream);
  const auto at = std::lower_bound(min_sms_.begin(), min_sms_.end(), key,
                                   [](const auto& one, std::uint64_t k) { return one.first < k; });
  return at != min_sms_.end() && at->first == key ? at->second : 1;
}

void Constraints::place_rows(const Snapshot& snapshot, std::span<const Row> rows,
                             bool isolate_streams, std::vector<Planned>& out) {
  const auto before = [&](const Wish& a, const Wish& b) {
    const Row &left = rows[a.row], &right = rows[b.row];
    if (left.rank != right.rank) return left.rank < right.rank;
    if (a.exclusive != b.exclusive) return a.exclusive;
    if (owners_[a.owner].since_ns != owners_[b.owner].since_ns)
      return owners_[a.owner].since_ns < owners_[b.owner].since_ns;
    return key_of(left.client, left.stream) < key_of(right.client, right.stream);
  };
  if (!std::is_sorted(wishes_.begin(), wishes_.end(), before))
    std::sort(wishes_.begin(), wishes_.end(), before);
  if (std::any_of(rows.begin(), rows.end(),
                  [](const Row& row) { return row.stream != kAllStreams; }))
    collect_min_sms(snapshot);
  for (const Wish& wish : wishes_) {
    const Row& row = rows[wish.row];
    // Until its quantum ends a starving stream has the row of its own.
    if (row.stream != kAllStreams && has_starving_row(row.client, row.stream, out)) continue;
    place_row(snapshot, row, wish.owner, isolate_streams, out);
  }
}

// What the row of one launch that only the whole device can run is.
Planned Constraints::whole_device_for(const Row& row, ClientId client, StreamId stream) {
  ++corrections_.needs_whole;
  Planned planned{row, Reason::kNeedsWhole, row.partition, row.mode};
  planned.row.client = client;
  planned.row.stream = stream;
  planned.row.partition = kWholeDevice;
  planned.row.mode = Mode::kShared;
  planned.row.launches = 1;
  return planned;
}

void Constraints::place_row(const Snapshot& snapshot, const Row& row, std::uint32_t owner,
                            bool isolate, std::vector<Planned>& out) {
  const Client& client = snapshot.clients[owner];
  const Account& account = accounts_[owners_[owner].account];
  Planned planned{row, Reason::kPolicy, row.partition, row.mode};
  const bool for_client = row.stream == kAllStreams;
  if (!client.active && !row.hold) return;
  std::uint32_t min_sms = for_client ? owners_[owner].min_sms : min_sms_of(row.client, row.stream);
  if (row.mode == Mode::kShared && !client.limits.may_share) {
    planned.row.mode = Mode::kExclusive;
    planned.reason = Reason::kNotShared;
    ++corrections_.not_shared;
  }
  if (!for_client && needs_whole(min_sms) && row.mode != Mode::kPaused) {
    if (pool_[row.partition].sms < min_sms ||
        !fits(owner, isolate, row.partition, planned.row.mode, 1))
      return out.push_back(whole_device_for(row, row.client, row.stream));
    min_sms = 1;
  }
  PartitionId wished = row.partition;
  // A reservation comes before a policy that gives less.
  if (for_client && account.reserved_partition != kNoPartition && client.active &&
      (row.mode == Mode::kPaused || pool_[wished].sms < account.reserved_sms)) {
    wished = account.reserved_partition;
    planned.row.mode = reserved_mode(account, client);
    planned.reason = Reason::kReservation;
    ++corrections_.reservation;
  } else if (row.mode == Mode::kPaused) {
    planned.reason = Reason::kPaused;
    return out.push_back(planned);
  }
  find_place(owner, isolate, wished, min_sms, client.limits.may_share, planned);
  if (planned.reason == Reason::kNoRoom && for_client)
    share_with_group(snapshot, owner, min_sms, planned, out);
  if (planned.row.mode != Mode::kPaused) take(owner, planned.row.partition, planned.row.mode);
  out.push_back(planned);
  if (for_client && planned.row.mode != Mode::kPaused)
    place_wide_launches(snapshot, owner, planned, out);
}

// Sets the row's partition, or pauses it.
void Constraints::find_place(std::uint32_t owner, bool isolate, PartitionId wished,
                             std::uint32_t min_sms, bool may_share, Planned& planned) {
  Row& row = planned.row;
  PartitionId got = widest_inside(owner, isolate, wished, row.mode, min_sms);
  if (pool_[wished].sms < min_sms && !needs_whole(min_sms)) {
    const PartitionId wider = narrowest_fit(owner, isolate, row.mode, min_sms);
    if (wider != kNoPartition) {
      row.partition = wider;
      planned.reason = Reason::kNeedsWidth;
      ++corrections_.needs_width;
      return;
    }
  }
  bool made_shared = false;
  if (got == kNoPartition && row.mode == Mode::kExclusive && may_share) {
    row.mode = Mode::kShared;
    made_shared = true;
    got = widest_inside(owner, isolate, wished, Mode::kShared, min_sms);
  }
  if (got == kNoPartition) {
    row.mode = Mode::kPaused;
    planned.reason = Reason::kNoRoom;
    ++corrections_.no_room;
    return;
  }
  row.partition = got;
  if (got == wished && !made_shared) return;
  const bool quota = !within_quotas(owners_[owner], wished, min_sms);
  planned.reason = quota ? Reason::kQuota : Reason::kOverlap;
  ++(quota ? corrections_.quota : corrections_.overlap);
}

// The account of a group with a quota that both are in; kNone: there is none.
std::uint32_t Constraints::common_quota(const Owner& a, const Owner& b) const {
  const auto is_common = [&](std::uint32_t index) {
    const Account& account = accounts_[index];
    const auto end = b.outer.begin() + b.outers;
    return account.group != 0 && account.max_sms != 0 &&
           (b.account == index || std::find(b.outer.begin(), end, index) != end);
  };
  if (is_common(a.account)) return a.account;
  const auto end = a.outer.begin() + a.outers;
  const auto found = std::find_if(a.outer.begin(), end, is_common);
  return found != end ? *found : kNone;
}

// The row has no room. If a quota of a group is why, it shares the units of the widest row of
// another member: that row becomes shared, and the units are the group's alone.
void Constraints::share_with_group(const Snapshot& snapshot, std::uint32_t index,
                                   std::uint32_t min_sms, Planned& planned,
                                   std::vector<Planned>& out) {
  if (!snapshot.clients[index].limits.may_share) return;
  const ComputeSet barred = reserved_from(owners_[index]);
  // An exclusive row becomes shared only where its client has no other exclusive one.
  const auto has_another = [&](const Planned& host) {
    return std::any_of(out.begin(), out.end(), [&](const Planned& other) {
      return &other != &host && other.row.client == host.row.client &&
             other.row.mode == Mode::kExclusive;
    });
  };
  Planned* host = nullptr;
  PartitionId best = kNoPartition;
  for (Planned& other : std::span(out).subspan(starving_rows_)) {
    if (other.row.stream != kAllStreams || other.row.mode == Mode::kPaused) continue;
    const std::uint32_t owner = owner_of(snapshot, other.row.client);
    const ComputeSet inside = pool_[other.row.partition].compute;
    if (owner == index || !snapshot.clients[owner].limits.may_share ||
        common_quota(owners_[index], owners_[owner]) == kNone ||
        (other.row.mode == Mode::kExclusive && has_another(other)))
      continue;
    const ComputeSet given_up = other.row.mode == Mode::kExclusive ? inside : ComputeSet();
    for (const Partition& partition : pool_)
      if (partition.sms >= min_sms && inside.contains(partition.compute) &&
          !partition.compute.overlaps(barred | (exclusive_ - given_up)) &&
          within_quotas(owners_[index], partition.id, min_sms) &&
          (best == kNoPartition || partition.sms > pool_[best].sms)) {
        best = partition.id;
        host = &other;
      }
  }
  if (host == nullptr) return;
  Owner& owner = owners_[owner_of(snapshot, host->row.client)];
  const ComputeSet units = pool_[host->row.partition].compute;
  if (host->row.mode == Mode::kExclusive) {
    host->row.mode = Mode::kShared;
    host->reason = Reason::kQuota;
    exclusive_ = exclusive_ - units;
    owner.exclusive = {};
    owner.shared |= units;
    shared_ |= units;
    // What was reserved before stays so against the other members.
    accounts_[common_quota(owners_[index], owner)].reserved |= units - reserved_;
    reserved_ |= units;
  }
  planned.row.partition = best;
  planned.row.mode = Mode::kShared;
  planned.reason = Reason::kQuota;
  --corrections_.no_room;
  ++corrections_.quota;
}

// Launches that only the whole device can run, of a client that has less.
void Constraints::place_wide_launches(const Snapshot& snapshot, std::uint32_t owner,
                                      const Planned& planned, std::vector<Planned>& out) {
  const Client& client = snapshot.clients[owner];
  const std::uint32_t width = pool_[planned.row.partition].sms;
  for_each_busy(client, [&](const StreamDemand& stream) {
    if (!needs_whole(stream.min_sms) || width >= stream.min_sms ||
        width == pool_[kWholeDevice].sms ||
        std::binary_search(keys_.begin(), keys_.end(), key_of(client.id, stream.id)) ||
        has_starving_row(client.id, stream.id, out))
      return;
    out.push_back(whole_device_for(planned.row, client.id, stream.id));
  });
}

void Constraints::place_missing(const Snapshot& snapshot, bool isolate, std::vector<Planned>& out) {
  for (std::uint32_t i = 0; i < snapshot.clients.size(); ++i) {
    const Client& client = snapshot.clients[i];
    if (owners_[i].has_row || !client.active) continue;
    Planned planned;
    planned.row.client = client.id;
    planned.row.mode = Mode::kPaused;
    planned.reason = Reason::kPaused;
    const Account& account = accounts_[owners_[i].account];
    const Mode mode = reserved_mode(account, client);
    if (account.reserved_partition != kNoPartition &&
        fits(i, isolate, account.reserved_partition, mode, owners_[i].min_sms)) {
      planned.row.partition = account.reserved_partition;
      planned.row.mode = mode;
      planned.reason = Reason::kReservation;
      ++corrections_.reservation;
      take(i, account.reserved_partition, mode);
    }
    out.push_back(planned);
  }
}

}  // namespace vitamin::scheduler
