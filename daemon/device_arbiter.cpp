// SPDX-License-Identifier: Apache-2.0
#include "daemon/device_arbiter.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace vitamin::daemon {

using protocol::Gate;
using protocol::LeaseWord;
using runtime::kNever;
using runtime::trace::Kind;

namespace {

// Disjoint entries, narrowest first.
std::vector<EntryId> choose_homes(const runtime::PoolLayout& layout) {
  std::vector<EntryId> homes;
  hal::ComputeSet taken;
  for (const runtime::PoolEntry& entry : layout.entries()) {
    if (entry.whole() || entry.compute.overlaps(taken)) continue;
    taken |= entry.compute;
    homes.push_back(entry.id);
  }
  if (homes.empty()) homes.push_back(runtime::kWholeDevice);
  return homes;
}

// Timed launches of a width that count: some seconds of a busy client, of which one in 97 is timed.
constexpr std::uint64_t kRemembered = 2'000;

// What a launch is taken to last, where only ratios count: half of all kernels of training last
// less.
constexpr double kUsualNs = 10'000;

// Neither of those who are overdue one after the other, nor of those who answer one after the
// other, has each a look at all that anybody has: so often in the time in which one must answer.
constexpr std::uint64_t kOverdueLooks = 256;

// Where the profile holds all of a client's launches.
std::uint64_t curve_of(ClientId client) { return std::uint64_t{client} + 1; }

// What the program says of an operation comes before what its class says of the client.
runtime::OperationClass kind_of(std::uint8_t said, const Traits& traits) {
  return said != 0 ? static_cast<runtime::OperationClass>(said) : traits.kind;
}

}  // namespace

DeviceArbiter::DeviceArbiter(const runtime::PoolLayout& layout,
                             std::unique_ptr<runtime::Policy> policy,
                             const ArbiterSettings& settings, std::uint32_t epoch, Outlet& outlet)
    : layout_(layout),
      settings_(settings),
      epoch_(epoch),
      outlet_(outlet),
      scheduler_(layout_, std::move(policy), settings.scheduler, &profile_),
      homes_(choose_homes(layout_)),
      guests_(homes_.size(), 0) {}

void DeviceArbiter::close_gates(ClientId client) {
  note({.kind = Kind::kGates, .client = client});
  outlet_.gates_closed(client);
}

void DeviceArbiter::set(const ArbiterSettings& settings) {
  note({.kind = Kind::kReload});
  settings_ = settings;
  scheduler_.set(settings.scheduler);
}

DeviceArbiter::Home DeviceArbiter::attach(ClientId id, const Traits& traits) {
  note({.kind = Kind::kAttach,
        .lane = traits.group,
        .client = id,
        .flags = static_cast<std::uint32_t>(traits.kind),
        .serial = traits.process,
        .a = traits.tpot_ns,
        .b = traits.most | std::uint64_t{traits.reserved} << 32});
  const auto fewest = std::min_element(guests_.begin(), guests_.end());
  const auto index = static_cast<std::size_t>(fewest - guests_.begin());
  Client& client = clients_[id];
  client.home = {homes_[index], *fewest > 0};
  client.traits = traits;
  client.answer_within_ns = settings_.answer_within_ns;
  client.credit_ns = settings_.drain_within_ns;
  client.lanes_on.assign(layout_.size(), 0);
  scheduler_.progressed(id, 0);
  ++*fewest;
  return client.home;
}

void DeviceArbiter::had_before(ClientId id, EntryId entry, std::uint64_t until_ns) {
  Client* const client = find(id);
  if (client == nullptr || entry >= layout_.size() || entry == runtime::kWholeDevice) return;
  note({.kind = Kind::kBefore, .entry = entry, .client = id, .a = until_ns});
  client->before[entry] = until_ns;
}

DeviceArbiter::Client* DeviceArbiter::find(ClientId id) {
  if (id != found_id_) {  // what is said of a client comes in a row
    const auto known = clients_.find(id);
    if (known == clients_.end()) return nullptr;
    found_id_ = id;
    found_ = &known->second;
  }
  return found_;
}

// --- what clients say ------------------------------------------------------------------------

void DeviceArbiter::request(ClientId id, const protocol::Request& request, std::uint64_t now_ns) {
  Client* const client = find(id);
  if (client == nullptr || client->over) return;
  ++counters_.requests;
  if (trace_ != nullptr) [[unlikely]] {
    const protocol::Record copy =
        std::visit([](const auto& said) { return protocol::encode(said); }, request);
    trace_->add({.time = now_ns, .kind = Kind::kRequest, .client = id}, &copy);
  }
  std::visit([&](const auto& said) { take(id, *client, said, now_ns); }, request);
}

void DeviceArbiter::take(ClientId id, Client& client, const protocol::Ready& ready,
                         std::uint64_t now_ns) {
  client.asked = true;
  if (ready.moves_on != 0) leave(id, client, ready.head.lane, now_ns);
  Lane& lane = client.lanes[ready.head.lane];
  if (lane.asked_ns == 0 && !lane.submits()) lane.asked_ns = now_ns;
  if (client.traits.tpot_ns != 0 && (lane.deadline_ns == 0 || ready.iteration_end != 0))
    lane.deadline_ns = now_ns + client.traits.tpot_ns;
  runtime::ReadyOperation operation;
  operation.id = counters_.requests;  // of each another one
  operation.client = id;
  operation.lane = ready.head.lane;
  operation.kernel = curve_of(id);
  operation.processors = ready.processors;
  operation.predicted_ns = ready.predicted_ns;
  operation.queued_ns = ready.queued_ns;
  operation.ready_at_ns = ready.ready_in_ns != 0 ? now_ns + ready.ready_in_ns : 0;
  operation.deadline_ns =
      ready.deadline_in_ns != 0 ? now_ns + ready.deadline_in_ns : lane.deadline_ns;
  operation.target_ns = client.traits.tpot_ns;
  operation.kind = kind_of(ready.kind, client.traits);
  operation.last_entry = ready.last_entry;
  operation.iteration_end = ready.iteration_end != 0;
  operation.right_of_way = client.traits.right_of_way();
  scheduler_.wants(operation, now_ns);
}

void DeviceArbiter::take(ClientId id, Client& client, const protocol::Idle& idle,
                         std::uint64_t now_ns) {
  client.lanes[idle.head.lane].deadline_ns = 0;
  leave(id, client, idle.head.lane, now_ns);
}

// The lane submits nothing more under the grant that it has.
void DeviceArbiter::leave(ClientId id, Client& client, LaneId lane_id, std::uint64_t now_ns) {
  Lane& lane = client.lanes[lane_id];
  // It may have said so before it saw its newest grant, which it then holds for open.
  for (Hold& hold : lane.holds)
    if (hold.open && close(id, lane_id, lane, hold, now_ns)) close_gates(id);
  lane.asked_ns = 0;
  scheduler_.idle(id, lane_id, now_ns);
}

void DeviceArbiter::take(ClientId id, Client& client, const protocol::Returned& returned,
                         std::uint64_t now_ns) {
  Lane& lane = client.lanes[returned.head.lane];
  const auto hold = std::find_if(lane.holds.begin(), lane.holds.end(), [&](const Hold& held) {
    return held.entry == returned.entry && held.word == returned.word;
  });
  if (hold == lane.holds.end()) {
    ++counters_.stale;
    return;
  }
  if (hold->open) publish(id, returned.head.lane, lane, 0);
  lane.holds.erase(hold);
  dropped(id, client, static_cast<EntryId>(returned.entry));
  scheduler_.returned(id, returned.head.lane, static_cast<EntryId>(returned.entry), now_ns);
}

void DeviceArbiter::take(ClientId, Client& client, const protocol::Draining& draining,
                         std::uint64_t now_ns) {
  for (Hold& hold : client.lanes[draining.head.lane].holds)
    if (hold.word == draining.word) hold.heard_ns = now_ns;
}

void DeviceArbiter::take(ClientId id, Client& client, const protocol::Holding& holding,
                         std::uint64_t now_ns) {
  const auto entry = static_cast<EntryId>(holding.entry);
  if (!client.asked && !std::exchange(client.told, true)) inherit(id, client, now_ns);
  // Of a lane on an entry there is one: what it has inherited may be newer work than that was.
  for (Hold& hold : client.lanes[holding.head.lane].holds)
    if (hold.unnamed && hold.entry == entry) {
      hold.word = holding.word;
      hold.unnamed = false;
      return;
    }
  const std::uint64_t until = believed_until(id, client, entry, holding.word, now_ns);
  if (client.asked || until <= now_ns || !within_share(client, entry)) {
    ++counters_.stale;
    return;
  }
  if (!scheduler_.adopt(id, holding.head.lane, entry, now_ns)) {
    ++counters_.overlaps;
    return;
  }
  Lane& lane = client.lanes[holding.head.lane];
  add(id, client, lane, {entry, holding.word, false, now_ns, now_ns, false, until});
  overdue_at_ = std::min(overdue_at_, overdue_from(client, lane.holds.back()));
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
  const bool was_home = std::any_of(clients_.begin(), clients_.end(), [&](const auto& other) {
    return other.first != id && other.second.traits.process == client.traits.process &&
           other.second.home.entry == entry;
  });
  return was_home ? kNever : 0;
}

// Every hold comes and goes by these two.
void DeviceArbiter::add(ClientId id, Client& client, Lane& lane, const Hold& hold) {
  lane.holds.push_back(hold);
  if (client.lanes_on[hold.entry]++ == 0 && hold.entry != runtime::kWholeDevice)
    outlet_.holds(id, hold.entry, true);
}

void DeviceArbiter::dropped(ClientId id, Client& client, EntryId entry) {
  if (--client.lanes_on[entry] == 0 && entry != runtime::kWholeDevice)
    outlet_.holds(id, entry, false);
}

// Its share may have become smaller than what it has, by as much as its home.
bool DeviceArbiter::within_share(const Client& client, EntryId entry) const {
  if (client.traits.most == 0 || entry == runtime::kWholeDevice) return true;
  hal::ComputeSet units = layout_.at(entry).compute;
  for (const auto& [id, lane] : client.lanes)
    for (const Hold& hold : lane.holds)
      if (hold.entry != runtime::kWholeDevice) units |= layout_.at(hold.entry).compute;
  std::uint32_t processors = 0;
  for (EntryId id = 0; id < layout_.size(); ++id)
    if (layout_.at(id).compute.count() == 1 && layout_.at(id).compute.overlaps(units))
      processors += layout_.at(id).processors;
  return processors <= client.traits.most + layout_.at(client.home.entry).processors;
}

// All that older sessions of the same process have, at once, because the parts may overlap: leases
// of this daemon, and what they told it of before. What is not named before one of those is
// closed was without work. They have said all that counts.
void DeviceArbiter::inherit(ClientId to, Client& heir, std::uint64_t now_ns) {
  if (heir.traits.process == 0) return;
  std::vector<std::pair<LaneId, Hold>> all;
  for (auto& [id, client] : clients_) {
    if (id == to || client.traits.process != heir.traits.process) continue;
    for (auto& [lane_id, lane] : client.lanes) {
      leave(id, client, lane_id, now_ns);
      for (const Hold& hold : lane.holds) {
        all.emplace_back(lane_id, hold);
        dropped(id, client, hold.entry);
        scheduler_.returned(id, lane_id, hold.entry, now_ns);
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
    if (again || hold.entry == runtime::kWholeDevice) continue;  // the whole is nobody's lease
    if (!scheduler_.adopt(to, lane_id, hold.entry, now_ns)) {
      ++counters_.overlaps;
      continue;
    }
    add(to, heir, heir.lanes[lane_id], hold);
    overdue_at_ = std::min(overdue_at_, overdue_from(heir, hold));
  }
}

void DeviceArbiter::drop_unnamed(ClientId id, Client& client, std::uint64_t now_ns) {
  for (auto& [lane_id, lane] : client.lanes)
    std::erase_if(lane.holds, [&, lane_id = lane_id](const Hold& hold) {
      if (!hold.unnamed) return false;
      dropped(id, client, hold.entry);
      scheduler_.returned(id, lane_id, hold.entry, now_ns);
      return true;
    });
}

void DeviceArbiter::take(ClientId id, Client& client, const protocol::HintRecord& said,
                         std::uint64_t now_ns) {
  runtime::Hint hint;
  hint.client = id;
  hint.lane = said.head.lane;
  hint.processors = said.processors;
  hint.kernel = curve_of(id);
  hint.ready_at_ns = now_ns + said.ready_in_ns;
  hint.deadline_ns = said.deadline_in_ns != 0 ? now_ns + said.deadline_in_ns : 0;
  hint.queued_ns = said.queued_ns;
  hint.cancelled = said.cancelled != 0;
  hint.kind = kind_of(said.kind, client.traits);
  scheduler_.hint(hint, now_ns);
}

void DeviceArbiter::take(ClientId id, Client&, const protocol::Timed& timed, std::uint64_t) {
  // Grants are of no other widths; and what is kept is bounded.
  if (std::none_of(
          layout_.entries().begin(), layout_.entries().end(),
          [&](const runtime::PoolEntry& entry) { return entry.processors == timed.processors; }))
    return;
  // What ran on the whole device ran beside whatever others had there: no measure of its width.
  const auto submits = [](const auto& client) {
    return std::any_of(client.second.lanes.begin(), client.second.lanes.end(),
                       [](const auto& lane) { return lane.second.submits(); });
  };
  if (timed.processors == layout_.at(runtime::kWholeDevice).processors &&
      std::count_if(clients_.begin(), clients_.end(), submits) > 1)
    return;
  runtime::ProfileCell cell;
  cell.processors = timed.processors;
  cell.count = timed.launches;
  // Only how times compare between widths is asked of the curve; against what the same kernels took
  // at first, so that a change of kernels is none of scaling.
  cell.mean_ns = static_cast<double>(timed.mean_ns);
  if (timed.whole_ns != 0) cell.mean_ns *= kUsualNs / static_cast<double>(timed.whole_ns);
  profile_.merge(curve_of(id), cell, kRemembered);
}

// Standing grants were chosen by what was known then. The plan changes only where that is worth a
// move (policies/planner.cpp).
void DeviceArbiter::reconsider(std::uint64_t now_ns) {
  if (profile_.version() == considered_ || now_ns - considered_ns_ < settings_.reconsider_ns)
    return;
  considered_ = profile_.version();
  considered_ns_ = now_ns;
  scheduler_.profile_changed();
}

void DeviceArbiter::progressed(ClientId id, std::uint64_t operations, std::uint64_t now_ns) {
  if (!clients_.contains(id)) return;
  note({.time = now_ns, .kind = Kind::kProgress, .client = id, .a = operations});
  scheduler_.progressed(id, operations);
}

void DeviceArbiter::dying(ClientId id, std::uint64_t now_ns) {
  const auto found = clients_.find(id);
  if (found == clients_.end() || found->second.over) return;
  note({.time = now_ns, .kind = Kind::kDying, .client = id});
  found->second.over = true;
  for (auto& [lane_id, lane] : found->second.lanes) {
    for (Hold& hold : lane.holds) {
      if (hold.open) close(id, lane_id, lane, hold, now_ns);
      hold.heard_ns = kNever;  // it is not asked any more, and its work may still run
      overdue_at_ = std::min(overdue_at_, overdue_from(found->second, hold));
    }
    scheduler_.idle(id, lane_id, now_ns);
  }
}

void DeviceArbiter::forget(ClientId id, std::uint64_t now_ns) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  note({.time = now_ns, .kind = Kind::kForget, .client = id});
  const auto home = std::find(homes_.begin(), homes_.end(), found->second.home.entry);
  --guests_[static_cast<std::size_t>(home - homes_.begin())];
  const std::uint64_t process = found->second.traits.process;
  clients_.erase(found);
  found_id_ = runtime::kNobody;
  profile_.forget(curve_of(id));
  scheduler_.forget(id, now_ns);
  // A process closes an older session when the newer one has told all of its work.
  for (auto& [heir_id, heir] : clients_)
    if (heir.traits.process == process) drop_unnamed(heir_id, heir, now_ns);
}

// --- what follows ----------------------------------------------------------------------------

void DeviceArbiter::step(std::uint64_t now_ns) {
  note({.time = now_ns, .kind = Kind::kStep});
  take_back_overdue(now_ns);
  reconsider(now_ns);
  // A grant that cannot be delivered is taken back, which is news for the scheduler.
  for (const runtime::Decision& decision : scheduler_.decide(now_ns)) deliver(decision, now_ns);
}

void DeviceArbiter::deliver(const runtime::Decision& decision, std::uint64_t now_ns) {
  Client* const client = find(decision.client);
  if (client == nullptr) return;
  Lane& lane = client->lanes[decision.lane];
  const auto hold = std::find_if(lane.holds.begin(), lane.holds.end(),
                                 [&](const Hold& held) { return held.entry == decision.entry; });
  if (decision.kind == runtime::Decision::Kind::kCloseGate) {
    if (hold != lane.holds.end() && hold->open &&
        close(decision.client, decision.lane, lane, *hold, now_ns))
      close_gates(decision.client);
    return;
  }
  if (lane.asked_ns != 0) waits_.add(now_ns - std::exchange(lane.asked_ns, 0));
  const LeaseWord word = protocol::lease_word(epoch_, ++lane.generation, Gate::kOpen);
  protocol::Grant grant;
  grant.head.lane = decision.lane;
  grant.word = word;
  grant.entry = decision.entry;
  grant.launches = decision.launches;
  if (decision.ahead_ns != kNever) grant.ahead_ns = std::min(decision.ahead_ns, protocol::kLongest);
  // A lane holds one open grant; the same entry again replaces its own.
  const LeaseWord before = hold != lane.holds.end() ? hold->word : 0;
  if (hold != lane.holds.end())
    *hold = {decision.entry, word, true, now_ns};
  else
    add(decision.client, *client, lane, {decision.entry, word, true, now_ns});
  // The word first: a client that sees the grant must find the gate open.
  publish(decision.client, decision.lane, lane, word);
  const bool delivered = outlet_.grant(decision.client, grant);
  note({.kind = Kind::kGrant,
        .entry = decision.entry,
        .lane = decision.lane,
        .client = decision.client,
        .flags = delivered ? 1U : 0U,
        .a = grant.launches,
        .b = word});
  if (delivered) return;
  ++counters_.undelivered;
  if (before != 0) {
    // The client has the grant before, and perhaps work under it: that one is closed.
    hold->word = lane.word = before;
    return leave(decision.client, *client, decision.lane, now_ns);
  }
  publish(decision.client, decision.lane, lane, 0);
  std::erase_if(lane.holds, [&](const Hold& held) { return held.word == word; });
  dropped(decision.client, *client, decision.entry);
  scheduler_.idle(decision.client, decision.lane, now_ns);
  scheduler_.returned(decision.client, decision.lane, decision.entry, now_ns);
}

// True: the lane's word said that it was open.
bool DeviceArbiter::close(ClientId id, LaneId lane_id, Lane& lane, Hold& hold,
                          std::uint64_t now_ns) {
  hold.open = false;
  hold.heard_ns = hold.closed_ns = now_ns;
  credit(*find(id), now_ns);
  overdue_at_ = std::min(overdue_at_, overdue_from(*find(id), hold));
  if (lane.word != hold.word) return false;
  publish(id, lane_id, lane,
          protocol::lease_word(epoch_, protocol::generation_of(hold.word), Gate::kClosed));
  return true;
}

void DeviceArbiter::publish(ClientId id, LaneId lane_id, Lane& lane, LeaseWord word) {
  lane.word = word;
  note({.kind = Kind::kWord, .lane = lane_id, .client = id, .a = word});
  outlet_.set_word(id, lane_id, word);
}

// A client that was told of a longer bound is held to that one. One that dies is given as long as
// one that drains: anybody can say that it dies, and live on.
std::uint64_t DeviceArbiter::overdue_from(const Client& client, const Hold& hold) const {
  const std::uint64_t within = this->within(client);
  return std::min({hold.heard_ns != kNever ? hold.heard_ns + within : kNever,
                   client.credit_ns == 0
                       ? hold.closed_ns + within
                       : hold.closed_ns + std::max(within, settings_.drain_within_ns),
                   hold.until_ns});
}

// Until now: earned, or spent where it drains for long beside others.
void DeviceArbiter::credit(Client& client, std::uint64_t now_ns) {
  const std::uint64_t passed = now_ns - std::exchange(client.credited_ns, now_ns);
  if (client.drains_long)
    client.credit_ns -= clients_.size() > 1 ? std::min(client.credit_ns, passed) : 0;
  else
    client.credit_ns = std::min(settings_.drain_within_ns, client.credit_ns + passed);
}

void DeviceArbiter::take_back_overdue(std::uint64_t now_ns) {
  if (now_ns < overdue_at_) return;
  overdue_at_ = kNever;
  for (auto& [id, client] : clients_) {
    credit(client, now_ns);
    client.drains_long = false;
    for (const auto& [lane_id, lane] : client.lanes)
      for (const Hold& hold : lane.holds)
        client.drains_long =
            client.drains_long || (!hold.open && now_ns >= hold.closed_ns + within(client));
    if (client.drains_long && client.credit_ns > 0 && clients_.size() > 1)
      overdue_at_ = std::min(overdue_at_, now_ns + client.credit_ns);
    for (auto& [lane_id, lane] : client.lanes) {
      for (std::size_t i = 0; i < lane.holds.size();) {
        const Hold& hold = lane.holds[i];
        if (hold.open) {
          ++i;
        } else if (const std::uint64_t at = overdue_from(client, hold); now_ns < at) {
          overdue_at_ = std::min(overdue_at_, at);
          ++i;
        } else {
          ++counters_.overdue;
          const EntryId entry = hold.entry;
          lane.holds.erase(lane.holds.begin() + static_cast<std::ptrdiff_t>(i));
          dropped(id, client, entry);
          // Who does not answer wants nothing, until it says so again.
          leave(id, client, lane_id, now_ns);
          scheduler_.returned(id, lane_id, entry, now_ns);
        }
      }
    }
  }
  if (overdue_at_ != kNever)
    overdue_at_ = std::max(overdue_at_, now_ns + settings_.answer_within_ns / kOverdueLooks);
}

std::uint64_t DeviceArbiter::wake_at() const {
  const std::uint64_t reconsider_at =
      profile_.version() != considered_ ? considered_ns_ + settings_.reconsider_ns : kNever;
  return std::min({overdue_at_, reconsider_at, scheduler_.wake_at()});
}

std::vector<DeviceArbiter::Held> DeviceArbiter::held() const {
  std::vector<Held> all;
  for (const auto& [id, client] : clients_)
    for (const auto& [lane_id, lane] : client.lanes)
      for (const Hold& hold : lane.holds) all.push_back({id, lane_id, hold.entry, hold.open});
  return all;
}

}  // namespace vitamin::daemon
