// SPDX-License-Identifier: Apache-2.0
#include "daemon/arbiter/device_arbiter.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "runtime/demand.h"
#include "scheduler/policies/builtin.h"

namespace vitamin::daemon {

using protocol::GateState;
using protocol::LeaseWord;
using runtime::trace::TraceKind;
using scheduler::Mode;

namespace {

// Disjoint partitions, narrowest first.
std::vector<PartitionId> choose_fallback_partitions(const runtime::PoolLayout& layout) {
  std::vector<PartitionId> partitions;
  hal::ComputeSet taken;
  for (const runtime::Partition& partition : layout.partitions()) {
    if (partition.whole() || partition.compute.overlaps(taken)) continue;
    taken |= partition.compute;
    partitions.push_back(partition.id);
  }
  if (partitions.empty()) partitions.push_back(runtime::kWholeDevice);
  return partitions;
}

// Timed launches kept for each SM count: some seconds of a busy client, which times one in 97.
constexpr std::uint64_t kRemembered = 2'000;

// The time to which curves are scaled, as only ratios matter: half of all training kernels are
// shorter.
constexpr double kUsualNs = 10'000;

// A check for overdue grants looks at all grants of all clients. So there are at most this many
// checks in the time in which a client must answer, however many grants fall due one by one.
constexpr std::uint64_t kOverdueChecks = 256;

// The key of the profile under which all launches of a client are kept.
std::uint64_t curve_of(ClientId client) { return std::uint64_t{client} + 1; }

// The announcement of a step that a Ready or a HintRecord carries.
template <class Record>
scheduler::Announcement announcement_of(const Record& said, std::uint64_t now_ns) {
  scheduler::Announcement announcement;
  announcement.kind = static_cast<runtime::WorkKind>(said.kind);
  announcement.ready_ns = now_ns + said.ready_in_ns;
  announcement.due_ns = said.deadline_in_ns != 0 ? now_ns + said.deadline_in_ns : 0;
  announcement.work_ns = said.queued_ns;
  announcement.min_sms = said.sms;
  return announcement;
}

std::uint32_t distance(std::uint32_t from, std::uint32_t to) { return (to - from) & 0xff'ffff; }

}  // namespace

bool DeviceArbiter::HeldGrant::has_word(LeaseWord said) const {
  if (said == word) return true;
  return protocol::epoch_of(said) == protocol::epoch_of(word) &&
         distance(first, protocol::generation_of(said)) <
             distance(first, protocol::generation_of(word));
}

DeviceArbiter::DeviceArbiter(const runtime::PoolLayout& layout, const ArbiterSettings& settings,
                             std::uint32_t epoch, GrantSink& sink)
    : layout_(layout),
      settings_(settings),
      epoch_(epoch),
      sink_(sink),
      estimator_(layout_.partitions()),
      scheduler_(layout_.partitions(), scheduler::make_fifo(), settings.scheduler, &estimator_),
      widths_(layout_.partitions()),
      fallback_partitions_(choose_fallback_partitions(layout_)),
      fallback_users_(fallback_partitions_.size(), 0) {}

void DeviceArbiter::use(scheduler::Policy policy, std::uint64_t now_ns) {
  scheduler_.replace_policy(std::move(policy), now_ns);
  update_reporting(now_ns);
}

// A single client is not compared with others, so it does not report.
void DeviceArbiter::update_reporting(std::uint64_t now_ns) {
  reporting_ = scheduler_.policy().uses_progress && clients_.size() > 1;
  for (auto& [id, client] : clients_)
    if (std::exchange(client.sends_progress, reporting_) != reporting_) {
      client.usage.measures(reporting_ && client.traits.minor >= 6, now_ns);
      sink_.set_reporting(id, reporting_);
    }
}

void DeviceArbiter::tell_gates_closed(ClientId client) {
  note({.kind = TraceKind::kGates, .client = client});
  sink_.gates_closed(client);
}

void DeviceArbiter::set(const ArbiterSettings& settings) {
  note({.kind = TraceKind::kReload});
  settings_ = settings;
  scheduler_.set(settings.scheduler, 0);  // 0: the scheduler's clock never goes back
}

DeviceArbiter::Fallback DeviceArbiter::attach(ClientId id, const ClientTraits& traits,
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
      note({.kind = TraceKind::kQuotas,
            .client = id,
            .a = quota(i),
            .b = quota(i + 1),
            .c = quota(i + 2)});
    trace_->add(
        {.kind = TraceKind::kAttach, .client = id, .flags = traits.minor, .serial = traits.process},
        &said);
  }
  const auto fewest = std::min_element(fallback_users_.begin(), fallback_users_.end());
  const auto index = static_cast<std::size_t>(fewest - fallback_users_.begin());
  Client& client = clients_[id];
  client.fallback = {fallback_partitions_[index], *fewest > 0};
  client.traits = traits;
  client.answer_within_ns = settings_.answer_within_ns;
  client.credit_ns = settings_.drain_within_ns;
  client.awaited_grants.assign(layout_.size(), 0);
  if (traits.program != 0) estimator_.identify(id, traits.program);
  scheduler_.attach(id, traits.terms, 0);
  ++*fewest;
  update_reporting(now_ns);
  return client.fallback;
}

void DeviceArbiter::set_terms(ClientId id, const scheduler::ClientTerms& terms,
                              std::uint64_t now_ns) {
  Client* const client = find(id);
  if (client == nullptr || client->traits.terms == terms) return;
  note({.kind = TraceKind::kReload});
  client->traits.terms = terms;
  scheduler_.attach(id, terms, now_ns);
}

Usage DeviceArbiter::usage(ClientId id, std::uint64_t now_ns) const {
  const auto known = clients_.find(id);
  if (known == clients_.end()) return {};
  Usage usage = known->second.usage;
  for (const auto& [lane_id, lane] : known->second.lanes)
    if (lane.asked && lane.waits_since_ns != 0 && now_ns > lane.waits_since_ns)
      usage.waited(now_ns - lane.waits_since_ns);
  return usage;
}

DeviceArbiter::Client* DeviceArbiter::find(ClientId id) {
  if (id != found_id_) {  // calls for one client come in sequence
    const auto known = clients_.find(id);
    if (known == clients_.end()) return nullptr;
    found_id_ = id;
    found_ = &known->second;
  }
  return found_;
}

// --- records of clients ----------------------------------------------------------------------

void DeviceArbiter::request(ClientId id, const protocol::Request& request, std::uint64_t now_ns) {
  Client* const client = find(id);
  if (client == nullptr || client->ignored) return;
  ++counters_.requests;
  if (trace_ != nullptr) [[unlikely]] {
    const protocol::Record copy =
        std::visit([](const auto& said) { return protocol::encode(said); }, request);
    trace_->add({.time = now_ns, .kind = TraceKind::kRequest, .client = id}, &copy);
  }
  std::visit([&](const auto& said) { handle(id, *client, said, now_ns); }, request);
}

void DeviceArbiter::handle(ClientId id, Client& client, const protocol::Ready& ready,
                           std::uint64_t now_ns) {
  end_earlier_work_reports(id, client, now_ns);
  client.sent_ready = true;
  if (ready.moves_on != 0) stop_submitting(id, client, ready.head.lane, now_ns);
  Lane& lane = client.lanes[ready.head.lane];
  if (lane.waits_since_ns == 0 && !lane.submits()) lane.waits_since_ns = now_ns;
  lane.asked = true;
  scheduler::Announcement said = announcement_of(ready, now_ns);
  said.iteration_end = ready.iteration_end != 0;
  lane.steps.launch(scheduler_, id, ready.head.lane, client.steps, said, now_ns);
  scheduler::StreamDemand demand;
  demand.id = ready.head.lane;
  demand.min_sms = ready.sms;
  demand.profile_key = curve_of(id);
  demand.predicted_ns = ready.predicted_ns;
  lane.demand = demand;
  lane.postponed = false;
  scheduler_.wants(id, demand, now_ns);
}

void DeviceArbiter::handle(ClientId id, Client& client, const protocol::Idle& idle,
                           std::uint64_t now_ns) {
  end_earlier_work_reports(id, client, now_ns);
  stop_submitting(id, client, idle.head.lane, now_ns);
  client.lanes[idle.head.lane].steps.end(scheduler_, id, now_ns);
}

// The lane submits nothing more under its open grant, and waits for none. The scheduler's next
// decisions do not revoke that grant: it is closed here.
void DeviceArbiter::stop_submitting(ClientId id, Client& client, LaneId lane_id,
                                    std::uint64_t now_ns) {
  Lane& lane = client.lanes[lane_id];
  // The client may have sent this before it saw its newest grant, which it then takes for open.
  for (HeldGrant& held : lane.grants)
    if (held.open && close(id, lane_id, lane, held, now_ns)) tell_gates_closed(id);
  const std::uint64_t since_ns = std::exchange(lane.waits_since_ns, 0);
  if (std::exchange(lane.asked, false) && since_ns != 0) client.usage.waited(now_ns - since_ns);
  lane.postponed = false;
  scheduler_.idle(id, lane_id, now_ns);
}

void DeviceArbiter::retry_postponed(ClientId id, Lane& lane, std::uint64_t now_ns) {
  if (std::exchange(lane.postponed, false)) scheduler_.wants(id, lane.demand, now_ns);
}

void DeviceArbiter::handle(ClientId id, Client& client, const protocol::Returned& returned,
                           std::uint64_t now_ns) {
  Lane& lane = client.lanes[returned.head.lane];
  const auto held =
      std::find_if(lane.grants.begin(), lane.grants.end(), [&](const HeldGrant& grant) {
        return grant.partition == returned.partition && grant.has_word(returned.word);
      });
  if (held == lane.grants.end()) {
    ++counters_.stale;
    return;
  }
  if (held->open) publish(id, returned.head.lane, lane, 0), lane.waits_since_ns = now_ns;
  const HeldGrant ended = *held;
  lane.grants.erase(held);
  remove(id, client, ended, now_ns);
  scheduler_.returned(id, returned.head.lane, ended.grant, now_ns);
  retry_postponed(id, lane, now_ns);
}

void DeviceArbiter::handle(ClientId, Client& client, const protocol::Draining& draining,
                           std::uint64_t now_ns) {
  for (HeldGrant& held : client.lanes[draining.head.lane].grants)
    if (held.has_word(draining.word)) held.answered_ns = now_ns;
}

// Every held grant is added and removed by these two.
void DeviceArbiter::add(ClientId id, Client& client, Lane& lane, const HeldGrant& held,
                        std::uint64_t now_ns) {
  lane.grants.push_back(held);
  client.usage.takes(layout_.at(held.partition).compute, widths_, now_ns);
  if (held.is_awaited()) await(id, client, held.partition);
}

void DeviceArbiter::remove(ClientId id, Client& client, const HeldGrant& held,
                           std::uint64_t now_ns) {
  client.usage.returns(layout_.at(held.partition).compute, widths_, now_ns);
  if (held.is_awaited()) await_no_more(id, client, held.partition);
}

// --- steps -----------------------------------------------------------------------------------

void DeviceArbiter::handle(ClientId id, Client& client, const protocol::HintRecord& said,
                           std::uint64_t now_ns) {
  scheduler::AnnouncedSteps& steps = client.lanes[said.head.lane].steps;
  if (said.cancelled != 0) return steps.cancel(scheduler_, id, now_ns);
  steps.announce(scheduler_, id, said.head.lane, client.steps, announcement_of(said, now_ns),
                 now_ns);
}

// --- measurements ----------------------------------------------------------------------------

void DeviceArbiter::handle(ClientId id, Client&, const protocol::Timed& timed, std::uint64_t) {
  // No grant has another SM count, and the profile must stay bounded.
  if (std::none_of(layout_.partitions().begin(), layout_.partitions().end(),
                   [&](const runtime::Partition& partition) { return partition.sms == timed.sms; }))
    return;
  // On the whole device the launches shared SMs with other clients' work: their times say nothing
  // about that SM count.
  const auto submits = [](const auto& other) {
    return std::any_of(other.second.lanes.begin(), other.second.lanes.end(),
                       [](const auto& lane) { return lane.second.submits(); });
  };
  if (timed.sms == layout_.at(runtime::kWholeDevice).sms &&
      std::count_if(clients_.begin(), clients_.end(), submits) > 1)
    return;
  runtime::ProfileCell cell;
  cell.sms = timed.sms;
  cell.count = timed.launches;
  // Policies use ratios of times at different SM counts. Each time is divided by the predicted time
  // of the same launches on the whole device, so that other kernels do not look like other scaling.
  cell.mean_ns = static_cast<double>(timed.mean_ns);
  if (timed.whole_ns != 0) cell.mean_ns *= kUsualNs / static_cast<double>(timed.whole_ns);
  profile_.merge(curve_of(id), cell, kRemembered);
}

void DeviceArbiter::set_progress(ClientId id, const scheduler::Progress& progress,
                                 std::uint64_t now_ns) {
  Client* const client = find(id);
  if (client == nullptr) return;
  client->usage.busy(progress.busy_ns, now_ns);
  // A client that does not report has unknown progress, not zero progress.
  if (progress.launches == 0 && progress.busy_ns == 0) return;
  note({.time = now_ns,
        .kind = TraceKind::kProgress,
        .client = id,
        .serial = progress.launches,
        .a = progress.work,
        .b = progress.busy_ns,
        .c = progress.misplaced,
        .d = progress.collectives});
  scheduler_.progress(id, progress);
}

void DeviceArbiter::dying(ClientId id, std::uint64_t now_ns) {
  const auto found = clients_.find(id);
  if (found == clients_.end() || found->second.ignored) return;
  note({.time = now_ns, .kind = TraceKind::kDying, .client = id});
  found->second.ignored = true;
  for (auto& [lane_id, lane] : found->second.lanes) {
    for (HeldGrant& held : lane.grants) {
      if (held.open) close(id, lane_id, lane, held, now_ns);
      held.answered_ns = kNever;  // it need not answer any more, and its work may still run
      overdue_at_ = std::min(overdue_at_, overdue_from(found->second, held));
    }
    scheduler_.idle(id, lane_id, now_ns);
  }
}

void DeviceArbiter::forget(ClientId id, std::uint64_t now_ns) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  note({.time = now_ns, .kind = TraceKind::kForget, .client = id});
  if (found->second.absent) {
    --absent_;
  } else {
    const auto fallback = std::find(fallback_partitions_.begin(), fallback_partitions_.end(),
                                    found->second.fallback.partition);
    --fallback_users_[static_cast<std::size_t>(fallback - fallback_partitions_.begin())];
  }
  const std::uint64_t process = found->second.traits.process;
  clients_.erase(found);
  found_id_ = scheduler::kNoClient;
  profile_.forget(curve_of(id));
  scheduler_.forget(id, now_ns);
  estimator_.forget(id);
  update_reporting(now_ns);
  // A process closes an older session when the newer one has reported all of its work.
  for (auto& [newer_id, newer] : clients_)
    if (newer.traits.process == process) drop_unconfirmed(newer_id, newer, now_ns);
}

// --- decisions -------------------------------------------------------------------------------

void DeviceArbiter::step(std::uint64_t now_ns) {
  note({.time = now_ns, .kind = TraceKind::kStep});
  reclaim_overdue(now_ns);
  if (absent_ > 0) drop_absent();
  for (const scheduler::Decision& decision : scheduler_.decide(now_ns)) deliver(decision, now_ns);
  // Grants that could not be delivered have ended.
  for (const Undelivered& one : undelivered_) {
    Client& client = *find(one.client);
    Lane& lane = client.lanes[one.lane];
    const std::uint64_t since_ns = std::exchange(lane.waits_since_ns, 0);
    const bool asked = lane.asked;
    stop_submitting(one.client, client, one.lane, now_ns);
    if (one.grant != scheduler::kNoGrant)
      scheduler_.returned(one.client, one.lane, one.grant, now_ns);
    lane.postponed = one.postponed;
    if (lane.postponed) lane.waits_since_ns = since_ns, lane.asked = asked;
  }
  undelivered_.clear();
}

void DeviceArbiter::deliver(const scheduler::Decision& decision, std::uint64_t now_ns) {
  Client* const client = find(decision.client);
  if (client == nullptr) return;
  if (decision.kind == scheduler::Decision::Kind::kGrant)
    return deliver_grant(decision.client, *client, decision, now_ns);
  Lane& lane = client->lanes[decision.stream];
  const auto held =
      std::find_if(lane.grants.begin(), lane.grants.end(),
                   [&](const HeldGrant& grant) { return grant.grant == decision.grant; });
  if (held == lane.grants.end() || !held->open) return;
  if (decision.kind == scheduler::Decision::Kind::kAmend)
    return amend(decision.client, *client, *held, decision, now_ns);
  if (lane.waits_since_ns == 0) lane.waits_since_ns = now_ns;  // the scheduler takes it to wait
  if (close(decision.client, decision.stream, lane, *held, now_ns))
    tell_gates_closed(decision.client);
}

void DeviceArbiter::deliver_grant(ClientId id, Client& client, const scheduler::Decision& decision,
                                  std::uint64_t now_ns) {
  Lane& lane = client.lanes[decision.stream];
  const bool drains_there =
      std::any_of(lane.grants.begin(), lane.grants.end(),
                  [&](const HeldGrant& held) { return held.partition == decision.partition; });
  if (client.traits.minor < 7 && drains_there)  // it would confuse the two grants
    return undelivered_.push_back({id, decision.stream, decision.grant, true});
  // The lane moves: it submits under the new grant from now on.
  for (HeldGrant& held : lane.grants)
    if (held.open) close(id, decision.stream, lane, held, now_ns);
  lane.asked = false;
  if (lane.waits_since_ns != 0) {
    const std::uint64_t waited = now_ns - std::exchange(lane.waits_since_ns, 0);
    waits_.add(waited);
    client.usage.waited(waited);
  }
  const LeaseWord word = protocol::lease_word(epoch_, ++lane.generation, GateState::kOpen);
  HeldGrant held;
  held.grant = decision.grant;
  held.partition = decision.partition;
  held.shared = decision.mode == Mode::kShared;
  held.word = word;
  held.first = protocol::generation_of(word);
  held.open = true;
  held.answered_ns = now_ns;
  add(id, client, lane, held, now_ns);
  // The word first: a client that sees the grant must find the gate open.
  publish(id, decision.stream, lane, word);
  if (send(id, decision, word, 0)) return client.usage.granted();
  ++counters_.undelivered;
  publish(id, decision.stream, lane, 0);
  tell_gates_closed(id);  // of the grant that it had before
  lane.grants.pop_back();
  remove(id, client, held, now_ns);
  undelivered_.push_back({id, decision.stream, decision.grant, false});
}

// Changes the terms of the lane's open grant. The new word makes the client read them; work
// submitted under the former word counts under this grant.
void DeviceArbiter::amend(ClientId id, Client& client, HeldGrant& held,
                          const scheduler::Decision& decision, std::uint64_t now_ns) {
  if (client.traits.minor < 7) return;  // it cannot be amended and keeps its terms
  Lane& lane = client.lanes[decision.stream];
  const LeaseWord before = held.word;
  const LeaseWord word = protocol::lease_word(epoch_, ++lane.generation, GateState::kOpen);
  held.word = word;
  publish(id, decision.stream, lane, word);
  if (send(id, decision, word, before)) return;
  ++counters_.undelivered;
  held.word = lane.word = before;  // close() publishes this word as closed
  --lane.generation;
  if (close(id, decision.stream, lane, held, now_ns)) tell_gates_closed(id);
  undelivered_.push_back({id, decision.stream, scheduler::kNoGrant, false});
}

bool DeviceArbiter::send(ClientId id, const scheduler::Decision& decision, LeaseWord word,
                         LeaseWord amends) {
  protocol::Grant grant;
  grant.head.lane = decision.stream;
  grant.word = word;
  grant.amends = amends;
  grant.partition = decision.partition;
  grant.launches = scheduler::runtime_launches(decision.launches);
  grant.exclusive = decision.mode == Mode::kExclusive ? 1 : 0;
  if (decision.run_ahead_ns != kNever)
    grant.ahead_ns = std::clamp<std::uint64_t>(decision.run_ahead_ns, 1, protocol::kLongest);
  const bool delivered = sink_.grant(id, grant);
  note({.kind = TraceKind::kGrant,
        .partition = decision.partition,
        .stream = decision.stream,
        .client = id,
        .flags = delivered ? 1U : 0U,
        .a = grant.launches,
        .b = word,
        .c = amends});
  return delivered;
}

// True: the lane's word was the grant's, so that the client must be notified.
bool DeviceArbiter::close(ClientId id, LaneId lane_id, Lane& lane, HeldGrant& held,
                          std::uint64_t now_ns) {
  held.open = false;
  held.answered_ns = held.closed_ns = now_ns;
  credit(*find(id), now_ns);
  overdue_at_ = std::min(overdue_at_, overdue_from(*find(id), held));
  if (lane.word != held.word) return false;
  publish(id, lane_id, lane,
          protocol::lease_word(epoch_, protocol::generation_of(held.word), GateState::kClosed));
  return true;
}

void DeviceArbiter::publish(ClientId id, LaneId lane_id, Lane& lane, LeaseWord word) {
  lane.word = word;
  note({.kind = TraceKind::kWord, .stream = lane_id, .client = id, .a = word});
  sink_.set_word(id, lane_id, word);
}

// The longer of the bound that the client was told and the present one applies. A dying client has
// as long as one that drains, because a client can mark its liveness futex as dead and live on.
std::uint64_t DeviceArbiter::overdue_from(const Client& client, const HeldGrant& held) const {
  const std::uint64_t within = this->answer_bound_ns(client);
  return std::min({held.answered_ns != kNever ? held.answered_ns + within : kNever,
                   client.credit_ns == 0
                       ? held.closed_ns + within
                       : held.closed_ns + std::max(within, settings_.drain_within_ns),
                   held.until_ns});
}

// Brings the drain credit up to `now_ns`: spent while the client drains for long beside others,
// else earned.
void DeviceArbiter::credit(Client& client, std::uint64_t now_ns) {
  const std::uint64_t passed = now_ns - std::exchange(client.credited_ns, now_ns);
  if (client.drains_long)
    client.credit_ns -= clients_.size() > 1 ? std::min(client.credit_ns, passed) : 0;
  else
    client.credit_ns = std::min(settings_.drain_within_ns, client.credit_ns + passed);
}

void DeviceArbiter::reclaim_overdue(std::uint64_t now_ns) {
  if (now_ns < overdue_at_) return;
  overdue_at_ = kNever;
  for (auto& [id, client] : clients_) {
    credit(client, now_ns);
    client.drains_long = false;
    for (const auto& [lane_id, lane] : client.lanes)
      for (const HeldGrant& held : lane.grants)
        client.drains_long = client.drains_long ||
                             (!held.open && now_ns >= held.closed_ns + answer_bound_ns(client));
    if (client.drains_long && client.credit_ns > 0 && clients_.size() > 1)
      overdue_at_ = std::min(overdue_at_, now_ns + client.credit_ns);
    for (auto& [lane_id, lane] : client.lanes) {
      for (std::size_t i = 0; i < lane.grants.size();) {
        const HeldGrant& held = lane.grants[i];
        if (held.open) {
          ++i;
        } else if (const std::uint64_t at = overdue_from(client, held); now_ns < at) {
          overdue_at_ = std::min(overdue_at_, at);
          ++i;
        } else {
          const HeldGrant ended = held;
          lane.grants.erase(lane.grants.begin() + static_cast<std::ptrdiff_t>(i));
          remove(id, client, ended, now_ns);
          if (!client.absent) {
            ++counters_.overdue;
            // A client that does not answer counts as idle until its next request.
            stop_submitting(id, client, lane_id, now_ns);
          }
          scheduler_.returned(id, lane_id, ended.grant, now_ns);
        }
      }
    }
  }
  if (overdue_at_ != kNever)
    overdue_at_ = std::max(overdue_at_, now_ns + settings_.answer_within_ns / kOverdueChecks);
}

std::uint64_t DeviceArbiter::wake_at() const { return std::min(overdue_at_, scheduler_.wake_at()); }

void DeviceArbiter::explain(scheduler::Findings& out) const {
  const scheduler::AllocationPolicy* const policy = scheduler_.allocation_policy();
  if (policy == nullptr || !policy->explain(out)) estimator_.explain(out);
}

std::vector<scheduler::SloStatus> DeviceArbiter::slo_statuses() const {
  std::vector<scheduler::SloStatus> statuses;
  if (const auto* const policy = scheduler_.allocation_policy()) policy->slo_statuses(statuses);
  return statuses;
}

std::vector<DeviceArbiter::GrantStatus> DeviceArbiter::held() const {
  std::vector<GrantStatus> all;
  for (const auto& [id, client] : clients_) {
    if (client.absent) continue;
    for (const auto& [lane_id, lane] : client.lanes)
      for (const HeldGrant& held : lane.grants) {
        const scheduler::Grant* const grant = scheduler_.ledger().find(held.grant);
        all.push_back({id, lane_id, held.partition, held.open, held.shared, held.adopted,
                       grant != nullptr ? grant->opened_ns : held.closed_ns});
      }
  }
  return all;
}

}  // namespace vitamin::daemon
