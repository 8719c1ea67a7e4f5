// SPDX-License-Identifier: Apache-2.0
#include "daemon/client/local_arbiter.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "runtime/clock.h"
#include "scheduler/policies/builtin.h"

namespace vitamin::client {

using runtime::GrantTerms;
using runtime::is_eligible;
using runtime::kNoPartition;
using runtime::kWholeDevice;
using runtime::PartitionId;
using runtime::StreamId;
using scheduler::Mode;

namespace {

scheduler::StreamDemand demand_of(const runtime::ReadyOperation& operation) {
  scheduler::StreamDemand demand;
  demand.id = operation.stream;
  demand.state = scheduler::StreamDemand::State::kWaiting;
  demand.min_sms = operation.sms;
  demand.profile_key = operation.kernel;
  demand.predicted_ns = operation.predicted_ns;
  return demand;
}

// The announcement of a step that a launch or an expected operation carries.
template <class Said>
scheduler::Announcement announcement_of(const Said& said) {
  scheduler::Announcement announcement;
  announcement.kind = said.kind;
  announcement.ready_ns = said.ready_at_ns;
  announcement.due_ns = said.deadline_ns;
  announcement.work_ns = said.queued_ns;
  announcement.min_sms = said.sms;
  return announcement;
}

}  // namespace

hal::Result<runtime::MakeArbiter> local_arbiter(const std::string& policy, std::uint64_t seed,
                                                ReportFault report) {
  if (const auto known = scheduler::check(policy); !known) return tl::unexpected(known.error());
  return [=](const hal::DeviceInfo& info, runtime::PoolLimits& limits) {
    auto arbiter = std::make_unique<LocalArbiter>(runtime::PoolLayout::build(info, limits), report);
    // check() has made it once, but not for this device. Where it cannot be made, fifo stays.
    if (auto made = scheduler::make(policy, arbiter->context(seed)))
      arbiter->use(std::move(*made));
    else if (report != nullptr)
      report((made.error().message + "; fifo decides").c_str());
    return std::unique_ptr<runtime::Arbiter>(std::move(arbiter));
  };
}

LocalArbiter::LocalArbiter(runtime::PoolLayout layout, ReportFault report)
    : layout_(std::move(layout)),
      report_(report),
      estimator_(layout_.partitions()),
      scheduler_(layout_.partitions(), scheduler::make_fifo(), {}, &estimator_),
      ledger_(layout_.partitions(), scheduler::Ledger::kGrantsMost) {}

void LocalArbiter::use(scheduler::Policy policy) {
  name_ = policy.description.name;
  if (policy.placement == nullptr) return scheduler_.replace_policy(std::move(policy), 0);
  isolated_ = policy.description.isolate_streams;
  placement_ = std::move(policy.placement);
}

LocalArbiter::StreamState& LocalArbiter::state_of(StreamId id) {
  if (id >= streams_.size()) streams_.resize(id + 1);
  StreamState& state = streams_[id];
  if (isolated_ && !std::exchange(state.known, true))
    state.ledger_stream = ledger_.add_stream(ledger_.add_holder(), kSelf, id);
  return state;
}

hal::ComputeSet LocalArbiter::barred(StreamId id) const {
  if (!isolated_) return {};
  if (id >= streams_.size() || !streams_[id].known) return ledger_.held();
  return ledger_.held_by_others(ledger_.holder(streams_[id].ledger_stream));
}

GrantTerms LocalArbiter::grant(const runtime::ReadyOperation& operation,
                               std::span<const PartitionId> eligible) {
  const std::uint64_t now = runtime::now_ns();
  return placement_ != nullptr ? place(operation, eligible, now)
                               : allocate(operation, eligible, now);
}

GrantTerms LocalArbiter::place(const runtime::ReadyOperation& operation,
                               std::span<const PartitionId> eligible, std::uint64_t now_ns) {
  const scheduler::StreamDemand demand = demand_of(operation);
  scheduler::Placement placement;
  std::string fault;
  try {
    placement = placement_->place(
        {kSelf, demand, operation.last_partition, now_ns, layout_.partitions()}, eligible);
  } catch (const std::exception& error) {
    fault = std::string("place() failed: ") + error.what();
  } catch (...) {
    fault = "place() threw an exception";
  }
  if (fault.empty() && placement.partition != kNoPartition &&
      !is_eligible(eligible, placement.partition))
    fault = "place() returned a partition that is not eligible";
  if (!fault.empty()) {
    if (!isolated_) {
      report_fault(name_ + ": " + fault, "fifo decides from now on");
      placement_ = nullptr;
      return allocate(operation, eligible, now_ns);
    }
    // fifo does not isolate streams, on which the caller still relies.
    report_fault(name_ + ": " + fault,
                 "a launch for which it fails gets the widest partition that is free");
    placement = {eligible.back(), 1};
  }
  const std::uint32_t launches = scheduler::runtime_launches(placement.launches);
  if (placement.partition == kNoPartition)
    return isolated_ ? GrantTerms::none() : GrantTerms{eligible.back(), 1};
  if (!isolated_ || placement.partition == kWholeDevice) return {placement.partition, launches};
  if (Held* const held = find(placement.partition, operation.stream)) {
    held->released = false;
    return {placement.partition, launches};
  }
  scheduler::Ledger::Terms terms;
  terms.partition = placement.partition;
  terms.mode = Mode::kExclusive;
  const scheduler::GrantId grant =
      ledger_.open(state_of(operation.stream).ledger_stream, terms, now_ns);
  if (grant == scheduler::kNoGrant) return GrantTerms::none();
  held_.push_back({placement.partition, operation.stream, grant, 0, false});
  return {placement.partition, launches};
}

GrantTerms LocalArbiter::allocate(const runtime::ReadyOperation& operation,
                                  std::span<const PartitionId> eligible, std::uint64_t now_ns) {
  state_of(operation.stream);
  const StreamState& before = streams_[operation.stream];
  if (before.grant != scheduler::kNoGrant &&
      before.launches != scheduler::kNoLaunchBound) {  // used up
    scheduler_.returned(kSelf, operation.stream, before.grant, now_ns);
    streams_[operation.stream].grant = scheduler::kNoGrant;
  }
  scheduler::Announcement said = announcement_of(operation);
  said.iteration_end = operation.iteration_end;
  streams_[operation.stream].steps.launch(scheduler_, kSelf, operation.stream, steps_, said,
                                          now_ns);
  scheduler_.wants(kSelf, demand_of(operation), now_ns);
  apply_decisions(now_ns);
  const StreamState& state = streams_[operation.stream];
  if (state.grant == scheduler::kNoGrant) return GrantTerms::none();
  if (is_eligible(eligible, state.partition))
    return {state.partition, scheduler::runtime_launches(state.launches), state.ahead_ns};
  // The driver refused this kernel there, or no queue is free yet: this launch takes a partition
  // within the granted one.
  const hal::ComputeSet granted = layout_.at(state.partition).compute;
  const auto inside = std::find_if(eligible.rbegin(), eligible.rend(), [&](PartitionId id) {
    return id != kWholeDevice && granted.contains(layout_.at(id).compute);
  });
  if (inside != eligible.rend()) return {*inside, 1};
  return {is_eligible(eligible, kWholeDevice) ? kWholeDevice : eligible.back(), 1};
}

// Applies the scheduler's decisions. Grants that end are returned at once, which may lead to
// further decisions.
void LocalArbiter::apply_decisions(std::uint64_t now_ns) {
  constexpr int kRounds = 4;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::pair<StreamId, scheduler::GrantId>> ended;
    for (const scheduler::Decision& decision : scheduler_.decide(now_ns)) {
      StreamState& state = state_of(decision.stream);
      if (decision.kind == scheduler::Decision::Kind::kRevoke) {
        ended.emplace_back(decision.stream, decision.grant);
        if (state.grant == decision.grant) state.grant = scheduler::kNoGrant;
        continue;
      }
      if (state.grant != scheduler::kNoGrant && state.grant != decision.grant)
        ended.emplace_back(decision.stream, state.grant);
      state.grant = decision.grant;
      state.partition = decision.partition;
      state.launches = decision.launches;
      state.ahead_ns = decision.run_ahead_ns;
    }
    for (const auto& [id, grant] : ended) scheduler_.returned(kSelf, id, grant, now_ns);
    if (ended.empty()) break;
  }
  if (!scheduler_.fault().empty()) report_fault(scheduler_.fault(), "fifo decides from now on");
}

bool LocalArbiter::admits(PartitionId partition, StreamId id) const {
  if (partition == kWholeDevice) return true;
  if (isolated_)
    return std::any_of(held_.begin(), held_.end(), [&](const Held& held) {
      return held.partition == partition && held.stream == id && !held.released;
    });
  return placement_ != nullptr ||
         (id < streams_.size() && streams_[id].grant != scheduler::kNoGrant &&
          layout_.at(streams_[id].partition).compute.contains(layout_.at(partition).compute));
}

LocalArbiter::Held* LocalArbiter::find(PartitionId partition, StreamId stream) {
  const auto held = std::find_if(held_.begin(), held_.end(), [&](const Held& one) {
    return one.partition == partition && one.stream == stream;
  });
  return held == held_.end() ? nullptr : &*held;
}

void LocalArbiter::submitted(PartitionId partition, StreamId stream) {
  if (!isolated_) return;
  if (Held* const held = find(partition, stream)) ++held->outstanding;
}

void LocalArbiter::ended(PartitionId partition, StreamId stream, std::uint32_t operations) {
  if (!isolated_) return;
  Held* const held = find(partition, stream);
  if (held == nullptr) return;
  held->outstanding -= std::min(operations, held->outstanding);
  returned(*held);
}

void LocalArbiter::release(PartitionId partition, StreamId stream) {
  if (!isolated_) return;
  Held* const held = find(partition, stream);
  if (held == nullptr) return;
  held->released = true;
  returned(*held);
}

// Returns the grant if it was released and has nothing outstanding.
void LocalArbiter::returned(Held& held) {
  if (!held.released || held.outstanding != 0) return;
  ledger_.returned(streams_[held.stream].ledger_stream, held.grant);
  held = held_.back();
  held_.pop_back();
}

void LocalArbiter::expect(const runtime::ExpectedOperation& expected) {
  if (placement_ != nullptr) return;
  const std::uint64_t now = runtime::now_ns();
  scheduler::AnnouncedSteps& steps = state_of(expected.stream).steps;
  if (expected.cancelled) {
    steps.cancel(scheduler_, kSelf, now);
  } else {
    steps.announce(scheduler_, kSelf, expected.stream, steps_, announcement_of(expected), now);
  }
  apply_decisions(now);
}

void LocalArbiter::report_fault(const std::string& fault, const char* consequence) {
  if (std::exchange(fault_reported_, true) || report_ == nullptr) return;
  report_(("policy " + fault + "; " + consequence).c_str());
}

}  // namespace vitamin::client
