// SPDX-License-Identifier: Apache-2.0
//
// Messages of clients. What follows from them: scheduler_decide.cpp, scheduler_plan.cpp.
#include "scheduler/scheduler.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>

namespace vitamin::scheduler {

using State = StreamDemand::State;

namespace {

std::uint64_t key_of(ClientId client, StreamId stream) {
  return std::uint64_t{client} << 32 | stream;
}

}  // namespace

Scheduler::Scheduler(std::span<const Partition> pool, Policy policy,
                     const SchedulerOptions& options, const Estimates* estimates)
    : pool_(pool),
      by_unit_(pool),
      policy_(std::move(policy)),
      options_(options),
      estimates_(estimates),
      constraints_(pool),
      ledger_(pool, options.grants_per_stream) {
  starving_after_ns_ = policy_.description.may_starve ? kNever : options_.starving_after_ns;
}

// --- clients and streams ---------------------------------------------------------------------

Scheduler::ClientState* Scheduler::find_client(ClientId id) {
  if (found_ != kNone && found_key_ >> 32 == id) return &clients_[streams_[found_].client];
  const auto known = client_index_.find(id);
  return known == client_index_.end() ? nullptr : &clients_[known->second];
}

Scheduler::ClientIndex Scheduler::find_or_add_client(ClientId id) {
  if (found_ != kNone && found_key_ >> 32 == id) return streams_[found_].client;
  const auto [known, added] = client_index_.try_emplace(id, 0);
  if (!added) return known->second;
  ClientIndex index = static_cast<ClientIndex>(clients_.size());
  if (free_clients_.empty()) {
    clients_.emplace_back();
  } else {
    index = free_clients_.back();
    free_clients_.pop_back();
  }
  known->second = index;
  ClientState& client = clients_[index];
  client.value.id = id;
  client.used = true;
  client.holder = ledger_.add_holder();
  const auto at = std::lower_bound(
      order_.begin(), order_.end(), id,
      [&](ClientIndex other, ClientId wanted) { return clients_[other].value.id < wanted; });
  order_.insert(at, index);
  return index;
}

Scheduler::StreamIndex Scheduler::find(ClientId client, StreamId stream) {
  const std::uint64_t key = key_of(client, stream);
  if (key == found_key_) return found_;  // what is said of a stream comes in a row
  const auto known = stream_index_.find(key);
  if (known == stream_index_.end()) return kNone;
  found_key_ = key;
  return found_ = known->second;
}

Scheduler::StreamIndex Scheduler::find_or_add(ClientId client_id, StreamId id) {
  if (const StreamIndex known = find(client_id, id); known != kNone) return known;
  const ClientIndex owner = find_or_add_client(client_id);
  ClientState& client = clients_[owner];
  const bool alone = policy_.description.isolate_streams;
  const StreamIndex index =
      ledger_.add_stream(alone ? ledger_.add_holder() : client.holder, client_id, id);
  if (index >= streams_.size()) streams_.resize(index + 1);
  const std::uint32_t generation = streams_[index].generation + 1;
  StreamState& stream = streams_[index] = {};
  stream.client = owner;
  stream.id = id;
  stream.generation = generation;
  client.streams.push_back(index);
  // The policy may have given an expected stream a row.
  for (std::uint32_t row = 0; row < plan_.size(); ++row)
    if (plan_[row].row.client == client_id && plan_[row].row.stream == id) stream.row = row;
  set_quotas(client, index);
  stream_index_.emplace(key_of(client_id, id), index);
  found_key_ = key_of(client_id, id);
  return found_ = index;
}

void Scheduler::set_quotas(const ClientState& client, StreamIndex stream) {
  const Limits& limits = client.value.limits;
  std::array<Ledger::QuotaTerms, Ledger::kQuotasMost> quotas;
  std::size_t count = 0;
  // Groups and clients that are in none are numbered apart.
  constexpr std::uint64_t kAlone = std::uint64_t{1} << 32;
  if (limits.max_sms != 0)
    quotas[count++] = {limits.group != 0 ? limits.group : kAlone | client.value.id, limits.max_sms};
  for (const GroupQuota& quota : limits.outer)
    if (quota.group != 0 && quota.max_sms != 0) quotas[count++] = {quota.group, quota.max_sms};
  ledger_.set_quotas(stream, std::span(quotas).first(count));
}

void Scheduler::mark(StreamIndex stream) {
  if (!std::exchange(streams_[stream].dirty, true)) dirty_.push_back(stream);
}

void Scheduler::add_changed(ClientState& client) {
  if (!std::exchange(client.changed, true)) changed_.push_back(client.value.id);
}

void Scheduler::note_change(ClientState& client) {
  add_changed(client);
  replan_ = true;
}

// A client with a bound has nothing to do. A young plan stands for a while yet, so that clients
// that come and go at any rate cost a plan in that time, and not for each message.
void Scheduler::note_rest(ClientState& client) {
  if (!policy_.description.keeps_bounds || !client.value.slo.any()) return;
  if (now_ >= planned_ns_ + options_.replan_least_ns) return note_change(client);
  add_changed(client);
  client.resting = true;
  ++resting_;
  wake_at_ = std::min(wake_at_, planned_ns_ + options_.replan_least_ns);
}

// It has something to do again. The plan in force knows of that, unless it knows of the rest.
void Scheduler::note_resume(ClientState& client) {
  if (std::exchange(client.resting, false))
    --resting_;
  else if (policy_.description.keeps_bounds && client.value.slo.any())
    note_change(client);
}

void Scheduler::sets_state(StreamDemand& demand, State state) {
  if (demand.state == State::kWaiting) --waiting_;
  demand.state = state;
  if (state != State::kWaiting) return;
  ++waiting_;
  demand.waiting_since_ns = now_;
}

void Scheduler::attach(ClientId id, const ClientTerms& terms, std::uint64_t now_ns) {
  advance(now_ns);
  ClientState& client = clients_[find_or_add_client(id)];
  const ClientTerms before{client.value.weight, client.value.limits, client.value.slo};
  if (before == terms) return;
  client.value.weight = terms.weight;
  client.value.limits = terms.limits;
  client.value.slo = terms.slo;
  for (const StreamIndex stream : client.streams) set_quotas(client, stream);
  if (before.limits != terms.limits) {
    // Pending grants, also of other clients of a quota, may be within it now.
    returned_ = true;
    for (const StreamIndex stream : client.demanding) mark(stream);
  }
  note_change(client);
}

// --- demand ----------------------------------------------------------------------------------

void Scheduler::wants(ClientId id, const StreamDemand& demand, std::uint64_t now_ns) {
  if (demand.id == kAllStreams || id == kNoClient) return;
  advance(now_ns);
  const StreamIndex index = find_or_add(id, demand.id);
  StreamState& stream = streams_[index];
  ClientState& client = clients_[stream.client];
  if (stream.demand == kNone) {
    stream.demand = static_cast<std::uint32_t>(client.demands.size());
    client.demands.push_back(demand);
    client.demanding.push_back(index);
    StreamDemand& known = client.demands.back();
    known.state = State::kIdle;
    sets_state(known, State::kWaiting);
    if (stream.gave_up_ns != 0 && now_ - stream.gave_up_ns < options_.comes_back_ns)
      known.waiting_since_ns = stream.gave_up_since_ns;
    stream.gave_up_ns = 0;
    if (!client.value.active) {
      client.value.active = true;
      client.value.active_since_ns = now_;
      note_change(client);
    } else if (client.demands.size() == 1) {
      note_resume(client);
    }
    return mark(index);
  }
  StreamDemand& known = client.demands[stream.demand];
  const bool wider = demand.min_sms > known.min_sms;
  known.min_sms = demand.min_sms;
  known.profile_key = demand.profile_key;
  known.predicted_ns = demand.predicted_ns;
  const Grant* const grant = ledger_.open_grant(index);
  if (grant != nullptr && pool_[grant->partition].sms < demand.min_sms) {
    // decide() says so, and finds another one.
    return mark(index);
  }
  if (wider || known.state == State::kWaiting) mark(index);
}

// The stream neither waits nor runs.
void Scheduler::demand_ends(StreamIndex index) {
  StreamState& stream = streams_[index];
  ClientState& client = clients_[stream.client];
  const std::uint32_t at = std::exchange(stream.demand, kNone);
  stream.asked = false;
  sets_state(client.demands[at], State::kIdle);
  if (at + 1 != client.demands.size()) {
    client.demands[at] = client.demands.back();
    client.demanding[at] = client.demanding.back();
    streams_[client.demanding[at]].demand = at;
  }
  client.demands.pop_back();
  client.demanding.pop_back();
  if (client.demands.empty()) {
    note_rest(client);
    client.busy_ns = now_;
    if (!std::exchange(client.timer, true))
      add_timer(
          {now_ + options_.idle_after_ns, Timer::Kind::kIdle, stream.client, client.generation});
  }
}

void Scheduler::idle(ClientId id, StreamId stream_id, std::uint64_t now_ns) {
  advance(now_ns);
  const StreamIndex index = find(id, stream_id);
  if (index == kNone || streams_[index].demand == kNone) return;
  StreamState& stream = streams_[index];
  const StreamDemand& demand = clients_[stream.client].demands[stream.demand];
  if (demand.state == State::kWaiting) {
    stream.gave_up_ns = std::max<std::uint64_t>(now_, 1);
    stream.gave_up_since_ns = demand.waiting_since_ns;
  }
  ledger_.revoke(index, Reason::kIdle, now_);
  unblock(index);
  unplace(index);
  end_starving(index);
  demand_ends(index);
}

void Scheduler::returned(ClientId id, StreamId stream_id, GrantId grant, std::uint64_t now_ns) {
  advance(now_ns);
  const StreamIndex index = find(id, stream_id);
  if (index == kNone) return;
  const Grant* const open = ledger_.open_grant(index);
  const bool was_open = open != nullptr && open->id == grant;
  const bool was_full = ledger_.full(index);
  if (!ledger_.returned(index, grant)) return;
  returned_ = true;
  StreamState& stream = streams_[index];
  if (stream.demand == kNone) return;
  if (was_open) sets_state(clients_[stream.client].demands[stream.demand], State::kWaiting);
  if (was_open || was_full) {
    // While it waited for its own work it waited for no other client.
    StreamDemand& demand = clients_[stream.client].demands[stream.demand];
    if (demand.state == State::kWaiting) demand.waiting_since_ns = now_;
    mark(index);
  }
}

GrantId Scheduler::adopt(ClientId client, StreamId stream, PartitionId partition, Mode mode,
                         std::uint64_t now_ns) {
  advance(now_ns);
  if (partition >= pool_.size() || stream == kAllStreams || client == kNoClient) return kNoGrant;
  return ledger_.adopt(find_or_add(client, stream), partition, mode, now_);
}

void Scheduler::forget(ClientId id, std::uint64_t now_ns) {
  advance(now_ns);
  const auto known = client_index_.find(id);
  if (known == client_index_.end()) return;
  // First: a policy that fails here is replaced while all of the client is still known.
  try {
    if (policy_.allocation != nullptr) policy_.allocation->forget(id);
    if (policy_.placement != nullptr) policy_.placement->forget(id);
  } catch (const std::exception& error) {
    fail(std::string("forget() failed: ") + error.what());
  } catch (...) {
    fail("forget() threw an exception");
  }
  const ClientIndex index = known->second;
  ClientState& client = clients_[index];
  for (const StreamIndex at : client.streams) {
    StreamState& stream = streams_[at];
    unblock(at);
    unplace(at);
    end_starving(at);
    if (stream.demand != kNone) demand_ends(at);
    if (std::exchange(stream.dirty, false)) std::erase(dirty_, at);
    stream_index_.erase(key_of(id, stream.id));
    ++stream.generation;
    if (ledger_.holder(at) != client.holder) ledger_.forget(ledger_.holder(at));
  }
  if (client.resting) --resting_;
  ledger_.forget(client.holder);
  returned_ = true;
  found_key_ = ~std::uint64_t{0};
  found_ = kNone;
  std::erase(order_, index);
  std::erase(changed_, id);
  std::erase_if(plan_, [&](const Planned& planned) { return planned.row.client == id; });
  for (const ClientIndex other : order_) clients_[other].row = kNone;
  for (StreamState& stream : streams_) stream.row = kNone;
  for (std::uint32_t row = 0; row < plan_.size(); ++row) {
    const Row& planned = plan_[row].row;
    if (planned.stream == kAllStreams)
      find_client(planned.client)->row = row;
    else if (const StreamIndex at = find(planned.client, planned.stream); at != kNone)
      streams_[at].row = row;
  }
  client_index_.erase(known);
  const std::uint32_t generation = client.generation + 1;
  ClientState empty;
  std::swap(empty.demands, client.demands);
  std::swap(empty.demanding, client.demanding);
  std::swap(empty.steps, client.steps);
  std::swap(empty.streams, client.streams);
  empty.steps.clear();
  empty.streams.clear();
  client = std::move(empty);
  client.generation = generation;
  free_clients_.push_back(index);
  replan_ = true;
}

// --- steps and progress ----------------------------------------------------------------------

Step* Scheduler::put_step(const Step& step) {
  ClientState& client = clients_[find_or_add_client(step.client)];
  std::erase_if(client.steps, [&](const Step& known) { return known.id == step.id; });
  if (client.steps.size() >= options_.steps_per_client) {
    ++counters_.refused_steps;
    return nullptr;
  }
  const auto due = [](const Step& of) { return of.due_ns == 0 ? kNever : of.due_ns; };
  const auto at = std::upper_bound(client.steps.begin(), client.steps.end(), step,
                                   [&](const Step& a, const Step& b) { return due(a) < due(b); });
  return &*client.steps.insert(at, step);
}

// Of the step that began last.
void Scheduler::set_phase(ClientState& client) {
  std::uint64_t begin_ns = 0;
  StepKind phase = StepKind::kUnknown;
  for (const Step& step : client.steps)
    if (step.begin_ns > begin_ns) begin_ns = step.begin_ns, phase = step.kind;
  // Between two steps the client is in the phase of the last one.
  if (begin_ns != 0) client.value.phase = phase;
}

void Scheduler::step_changed(ClientState& client) {
  set_phase(client);
  if (policy_.description.uses_steps) note_change(client);
}

void Scheduler::step_expected(const Step& step, std::uint64_t now_ns) {
  if (step.client == kNoClient) return;
  advance(now_ns);
  if (put_step(step) != nullptr) step_changed(*find_client(step.client));
}

void Scheduler::step_begin(const Step& step, std::uint64_t now_ns) {
  if (step.client == kNoClient) return;
  advance(now_ns);
  Step* const known = put_step(step);
  if (known == nullptr) return;
  if (known->begin_ns == 0) known->begin_ns = std::max<std::uint64_t>(now_, 1);
  step_changed(*find_client(step.client));
}

void Scheduler::step_end(ClientId id, std::uint64_t step, std::uint64_t now_ns) {
  advance(now_ns);
  ClientState* const client = find_client(id);
  if (client == nullptr) return;
  const auto ended = std::erase_if(client->steps, [&](const Step& of) { return of.id == step; });
  if (ended != 0) step_changed(*client);
}

void Scheduler::step_cancel(ClientId client, std::uint64_t step, std::uint64_t now_ns) {
  step_end(client, step, now_ns);
}

void Scheduler::progress(ClientId id, const Progress& said) {
  ClientState* const client = find_client(id);
  if (client == nullptr) return;
  Progress& known = client->value.progress;
  known.work = std::max(known.work, said.work);
  known.busy_ns = std::max(known.busy_ns, said.busy_ns);
  known.misplaced = std::max(known.misplaced, said.misplaced);
  known.launches = std::max(known.launches, said.launches);
  if (said.collectives > known.collectives) {
    known.collectives = said.collectives;
    client->collective_ns = now_;
  }
  client->value.reports_progress = true;
}

// --- policy and options ----------------------------------------------------------------------

// Each stream is a holder of its own, or no stream is.
void Scheduler::assign_holders() {
  const bool alone = policy_.description.isolate_streams;
  for (const ClientIndex index : order_) {
    const ClientState& client = clients_[index];
    for (const StreamIndex stream : client.streams) {
      const Ledger::HolderIndex holder = ledger_.holder(stream);
      if (alone == (holder != client.holder)) continue;
      ledger_.set_holder(stream, alone ? ledger_.add_holder() : client.holder);
      if (!alone) ledger_.forget(holder);
    }
  }
}

void Scheduler::replace_policy(Policy policy, std::uint64_t now_ns) {
  advance(now_ns);
  policy_ = std::move(policy);
  fault_.clear();
  while (!unplaced_.empty()) unplace(unplaced_.back().stream);
  assign_holders();
  set(options_, now_ns);
}

void Scheduler::set(const SchedulerOptions& options, std::uint64_t now_ns) {
  advance(now_ns);
  const std::uint32_t grants = options_.grants_per_stream;  // the ledger's, from the beginning
  options_ = options;
  options_.grants_per_stream = grants;
  starving_after_ns_ = policy_.description.may_starve ? kNever : options_.starving_after_ns;
  // Whatever waits may be starving at another time from now on.
  std::erase_if(timers_, [](const Timer& timer) { return timer.kind == Timer::Kind::kStarving; });
  std::make_heap(timers_.begin(), timers_.end(), std::greater<>());
  for (StreamState& stream : streams_) stream.timer = false;
  for (const ClientIndex index : order_)
    for (const StreamIndex stream : clients_[index].demanding) mark(stream);
  replan_ = true;
}

void Scheduler::explain(std::vector<Explanation>& out, std::uint64_t now_ns) const {
  out.clear();
  for (const ClientIndex index : order_) {
    const ClientState& client = clients_[index];
    Explanation& of = out.emplace_back();
    of.client = client.value.id;
    of.active = client.value.active;
    of.busy_ns = client.value.active ? std::max(now_ns, now_) : client.busy_ns;
    if (client.row != kNone) of.planned = plan_[client.row];
    of.since_ns = client.row_since_ns;
    for (const StreamDemand& demand : client.demands) {
      if (demand.state != State::kWaiting) continue;
      ++of.waiting;
      const std::uint64_t now = std::max(now_ns, now_);
      of.longest_wait_ns = std::max(of.longest_wait_ns, now - demand.waiting_since_ns);
    }
  }
  const auto find = [&](ClientId client) {
    const auto at =
        std::lower_bound(out.begin(), out.end(), client,
                         [](const Explanation& of, ClientId wanted) { return of.client < wanted; });
    return at != out.end() && at->client == client ? at : out.end();
  };
  for (const Planned& planned : plan_)
    if (const auto at = find(planned.row.client);
        at != out.end() && planned.row.stream != kAllStreams)
      at->streams.push_back(planned);
  for (const Grant& grant : ledger_.grants()) {
    const auto at = find(grant.client);
    if (at == out.end()) continue;
    switch (grant.state) {
      case Grant::State::kOpen:
        ++at->open;
        break;
      case Grant::State::kPending:
        ++at->pending;
        break;
      case Grant::State::kRevoked:
        ++at->draining;
        break;
    }
  }
}

}  // namespace vitamin::scheduler
