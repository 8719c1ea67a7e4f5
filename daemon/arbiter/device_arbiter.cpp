// SPDX-License-Identifier: Apache-2.0
#include "daemon/arbiter/device_arbiter.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "runtime/demand.h"
#include "scheduler/policies/builtin.h"

namespace vitamin::daemon {

using protocol::Gate;
using protocol::LeaseWord;
using runtime::trace::Kind;
using scheduler::Mode;

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

// What a record of a launch or a hint says of the step that it belongs to.
template <class Record>
scheduler::Announcement announcement_of(const Record& said, std::uint64_t now_ns) {
  scheduler::Announcement announcement;
  announcement.kind = static_cast<runtime::OperationClass>(said.kind);
  announcement.ready_ns = now_ns + said.ready_in_ns;
  announcement.due_ns = said.deadline_in_ns != 0 ? now_ns + said.deadline_in_ns : 0;
  announcement.work_ns = said.queued_ns;
  announcement.min_sms = said.processors;
  return announcement;
}

std::uint32_t distance(std::uint32_t from, std::uint32_t to) { return (to - from) & 0xff'ffff; }

}  // namespace

// Any of the words that the grant has had.
bool DeviceArbiter::Hold::is_called(LeaseWord said) const {
  if (said == word) return true;
  return protocol::epoch_of(said) == protocol::epoch_of(word) &&
         distance(first, protocol::generation_of(said)) <
             distance(first, protocol::generation_of(word));
}

DeviceArbiter::DeviceArbiter(const runtime::PoolLayout& layout, const ArbiterSettings& settings,
                             std::uint32_t epoch, Outlet& outlet)
    : layout_(layout),
      settings_(settings),
      epoch_(epoch),
      outlet_(outlet),
      estimator_(layout_.entries()),
      scheduler_(layout_.entries(), scheduler::make_fifo(), settings.scheduler, &estimator_),
      widths_(layout_.entries()),
      homes_(choose_homes(layout_)),
      guests_(homes_.size(), 0) {}

void DeviceArbiter::use(scheduler::Policy policy, std::uint64_t now_ns) {
  scheduler_.replace_policy(std::move(policy), now_ns);
  tell_of_reports(now_ns);
}

// One that is alone is compared with nobody.
void DeviceArbiter::tell_of_reports(std::uint64_t now_ns) {
  reporting_ = scheduler_.policy().uses_progress && clients_.size() > 1;
  for (auto& [id, client] : clients_)
    if (std::exchange(client.reports, reporting_) != reporting_) {
      client.usage.measures(reporting_ && client.traits.minor >= 6, now_ns);
      outlet_.reports(id, reporting_);
    }
}

void DeviceArbiter::close_gates(ClientId client) {
  note({.kind = Kind::kGates, .client = client});
  outlet_.gates_closed(client);
}

void DeviceArbiter::set(const ArbiterSettings& settings) {
  note({.kind = Kind::kReload});
  settings_ = settings;
  scheduler_.set(settings.scheduler, 0);
}

DeviceArbiter::Home DeviceArbiter::attach(ClientId id, const Traits& traits,
                                          std::uint64_t now_ns) {
  if (trace_ != nullptr) [[unlikely]] {
    const scheduler::ClientTerms& terms = traits.terms;
    const runtime::trace::Attached said{terms.weight,
                                        terms.slo.quantile,
                                        terms.slo.ttft_ns,
                                        terms.slo.tpot_ns,
                                        terms.slo.latency_ns,
                                        terms.slo.step_ns,
                                        traits.program,
                                        terms.limits.max_sms,
                                        terms.limits.reserved_sms,
                                        terms.limits.group,
                                        terms.limits.may_share ? 1U : 0U};
    const auto& outer = terms.limits.outer;
    const auto quota = [&](std::size_t i) {
      return i < outer.size() ? std::uint64_t{outer[i].group} << 32 | outer[i].max_sms : 0;
    };
    for (std::size_t i = 0; i < outer.size() && outer[i].group != 0; i += 3)
      note({.kind = Kind::kQuotas,
            .client = id,
            .a = quota(i),
            .b = quota(i + 1),
            .c = quota(i + 2)});
    trace_->add(
        {.kind = Kind::kAttach, .client = id, .flags = traits.minor, .serial = traits.process},
        &said);
  }
  const auto fewest = std::min_element(guests_.begin(), guests_.end());
  const auto index = static_cast<std::size_t>(fewest - guests_.begin());
  Client& client = clients_[id];
  client.home = {homes_[index], *fewest > 0};
  client.traits = traits;
  client.answer_within_ns = settings_.answer_within_ns;
  client.credit_ns = settings_.drain_within_ns;
  client.lanes_on.assign(layout_.size(), 0);
  if (traits.program != 0) estimator_.identify(id, traits.program);
  scheduler_.attach(id, traits.terms, 0);
  ++*fewest;
  tell_of_reports(now_ns);
  return client.home;
}

void DeviceArbiter::limit(ClientId id, const scheduler::Limits& limits, std::uint64_t now_ns) {
  Client* const client = find(id);
  if (client == nullptr || client->traits.terms.limits == limits) return;
  note({.kind = Kind::kReload});
  client->traits.terms.limits = limits;
  scheduler_.attach(id, client->traits.terms, now_ns);
}

Usage DeviceArbiter::usage(ClientId id, std::uint64_t now_ns) const {
  const auto known = clients_.find(id);
  if (known == clients_.end()) return {};
  Usage usage = known->second.usage;
  for (const auto& [lane_id, lane] : known->second.lanes)
    if (lane.asked_ns != 0 && now_ns > lane.asked_ns) usage.waited(now_ns - lane.asked_ns);
  return usage;
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
  told_all(id, client, now_ns);
  client.asked = true;
  if (ready.moves_on != 0) leave(id, client, ready.head.lane, now_ns);
  Lane& lane = client.lanes[ready.head.lane];
  if (lane.asked_ns == 0 && !lane.submits()) lane.asked_ns = now_ns;
  scheduler::Announcement said = announcement_of(ready, now_ns);
  said.iteration_end = ready.iteration_end != 0;
  lane.steps.launch(scheduler_, id, ready.head.lane, client.steps, said, now_ns);
  scheduler::StreamDemand demand;
  demand.id = ready.head.lane;
  demand.min_sms = ready.processors;
  demand.kernel = curve_of(id);
  demand.predicted_ns = ready.predicted_ns;
  lane.demand = demand;
  lane.postponed = false;
  scheduler_.wants(id, demand, now_ns);
}

void DeviceArbiter::take(ClientId id, Client& client, const protocol::Idle& idle,
                         std::uint64_t now_ns) {
  told_all(id, client, now_ns);
  leave(id, client, idle.head.lane, now_ns);
  client.lanes[idle.head.lane].steps.end(scheduler_, id, now_ns);
}

// The lane submits nothing more under the grant that it has.
void DeviceArbiter::leave(ClientId id, Client& client, LaneId lane_id, std::uint64_t now_ns) {
  Lane& lane = client.lanes[lane_id];
  // It may have said so before it saw its newest grant, which it then holds for open.
  for (Hold& hold : lane.holds)
    if (hold.open && close(id, lane_id, lane, hold, now_ns)) close_gates(id);
  if (lane.asked_ns != 0) client.usage.waited(now_ns - std::exchange(lane.asked_ns, 0));
  lane.postponed = false;
  scheduler_.idle(id, lane_id, now_ns);
}

void DeviceArbiter::ask_again(ClientId id, Lane& lane, std::uint64_t now_ns) {
  if (std::exchange(lane.postponed, false)) scheduler_.wants(id, lane.demand, now_ns);
}

void DeviceArbiter::take(ClientId id, Client& client, const protocol::Returned& returned,
                         std::uint64_t now_ns) {
  Lane& lane = client.lanes[returned.head.lane];
  const auto hold = std::find_if(lane.holds.begin(), lane.holds.end(), [&](const Hold& held) {
    return held.entry == returned.entry && held.is_called(returned.word);
  });
  if (hold == lane.holds.end()) {
    ++counters_.stale;
    return;
  }
  if (hold->open) publish(id, returned.head.lane, lane, 0);
  const Hold ended = *hold;
  lane.holds.erase(hold);
  dropped(id, client, ended, now_ns);
  scheduler_.returned(id, returned.head.lane, ended.grant, now_ns);
  ask_again(id, lane, now_ns);
}

void DeviceArbiter::take(ClientId, Client& client, const protocol::Draining& draining,
                         std::uint64_t now_ns) {
  for (Hold& hold : client.lanes[draining.head.lane].holds)
    if (hold.is_called(draining.word)) hold.heard_ns = now_ns;
}

// Every hold comes and goes by these two.
void DeviceArbiter::add(ClientId id, Client& client, Lane& lane, const Hold& hold,
                        std::uint64_t now_ns) {
  lane.holds.push_back(hold);
  client.usage.takes(layout_.at(hold.entry).compute, widths_, now_ns);
  if (hold.is_lease() && client.lanes_on[hold.entry]++ == 0) outlet_.holds(id, hold.entry, true);
}

void DeviceArbiter::dropped(ClientId id, Client& client, const Hold& hold, std::uint64_t now_ns) {
  client.usage.returns(layout_.at(hold.entry).compute, widths_, now_ns);
  if (hold.is_lease() && --client.lanes_on[hold.entry] == 0) outlet_.holds(id, hold.entry, false);
}

// --- steps -----------------------------------------------------------------------------------

void DeviceArbiter::take(ClientId id, Client& client, const protocol::HintRecord& said,
                         std::uint64_t now_ns) {
  scheduler::AnnouncedSteps& steps = client.lanes[said.head.lane].steps;
  if (said.cancelled != 0) return steps.cancel(scheduler_, id, now_ns);
  steps.announce(scheduler_, id, said.head.lane, client.steps, announcement_of(said, now_ns),
                 now_ns);
}

// --- what is measured ------------------------------------------------------------------------

void DeviceArbiter::take(ClientId id, Client&, const protocol::Timed& timed, std::uint64_t) {
  // Grants are of no other widths; and what is kept is bounded.
  if (std::none_of(
          layout_.entries().begin(), layout_.entries().end(),
          [&](const runtime::PoolEntry& entry) { return entry.processors == timed.processors; }))
    return;
  // What ran on the whole device ran beside whatever others had there: no measure of its width.
  const auto submits = [](const auto& other) {
    return std::any_of(other.second.lanes.begin(), other.second.lanes.end(),
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

void DeviceArbiter::progressed(ClientId id, const scheduler::Progress& progress,
                               std::uint64_t now_ns) {
  Client* const client = find(id);
  if (client == nullptr) return;
  client->usage.busy(progress.busy_ns, now_ns);
  // Of a client that does not report, nothing is known; not that it gets nowhere.
  if (progress.launches == 0 && progress.busy_ns == 0) return;
  note({.time = now_ns,
        .kind = Kind::kProgress,
        .client = id,
        .serial = progress.launches,
        .a = progress.work,
        .b = progress.busy_ns,
        .c = progress.misplaced});
  scheduler_.progress(id, progress);
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
  if (found->second.absent) {
    --absent_;
  } else {
    const auto home = std::find(homes_.begin(), homes_.end(), found->second.home.entry);
    --guests_[static_cast<std::size_t>(home - homes_.begin())];
  }
  const std::uint64_t process = found->second.traits.process;
  clients_.erase(found);
  found_id_ = scheduler::kNoClient;
  profile_.forget(curve_of(id));
  scheduler_.forget(id, now_ns);
  estimator_.forget(id);
  tell_of_reports(now_ns);
  // A process closes an older session when the newer one has told all of its work.
  for (auto& [heir_id, heir] : clients_)
    if (heir.traits.process == process) drop_unnamed(heir_id, heir, now_ns);
}

// --- what follows ----------------------------------------------------------------------------

void DeviceArbiter::step(std::uint64_t now_ns) {
  note({.time = now_ns, .kind = Kind::kStep});
  take_back_overdue(now_ns);
  if (absent_ > 0) drop_absent();
  for (const scheduler::Decision& decision : scheduler_.decide(now_ns)) deliver(decision, now_ns);
  // A grant that cannot be delivered is taken back, which is news for the scheduler.
  for (const Lost& lost : lost_) {
    Client& client = *find(lost.client);
    Lane& lane = client.lanes[lost.lane];
    const std::uint64_t asked_ns = std::exchange(lane.asked_ns, 0);
    leave(lost.client, client, lost.lane, now_ns);
    if (lost.grant != scheduler::kNoGrant)
      scheduler_.returned(lost.client, lost.lane, lost.grant, now_ns);
    lane.postponed = lost.postponed;
    if (lane.postponed) lane.asked_ns = asked_ns;
  }
  lost_.clear();
}

void DeviceArbiter::deliver(const scheduler::Decision& decision, std::uint64_t now_ns) {
  Client* const client = find(decision.client);
  if (client == nullptr) return;
  if (decision.kind == scheduler::Decision::Kind::kGrant)
    return deliver_grant(decision.client, *client, decision, now_ns);
  Lane& lane = client->lanes[decision.stream];
  const auto hold = std::find_if(lane.holds.begin(), lane.holds.end(),
                                 [&](const Hold& held) { return held.grant == decision.grant; });
  if (hold == lane.holds.end() || !hold->open) return;
  if (decision.kind == scheduler::Decision::Kind::kAmend)
    return amend(decision.client, *client, *hold, decision, now_ns);
  if (close(decision.client, decision.stream, lane, *hold, now_ns)) close_gates(decision.client);
}

void DeviceArbiter::deliver_grant(ClientId id, Client& client, const scheduler::Decision& decision,
                                  std::uint64_t now_ns) {
  Lane& lane = client.lanes[decision.stream];
  const bool drains_there =
      std::any_of(lane.holds.begin(), lane.holds.end(),
                  [&](const Hold& held) { return held.entry == decision.partition; });
  if (client.traits.minor < 7 && drains_there)  // it would take this grant for that one
    return lost_.push_back({id, decision.stream, decision.grant, true});
  // It moves: what it submits from now on is under this one.
  for (Hold& hold : lane.holds)
    if (hold.open) close(id, decision.stream, lane, hold, now_ns);
  if (lane.asked_ns != 0) {
    const std::uint64_t waited = now_ns - std::exchange(lane.asked_ns, 0);
    waits_.add(waited);
    client.usage.waited(waited);
  }
  const LeaseWord word = protocol::lease_word(epoch_, ++lane.generation, Gate::kOpen);
  Hold hold;
  hold.grant = decision.grant;
  hold.entry = decision.partition;
  hold.shared = decision.mode == Mode::kShared;
  hold.word = word;
  hold.first = protocol::generation_of(word);
  hold.open = true;
  hold.heard_ns = now_ns;
  add(id, client, lane, hold, now_ns);
  // The word first: a client that sees the grant must find the gate open.
  publish(id, decision.stream, lane, word);
  if (send(id, decision, word, 0)) return client.usage.granted();
  ++counters_.undelivered;
  publish(id, decision.stream, lane, 0);
  close_gates(id);  // of the grant that it had
  lane.holds.pop_back();
  dropped(id, client, hold, now_ns);
  lost_.push_back({id, decision.stream, decision.grant, false});
}

// Other terms of the grant that the lane has. The client looks at them because its word is another
// one; work under the former word is work under this grant.
void DeviceArbiter::amend(ClientId id, Client& client, Hold& hold,
                          const scheduler::Decision& decision, std::uint64_t now_ns) {
  if (client.traits.minor < 7) return;  // it keeps the terms that it had
  Lane& lane = client.lanes[decision.stream];
  const LeaseWord before = hold.word;
  const LeaseWord word = protocol::lease_word(epoch_, ++lane.generation, Gate::kOpen);
  hold.word = word;
  publish(id, decision.stream, lane, word);
  if (send(id, decision, word, before)) return;
  ++counters_.undelivered;
  hold.word = lane.word = before;  // that one is closed
  --lane.generation;
  if (close(id, decision.stream, lane, hold, now_ns)) close_gates(id);
  lost_.push_back({id, decision.stream, scheduler::kNoGrant, false});
}

bool DeviceArbiter::send(ClientId id, const scheduler::Decision& decision, LeaseWord word,
                         LeaseWord amends) {
  protocol::Grant grant;
  grant.head.lane = decision.stream;
  grant.word = word;
  grant.amends = amends;
  grant.entry = decision.partition;
  grant.launches = decision.launches != 0 ? decision.launches : runtime::kUntilChanged;
  grant.exclusive = decision.mode == Mode::kExclusive ? 1 : 0;
  if (decision.run_ahead_ns != kNever)
    grant.ahead_ns = std::clamp<std::uint64_t>(decision.run_ahead_ns, 1, protocol::kLongest);
  const bool delivered = outlet_.grant(id, grant);
  note({.kind = Kind::kGrant,
        .entry = decision.partition,
        .lane = decision.stream,
        .client = id,
        .flags = delivered ? 1U : 0U,
        .a = grant.launches,
        .b = word,
        .c = amends});
  return delivered;
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
          const Hold ended = hold;
          lane.holds.erase(lane.holds.begin() + static_cast<std::ptrdiff_t>(i));
          dropped(id, client, ended, now_ns);
          if (!client.absent) {
            ++counters_.overdue;
            // Who does not answer wants nothing, until it says so again.
            leave(id, client, lane_id, now_ns);
          }
          scheduler_.returned(id, lane_id, ended.grant, now_ns);
        }
      }
    }
  }
  if (overdue_at_ != kNever)
    overdue_at_ = std::max(overdue_at_, now_ns + settings_.answer_within_ns / kOverdueLooks);
}

std::uint64_t DeviceArbiter::wake_at() const { return std::min(overdue_at_, scheduler_.wake_at()); }

void DeviceArbiter::explain(scheduler::Findings& out) const {
  const scheduler::AllocationPolicy* const policy = scheduler_.allocation_policy();
  if (policy == nullptr || !policy->explain(out)) estimator_.explain(out);
}

std::vector<scheduler::Promise> DeviceArbiter::promises() const {
  std::vector<scheduler::Promise> promises;
  if (const auto* const policy = scheduler_.allocation_policy()) policy->promises(promises);
  return promises;
}

std::vector<DeviceArbiter::Held> DeviceArbiter::held() const {
  std::vector<Held> all;
  for (const auto& [id, client] : clients_) {
    if (client.absent) continue;
    for (const auto& [lane_id, lane] : client.lanes)
      for (const Hold& hold : lane.holds)
        all.push_back({id, lane_id, hold.entry, hold.open, hold.shared, hold.adopted});
  }
  return all;
}

}  // namespace vitamin::daemon
