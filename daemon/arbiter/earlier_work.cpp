// SPDX-License-Identifier: Apache-2.0
//
// Work of before a session: of a former daemon, of home, of an older session of the same process.
#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/arbiter/device_arbiter.h"

namespace vitamin::daemon {

using protocol::LeaseWord;
using runtime::trace::Kind;
using scheduler::Mode;

void DeviceArbiter::had_before(ClientId id, EntryId entry, std::uint64_t until_ns) {
  Client* const client = find(id);
  if (client == nullptr || entry >= layout_.size()) return;
  note({.kind = Kind::kBefore, .entry = entry, .client = id, .a = until_ns});
  client->before[entry] = until_ns;
}

void DeviceArbiter::expect_back(ClientId absent, std::uint64_t process, EntryId entry,
                                std::uint64_t until_ns, std::uint64_t now_ns) {
  if (entry >= layout_.size() || until_ns <= now_ns) return;
  note({.time = now_ns,
        .kind = Kind::kExpect,
        .entry = entry,
        .client = absent,
        .serial = process,
        .a = until_ns});
  const auto [known, is_new] = clients_.try_emplace(absent);
  Client& client = known->second;
  if (is_new) {
    ++absent_;
    client.absent = client.over = true;
    client.traits.process = process;
    client.answer_within_ns = settings_.answer_within_ns;
    client.lanes_on.assign(layout_.size(), 0);
  }
  Hold hold;
  hold.entry = entry;
  hold.unnamed = true;
  hold.heard_ns = hold.closed_ns = now_ns;
  hold.until_ns = until_ns;
  adopt(absent, client, 0, hold, now_ns);
}

void DeviceArbiter::take(ClientId id, Client& client, const protocol::Holding& holding,
                         std::uint64_t now_ns) {
  const auto entry = static_cast<EntryId>(holding.entry);
  if (!client.asked && !std::exchange(client.told, true)) inherit(id, client, now_ns);
  // Of a lane on an entry there is one: what it has inherited may be newer work than that was.
  for (Hold& hold : client.lanes[holding.head.lane].holds)
    if (hold.unnamed && hold.entry == entry) {
      hold.word = holding.word;
      hold.first = protocol::generation_of(holding.word);
      hold.unnamed = false;
      return;
    }
  const std::uint64_t until = believed_until(id, client, entry, holding.word, now_ns);
  if (client.asked || until <= now_ns || !within_share(client, entry)) {
    ++counters_.stale;
    return;
  }
  Hold hold;
  hold.entry = entry;
  hold.word = holding.word;
  hold.first = protocol::generation_of(holding.word);
  hold.heard_ns = hold.closed_ns = now_ns;
  hold.until_ns = until;
  const bool expected = expects(client, entry);
  if (!adopt(id, client, holding.head.lane, hold, now_ns) && !expected) ++counters_.overlaps;
}

// No other was granted any of it since this daemon is there: what overlaps it is of before, too.
bool DeviceArbiter::expects(const Client& client, EntryId entry) const {
  if (absent_ == 0) return false;
  return std::any_of(clients_.begin(), clients_.end(), [&](const auto& other) {
    return other.second.absent && other.second.traits.process == client.traits.process &&
           other.second.lanes_on[entry] > 0;
  });
}

// Whatever others hold there by now: both are then waited for (scheduler::Ledger, `contested`).
// False: others do, or the lane has as many as it can have.
bool DeviceArbiter::adopt(ClientId id, Client& client, LaneId lane_id, Hold hold,
                          std::uint64_t now_ns) {
  const std::uint64_t before = scheduler_.ledger().counters().overlaps;
  hold.adopted = true;
  hold.grant = scheduler_.adopt(id, lane_id, hold.entry,
                                hold.shared ? Mode::kShared : Mode::kExclusive, now_ns);
  if (hold.grant == scheduler::kNoGrant) return false;
  Lane& lane = client.lanes[lane_id];
  add(id, client, lane, hold, now_ns);
  overdue_at_ = std::min(overdue_at_, overdue_from(client, lane.holds.back()));
  return scheduler_.ledger().counters().overlaps == before;
}

// A lease of this daemon's is had from an older session or not at all. Until then work that it
// tells of there may last; 0: that there is any is not believed.
std::uint64_t DeviceArbiter::believed_until(ClientId id, const Client& client, EntryId entry,
                                            LeaseWord word, std::uint64_t now_ns) const {
  if (protocol::epoch_of(word) == epoch_) return 0;
  if (const auto before = client.before.find(entry);
      before != client.before.end() && now_ns < before->second)
    return before->second;
  if (protocol::epoch_of(word) != 0 || client.traits.process == 0) return 0;
  if (entry == runtime::kWholeDevice) return 0;  // as a home it is shared
  const bool was_home = std::any_of(clients_.begin(), clients_.end(), [&](const auto& other) {
    return other.first != id && other.second.traits.process == client.traits.process &&
           other.second.home.entry == entry;
  });
  return was_home ? kNever : 0;
}

// Its share may have become smaller than what it has, by as much as its home.
bool DeviceArbiter::within_share(const Client& client, EntryId entry) const {
  const std::uint32_t most = client.traits.terms.limits.most_sms();
  if (most == 0) return true;
  hal::ComputeSet units = layout_.at(entry).compute;
  for (const auto& [id, lane] : client.lanes)
    for (const Hold& hold : lane.holds)
      if (hold.is_lease()) units |= layout_.at(hold.entry).compute;
  return widths_.of(units) <= most + layout_.at(client.home.entry).processors;
}

// All that older sessions of the same process have, at once, because the parts may overlap: leases
// of this daemon, and what they told it of before. What is not named before one of those is
// closed was without work. They have said all that counts.
void DeviceArbiter::inherit(ClientId to, Client& heir, std::uint64_t now_ns) {
  if (heir.traits.process == 0) return;
  std::vector<std::pair<LaneId, Hold>> all;
  for (auto& [id, client] : clients_) {
    if (id >= to || client.absent || client.traits.process != heir.traits.process) continue;
    for (auto& [lane_id, lane] : client.lanes) {
      leave(id, client, lane_id, now_ns);
      for (const Hold& hold : lane.holds) {
        all.emplace_back(lane_id, hold);
        dropped(id, client, hold, now_ns);
        scheduler_.returned(id, lane_id, hold.grant, now_ns);
      }
      lane.holds.clear();
      // So that no grant has the word of another one.
      std::uint32_t& generation = heir.lanes[lane_id].generation;
      generation = std::max(generation, lane.generation);
    }
    client.over = true;
  }
  for (auto& [lane_id, hold] : all) {
    hold.unnamed = true;
    hold.heard_ns = now_ns;
    const std::vector<Hold>& holds = heir.lanes[lane_id].holds;
    const bool again = std::any_of(holds.begin(), holds.end(),
                                   [&](const Hold& other) { return other.entry == hold.entry; });
    if (again || !hold.is_lease()) continue;
    adopt(to, heir, lane_id, hold, now_ns);
  }
}

void DeviceArbiter::drop_unnamed(ClientId id, Client& client, std::uint64_t now_ns) {
  for (auto& [lane_id, lane] : client.lanes)
    std::erase_if(lane.holds, [&, lane_id = lane_id](const Hold& hold) {
      if (!hold.unnamed) return false;
      dropped(id, client, hold, now_ns);
      scheduler_.returned(id, lane_id, hold.grant, now_ns);
      return true;
    });
}

// What its process may have had under a former daemon, and has not named, was without work.
void DeviceArbiter::told_all(ClientId id, Client& client, std::uint64_t now_ns) {
  if (std::exchange(client.told_all, true)) return;
  outlet_.told_all(id);
  if (absent_ == 0) return;
  for (auto& [other_id, other] : clients_)
    if (other.absent && other.traits.process == client.traits.process)
      drop_unnamed(other_id, other, now_ns);
}

void DeviceArbiter::drop_absent() {
  for (auto it = clients_.begin(); it != clients_.end();) {
    const bool waits = !it->second.absent ||
                       std::any_of(it->second.lanes.begin(), it->second.lanes.end(),
                                   [](const auto& lane) { return !lane.second.holds.empty(); });
    if (waits) {
      ++it;
      continue;
    }
    scheduler_.forget(it->first, 0);
    if (found_id_ == it->first) found_id_ = scheduler::kNoClient;
    it = clients_.erase(it);
    --absent_;
  }
}

}  // namespace vitamin::daemon
