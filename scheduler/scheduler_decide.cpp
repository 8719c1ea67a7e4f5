// SPDX-License-Identifier: Apache-2.0
//
// Scheduler::decide(): timers, grants under the rows in force, starving streams.
#include <algorithm>
#include <exception>
#include <functional>
#include <utility>

#include "scheduler/scheduler.h"

namespace vitamin::scheduler {

using State = StreamDemand::State;

namespace {

constexpr std::uint64_t kMeanwhileAheadNs = 2'000'000;
// What drains for longer is beyond most kernels: streams of its process wait for it no longer.
constexpr std::uint64_t kOwnDrainNs = 10'000'000;

}  // namespace

std::span<const Decision> Scheduler::decide(std::uint64_t now_ns) {
  advance(now_ns);
  decisions_.clear();
  if (dirty_.empty() && !replan_ && !returned_ && now_ < wake_at_) return decisions_;
  if (now_ >= wake_at_) pop_timers();
  bool returned = std::exchange(returned_, false);
  if (returned) {
    serve_freed();
    if (policy_.description.uses_returns && waiting_ != 0) replan_ = true;
  }
  // What is known to need a plan is planned first; what only a look at a stream shows, after that.
  for (int round = 0; round < 2; ++round) {
    if (replan_) make_plan();
    if (std::exchange(returned, false)) serve_unplaced();
    serve_dirty();
    if (!replan_) break;
  }
  schedule_wake();
  return decisions_;
}

// --- time ------------------------------------------------------------------------------------

void Scheduler::add_timer(Timer timer) {
  timers_.push_back(timer);
  std::push_heap(timers_.begin(), timers_.end(), std::greater<>());
  wake_at_ = std::min(wake_at_, timer.at_ns);
}

// A stream or client has one timer at a time, so that those that come and go often cost one entry
// for each time-out and not one for each message.
void Scheduler::pop_timers() {
  while (!timers_.empty() && timers_.front().at_ns <= now_) {
    std::pop_heap(timers_.begin(), timers_.end(), std::greater<>());
    const Timer timer = timers_.back();
    timers_.pop_back();
    if (timer.kind == Timer::Kind::kStarving) {
      if (streams_[timer.index].generation != timer.generation) continue;
      streams_[timer.index].timer = false;
      if (!begin_starving_if_due(timer.index)) arm_starvation_timer(timer.index);
      continue;
    }
    if (timer.kind == Timer::Kind::kDrain) {
      if (streams_[timer.index].generation != timer.generation) continue;
      streams_[timer.index].drain_timer = false;
      if (streams_[timer.index].blocked != kNone) mark(timer.index);
      continue;
    }
    ClientState& client = clients_[timer.index];
    if (client.generation != timer.generation) continue;
    client.timer = false;
    if (!client.demands.empty()) continue;
    if (now_ - client.busy_ns < options_.idle_after_ns) {
      client.timer = true;
      add_timer(
          {client.busy_ns + options_.idle_after_ns, timer.kind, timer.index, timer.generation});
      continue;
    }
    client.value.active = false;
    note_change(client);
  }
  end_quanta();
  if (now_ >= plan_wake_) replan_ = true;
  if (resting_ != 0 && now_ >= planned_ns_ + options_.replan_least_ns) replan_ = true;
}

void Scheduler::schedule_wake() {
  wake_at_ = replan_ ? now_ : std::min(plan_wake_, quantum_due_);
  if (resting_ != 0) wake_at_ = std::min(wake_at_, planned_ns_ + options_.replan_least_ns);
  if (!timers_.empty()) wake_at_ = std::min(wake_at_, timers_.front().at_ns);
}

// --- starving streams ------------------------------------------------------------------------

// The stream waits on: it is looked at when it may be starving.
void Scheduler::arm_starvation_timer(StreamIndex index) {
  StreamState& stream = streams_[index];
  if (starving_after_ns_ == kNever || stream.timer || stream.starving || stream.demand == kNone)
    return;
  const StreamDemand& demand = clients_[stream.client].demands[stream.demand];
  if (demand.state != State::kWaiting || ledger_.full(index)) return;
  stream.timer = true;
  add_timer({demand.waiting_since_ns + starving_after_ns_, Timer::Kind::kStarving, index,
             stream.generation});
}

// Whether the stream begins to starve now; the next plan gives it a row of its own.
bool Scheduler::begin_starving_if_due(StreamIndex index) {
  StreamState& stream = streams_[index];
  if (starving_after_ns_ == kNever || stream.starving || stream.demand == kNone) return false;
  const StreamDemand& demand = clients_[stream.client].demands[stream.demand];
  if (demand.state != State::kWaiting || ledger_.full(index) ||
      now_ - demand.waiting_since_ns < starving_after_ns_)
    return false;
  stream.starving = true;
  const StarvingStream starving{index, demand.waiting_since_ns, kNever};
  const auto at = std::upper_bound(
      starving_.begin(), starving_.end(), starving,
      [](const StarvingStream& a, const StarvingStream& b) { return a.since_ns < b.since_ns; });
  starving_.insert(at, starving);
  ++counters_.starving;
  replan_ = true;
  return true;
}

void Scheduler::end_starving(StreamIndex index) {
  if (!std::exchange(streams_[index].starving, false)) return;
  std::erase_if(starving_,
                [&](const StarvingStream& starving) { return starving.stream == index; });
  replan_ = true;
}

void Scheduler::end_quanta() {
  if (now_ < quantum_due_) return;
  quantum_due_ = kNever;
  std::erase_if(starving_, [&](const StarvingStream& starving) {
    if (starving.until_ns > now_) {
      quantum_due_ = std::min(quantum_due_, starving.until_ns);
      return false;
    }
    streams_[starving.stream].starving = false;
    arm_starvation_timer(starving.stream);  // its row may have been too narrow for what it wants
    replan_ = true;
    return true;
  });
}

// --- grants ----------------------------------------------------------------------------------

void Scheduler::decide_on(Decision::Kind kind, const Grant& grant, Reason reason) {
  decisions_.push_back({kind, grant.client, grant.stream, grant.id, grant.partition, grant.mode,
                        reason, grant.launches, grant.run_ahead_ns});
}

void Scheduler::publish_opened(StreamIndex index, GrantId id) {
  const Grant& grant = *ledger_.find(id);
  StreamState& stream = streams_[index];
  StreamDemand& demand = clients_[stream.client].demands[stream.demand];
  if (demand.state != State::kRunning) sets_state(demand, State::kRunning);
  stream.last = grant.partition;
  stream.asked = false;
  if (grant.launches != kNoLaunchBound) stream.used_revision = revision_;
  ++counters_.grants;
  if (grant.reason == Reason::kNeedsWhole) ++counters_.exceptions;
  decide_on(Decision::Kind::kGrant, grant, grant.reason);
  if (!stream.starving || is_interim(grant.reason)) return;
  for (StarvingStream& starving : starving_)
    if (starving.stream == index && starving.until_ns == kNever) {
      starving.until_ns = now_ + options_.quantum_ns;
      quantum_due_ = std::min(quantum_due_, starving.until_ns);
    }
}

void Scheduler::revoke(StreamIndex index, Reason reason) {
  const GrantId id = ledger_.open_grant(index)->id;
  ledger_.revoke(index, reason, now_);
  ++counters_.revoked;
  decide_on(Decision::Kind::kRevoke, *ledger_.find(id), reason);
  StreamState& stream = streams_[index];
  sets_state(clients_[stream.client].demands[stream.demand], State::kWaiting);
  mark(index);
}

void Scheduler::block(StreamIndex index, const Ledger::Terms& terms) {
  const Grant* const pending = ledger_.pending_grant(index);
  const bool same_units =
      pending != nullptr && pending->partition == terms.partition && pending->mode == terms.mode;
  if (!same_units) {
    ledger_.pend(index, terms, now_);
    ++counters_.pending;
  } else if (pending->reason != terms.reason || pending->launches != terms.launches ||
             pending->run_ahead_ns != terms.run_ahead_ns) {
    ledger_.pend(index, terms, pending->requested_ns);  // it waits for the same units as before
  }
  StreamState& stream = streams_[index];
  if (stream.blocked != kNone) return;
  stream.blocked = static_cast<std::uint32_t>(blocked_.size());
  blocked_.push_back(index);
}

void Scheduler::unblock(StreamIndex index) {
  ledger_.cancel(index);
  const std::uint32_t at = std::exchange(streams_[index].blocked, kNone);
  if (at == kNone) return;
  blocked_[at] = blocked_.back();
  streams_[blocked_[at]].blocked = at;
  streams_[index].blocked = kNone;
  blocked_.pop_back();
}

// What is free inside its partition, while the rest drains. Not for a shared row, which waits for
// its quota alone: its units may be in use.
void Scheduler::open_inside_meanwhile(StreamIndex index, const Ledger::Terms& wanted) {
  const StreamState& stream = streams_[index];
  if (ledger_.open_grant(index) != nullptr || ledger_.full(index)) return;
  if (wanted.mode == Mode::kShared) return beside_own_drains(index, wanted);
  const std::uint32_t min_sms = clients_[stream.client].demands[stream.demand].min_sms;
  const hal::ComputeSet inside = pool_[wanted.partition].compute;
  const hal::ComputeSet held = ledger_.held_by_others(ledger_.holder(index));
  for (std::size_t i = pool_.size(); i-- > 1;) {
    const Partition& partition = pool_[i];
    if (partition.sms < min_sms) break;
    if (partition.id == wanted.partition || !inside.contains(partition.compute) ||
        partition.compute.overlaps(held) || !ledger_.within_quotas(index, partition.id))
      continue;
    Ledger::Terms terms;
    terms.partition = partition.id;
    terms.mode = Mode::kExclusive;
    terms.reason = Reason::kMeanwhile;
    // What is submitted there stays there when the rest is free.
    terms.run_ahead_ns = std::min(wanted.run_ahead_ns, kMeanwhileAheadNs);
    const GrantId grant = ledger_.open(index, terms, now_);
    if (grant != kNoGrant) publish_opened(index, grant);
    return;
  }
  beside_own_drains(index, wanted);
}

// How the stream may run on units where other streams of its client have drained for long; paused:
// not at all. It is beside no row of another client that it conflicts with.
Mode Scheduler::mode_beside_own_drains(StreamIndex index, hal::ComputeSet units) const {
  const ClientState& client = clients_[streams_[index].client];
  const std::uint64_t by_ns = now_ > kOwnDrainNs ? now_ - kOwnDrainNs : 0;
  hal::ComputeSet draining;
  for (const StreamIndex other : client.streams)
    if (other != index) draining |= ledger_.draining(other, by_ns);
  if (!draining.contains(units)) return Mode::kPaused;
  bool exclusive = false, shared = false;
  for (const Planned& planned : plan_)
    if (planned.row.client != client.value.id && planned.row.mode != Mode::kPaused &&
        pool_[planned.row.partition].compute.overlaps(units))
      (planned.row.mode == Mode::kShared ? shared : exclusive) = true;
  if (!shared) return Mode::kExclusive;
  return exclusive ? Mode::kPaused : Mode::kShared;
}

// A kernel of the client may run for long where the client's row was before, even until another
// stream of the client has done something; while it does, a quota may have no room for the new row.
// Natively those streams would not wait for it. So a stream of the client runs beside the kernel,
// on units that are not free anyway.
void Scheduler::beside_own_drains(StreamIndex index, const Ledger::Terms& wanted) {
  StreamState& stream = streams_[index];
  const ClientState& client = clients_[stream.client];
  if (!ledger_.has_quota(index) || client.streams.size() < 2 ||
      ledger_.within_quotas(index, wanted.partition))
    return;
  if (!std::exchange(stream.drain_timer, true))
    add_timer({now_ + kOwnDrainNs, Timer::Kind::kDrain, index, stream.generation});
  const hal::ComputeSet held = ledger_.held_by_others(ledger_.holder(index));
  for (std::size_t i = pool_.size(); i-- > 1;) {
    const Partition& partition = pool_[i];
    if (partition.sms < client.demands[stream.demand].min_sms) return;
    if (partition.compute.overlaps(held) || !ledger_.within_quotas(index, partition.id)) continue;
    const Mode mode = mode_beside_own_drains(index, partition.compute);
    if (mode == Mode::kPaused) continue;
    Ledger::Terms terms;
    terms.partition = partition.id;
    terms.mode = mode;
    terms.reason = Reason::kBesideOwnDrain;
    terms.run_ahead_ns = 0;  // it ends soon after what it is beside
    const GrantId grant = ledger_.open(index, terms, now_);
    if (grant != kNoGrant) publish_opened(index, grant);
    return;
  }
}

// Ends what beside_own_drains() gave to a blocked stream when the kernel has ended, or when another
// client has a row there that it conflicts with.
void Scheduler::end_beside_own_drains(StreamIndex index) {
  const Grant* const grant = ledger_.open_grant(index);
  if (grant == nullptr || !is_interim(grant->reason)) return;
  const hal::ComputeSet units = pool_[grant->partition].compute;
  if (pool_[ledger_.pending_grant(index)->partition].compute.contains(units)) return;
  if (mode_beside_own_drains(index, units) != grant->mode) revoke(index, Reason::kRowChanged);
}

// Pending grants on units that are free now, or that a quota allows now.
void Scheduler::serve_freed() {
  const hal::ComputeSet freed = ledger_.take_freed();
  const bool quota_freed = ledger_.take_quota_freed();
  for (std::size_t i = 0; i < blocked_.size() && (quota_freed || !freed.empty());) {
    const StreamIndex index = blocked_[i];
    const Grant& pending = *ledger_.pending_grant(index);
    Ledger::Terms terms;
    terms.partition = pending.partition;
    terms.mode = pending.mode;
    terms.run_ahead_ns = pending.run_ahead_ns;
    const bool meets =
        pool_[terms.partition].compute.overlaps(freed) || (quota_freed && ledger_.has_quota(index));
    // A stream that needs more by now is looked at behind this (wants() marks it).
    const StreamState& stream = streams_[index];
    if (pool_[terms.partition].sms < clients_[stream.client].demands[stream.demand].min_sms) {
      ++i;
      continue;
    }
    const GrantId grant = meets ? ledger_.promote(index, now_) : kNoGrant;
    if (grant == kNoGrant) {
      if (meets) {
        end_beside_own_drains(index);
        open_inside_meanwhile(index, terms);
      }
      ++i;
      continue;
    }
    unblock(index);
    publish_opened(index, grant);
  }
}

// place() is asked again for all that found nothing, the longest wait first, and before those that
// have just asked: a client that returns units and asks again would get them for ever.
void Scheduler::serve_unplaced() {
  // For most of many streams that wait nothing is free.
  const auto may_fit = [&](const Unplaced& waits) {
    return !ledger_.units_of(waits.holder).empty() || constraints_.needs_whole(waits.min_sms);
  };
  for (std::size_t i = 0; i < unplaced_.size();) {
    if (ledger_.held().contains(pool_.front().compute)) {
      const auto first = unplaced_.begin() + static_cast<std::ptrdiff_t>(i);
      i = static_cast<std::size_t>(std::find_if(first, unplaced_.end(), may_fit) -
                                   unplaced_.begin());
      if (i == unplaced_.size()) break;
    }
    const StreamIndex stream = unplaced_[i].stream;
    if (!streams_[stream].dirty) serve(stream);
    if (i < unplaced_.size() && unplaced_[i].stream == stream) ++i;
  }
}

// A stream that asks for a plan is marked again when its row has changed with it (reconcile()).
void Scheduler::serve_dirty() {
  for (std::size_t i = 0; i < dirty_.size(); ++i) {
    const StreamIndex index = dirty_[i];
    streams_[index].dirty = false;
    serve(index);
  }
  dirty_.clear();
}

void Scheduler::serve(StreamIndex index) {
  StreamState& stream = streams_[index];
  if (stream.demand == kNone) return;
  StreamDemand& demand = clients_[stream.client].demands[stream.demand];
  if (const Grant* const grant = ledger_.open_grant(index);
      grant != nullptr && pool_[grant->partition].sms < demand.min_sms) {
    ledger_.revoke(index, Reason::kTooNarrow, now_);
    ++counters_.revoked;
    decide_on(Decision::Kind::kRevoke, *ledger_.find(grant->id), Reason::kTooNarrow);
    sets_state(demand, State::kWaiting);
  }
  if (demand.state == State::kRunning && stream.blocked == kNone) return;
  if (ledger_.full(index)) return unblock(index);
  const std::uint32_t row = row_of(stream);
  if (row != kNone) {
    unplace(index);
    return serve_row(index, row);
  }
  if (policy_.placement != nullptr) return place(index);
  replan_ = true;
}

void Scheduler::serve_row(StreamIndex index, std::uint32_t row) {
  StreamState& stream = streams_[index];
  const StreamDemand& demand = clients_[stream.client].demands[stream.demand];
  const Planned& planned = plan_[row];
  if (planned.row.mode == Mode::kPaused) {
    unblock(index);
    if (policy_.description.uses_streams && planned.wished == kNoPartition &&
        !std::exchange(stream.asked, true))
      replan_ = true;
    return arm_starvation_timer(index);
  }
  if (pool_[planned.row.partition].sms < demand.min_sms) {
    unblock(index);
    // Asked once for the same need: the plan in force knows it.
    if (stream.narrow_revision != revision_ || stream.narrow_sms != demand.min_sms) {
      stream.narrow_revision = revision_ + 1;
      stream.narrow_sms = demand.min_sms;
      note_change(clients_[stream.client]);
    }
    return arm_starvation_timer(index);
  }
  if (planned.row.launches != kNoLaunchBound && stream.used_revision == revision_) {
    replan_ = true;
    return arm_starvation_timer(index);
  }
  const Ledger::Terms terms = terms_of(planned);
  const GrantId grant = ledger_.open(index, terms, now_);
  if (grant != kNoGrant) {
    unblock(index);
    return publish_opened(index, grant);
  }
  block(index, terms);
  open_inside_meanwhile(index, terms);
  arm_starvation_timer(index);
}

// --- placement -------------------------------------------------------------------------------

// Whether place() has a choice: eligible_.
bool Scheduler::eligible_for(StreamIndex index) {
  eligible_.clear();
  const StreamState& stream = streams_[index];
  const ClientState& client = clients_[stream.client];
  const std::uint32_t min_sms = client.demands[stream.demand].min_sms;
  const hal::ComputeSet barred = ledger_.held_by_others(ledger_.holder(index)) | client.barred;
  // As for most of many streams that wait.
  if (barred.contains(pool_.front().compute) && !constraints_.needs_whole(min_sms)) return false;
  const Limits& limits = client.value.limits;
  const std::uint32_t quota = limits.most_sms();
  const PartitionId narrowest = constraints_.narrowest(min_sms);
  const std::uint32_t most = quota == 0 ? kNone : std::max(quota, pool_[narrowest].sms);
  if (narrowest != kWholeDevice)
    by_unit_.for_each_without(barred, narrowest, [&](PartitionId id) {
      if (quota == 0 || (pool_[id].sms <= most && ledger_.within_quotas(index, id)))
        eligible_.push_back(id);
    });
  const bool whole_fits = barred.empty() && limits.may_share && pool_[kWholeDevice].sms <= most;
  if (whole_fits || constraints_.needs_whole(min_sms)) eligible_.push_back(kWholeDevice);
  return !eligible_.empty();
}

void Scheduler::add_unplaced(StreamIndex index) {
  StreamState& stream = streams_[index];
  const StreamDemand& demand = clients_[stream.client].demands[stream.demand];
  const Unplaced waits{demand.waiting_since_ns, index, ledger_.holder(index), demand.min_sms};
  if (stream.unplaced_ns != waits.since_ns) unplace(index);
  const auto at = unplaced_.empty() || unplaced_.back() < waits
                      ? unplaced_.end()
                      : std::lower_bound(unplaced_.begin(), unplaced_.end(), waits);
  if (std::exchange(stream.unplaced_ns, waits.since_ns) == waits.since_ns)
    *at = waits;
  else
    unplaced_.insert(at, waits);
}

void Scheduler::unplace(StreamIndex index) {
  const std::uint64_t since_ns = std::exchange(streams_[index].unplaced_ns, kNever);
  if (since_ns == kNever) return;
  unplaced_.erase(
      std::lower_bound(unplaced_.begin(), unplaced_.end(), Unplaced{since_ns, index, 0, 0}));
}

void Scheduler::place(StreamIndex index) {
  StreamState& stream = streams_[index];
  ClientState& client = clients_[stream.client];
  Placement placement;
  if (eligible_for(index)) {
    ++counters_.placements;
    const PlacementRequest launch{client.value.id, client.demands[stream.demand], stream.last, now_,
                                  pool_};
    try {
      placement = policy_.placement->place(launch, eligible_);
    } catch (const std::exception& error) {
      return fail(std::string("place() failed: ") + error.what());
    } catch (...) {
      return fail("place() threw an exception");
    }
    if (placement.partition != kNoPartition &&
        std::find(eligible_.begin(), eligible_.end(), placement.partition) == eligible_.end())
      return fail("place() returned a partition that is not eligible");
  }
  if (placement.partition == kNoPartition) {
    add_unplaced(index);
    return arm_starvation_timer(index);
  }
  unplace(index);
  Ledger::Terms terms;
  terms.partition = placement.partition;
  terms.mode = placement.partition == kWholeDevice ? Mode::kShared : Mode::kExclusive;
  const std::uint32_t min_sms = client.demands[stream.demand].min_sms;
  const bool exception = placement.partition == kWholeDevice && constraints_.needs_whole(min_sms);
  terms.reason = exception ? Reason::kNeedsWhole : Reason::kPlacement;
  terms.launches = placement.launches;
  const GrantId grant = ledger_.open(index, terms, now_);
  if (grant != kNoGrant) publish_opened(index, grant);
}

}  // namespace vitamin::scheduler
