// SPDX-License-Identifier: Apache-2.0
//
// Scheduler: a new allocation, and the difference to the one in force.
#include <algorithm>
#include <exception>
#include <utility>

#include "scheduler/policies/builtin.h"
#include "scheduler/scheduler.h"

namespace vitamin::scheduler {

using State = StreamDemand::State;

namespace {

// Grants under either row have the same terms.
bool same_grants(const Planned& a, const Planned& b) {
  return a.row.partition == b.row.partition && a.row.mode == b.row.mode &&
         a.row.launches == b.row.launches && a.row.run_ahead_ns == b.row.run_ahead_ns;
}

}  // namespace

Ledger::Terms Scheduler::terms_of(const Planned& planned) const {
  Ledger::Terms terms;
  terms.partition = planned.row.partition;
  terms.mode = planned.row.mode;
  terms.reason =
      planned.reason == Reason::kPolicy && !fault_.empty() ? Reason::kFallback : planned.reason;
  terms.launches = planned.row.launches;
  terms.run_ahead_ns = planned.row.run_ahead_ns;
  return terms;
}

void Scheduler::take_snapshot(Snapshot& snapshot) {
  snapshot_clients_.clear();
  resting_ = 0;
  for (const Planned& planned : plan_)
    if (planned.row.hold)
      if (ClientState* const client = find_client(planned.row.client)) client->held = true;
  for (const ClientIndex index : order_) {
    ClientState& client = clients_[index];
    client.resting = false;
    const bool held = std::exchange(client.held, false);
    if (!client.value.active && client.steps.empty() && !client.value.slo.any() &&
        client.value.limits.reserved_sms == 0 && !held)
      continue;
    client.value.streams = client.demands;
    client.value.steps = client.steps;
    client.value.distributed =
        client.value.progress.collectives != 0 && now_ - client.collective_ns < kDistributedNs;
    snapshot_clients_.push_back(client.value);
  }
  current_.rows.clear();
  for (const Planned& planned : plan_) current_.rows.push_back(planned.row);
  current_.wake_ns = plan_wake_;
  snapshot.now_ns = now_;
  snapshot.revision = revision_ + 1;
  snapshot.pool = pool_;
  snapshot.clients = snapshot_clients_;
  snapshot.grants = ledger_.grants();
  snapshot.changed = changed_;
  snapshot.current = &current_;
  snapshot.estimates = estimates_;
}

// The policy is at fault: fifo from now on.
void Scheduler::fail(std::string_view what) {
  fault_.assign(policy_.description.name);
  fault_ += ": ";
  fault_ += what;
  ++counters_.faults;
  policy_ = make_fifo();
  assign_holders();
  starving_after_ns_ = options_.starving_after_ns;
  for (const ClientIndex index : order_)
    for (const StreamIndex stream : clients_[index].demanding) mark(stream);
  while (!unplaced_.empty()) unplace(unplaced_.back().stream);
  replan_ = true;
}

// Rows of the policy as clipped: next_plan_.
void Scheduler::ask_policy(const Snapshot& snapshot) {
  while (true) {
    next_.rows.clear();
    next_.wake_ns = kNever;
    std::string problem;  // empty: no allocation
    if (policy_.allocation != nullptr) {
      ++counters_.plans;
      try {
        policy_.allocation->allocate(snapshot, next_);
      } catch (const std::exception& error) {
        problem = std::string("allocate() failed: ") + error.what();
      } catch (...) {
        problem = "allocate() threw an exception";
      }
    }
    if (problem.empty()) {
      const char* const invalid = constraints_.clip(
          snapshot, next_.rows, snapshot_starving_,
          {policy_.description.isolate_streams, policy_.placement != nullptr}, next_plan_);
      if (invalid == nullptr) return;
      problem = invalid;
    }
    fail(problem);
  }
}

void Scheduler::make_plan() {
  snapshot_starving_.clear();
  for (const StarvingStream& starving : starving_) {
    const StreamState& stream = streams_[starving.stream];
    const ClientState& client = clients_[stream.client];
    Starving& out = snapshot_starving_.emplace_back();
    out.client = client.value.id;
    out.stream = stream.id;
    out.min_sms = client.demands[stream.demand].min_sms;
    if (stream.row == kNone || plan_[stream.row].reason != Reason::kStarving) continue;
    out.partition = plan_[stream.row].row.partition;
    out.mode = plan_[stream.row].row.mode;
  }
  Snapshot snapshot;
  take_snapshot(snapshot);
  ask_policy(snapshot);
  replan_ = false;
  for (const ClientId id : changed_)
    if (ClientState* const client = find_client(id)) client->changed = false;
  changed_.clear();
  ++revision_;
  planned_ns_ = now_;
  // The soonest that a policy may ask for: a policy that names the past does not stop the loop.
  plan_wake_ = next_.wake_ns;
  for (const Planned& planned : next_plan_) plan_wake_ = std::min(plan_wake_, planned.row.until_ns);
  if (plan_wake_ != kNever) plan_wake_ = std::max(plan_wake_, now_ + options_.replan_least_ns);
  if (policy_.placement != nullptr) {
    std::erase_if(next_plan_, [](const Planned& planned) {
      return planned.reason == Reason::kPaused || planned.reason == Reason::kReservation;
    });
    bar_units(snapshot);
  }
  apply_difference();
}

// Units that place() must not give to a client: reserved for others, or for starving streams.
// While such a stream is served, place() gives the clients of its quota nothing beside it; what
// they have there is revoked where the quota leaves it no room.
void Scheduler::bar_units(const Snapshot& snapshot) {
  for (const ClientIndex index : order_) {
    ClientState& client = clients_[index];
    client.barred = constraints_.reserved_against(snapshot, client.value.id);
    hal::ComputeSet beside;
    bool makes_way = false;
    for (const Planned& planned : next_plan_) {
      if (planned.reason != Reason::kStarving) continue;
      const hal::ComputeSet units = pool_[planned.row.partition].compute;
      if (planned.row.client != client.value.id) client.barred |= units;
      const StreamIndex starving = find(planned.row.client, planned.row.stream);
      if (starving == kNone || client.streams.empty() ||
          !ledger_.have_common_quota(starving, client.streams.front()))
        continue;
      beside |= pool_.front().compute - units;
      makes_way = makes_way || !ledger_.within_quotas(starving, planned.row.partition);
    }
    const hal::ComputeSet revoked = makes_way ? client.barred | beside : client.barred;
    client.barred |= beside;
    for (const StreamIndex stream : client.demanding) {
      const Grant* const grant = ledger_.open_grant(stream);
      if (grant != nullptr && grant->mode == Mode::kExclusive &&
          pool_[grant->partition].compute.overlaps(revoked))
        revoke(stream, Reason::kMadeWay);
    }
  }
}

// Clients and streams whose rows differ are reconciled; all others are not looked at.
void Scheduler::apply_difference() {
  std::swap(plan_, next_plan_);
  std::vector<Planned>& before = next_plan_;
  for (const ClientIndex index : order_) clients_[index].next_row = kNone;
  scratch_.clear();
  for (const Planned& planned : before)
    if (planned.row.stream != kAllStreams)
      if (const StreamIndex at = find(planned.row.client, planned.row.stream); at != kNone) {
        streams_[at].row = kNone;
        scratch_.push_back(at);
      }
  for (std::uint32_t row = 0; row < plan_.size(); ++row) {
    const Row& planned = plan_[row].row;
    if (planned.stream == kAllStreams) {
      clients_[client_index_.at(planned.client)].next_row = row;
    } else if (const StreamIndex at = find(planned.client, planned.stream); at != kNone) {
      streams_[at].row = row;
      scratch_.push_back(at);
    }
  }
  for (const ClientIndex index : order_) {
    ClientState& client = clients_[index];
    const std::uint32_t old = std::exchange(client.row, client.next_row);
    if (old == kNone && client.row == kNone) continue;
    if (old != kNone && client.row != kNone) {
      if (before[old].reason != plan_[client.row].reason ||
          !same_grants(before[old], plan_[client.row]))
        client.row_since_ns = now_;
      if (same_grants(before[old], plan_[client.row]) &&
          plan_[client.row].row.launches == kNoLaunchBound)
        continue;
    } else {
      client.row_since_ns = now_;
    }
    reconcile_client(client);
  }
  for (const StreamIndex stream : scratch_) reconcile(stream);
  for (const StreamIndex stream : blocked_) end_beside_own_drains(stream);
}

void Scheduler::reconcile_client(ClientState& client) {
  for (const StreamIndex stream : client.demanding)
    if (streams_[stream].row == kNone) reconcile(stream);
}

// The stream keeps what its row agrees with, and loses the rest.
void Scheduler::reconcile(StreamIndex index) {
  StreamState& stream = streams_[index];
  if (stream.demand == kNone) return;
  const std::uint32_t at = row_of(stream);
  if (at == kNone) {
    unblock(index);
    const Grant* const grant = ledger_.open_grant(index);
    if (grant != nullptr && grant->reason == Reason::kStarving)
      revoke(index, Reason::kQuantumEnded);
    else if (grant != nullptr && grant->reason != Reason::kPlacement &&
             grant->reason != Reason::kNeedsWhole)
      revoke(index, Reason::kRowChanged);
    return mark(index);
  }
  const Planned& planned = plan_[at];
  const Row& row = planned.row;
  const Grant* const pending = ledger_.pending_grant(index);
  if (pending != nullptr && (pending->partition != row.partition || pending->mode != row.mode))
    unblock(index);
  const Grant* const grant = ledger_.open_grant(index);  // unblock() moves grants in the ledger
  if (grant == nullptr) return mark(index);
  if (grant->mode == row.mode && grant->partition == row.partition) {
    const Ledger::Terms terms = terms_of(planned);
    const bool exception =
        (grant->reason == Reason::kNeedsWhole) != (terms.reason == Reason::kNeedsWhole);
    const bool told =
        exception || grant->launches != terms.launches || grant->run_ahead_ns != terms.run_ahead_ns;
    ledger_.amend(index, terms);
    if (terms.reason == Reason::kNeedsWhole && exception) ++counters_.exceptions;
    if (!told) return;
    ++counters_.amended;
    if (terms.launches != kNoLaunchBound) stream.used_revision = revision_;
    return decide_on(Decision::Kind::kAmend, *grant, terms.reason);
  }
  Reason reason = Reason::kRowChanged;
  if (grant->reason == Reason::kStarving)
    reason = Reason::kQuantumEnded;
  else if (!starving_.empty() && planned.reason == Reason::kOverlap)
    reason = Reason::kMadeWay;
  if (row.mode == Mode::kPaused) return revoke(index, reason);
  // It moves at once, or stays inside its partition until the rest of it is free.
  if (pool_[row.partition].sms >= clients_[stream.client].demands[stream.demand].min_sms &&
      ledger_.can_open(index, row.partition, row.mode, planned.reason)) {
    unblock(index);
    const GrantId moved = ledger_.open(index, terms_of(planned), now_);
    return publish_opened(index, moved);
  }
  const hal::ComputeSet units = pool_[grant->partition].compute;
  const bool inside = grant->mode == row.mode && pool_[row.partition].compute.contains(units);
  // Or beside a kernel of its process, for as long as the quota has no room for any new row.
  const bool beside = is_interim(grant->reason) && !ledger_.within_quotas(index, row.partition) &&
                      mode_beside_own_drains(index, units) == grant->mode;
  if (!ledger_.full(index) && (inside || beside)) return block(index, terms_of(planned));
  revoke(index, reason);
}

}  // namespace vitamin::scheduler
