// SPDX-License-Identifier: Apache-2.0
#include "daemon/client/local_arbiter.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "runtime/clock.h"
#include "scheduler/policies/builtin.h"

namespace vitamin::client {

using runtime::Choice;
using runtime::EntryId;
using runtime::is_eligible;
using runtime::kNoEntry;
using runtime::kUntilChanged;
using runtime::kWholeDevice;
using runtime::LaneId;
using scheduler::Mode;

namespace {

scheduler::StreamDemand demand_of(const runtime::ReadyOperation& operation) {
  scheduler::StreamDemand demand;
  demand.id = operation.lane;
  demand.state = scheduler::StreamDemand::State::kWaiting;
  demand.min_sms = operation.processors;
  demand.kernel = operation.kernel;
  demand.predicted_ns = operation.predicted_ns;
  return demand;
}

// The announcement of a step that a launch or a hint carries.
template <class Said>
scheduler::Announcement announcement_of(const Said& said) {
  scheduler::Announcement announcement;
  announcement.kind = said.kind;
  announcement.ready_ns = said.ready_at_ns;
  announcement.due_ns = said.deadline_ns;
  announcement.work_ns = said.queued_ns;
  announcement.min_sms = said.processors;
  return announcement;
}

}  // namespace

hal::Result<runtime::MakeArbiter> local_arbiter(const std::string& policy, std::uint64_t seed,
                                                ReportFault report) {
  if (const auto known = scheduler::check(policy); !known) return tl::unexpected(known.error());
  return [=](const hal::DeviceInfo& info, runtime::PoolLimits& limits) {
    auto arbiter = std::make_unique<LocalArbiter>(runtime::PoolLayout::build(info, limits), report);
    // check() has made it once; if its shared object cannot be loaded any more, fifo stays.
    if (auto made = scheduler::make(policy, arbiter->context(seed))) arbiter->use(std::move(*made));
    return std::unique_ptr<runtime::Arbiter>(std::move(arbiter));
  };
}

LocalArbiter::LocalArbiter(runtime::PoolLayout layout, ReportFault report)
    : layout_(std::move(layout)),
      report_(report),
      estimator_(layout_.entries()),
      scheduler_(layout_.entries(), scheduler::make_fifo(), {}, &estimator_),
      ledger_(layout_.entries(), scheduler::Ledger::kGrantsMost) {}

void LocalArbiter::use(scheduler::Policy policy) {
  name_ = policy.description.name;
  if (policy.placement == nullptr) return scheduler_.replace_policy(std::move(policy), 0);
  isolated_ = policy.description.isolate_streams;
  placement_ = std::move(policy.placement);
}

LocalArbiter::Lane& LocalArbiter::lane(LaneId id) {
  if (id >= lanes_.size()) lanes_.resize(id + 1);
  Lane& lane = lanes_[id];
  if (isolated_ && !std::exchange(lane.known, true))
    lane.stream = ledger_.add_stream(ledger_.add_holder(), kSelf, id);
  return lane;
}

hal::ComputeSet LocalArbiter::barred(LaneId id) const {
  if (!isolated_) return {};
  if (id >= lanes_.size() || !lanes_[id].known) return ledger_.held();
  return ledger_.held_by_others(ledger_.holder(lanes_[id].stream));
}

Choice LocalArbiter::grant(const runtime::ReadyOperation& operation,
                           std::span<const EntryId> eligible) {
  const std::uint64_t now = runtime::now_ns();
  return placement_ != nullptr ? place(operation, eligible, now)
                               : allocate(operation, eligible, now);
}

Choice LocalArbiter::place(const runtime::ReadyOperation& operation,
                           std::span<const EntryId> eligible, std::uint64_t now_ns) {
  const scheduler::StreamDemand demand = demand_of(operation);
  scheduler::Placement placement;
  std::string fault;
  try {
    placement = placement_->place({kSelf, demand, operation.last_entry, now_ns, layout_.entries()},
                                  eligible);
  } catch (const std::exception& error) {
    fault = std::string("place() failed: ") + error.what();
  } catch (...) {
    fault = "place() threw an exception";
  }
  if (fault.empty() && placement.partition != kNoEntry &&
      !is_eligible(eligible, placement.partition))
    fault = "place() returned a partition that is not eligible";
  if (!fault.empty()) {
    report_fault(name_ + ": " + fault);
    if (!isolated_) {  // else the caller still relies on isolated lanes
      placement_ = nullptr;
      return allocate(operation, eligible, now_ns);
    }
    placement = {eligible.back(), 1};
  }
  const std::uint32_t launches = placement.launches != 0 ? placement.launches : kUntilChanged;
  if (placement.partition == kNoEntry)
    return isolated_ ? Choice{kNoEntry, 0} : Choice{eligible.back(), 1};
  if (!isolated_ || placement.partition == kWholeDevice) return {placement.partition, launches};
  if (Held* const held = find(placement.partition, operation.lane)) {
    held->released = false;
    return {placement.partition, launches};
  }
  scheduler::Ledger::Terms terms;
  terms.partition = placement.partition;
  terms.mode = Mode::kExclusive;
  const scheduler::GrantId grant = ledger_.open(lane(operation.lane).stream, terms, now_ns);
  if (grant == scheduler::kNoGrant) return {kNoEntry, 0};
  held_.push_back({placement.partition, operation.lane, grant, 0, false});
  return {placement.partition, launches};
}

Choice LocalArbiter::allocate(const runtime::ReadyOperation& operation,
                              std::span<const EntryId> eligible, std::uint64_t now_ns) {
  lane(operation.lane);
  const Lane& before = lanes_[operation.lane];
  if (before.grant != scheduler::kNoGrant && before.launches != 0) {  // used up
    scheduler_.returned(kSelf, operation.lane, before.grant, now_ns);
    lanes_[operation.lane].grant = scheduler::kNoGrant;
  }
  scheduler::Announcement said = announcement_of(operation);
  said.iteration_end = operation.iteration_end;
  lanes_[operation.lane].steps.launch(scheduler_, kSelf, operation.lane, steps_, said, now_ns);
  scheduler_.wants(kSelf, demand_of(operation), now_ns);
  apply_decisions(now_ns);
  const Lane& lane = lanes_[operation.lane];
  if (lane.grant == scheduler::kNoGrant) return {kNoEntry, 0};
  if (is_eligible(eligible, lane.entry))
    return {lane.entry, lane.launches != 0 ? lane.launches : kUntilChanged, lane.ahead_ns};
  // The driver refused this kernel there, or no queue is free yet: this launch takes a partition
  // within the granted one.
  const hal::ComputeSet granted = layout_.at(lane.entry).compute;
  const auto inside = std::find_if(eligible.rbegin(), eligible.rend(), [&](EntryId id) {
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
    std::vector<std::pair<LaneId, scheduler::GrantId>> ended;
    for (const scheduler::Decision& decision : scheduler_.decide(now_ns)) {
      Lane& lane = this->lane(decision.stream);
      if (decision.kind == scheduler::Decision::Kind::kRevoke) {
        ended.emplace_back(decision.stream, decision.grant);
        if (lane.grant == decision.grant) lane.grant = scheduler::kNoGrant;
        continue;
      }
      if (lane.grant != scheduler::kNoGrant && lane.grant != decision.grant)
        ended.emplace_back(decision.stream, lane.grant);
      lane.grant = decision.grant;
      lane.entry = decision.partition;
      lane.launches = decision.launches;
      lane.ahead_ns = decision.run_ahead_ns;
    }
    for (const auto& [id, grant] : ended) scheduler_.returned(kSelf, id, grant, now_ns);
    if (ended.empty()) break;
  }
  if (!scheduler_.fault().empty()) report_fault(scheduler_.fault());
}

bool LocalArbiter::admits(EntryId entry, LaneId id) const {
  if (entry == kWholeDevice) return true;
  if (isolated_)
    return std::any_of(held_.begin(), held_.end(), [&](const Held& held) {
      return held.entry == entry && held.lane == id && !held.released;
    });
  return placement_ != nullptr ||
         (id < lanes_.size() && lanes_[id].grant != scheduler::kNoGrant &&
          layout_.at(lanes_[id].entry).compute.contains(layout_.at(entry).compute));
}

LocalArbiter::Held* LocalArbiter::find(EntryId entry, LaneId lane) {
  const auto held = std::find_if(held_.begin(), held_.end(), [&](const Held& one) {
    return one.entry == entry && one.lane == lane;
  });
  return held == held_.end() ? nullptr : &*held;
}

void LocalArbiter::submitted(EntryId entry, LaneId lane) {
  if (!isolated_) return;
  if (Held* const held = find(entry, lane)) ++held->outstanding;
}

void LocalArbiter::retired(EntryId entry, LaneId lane, std::uint32_t operations) {
  if (!isolated_) return;
  Held* const held = find(entry, lane);
  if (held == nullptr) return;
  held->outstanding -= std::min(operations, held->outstanding);
  returned(*held);
}

void LocalArbiter::release(EntryId entry, LaneId lane) {
  if (!isolated_) return;
  Held* const held = find(entry, lane);
  if (held == nullptr) return;
  held->released = true;
  returned(*held);
}

// Returns the grant if it was released and has nothing outstanding.
void LocalArbiter::returned(Held& held) {
  if (!held.released || held.outstanding != 0) return;
  ledger_.returned(lanes_[held.lane].stream, held.grant);
  held = held_.back();
  held_.pop_back();
}

void LocalArbiter::expect(const runtime::Hint& hint) {
  if (placement_ != nullptr) return;
  const std::uint64_t now = runtime::now_ns();
  scheduler::AnnouncedSteps& steps = lane(hint.lane).steps;
  if (hint.cancelled) {
    steps.cancel(scheduler_, kSelf, now);
  } else {
    steps.announce(scheduler_, kSelf, hint.lane, steps_, announcement_of(hint), now);
  }
  apply_decisions(now);
}

void LocalArbiter::report_fault(const std::string& fault) {
  if (std::exchange(fault_reported_, true) || report_ == nullptr) return;
  report_(("policy " + fault + "; fifo decides from now on").c_str());
}

}  // namespace vitamin::client
