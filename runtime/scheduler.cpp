// SPDX-License-Identifier: Apache-2.0
#include "runtime/scheduler.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace vitamin::runtime {

using hal::ComputeSet;

namespace {

std::uint64_t key_of(ClientId client, LaneId lane) { return std::uint64_t{client} << 32 | lane; }

// The whole device last.
std::vector<EntryId> narrowest_first(const PoolLayout& layout) {
  std::vector<EntryId> ids;
  for (const PoolEntry& entry : layout.entries())
    if (!entry.whole()) ids.push_back(entry.id);
  ids.push_back(kWholeDevice);
  return ids;
}

}  // namespace

const Scheduler::Grant* Scheduler::Lane::open() const {
  for (const Grant& grant : grants)
    if (grant.open) return &grant;
  return nullptr;
}

Scheduler::Grant* Scheduler::Lane::open() {
  return const_cast<Grant*>(std::as_const(*this).open());
}

bool Scheduler::Lane::drains(EntryId entry) const {
  for (const Grant& grant : grants)
    if (!grant.open && grant.entry == entry) return true;
  return false;
}

Scheduler::Scheduler(const PoolLayout& layout, std::unique_ptr<Policy> policy,
                     const SchedulerOptions& options, const Profile* profile)
    : layout_(layout),
      policy_(std::move(policy)),
      options_(options),
      profile_(profile),
      leases_(layout),
      by_width_(narrowest_first(layout)) {
  adopt_terms();
}

void Scheduler::adopt_terms() {
  const Terms terms = policy_->terms();
  quantum_ns_ = terms.quantum_ns.value_or(options_.quantum_ns);
  overdue_ns_ = terms.overdue_ns.value_or(options_.overdue_ns);
}

void Scheduler::set(const SchedulerOptions& options) {
  options_ = options;
  adopt_terms();
  for (Lane* lane : active_) stir(*lane);  // who had too much may have more now
  demand_changed();
}

Scheduler::Lane* Scheduler::find(ClientId client, LaneId lane) {
  // What is said of a lane comes in a row.
  if (found_ != nullptr && found_->next.client == client && found_->next.lane == lane)
    return found_;
  const auto known = lanes_.find(key_of(client, lane));
  return known == lanes_.end() ? nullptr : found_ = &known->second;
}

// In active_ from now on, which the next decision looks through.
Scheduler::Lane& Scheduler::find_or_add(ClientId client, LaneId id) {
  Lane* known = find(client, id);
  if (known == nullptr) found_ = known = &lanes_[key_of(client, id)];
  Lane& lane = *known;
  lane.next.client = client;
  lane.next.lane = id;
  if (!std::exchange(lane.listed, true)) {
    lane.number = numbers_++;
    active_.push_back(&lane);
  }
  stir(lane);
  return lane;
}

// Something of it is about to change.
void Scheduler::stir(Lane& lane) {
  if (!lane.listed || std::exchange(lane.stirring, true)) return;
  in_order_ = in_order_ && (stirring_.empty() || stirring_.back()->number < lane.number);
  stirring_.push_back(&lane);
}

std::span<Scheduler::Lane* const> Scheduler::stirring() {
  if (!std::exchange(in_order_, true))
    std::sort(stirring_.begin(), stirring_.end(),
              [](const Lane* a, const Lane* b) { return a->number < b->number; });
  return stirring_;
}

// Nothing is to be decided for it before it says something, unless the policy plans or others wait:
// it has what it wants, or wants nothing, or waits for the end of its own work alone. What it had
// besides only has to end, and was not taken back for anybody.
bool Scheduler::at_rest(const Lane& lane) const {
  if (lane.stopped || lane.reservation.entry != kNoEntry || lane.standing != kNoEntry) return false;
  bool has_one = false;
  for (const Grant& grant : lane.grants) {
    if (grant.recalled || (grant.open && grant.by_age)) return false;
    has_one = has_one || grant.open;
  }
  return !lane.wants || has_one || waits_for_itself(lane);
}

// It has as many grants as a lane may have, or has still to return whatever could run what it
// wants.
bool Scheduler::waits_for_itself(const Lane& lane) const {
  if (full(lane)) return true;
  return std::all_of(by_width_.rbegin(), by_width_.rend(), [&](EntryId id) {
    return layout_.at(id).processors < lane.next.processors || lane.drains(id);
  });
}

// Who is at rest, or has nothing any more, need not be looked at.
void Scheduler::settle() {
  static_cast<void>(stirring());
  std::erase_if(stirring_, [this](Lane* lane) {
    if (!lane->active()) {
      lane->listed = false;
      active_.erase(std::lower_bound(
          active_.begin(), active_.end(), lane->number,
          [](const Lane* other, std::uint64_t number) { return other->number < number; }));
    }
    lane->stirring = lane->listed && !at_rest(*lane);
    return !lane->stirring;
  });
}

// --- what clients say ------------------------------------------------------------------------

void Scheduler::wants(const ReadyOperation& operation, std::uint64_t now_ns) {
  Lane* const lane = &find_or_add(operation.client, operation.lane);
  // Its age counts from when it began to wait, however often it says so; where it was is what we
  // know better.
  const bool waited = lane->waits() || now_ns - lane->gave_up_ns < kComesBack;
  const std::uint64_t since = lane->next.since_ns;
  const EntryId last = lane->next.last_entry;
  lane->next = operation;
  lane->next.since_ns = waited ? since : now_ns;
  if (lane->next.last_entry == kNoEntry) lane->next.last_entry = last;
  lane->wants = true;
  std::erase_if(hints_, [&](const Hint& hint) {
    return hint.client == operation.client && hint.lane == operation.lane;
  });
  demand_changed();
}

void Scheduler::idle(ClientId client, LaneId id, std::uint64_t now_ns) {
  Lane* lane = find(client, id);
  if (lane == nullptr || !lane->wants) return;
  stir(*lane);
  lane->gave_up_ns = lane->waits() ? now_ns : kLongAgo;
  lane->wants = false;
  cancel(*lane);
  for (Grant& grant : lane->grants) grant.open = false;
  demand_changed();
}

void Scheduler::returned(ClientId client, LaneId id, EntryId entry, std::uint64_t now_ns) {
  Lane* lane = find(client, id);
  if (lane == nullptr) return;
  const auto grant = std::find_if(lane->grants.begin(), lane->grants.end(),
                                  [&](const Grant& held) { return held.entry == entry; });
  if (grant == lane->grants.end()) return;
  stir(*lane);
  lane->grants.erase(grant);
  leases_.retired(entry, client, 1);
  if (leases_.outstanding(entry, client) == 0) leases_.release(entry, client);
  if (lane->waits()) lane->next.since_ns = now_ns;
  demand_changed();
}

void Scheduler::progressed(ClientId client, std::uint64_t operations) {
  const auto at = std::lower_bound(
      progress_.begin(), progress_.end(), client,
      [](const Progress& known, ClientId wanted) { return known.client < wanted; });
  if (at != progress_.end() && at->client == client)
    at->operations = operations;
  else
    progress_.insert(at, {client, operations});
}

void Scheduler::hint(const Hint& hint, std::uint64_t now_ns) {
  std::erase_if(
      hints_, [&](const Hint& old) { return old.client == hint.client && old.lane == hint.lane; });
  Lane* const lane = find(hint.client, hint.lane);
  if (hint.cancelled) {
    if (lane != nullptr && !lane->wants) cancel(*lane);
  } else if (lane != nullptr && lane->wants) {
    // Who has a grant does not ask again; so this is what the lane does next.
    ReadyOperation next = lane->next;
    ++next.id;
    next.ready_at_ns = hint.ready_at_ns;
    if (hint.kernel != 0) next.kernel = hint.kernel;
    if (hint.kind != OperationClass::kUnknown) next.kind = hint.kind;
    if (hint.deadline_ns != 0) next.deadline_ns = hint.deadline_ns;
    if (hint.queued_ns != 0) next.queued_ns = hint.queued_ns;
    // What it asked for may be for what it waits to launch.
    next.processors = std::max(next.processors, hint.processors);
    return wants(next, now_ns);
  }
  hints_.push_back(hint);
  changed_ = true;
}

bool Scheduler::adopt(ClientId client, LaneId id, EntryId entry, std::uint64_t now_ns) {
  Lane* lane = find(client, id);
  if (lane != nullptr &&
      (lane->drains(entry) || lane->open() != nullptr || lane->grants.size() >= kMostOfLane))
    return false;
  // What is only kept for somebody cannot be had before this work has ended.
  const auto in_the_way = [&](EntryId kept) {
    return kept != kNoEntry && layout_.at(kept).compute.overlaps(layout_.at(entry).compute);
  };
  for (Lane* other : stirring()) {
    if (other->next.client == client || entry == kWholeDevice) continue;
    if (in_the_way(other->reservation.entry)) cancel(*other);
    if (in_the_way(other->standing)) set_standing(*other, kNoEntry);
  }
  // Another lane of the client may have work there, too, which drains already.
  if (leases_.acquire(entry, client) != LeaseVerdict::kGranted &&
      (leases_.lessee(entry) != client || leases_.open_gate(entry) != LeaseVerdict::kGranted))
    return false;
  lane = &find_or_add(client, id);
  leases_.submitted(entry, client);
  leases_.close_gate(entry);
  lane->grants.push_back({entry, false, now_ns});
  demand_changed();
  return true;
}

void Scheduler::forget(ClientId client, std::uint64_t) {
  leases_.forget(client);
  policy_->forget(client);
  found_ = nullptr;
  set_aside_known_ = false;
  for (std::vector<Lane*>* lanes : {&active_, &stirring_})
    std::erase_if(*lanes, [&](const Lane* lane) { return lane->next.client == client; });
  std::erase_if(lanes_, [&](const auto& lane) { return lane.second.next.client == client; });
  std::erase_if(hints_, [&](const Hint& hint) { return hint.client == client; });
  std::erase_if(progress_, [&](const Progress& known) { return known.client == client; });
  demand_changed();
}

void Scheduler::replace_policy(std::unique_ptr<Policy> policy, std::uint64_t) {
  policy_ = std::move(policy);
  policy_changed();
}

void Scheduler::policy_changed() {
  adopt_terms();
  for (Lane* lane : active_) {
    cancel(*lane);
    set_standing(*lane, kNoEntry);
  }
  recall_all_ = true;  // what stands was the old policy's wish
  demand_changed();
}

std::size_t Scheduler::waiting() const {
  return static_cast<std::size_t>(std::count_if(active_.begin(), active_.end(),
                                                [](const Lane* lane) { return lane->waits(); }));
}

bool Scheduler::waits_for_answer() const {
  return std::any_of(stirring_.begin(), stirring_.end(),
                     [this](const Lane* lane) { return waits_for_others(*lane); });
}

// --- deciding --------------------------------------------------------------------------------

std::span<const Decision> Scheduler::decide(std::uint64_t now_ns) {
  decisions_.clear();
  if (policy_->look_at() <= now_ns) demand_changed();
  if (!changed_ && now_ns < wake_at_) return decisions_;
  changed_ = false;
  uncollected_ = true;
  settle();
  drop_what_is_too_narrow();
  expire(now_ns);
  if (std::exchange(recall_all_, false)) recall_all(now_ns);
  recalled_.clear();
  for (const Lane* lane : stirring())
    for (const Grant& grant : lane->grants)
      if (grant.recalled && grant.entry != kWholeDevice)
        recalled_.emplace_back(lane->next.client, grant.entry);
  // Once more when it plans no longer: what it planned is undone.
  const bool planned = std::exchange(plans_, policy_->plans());
  if (plans_ || planned) prepare_all(now_ns);
  hints_.clear();
  if (planned && !plans_)
    for (auto& [key, lane] : lanes_) lane.stopped = false, lane.ahead_ns = kNever;
  fulfil(now_ns);
  serve_overdue(now_ns);
  bind(now_ns);
  recall_for_waiting(now_ns);
  schedule_wake(now_ns);
  return decisions_;
}

// A lane's next operation may need more than the one before it.
void Scheduler::drop_what_is_too_narrow() {
  auto fits = [&](const Lane& lane, EntryId entry) {
    return layout_.at(entry).processors >= lane.next.processors;
  };
  for (Lane* lane : stirring()) {
    if (lane->reservation.entry != kNoEntry && !fits(*lane, lane->reservation.entry)) cancel(*lane);
    for (Grant& grant : lane->grants)
      if (lane->wants && grant.open && !fits(*lane, grant.entry)) close(*lane, grant);
  }
}

void Scheduler::expire(std::uint64_t now_ns) {
  for (Lane* lane : stirring()) {
    const Reservation& reservation = lane->reservation;
    if (reservation.entry != kNoEntry && reservation.expires_ns <= now_ns) {
      cancel(*lane);
      ++epoch_;
    }
  }
}

void Scheduler::recall(Lane& lane, Grant& grant, std::uint64_t now_ns) {
  ++counters_.recalled;
  stir(lane);
  close(lane, grant);  // and since_ns, which is collected, changes
  grant.recalled = true;
  lane.next.since_ns = now_ns;
  ++epoch_;
}

void Scheduler::recall_all(std::uint64_t now_ns) {
  for (Lane* lane : active_)
    for (Grant& grant : lane->grants)
      if (grant.open) recall(*lane, grant, now_ns);
}

// Somebody for whom nothing was found. Who has a reservation is being served: its units drain
// already. Who was stopped waits because the policy will have it so.
bool Scheduler::somebody_waits() const {
  return std::any_of(stirring_.begin(), stirring_.end(), [this](const Lane* lane) {
    return waits_for_others(*lane) && lane->reservation.entry == kNoEntry && !lane->stopped;
  });
}

// Then nobody keeps a grant for longer than the quantum; but what is set aside for a client, and
// what it was given around that, is the policy's to take back. Who could be served at once was
// served before this: nothing is taken back for him.
void Scheduler::recall_for_waiting(std::uint64_t now_ns) {
  if (quantum_ns_ == kNever || !somebody_waits()) return;
  for (Lane* lane : active_)
    for (Grant& grant : lane->grants) {
      if (!grant.open || now_ns - grant.since_ns < quantum_ns_) continue;
      if (lane->standing != kNoEntry && grant.entry != kWholeDevice &&
          layout_.at(grant.entry).compute.contains(layout_.at(lane->standing).compute))
        continue;
      recall(*lane, grant, now_ns);
    }
}

// What it was granted by age is its own for a quantum.
void Scheduler::stop(Lane& lane, std::uint64_t now_ns) {
  if (!lane.reservation.overdue) cancel(lane);
  Grant* const grant = lane.open();
  if (grant == nullptr) return;
  if (grant->by_age && quantum_ns_ != kNever && now_ns - grant->since_ns < quantum_ns_) return;
  close(lane, *grant);
  lane.next.since_ns = now_ns;
}

// What others hold or have reserved; and what was recalled from the client, until it has drained: a
// part of that would be inside its own lease, and whoever it was recalled for would wait on.
ComputeSet Scheduler::barred(ClientId client) const {
  ComputeSet set = leases_.barred(client);
  for (const auto& [whose, entry] : recalled_)
    if (whose == client) set |= layout_.at(entry).compute;
  return set;
}

ComputeSet Scheduler::set_aside() const {
  if (std::exchange(set_aside_known_, true)) return set_aside_;
  set_aside_ = {};
  for (const Lane* lane : stirring_) {
    if (lane->standing != kNoEntry) set_aside_ |= layout_.at(lane->standing).compute;
    if (lane->reservation.overdue) set_aside_ |= layout_.at(lane->reservation.entry).compute;
  }
  return set_aside_;
}

// For policies: who waits and who holds what now.
void Scheduler::collect() {
  if (!std::exchange(uncollected_, false)) return;
  waiting_.clear();
  holdings_.clear();
  draining_.clear();
  for (const Lane* lane : plans_ ? std::span<Lane* const>(active_) : stirring()) {
    if (plans_)
      for (const Grant& grant : lane->grants)
        if (!grant.open) draining_.push_back({lane->next, grant.entry, grant.since_ns});
    if (lane->waits()) waiting_.push_back(lane->next);
  }
  if (!plans_) return;
  for (const Lane* lane : active_)
    if (const Grant* grant = lane->open(); grant != nullptr && lane->wants)
      holdings_.push_back({lane->next, grant->entry, grant->since_ns});
}

PoolView Scheduler::view_for(ClientId client, std::uint64_t now_ns) const {
  PoolView view;
  view.entries = layout_.entries();
  view.barred = barred(client);
  view.waiting = waiting_;
  view.holdings = holdings_;
  view.draining = draining_;
  view.set_aside = set_aside();
  view.profile = profile_;
  view.progress = progress_;
  view.now_ns = now_ns;
  view.epoch = epoch_;
  return view;
}

// `barred`: barred(lane.next.client).
bool Scheduler::can_grant(const Lane& lane, EntryId entry, ComputeSet barred) const {
  if (full(lane) || lane.drains(entry)) return false;
  return entry == kWholeDevice || !layout_.at(entry).compute.overlaps(barred);
}

// Demand has changed: the policy says for each lane what it would have it on, and for what is
// expected what to get ready.
void Scheduler::prepare_all(std::uint64_t now_ns) {
  collect();
  planned_.clear();
  // Nothing changes before all plans are made: they see one state, but for what is barred to whom.
  PoolView view = view_for(kNobody, now_ns);
  for (Lane* lane : active_) {
    if (!lane->wants) continue;
    Hint hint{lane->next.lane, lane->next.processors, lane->next.ready_at_ns,
              lane->next.deadline_ns};
    hint.client = lane->next.client;
    hint.kernel = lane->next.kernel;
    hint.kind = lane->next.kind;
    hint.queued_ns = lane->next.queued_ns;
    if (const Grant* grant = lane->open()) hint.held = grant->entry;
    prepare_one(hint, *lane, view);
  }
  for (const Hint& hint : hints_) {
    if (hint.cancelled) continue;
    const bool fresh = find(hint.client, hint.lane) == nullptr;
    Lane& lane = find_or_add(hint.client, hint.lane);
    if (fresh) lane.next.processors = hint.processors;
    prepare_one(hint, lane, view);
  }
  // Each plan is made for the state without the reservations of the plan before it.
  for (const auto& [lane, plan] : planned_) {
    stir(*lane);
    if (!lane->reservation.overdue) cancel(*lane);
    if (lane->standing != plan.standing) set_standing(*lane, kNoEntry);
    lane->stopped = plan.stop;
    lane->ahead_ns = plan.ahead_ns;
  }
  for (const auto& [lane, plan] : planned_) set_standing(*lane, plan.standing);
  // Lanes that hold something give way first.
  for (const bool holders : {true, false})
    for (const auto& [lane, plan] : planned_)
      if ((lane->open() != nullptr) == holders) apply(*lane, plan, now_ns);
}

void Scheduler::prepare_one(const Hint& hint, Lane& lane, PoolView& view) {
  view.barred = barred(hint.client);
  Plan plan = policy_->prepare(hint, view);
  auto refuse = [&](EntryId& entry, std::uint32_t processors) {
    if (entry == kNoEntry || (entry < layout_.size() && layout_.at(entry).processors >= processors))
      return;
    ++counters_.refused;
    entry = kNoEntry;
  };
  refuse(plan.target, hint.processors);
  refuse(plan.standing, plan.standing == kWholeDevice ? ~0U : 1);
  // Most lanes of a device that everybody shares stay where they are.
  if (lane.rests_on_whole() && plan.target == kWholeDevice && !plan.stop &&
      plan.standing == kNoEntry && lane.ahead_ns == plan.ahead_ns &&
      lane.grants.front().ahead_ns == plan.ahead_ns)
    return;
  planned_.push_back({&lane, plan});
}

void Scheduler::apply(Lane& lane, const Plan& plan, std::uint64_t now_ns) {
  const ClientId client = lane.next.client;
  // What a client says of its future may be wrong; nobody's units stand empty for long over it.
  const std::uint64_t expires =
      std::min(plan.expires_ns != 0 ? plan.expires_ns : now_ns + options_.reservation_ns,
               now_ns + kLongestReservation * options_.reservation_ns);
  if (plan.stop) return stop(lane, now_ns);
  if (plan.target == kNoEntry || lane.reservation.overdue) return;
  const Grant* held = lane.open();
  if (held != nullptr && held->entry == plan.target) {
    if (held->ahead_ns != plan.ahead_ns) grant(lane, {plan.target, kUntilChanged}, now_ns);
    return;
  }
  if (full(lane)) {
    if (held == nullptr) return;
    close(lane, *lane.open());
    lane.next.since_ns = now_ns;
    return;
  }
  if (plan.target == kWholeDevice) {
    if (held != nullptr && can_grant(lane, kWholeDevice, {}))
      grant(lane, {kWholeDevice, kUntilChanged}, now_ns);
    return;
  }
  if (can_grant(lane, plan.target, barred(client))) {
    if (held == nullptr) reserve(lane, {plan.target, expires});
    if (held != nullptr && lane.wants) grant(lane, {plan.target, kUntilChanged}, now_ns);
    return;
  }
  if (plan.close_gates) close_overlapping(layout_.at(plan.target).compute, client, now_ns);
  reserve(lane, {plan.target, expires});
}

// What was prepared has drained: lanes that hold something else move.
void Scheduler::fulfil(std::uint64_t now_ns) {
  for (Lane* lane : stirring()) {
    const EntryId target = lane->reservation.entry;
    const Grant* held = lane->open();
    if (target == kNoEntry || !lane->wants || held == nullptr || held->entry == target) continue;
    if (!lane->reservation.overdue && can_grant(*lane, target, barred(lane->next.client)))
      grant(*lane, {target, kUntilChanged}, now_ns);
  }
}

void Scheduler::serve_overdue(std::uint64_t now_ns) {
  if (overdue_ns_ == kNever) return;
  overdue_.clear();
  for (Lane* lane : stirring())
    if (waits_for_others(*lane) && now_ns - lane->next.since_ns >= overdue_ns_)
      overdue_.push_back(lane);
  std::stable_sort(overdue_.begin(), overdue_.end(), [](const Lane* a, const Lane* b) {
    return a->next.since_ns < b->next.since_ns;
  });
  for (Lane* lane : overdue_) {
    const ClientId client = lane->next.client;
    const ComputeSet barred = this->barred(client);
    EntryId best = kNoEntry;
    ComputeSet standing;
    for (const Lane* other : stirring())
      if (other->standing != kNoEntry && other->next.client != client)
        standing |= layout_.at(other->standing).compute;
    for (const EntryId id : by_width_) {
      if (layout_.at(id).processors < lane->next.processors) continue;
      // Beside standing reservations nobody gets the whole device for what a part can run.
      if (id == kWholeDevice && best != kNoEntry && !standing.empty()) break;
      if (can_grant(*lane, id, barred)) {
        best = kNoEntry;
        if (!grant(*lane, {id, kUntilChanged}, now_ns)) break;
        ++counters_.overdue;
        lane->open()->by_age = true;
        break;
      }
      if (best == kNoEntry && !layout_.at(id).compute.overlaps(standing)) best = id;
    }
    if (best == kNoEntry || lane->reservation.overdue) continue;
    reserve(*lane, {best, kNever, true});
    if (lane->reservation.entry == best)
      close_overlapping(layout_.at(best).compute, client, now_ns);
  }
}

void Scheduler::bind(std::uint64_t now_ns) {
  collect();
  ready_.clear();
  for (const Lane* lane : stirring())
    if (waits_for_others(*lane)) ready_.push_back(lane->next);
  // Who has waited longest stands first: a policy that picks the first serves in order of arrival,
  // and a lane that asks again and again gets its turn behind the others.
  // Nearly always they stand so already.
  const auto older = [](const ReadyOperation& a, const ReadyOperation& b) {
    return a.since_ns < b.since_ns;
  };
  if (!std::is_sorted(ready_.begin(), ready_.end(), older))
    std::stable_sort(ready_.begin(), ready_.end(), older);
  // Those that were picked lie in front of `first`: most often it is the oldest. What the policy
  // sees stays as it is until something is granted.
  std::optional<PoolView> of_all, of_client;
  ClientId client = kNobody;
  for (auto first = ready_.begin(); first != ready_.end(); ++first) {
    const std::span<const ReadyOperation> ready(first, ready_.end());
    if (!of_all) of_all = view_for(kNobody, now_ns);
    const std::optional<std::size_t> picked = policy_->pick(ready, *of_all);
    if (!picked) return;
    if (*picked >= ready.size()) {
      ++counters_.refused;
      return;
    }
    std::rotate(first, first + static_cast<std::ptrdiff_t>(*picked),
                first + static_cast<std::ptrdiff_t>(*picked) + 1);
    const ReadyOperation operation = *first;
    if (!of_client || client != operation.client) of_client = view_for(operation.client, now_ns);
    client = operation.client;
    const PoolView& view = *of_client;
    Lane* const lane = find(operation.client, operation.lane);
    const std::span<const EntryId> eligible = eligible_for(*lane, view.barred);
    if (eligible.empty()) continue;
    const Choice choice = policy_->select(operation, eligible, view);
    if (choice.entry == kNoEntry) continue;
    if (choice.launches == 0 || choice.entry >= layout_.size() ||
        layout_.at(choice.entry).processors < operation.processors ||
        !can_grant(*lane, choice.entry, view.barred) || !grant(*lane, choice, now_ns)) {
      ++counters_.refused;
      continue;
    }
    if (plans_) collect();
    of_all.reset();
    of_client.reset();
  }
}

// Every entry that can run the lane's operation and could be granted to it, narrowest first. Valid
// until asked again.
std::span<const EntryId> Scheduler::eligible_for(const Lane& lane, ComputeSet barred) {
  const std::uint32_t processors = lane.next.processors;
  const auto wide_enough = [&](EntryId id) { return layout_.at(id).processors >= processors; };
  auto first =
      std::partition_point(by_width_.begin(), by_width_.end() - 1, std::not_fn(wide_enough));
  if (first == by_width_.end() - 1 && !wide_enough(*first)) return {};
  if (barred.empty() && lane.grants.empty()) return {first, by_width_.end()};  // all of them
  eligible_.clear();
  for (; first != by_width_.end(); ++first)
    if (can_grant(lane, *first, barred)) eligible_.push_back(*first);
  return eligible_;
}

// Leases the entry to the lane; an open grant on another entry is closed. False, and nothing
// changed, when the lease table refuses.
bool Scheduler::grant(Lane& lane, Choice choice, std::uint64_t now_ns) {
  stir(lane);
  const ClientId client = lane.next.client;
  const auto same = std::find_if(lane.grants.begin(), lane.grants.end(),
                                 [&](const Grant& held) { return held.entry == choice.entry; });
  if (choice.entry == kWholeDevice) {
    ++counters_.whole_device;
  } else {
    LeaseVerdict verdict = leases_.acquire(choice.entry, client);
    if (verdict == LeaseVerdict::kGateClosed) verdict = leases_.open_gate(choice.entry);
    if (verdict != LeaseVerdict::kGranted) return false;
    // One count for each lane that holds a grant there.
    if (same == lane.grants.end()) leases_.submitted(choice.entry, client);
  }
  choice.ahead_ns = std::min(choice.ahead_ns, lane.ahead_ns);
  bool moved = false;
  for (Grant& old : lane.grants)
    if (old.open && old.entry != choice.entry) moved = true, close(lane, old);
  if (same == lane.grants.end())
    lane.grants.push_back({choice.entry, true, now_ns, choice.ahead_ns});
  else if (same->open)  // on other terms: as old as it was
    same->ahead_ns = choice.ahead_ns;
  else
    *same = {choice.entry, true, now_ns, choice.ahead_ns};
  cancel(lane);
  uncollected_ = true;
  lane.gave_up_ns = kLongAgo;
  lane.next.last_entry = choice.entry;
  decisions_.push_back({Decision::Kind::kGrant, client, lane.next.lane, choice.entry,
                        choice.launches, choice.ahead_ns});
  ++counters_.grants;
  counters_.moves += moved ? 1 : 0;
  return true;
}

void Scheduler::close(Lane& lane, Grant& grant) {
  stir(lane);
  grant.open = false;
  uncollected_ = true;
  // Another lane of the client may still hold the entry: then the lease stays.
  const auto shares = [&](const Lane* other) {
    const Grant* open = other->open();
    return other->next.client == lane.next.client && open != nullptr && open->entry == grant.entry;
  };
  if (grant.entry != kWholeDevice && std::none_of(active_.begin(), active_.end(), shares))
    leases_.close_gate(grant.entry);
  decisions_.push_back(
      {Decision::Kind::kCloseGate, lane.next.client, lane.next.lane, grant.entry, 0});
  ++counters_.gates_closed;
}

void Scheduler::close_overlapping(ComputeSet compute, ClientId but, std::uint64_t now_ns) {
  for (Lane* lane : active_) {
    if (lane->next.client == but) continue;
    for (Grant& grant : lane->grants)
      if (grant.open && grant.entry != kWholeDevice &&
          layout_.at(grant.entry).compute.overlaps(compute)) {
        close(*lane, grant);
        lane->next.since_ns = now_ns;  // it waits from now on, not since it was served last
      }
  }
}

void Scheduler::reserve(Lane& lane, const Reservation& reservation) {
  cancel(lane);
  if (leases_.reserve(reservation.entry, lane.next.client) != LeaseVerdict::kGranted) return;
  stir(lane);
  lane.reservation = reservation;
  set_aside_known_ = false;
}

void Scheduler::cancel(Lane& lane) {
  const EntryId entry = lane.reservation.entry;
  if (entry == kNoEntry) return;
  lane.reservation = {};
  set_aside_known_ = false;
  unreserve(entry);
}

void Scheduler::set_standing(Lane& lane, EntryId entry) {
  if (lane.standing == entry) return;
  stir(lane);
  const EntryId old = lane.standing;
  lane.standing = kNoEntry;
  set_aside_known_ = false;
  if (old != kNoEntry) unreserve(old);
  if (entry != kNoEntry && leases_.reserve(entry, lane.next.client) == LeaseVerdict::kGranted)
    lane.standing = entry;
}

// The lease table keeps one reservation an entry; several lanes of a client may rest on it.
void Scheduler::unreserve(EntryId entry) {
  const bool shared = std::any_of(stirring_.begin(), stirring_.end(), [&](const Lane* lane) {
    return lane->reservation.entry == entry || lane->standing == entry;
  });
  if (!shared) leases_.cancel_reservation(entry);
}

void Scheduler::schedule_wake(std::uint64_t now_ns) {
  wake_at_ = kNever;
  auto at = [&](std::uint64_t time) {
    if (time > now_ns) wake_at_ = std::min(wake_at_, time);
  };
  at(policy_->look_at());
  for (const Lane* lane : stirring()) {
    if (lane->reservation.entry != kNoEntry) at(lane->reservation.expires_ns);
    if (waits_for_others(*lane) && overdue_ns_ != kNever) at(lane->next.since_ns + overdue_ns_);
  }
  if (quantum_ns_ == kNever) return;
  const bool somebody_waits = this->somebody_waits();
  for (const Lane* lane : somebody_waits ? std::span<Lane* const>(active_) : stirring())
    if (const Grant* grant = lane->open();
        grant != nullptr && (somebody_waits || (grant->by_age && lane->stopped)))
      at(grant->since_ns + quantum_ns_);
}

}  // namespace vitamin::runtime
