// SPDX-License-Identifier: Apache-2.0
//
// Work that began before a session: under a former daemon, in the fallback partition, or in an
// older session of the same process.
#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/arbiter/device_arbiter.h"

namespace vitamin::daemon {

using protocol::LeaseWord;
using runtime::trace::TraceKind;
using scheduler::Mode;

void DeviceArbiter::accept_earlier_work(ClientId id, PartitionId partition,
                                        std::uint64_t until_ns) {
  Client* const client = find(id);
  if (client == nullptr || partition >= layout_.size()) return;
  note({.kind = TraceKind::kBefore, .partition = partition, .client = id, .a = until_ns});
  client->before[partition] = until_ns;
}

void DeviceArbiter::reserve_for_absent(ClientId absent, std::uint64_t process,
                                       PartitionId partition, std::uint64_t until_ns,
                                       std::uint64_t now_ns) {
  if (partition >= layout_.size() || until_ns <= now_ns) return;
  note({.time = now_ns,
        .kind = TraceKind::kExpect,
        .partition = partition,
        .client = absent,
        .serial = process,
        .a = until_ns});
  const auto [known, is_new] = clients_.try_emplace(absent);
  Client& client = known->second;
  if (is_new) {
    ++absent_;
    client.absent = client.ignored = true;
    client.traits.process = process;
    client.answer_within_ns = settings_.answer_within_ns;
    client.awaited_grants.assign(layout_.size(), 0);
  }
  HeldGrant held;
  held.partition = partition;
  held.unconfirmed = true;
  held.answered_ns = held.closed_ns = now_ns;
  held.until_ns = until_ns;
  adopt(absent, client, 0, held, now_ns);
}

void DeviceArbiter::handle(ClientId id, Client& client, const protocol::Holding& holding,
                           std::uint64_t now_ns) {
  const auto partition = static_cast<PartitionId>(holding.partition);
  if (!client.sent_ready && !std::exchange(client.sent_holding, true))
    transfer_older_sessions(id, client, now_ns);
  // A lane reports one grant for each partition. A transferred grant may cover newer work than the
  // word that is reported.
  for (HeldGrant& held : client.lanes[holding.head.lane].grants)
    if (held.unconfirmed && held.partition == partition) {
      held.word = holding.word;
      held.first = protocol::generation_of(holding.word);
      held.unconfirmed = false;
      return;
    }
  const std::uint64_t until = accepted_until(id, client, partition, holding.word, now_ns);
  if (client.sent_ready || until <= now_ns || !within_quota(client, partition)) {
    ++counters_.stale;
    return;
  }
  HeldGrant held;
  held.partition = partition;
  held.word = holding.word;
  held.first = protocol::generation_of(holding.word);
  held.answered_ns = held.closed_ns = now_ns;
  held.until_ns = until;
  const bool expected = is_reserved_for(client, partition);
  if (!adopt(id, client, holding.head.lane, held, now_ns) && !expected) ++counters_.overlaps;
}

// Whether the partition was reserved for the client's process since this daemon started, so that
// whatever overlaps it there is earlier work, too.
bool DeviceArbiter::is_reserved_for(const Client& client, PartitionId partition) const {
  if (absent_ == 0) return false;
  return std::any_of(clients_.begin(), clients_.end(), [&](const auto& other) {
    return other.second.absent && other.second.traits.process == client.traits.process &&
           other.second.awaited_grants[partition] > 0;
  });
}

// Adopts the grant even if other clients hold units of it by now; the scheduler then waits for both
// (scheduler::Ledger, `contested`). False: there is such an overlap, or the lane has as many grants
// as it can have.
bool DeviceArbiter::adopt(ClientId id, Client& client, LaneId lane_id, HeldGrant held,
                          std::uint64_t now_ns) {
  const std::uint64_t before = scheduler_.ledger().counters().overlaps;
  held.adopted = true;
  held.grant = scheduler_.adopt(id, lane_id, held.partition,
                                held.shared ? Mode::kShared : Mode::kExclusive, now_ns);
  if (held.grant == scheduler::kNoGrant) return false;
  Lane& lane = client.lanes[lane_id];
  add(id, client, lane, held, now_ns);
  overdue_at_ = std::min(overdue_at_, overdue_from(client, lane.grants.back()));
  return scheduler_.ledger().counters().overlaps == before;
}

// Until when work that the client reports there may last; 0: the report is not accepted. Leases of
// this daemon's epoch are transferred from an older session; of one that is not there any more,
// work is accepted on the fallback partition only, whose report it may be part of (one report for
// each partition, under a daemon's word where there is one).
std::uint64_t DeviceArbiter::accepted_until(ClientId id, const Client& client,
                                            PartitionId partition, LeaseWord word,
                                            std::uint64_t now_ns) const {
  const bool of_this_daemon = protocol::epoch_of(word) == epoch_;
  if (const auto before = client.before.find(partition);
      !of_this_daemon && before != client.before.end() && now_ns < before->second)
    return before->second;
  if (!of_this_daemon && protocol::epoch_of(word) != 0) return 0;
  if (client.traits.process == 0) return 0;
  if (partition == runtime::kWholeDevice) return 0;  // as a fallback partition it is shared
  const bool was_fallback = std::any_of(clients_.begin(), clients_.end(), [&](const auto& other) {
    return other.first != id && other.second.traits.process == client.traits.process &&
           other.second.fallback.partition == partition;
  });
  return was_fallback ? kNever : 0;
}

// A client may hold SMs beyond its quota, by as many as its fallback partition has.
bool DeviceArbiter::within_quota(const Client& client, PartitionId partition) const {
  const std::uint32_t most = client.traits.terms.limits.most_sms();
  if (most == 0) return true;
  hal::ComputeSet units = layout_.at(partition).compute;
  for (const auto& [id, lane] : client.lanes)
    for (const HeldGrant& held : lane.grants)
      if (held.is_awaited()) units |= layout_.at(held.partition).compute;
  return widths_.of(units) <= most + layout_.at(client.fallback.partition).sms;
}

// Transfers all grants of older sessions of the same process, with the least drain credit of these:
// leases of this daemon and the earlier work that those sessions reported. All at once, because the
// partitions may overlap. Grants that the newer session has not confirmed when an older one is
// closed had no work. Nothing more is taken from the older sessions.
void DeviceArbiter::transfer_older_sessions(ClientId to, Client& newer, std::uint64_t now_ns) {
  if (newer.traits.process == 0) return;
  std::vector<std::pair<LaneId, HeldGrant>> all;
  credit(newer, now_ns);
  for (auto& [id, client] : clients_) {
    if (id >= to || client.absent || client.traits.process != newer.traits.process) continue;
    for (auto& [lane_id, lane] : client.lanes) {
      stop_submitting(id, client, lane_id, now_ns);
      for (const HeldGrant& held : lane.grants) {
        all.emplace_back(lane_id, held);
        // The newer one has the partition before the older one has it no more: a daemon that is
        // killed meanwhile leaves a record of it.
        if (held.is_awaited()) await(to, newer, held.partition);
        remove(id, client, held, now_ns);
        scheduler_.returned(id, lane_id, held.grant, now_ns);
      }
      lane.grants.clear();
      // So that no two grants have the same word.
      std::uint32_t& generation = newer.lanes[lane_id].generation;
      generation = std::max(generation, lane.generation);
    }
    credit(client, now_ns);
    newer.credit_ns = std::min(newer.credit_ns, client.credit_ns);
    newer.drains_long = newer.drains_long || client.drains_long;
    client.ignored = true;
  }
  for (auto& [lane_id, held] : all) {
    const bool awaited = held.is_awaited();
    held.unconfirmed = true;
    held.answered_ns = now_ns;
    const std::vector<HeldGrant>& grants = newer.lanes[lane_id].grants;
    const bool again = std::any_of(grants.begin(), grants.end(),
                                   [partition = held.partition](const HeldGrant& other) {
                                     return other.partition == partition;
                                   });
    if (!again && awaited) adopt(to, newer, lane_id, held, now_ns);
    if (awaited) await_no_more(to, newer, held.partition);
  }
}

void DeviceArbiter::drop_unconfirmed(ClientId id, Client& client, std::uint64_t now_ns) {
  for (auto& [lane_id, lane] : client.lanes)
    std::erase_if(lane.grants, [&, lane_id = lane_id](const HeldGrant& held) {
      if (!held.unconfirmed) return false;
      remove(id, client, held, now_ns);
      scheduler_.returned(id, lane_id, held.grant, now_ns);
      return true;
    });
}

// The client has reported all earlier work: what was reserved for its process and was not reported
// has no work.
void DeviceArbiter::end_earlier_work_reports(ClientId id, Client& client, std::uint64_t now_ns) {
  if (std::exchange(client.holdings_ended, true)) return;
  sink_.reported_earlier_work(id);
  if (absent_ == 0) return;
  for (auto& [other_id, other] : clients_)
    if (other.absent && other.traits.process == client.traits.process)
      drop_unconfirmed(other_id, other, now_ns);
}

void DeviceArbiter::drop_absent() {
  for (auto it = clients_.begin(); it != clients_.end();) {
    const bool waits = !it->second.absent ||
                       std::any_of(it->second.lanes.begin(), it->second.lanes.end(),
                                   [](const auto& lane) { return !lane.second.grants.empty(); });
    if (waits) {
      ++it;
      continue;
    }
    scheduler_.forget(it->first, 0);  // 0: the scheduler's clock never goes back
    if (found_id_ == it->first) found_id_ = scheduler::kNoClient;
    it = clients_.erase(it);
    --absent_;
  }
}

}  // namespace vitamin::daemon
