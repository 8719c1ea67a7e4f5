// SPDX-License-Identifier: Apache-2.0
//
// tpot-first: who must not wait comes first; everybody else shares what is left as under
// `throughput` (the paper, "TPOT-First Policy").
//
// Three kinds of clients. Those that say how long a token may take (decodes) get what that needs:
//
//   reservation  each decoding client has an entry of its own, for all its lanes, the narrowest on
//                which its steps, as they have been lately, take no longer than the target
//                (policies/step_curve.h); with `lend` others have it while nothing decodes
//   lookahead    a step predicted to end there after its deadline gets the narrowest wider entry on
//                which it would end in time; what overlaps it drains before the step is ready
//   late         no entry would do any more: its reservation, where that is hardly slower, else the
//                narrowest that is nearly the fastest, unless no width meets the target at all;
//                then it is served at best effort
//
// The target is that of the client's class, else what it has lately given its steps itself, at most
// `target`. The deadline of a step is the client's own where it gives one, else the last step's end
// + target.
// Until its steps have been seen to take no longer than that, a client has no less than its share
// of the device under `throughput`; so has one that never says when a step begins.
//
// Those of a latency class that say no such time have the right of way (policies/right_of_way.h):
// as a whole, from a request's first operation until they have been quiet for a while, they are
// served as if they were alone. All others yield meanwhile, prefills and decodes of other clients
// apart: they stop, or keep `floor` processors; or they go on, on the whole device, where that is
// measured to slow nobody down (policies/beside.h). They make way for a prefill, too, of which
// nobody knows when it is due.
//
// While nobody wants anything who comes before them, those that yield have what they would have
// under `throughput`.
#include <algorithm>
#include <utility>

#include "policies/beside.h"
#include "policies/builtin.h"
#include "policies/planner.h"
#include "policies/right_of_way.h"
#include "policies/step_curve.h"

namespace vitamin::policies {
namespace {

using hal::ComputeSet;
using runtime::Choice;
using runtime::EntryId;
using runtime::Hint;
using runtime::kNoEntry;
using runtime::OperationClass;
using runtime::PoolView;
using runtime::ReadyOperation;

struct Options {
  std::uint32_t target_ms = 30;
  std::uint32_t margin = 65;  // percent of the target that a step may take
  std::uint32_t reserve = 0;  // processors; 0: sized from profiles
  std::uint32_t reservation = 1;
  std::uint32_t lookahead = 1;
  std::uint32_t lend = 1;
  std::uint32_t most = 75;  // percent of the device that reservations may hold
  std::uint32_t launches = 0;
  std::uint32_t quiet_us = 3'000;
  std::uint32_t ahead_us = 500;
  std::uint32_t floor = 0;  // processors
  Beside::Options beside;
};

// Some of the time that is left is for what nobody predicts: percent.
constexpr std::uint64_t kInTime = 80;
// For so many steps another size was right before a reservation becomes less, or more.
constexpr std::uint64_t kSteps = 50, kStepsToMore = 5;
// A longer time that a client gave its steps is forgotten in about so many of them.
constexpr std::uint64_t kForget = 64;
// Steps for which a width is tried, of which some may run elsewhere for a part.
constexpr unsigned kTries = 10;

// A step, its client's own words: what it takes and when it is due.
bool is_step(const ReadyOperation& operation) {
  return operation.queued_ns > 0 && operation.deadline_ns > 0;
}

// What is known of one decoding client.
struct Decoder {
  runtime::ClientId client = 0;
  runtime::LaneId lane = 0;              // that steps, and has the reservation
  const Planner::Lane* leads = nullptr;  // that lane, in the epoch `seen`; of all that decode
  std::uint64_t seen = 0;
  double usual_ns = 0;        // of a step, on the whole device, smoothed
  std::uint64_t last_id = 0;  // of the step that was learnt from
  std::uint64_t steps = 0;
  EntryId standing = kNoEntry;
  std::uint64_t sized_as_of = 0;  // reservations_, when its size was looked at; 0: its step is new
  std::uint64_t right_at = 0;     // the last step at which its size was right
  std::uint64_t target_ns = 0;    // of its steps
  bool told = false;              // that no width meets the target
  unsigned tries = 0;             // steps since `standing` is what it is
  // Of the steps: how long each was, from one to the next, where it was on one entry throughout.
  StepCurve curve;
  std::uint64_t began_ns = 0, due_ns = 0, said_ns = 0;
  EntryId throughout = kNoEntry;
  // Of the step that runs: how much was left of it when, and where it has run since.
  std::uint64_t step = 0;  // its id
  double left = 1;
  std::uint64_t as_of_ns = 0;
  EntryId on = kNoEntry;
};

class TpotFirst final : public runtime::Policy {
 public:
  explicit TpotFirst(const Options& options)
      : options_(options),
        target_ns_(std::uint64_t{options.target_ms} * 1'000'000),
        first_(std::uint64_t{options.quiet_us} * 1'000),
        beside_(options.beside) {
    Parameters none;
    throughput_ = make_throughput(none, 0);
  }
  std::string_view name() const override { return "tpot-first"; }
  bool wants_profile() const override { return true; }
  bool remembers() const override { return true; }

  std::optional<std::size_t> pick(std::span<const ReadyOperation> ready,
                                  const PoolView& pool) override {
    if (pool.epoch == 0) return 0;
    plan(pool);
    if (as_throughput_) return throughput_->pick(ready, of_those_that_yield(pool));
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < ready.size(); ++i) {
      if (ready[i].processors > pool.entries.back().processors && !waits(ready[i])) return i;
      if (ready[i].kind != OperationClass::kDecode) continue;
      const Planner::Lane* lane = planner_.find(ready[i].client, ready[i].lane);
      if (lane == nullptr || (lane->target == kNoEntry && !at_risk(*lane))) continue;
      if (!best || deadline(ready[i], pool) < deadline(ready[*best], pool)) best = i;
    }
    return best ? best : planner_.next(ready);
  }

  Choice select(const ReadyOperation& operation, std::span<const EntryId> eligible,
                const PoolView& pool) override {
    const std::uint32_t stands =
        options_.launches == 0 ? runtime::kUntilChanged : options_.launches;
    if (pool.epoch == 0) return {eligible.back(), stands};
    if (as_throughput_) return throughput_->select(operation, eligible, of_those_that_yield(pool));
    if (waits(operation)) return {kNoEntry, 0};
    if (operation.processors > pool.entries.back().processors) return {runtime::kWholeDevice, 1};
    const Planner::Lane* lane = planner_.find(operation.client, operation.lane);
    if (lane == nullptr) return {kNoEntry, 0};
    // Beside what still drains there, rather than after it.
    if (operation.right_of_way && lane->target != kNoEntry &&
        eligible.back() == runtime::kWholeDevice &&
        std::find(eligible.begin(), eligible.end(), lane->target) == eligible.end())
      return {runtime::kWholeDevice, stands};
    if (operation.kind != OperationClass::kDecode || !at_risk(*lane))
      return {within_target(lane->target, eligible, pool), stands};
    // What was prepared may not be free yet: the narrowest that is and would do, else the fastest.
    EntryId best = kNoEntry;
    for (const EntryId id : eligible) {
      if (id == runtime::kWholeDevice || pool.entries[id].compute.overlaps(others_standing(*lane)))
        continue;
      if (id == lane->target) return {id, stands};
      best = id;
      if (ends_at(operation, id, pool) <= deadline(operation, pool)) break;
    }
    return {best, stands};
  }

  runtime::Plan prepare(const Hint& hint, const PoolView& pool) override {
    if (pool.epoch == 0) return {};
    plan(pool);
    const Planner::Lane* lane = planner_.find(hint.client, hint.lane);
    if (lane == nullptr) return ahead(hint, pool);
    runtime::Plan plan;
    if (as_throughput_ && yields(lane->operation))
      plan = throughput_->prepare(hint, of_those_that_yield(pool));
    else if (lane->left_out && lane->target == kNoEntry)
      plan.stop = true;
    else
      plan = {lane->target, true};
    if (submits_little_ahead(lane->operation))
      plan.ahead_ns = std::uint64_t{options_.ahead_us} * 1'000;
    const Decoder* decoder = find(hint.client);
    if (decoder != nullptr && decoder->lane == hint.lane) plan.standing = kept(*decoder);
    return plan;
  }

  std::uint64_t look_at() const override {
    return as_throughput_ ? std::min(first_.look_at(), throughput_->look_at()) : first_.look_at();
  }

  void forget(runtime::ClientId client) override {
    std::erase_if(decoders_, [&](const Decoder& decoder) { return decoder.client == client; });
    reservations_changed();
    first_.forget(client);
    beside_.forget(client);
    throughput_->forget(client);
  }

  std::string take_message() override { return std::exchange(message_, {}); }

 private:
  // Whoever may have to make way at once; and who decodes beside others, for its next launches may
  // have to go elsewhere.
  bool submits_little_ahead(const ReadyOperation& operation) const {
    if (operation.right_of_way) return false;
    if (yields(operation)) return first_.any();
    return operation.kind == OperationClass::kDecode ? wanted_.of_decodes : first_.any_token();
  }

  // Until somebody else is quiet.
  bool waits(const ReadyOperation& operation) const {
    return first_.rests(operation) || (yielding_ && options_.floor == 0 && yields(operation));
  }

  Decoder* find(runtime::ClientId client) {
    const auto at = std::lower_bound(decoders_.begin(), decoders_.end(), client, before);
    return at != decoders_.end() && at->client == client ? &*at : nullptr;
  }
  static bool before(const Decoder& decoder, runtime::ClientId client) {
    return decoder.client < client;
  }
  Decoder& find_or_add(runtime::ClientId client) {
    if (Decoder* known = find(client)) return *known;
    Decoder fresh;
    fresh.client = client;
    return *decoders_.insert(std::lower_bound(decoders_.begin(), decoders_.end(), client, before),
                             std::move(fresh));
  }

  // Of a step where it is one, else of the kernel that comes next.
  std::span<const float> curve_of(const ReadyOperation& operation, const PoolView& pool) {
    const Decoder* decoder = is_step(operation) ? find(operation.client) : nullptr;
    return decoder != nullptr && !decoder->curve.values().empty()
               ? decoder->curve.values()
               : planner_.curves().of(operation.kernel, pool);
  }
  std::uint64_t takes(const ReadyOperation& operation, EntryId entry, const PoolView& pool) {
    return Curves::scaled(curve_of(operation, pool), work(operation), entry);
  }

  static std::uint64_t work(const ReadyOperation& operation) {
    return operation.queued_ns > 0 ? operation.queued_ns : operation.predicted_ns;
  }

  std::uint64_t deadline(const ReadyOperation& operation, const PoolView&) const {
    if (operation.deadline_ns != 0) return operation.deadline_ns;
    return operation.since_ns + (operation.target_ns != 0 ? operation.target_ns : target_ns_);
  }

  // What a step may take: as its client's class says; else as the policy's parameter does, or no
  // more than the client has lately given its steps itself. What is given to one that is late
  // already says nothing.
  void set_target(Decoder& decoder, const ReadyOperation& operation, const PoolView& pool) {
    if (operation.target_ns != 0) {
      decoder.target_ns = operation.target_ns;
      return;
    }
    if (decoder.target_ns == 0) decoder.target_ns = target_ns_;
    if (!is_step(operation) || operation.deadline_ns == decoder.due_ns ||
        operation.deadline_ns < pool.now_ns + operation.queued_ns)
      return;
    const std::uint64_t given = operation.deadline_ns - pool.now_ns;
    decoder.target_ns =
        std::min(target_ns_, std::max(given, decoder.target_ns - decoder.target_ns / kForget));
  }

  std::uint64_t ends_at(const ReadyOperation& operation, EntryId entry, const PoolView& pool) {
    return std::max(pool.now_ns + drain_ns(operation.client, entry, pool), operation.ready_at_ns) +
           takes(operation, entry, pool);
  }

  // Until the launches of others that run there have ended, at most.
  std::uint64_t drain_ns(runtime::ClientId client, EntryId entry, const PoolView& pool) {
    std::uint64_t longest = 0;
    for (const runtime::Holding& holding : pool.holdings) {
      if (holding.next.client == client || holding.entry == runtime::kWholeDevice ||
          !pool.entries[holding.entry].compute.overlaps(pool.entries[entry].compute))
        continue;
      longest =
          std::max(longest, planner_.curves().scaled(holding.next.kernel, holding.next.predicted_ns,
                                                     holding.entry, pool));
    }
    return longest;
  }

  // Of a step that runs already, only what is left of it, wherever it has run.
  ReadyOperation what_is_left(Decoder& decoder, const Planner::Lane& lane, const PoolView& pool) {
    ReadyOperation operation = lane.operation;
    if (decoder.step != operation.id || decoder.as_of_ns < operation.since_ns) {
      decoder.step = operation.id;
      decoder.left = 1;
      decoder.as_of_ns = std::max(operation.since_ns, operation.ready_at_ns);
      if (decoder.on == kNoEntry) decoder.on = lane.held;
    }
    if (decoder.on != kNoEntry && pool.now_ns > decoder.as_of_ns) {
      const std::uint64_t all = std::max<std::uint64_t>(1, takes(operation, decoder.on, pool));
      decoder.left -=
          static_cast<double>(pool.now_ns - decoder.as_of_ns) / static_cast<double>(all);
      decoder.left = std::max(0.0, decoder.left);
      decoder.as_of_ns = pool.now_ns;
    }
    decoder.on = lane.held;
    operation.queued_ns =
        static_cast<std::uint64_t>(static_cast<double>(work(operation)) * decoder.left);
    operation.predicted_ns = 0;
    return operation;
  }

  bool at_risk(const Planner::Lane& lane) {
    return std::find(risky_.begin(), risky_.end(),
                     std::pair{lane.operation.client, lane.operation.lane}) != risky_.end();
  }

  ComputeSet others_standing(const Planner::Lane& lane) const {
    ComputeSet set;
    for (const auto& [client, compute] : standing_)
      if (client != lane.operation.client) set |= compute;
    return set;
  }

  // What a reservation may be depends on all others.
  void reservations_changed() {
    ++reservations_;
    standing_.clear();
    for (const Decoder& decoder : decoders_)
      if (decoder.standing != kNoEntry)
        standing_.emplace_back(decoder.client, entries_[decoder.standing].compute);
  }

  // Once for each epoch: the decodes, most urgent first, then everybody else.
  void plan(const PoolView& pool) {
    if (pool.epoch == planned_) return;
    planned_ = pool.epoch;
    entries_ = pool.entries;
    risky_.clear();
    planner_.begin(pool);
    wanted_ = {};
    for (const Planner::Lane& lane : planner_.lanes()) {
      const ReadyOperation& operation = lane.operation;
      wanted_.of_claimants |= yields(operation);
      wanted_.of_decodes |= operation.kind != OperationClass::kDecode;
      if (operation.kind == OperationClass::kDecode && lane.held != kNoEntry)
        first_.expect(operation.client, operation.since_ns + takes(operation, lane.held, pool));
    }
    first_.look(pool, {wanted_.of_claimants, wanted_.of_decodes && options_.lend != 0});
    decodes_.clear();
    bool others = false;  // who is neither first nor yields
    for (Planner::Lane& lane : planner_.lanes()) {
      const ReadyOperation& operation = lane.operation;
      lane.left_out = first_.rests(operation);
      if (operation.right_of_way || yields(operation) || lane.left_out) continue;
      others = true;
      if (operation.kind == OperationClass::kDecode) decodes_.push_back(&lane);
    }
    choose_leads();
    const ComputeSet ending = still_decoding(pool);
    const bool alone = !others && reserved(pool).empty() && ending.empty();
    const bool sharable =
        alone && !first_.claimed_by_prefills() && pool.all_share && pool.set_aside.empty();
    beside_.look(pool, first_, !sharable);
    const bool together = sharable && beside_.together();
    yielding_ = first_.claimed() && !together;
    as_throughput_ = alone && !first_.claimed();
    if (as_throughput_) return keep_those_that_yield(pool);
    for (Planner::Lane& lane : planner_.lanes()) {
      if (!yields(lane.operation)) continue;
      if (together) lane.target = runtime::kWholeDevice;
      lane.left_out = yielding_;
    }
    const ComputeSet left = beside_the_floor(pool);
    if (first_.claimed() && !others && give_all_to_one(pool, left)) return;
    std::stable_sort(decodes_.begin(), decodes_.end(),
                     [&](const Planner::Lane* a, const Planner::Lane* b) {
                       return deadline(a->operation, pool) < deadline(b->operation, pool);
                     });
    // What each would have under `throughput`: never less than that.
    shares_.begin(pool);
    shares_.assign(pool, left - idle_standing(pool));
    ComputeSet taken = pool.entries.front().compute - left;
    for (Planner::Lane* lane : decodes_) {
      if (find(lane->operation.client)->leads != lane) continue;
      lane->target = no_less_than_its_share(*lane, target_of(*lane, pool, taken), pool, taken);
      if (lane->target != kNoEntry) taken |= pool.entries[lane->target].compute;
    }
    for (Planner::Lane* lane : decodes_)
      if (const EntryId with = find(lane->operation.client)->leads->target;
          with != kNoEntry && pool.entries[with].processors >= lane->operation.processors)
        lane->target = with;
    planner_.assign(pool, left - (taken | reserved(pool) | ending));
  }

  // One lane of each client that decodes: where its steps are, or the longest of what there is. Its
  // others, of copies perhaps, are with it.
  void choose_leads() {
    for (const Planner::Lane* lane : decodes_) {
      const ReadyOperation& operation = lane->operation;
      Decoder& decoder = find_or_add(operation.client);
      const bool first = std::exchange(decoder.seen, planned_) != planned_;
      const auto weight = [](const ReadyOperation& of) { return std::pair(is_step(of), work(of)); };
      if (first || weight(operation) > weight(decoder.leads->operation)) decoder.leads = lane;
    }
    for (Decoder& decoder : decoders_)
      if (decoder.seen == planned_) decoder.lane = decoder.leads->operation.lane;
  }

  // Of whoever has the right of way alone: every processor, as a lease, whose end tells the end of
  // its work; with nobody to yield it needs none.
  bool give_all_to_one(const PoolView& pool, ComputeSet left) {
    const Planner::Lane* first = nullptr;
    for (const Planner::Lane& lane : planner_.lanes()) {
      if (lane.left_out || lane.target != kNoEntry) continue;
      if (first != nullptr && first->operation.client != lane.operation.client) return false;
      first = &lane;
    }
    if (first == nullptr) return true;
    EntryId widest = runtime::kWholeDevice;
    for (const runtime::PoolEntry& entry : pool.entries.subspan(1))
      if (wanted_.of_claimants && left.contains(entry.compute)) widest = entry.id;
    for (Planner::Lane& lane : planner_.lanes())
      if (!lane.left_out && lane.target == kNoEntry)
        lane.target = pool.entries[widest].processors < lane.operation.processors
                          ? runtime::kWholeDevice
                          : widest;
    return true;
  }

  // What is left beside the processors that those keep that yield; they are planned for there.
  ComputeSet beside_the_floor(const PoolView& pool) {
    const ComputeSet all = pool.entries.front().compute;
    if (!yielding_ || options_.floor == 0) return all;
    EntryId narrowest = kNoEntry;
    for (const runtime::PoolEntry& entry : pool.entries.subspan(1)) {
      if (entry.processors < options_.floor || entry.compute.overlaps(reserved(pool))) continue;
      if (narrowest != kNoEntry && entry.processors > pool.entries[narrowest].processors) break;
      narrowest = entry.id;  // the last of its width: decodes begin at the other end
    }
    if (narrowest == kNoEntry || pool.entries[narrowest].compute == all) return all;
    const ComputeSet floor = pool.entries[narrowest].compute;
    floor_.begin(pool);
    for (Planner::Lane& lane : floor_.lanes()) lane.left_out = !yields(lane.operation);
    floor_.assign(pool, floor);
    for (Planner::Lane& lane : planner_.lanes())
      if (const Planner::Lane* planned = floor_.find(lane.operation.client, lane.operation.lane);
          planned != nullptr && yields(lane.operation))
        lane.target = planned->target;
    return all - floor;
  }

  // Without those that rest: they want nothing.
  void keep_those_that_yield(const PoolView& pool) {
    waiting_.clear();
    holdings_.clear();
    for (const ReadyOperation& operation : pool.waiting)
      if (yields(operation)) waiting_.push_back(operation);
    for (const runtime::Holding& holding : pool.holdings)
      if (yields(holding.next)) holdings_.push_back(holding);
  }

  PoolView of_those_that_yield(const PoolView& pool) const {
    PoolView view = pool;
    view.waiting = waiting_;
    view.holdings = holdings_;
    return view;
  }

  // Where decodes that were asked for their processors may have work that runs.
  ComputeSet still_decoding(const PoolView& pool) const {
    ComputeSet set;
    for (const auto& grants : {pool.holdings, pool.draining})
      for (const runtime::Holding& holding : grants)
        if (holding.next.kind == OperationClass::kDecode && !holding.next.right_of_way &&
            holding.entry != runtime::kWholeDevice && first_.rests(holding.next))
          set |= pool.entries[holding.entry].compute;
    return set;
  }

  // What is set aside for decodes, also while there are none.
  ComputeSet reserved(const PoolView& pool) const {
    ComputeSet set;
    for (const Decoder& decoder : decoders_)
      if (kept(decoder) != kNoEntry) set |= pool.entries[decoder.standing].compute;
    return set;
  }

  // What is its own also while it has nothing to run. What is lent meanwhile is only a size: when a
  // step comes, whoever runs there leaves it, and the step waits for the kernel that is running.
  EntryId kept(const Decoder& decoder) const {
    return options_.lend == 0 ? decoder.standing : kNoEntry;
  }

  // Reservations of those who have nothing to run.
  ComputeSet idle_standing(const PoolView& pool) const {
    ComputeSet set;
    for (const Decoder& decoder : decoders_)
      if (decoder.standing != kNoEntry && decoder.seen != planned_)
        set |= pool.entries[decoder.standing].compute;
    return set;
  }

  // The widest entry around what it needs that is no wider than its share of the device; what it
  // needs, where that has been seen to do.
  EntryId no_less_than_its_share(const Planner::Lane& lane, EntryId needed, const PoolView& pool,
                                 ComputeSet taken) {
    const Planner::Lane* share = shares_.find(lane.operation.client, lane.operation.lane);
    if (needed == kNoEntry || share == nullptr || share->target == kNoEntry) return needed;
    if (is_step(lane.operation) && !at_risk(lane) && find(lane.operation.client)->curve.known())
      return needed;
    const ComputeSet closed = taken | others_standing(lane);
    EntryId best = needed;
    for (const runtime::PoolEntry& entry : pool.entries.subspan(1)) {
      if (entry.processors > pool.entries[share->target].processors) break;
      if (entry.compute.contains(pool.entries[needed].compute) && !entry.compute.overlaps(closed) &&
          (entry.processors > pool.entries[best].processors || entry.id == lane.held))
        best = entry.processors >= pool.entries[best].processors ? entry.id : best;
    }
    return best;
  }

  EntryId target_of(const Planner::Lane& lane, const PoolView& pool, ComputeSet taken) {
    Decoder& decoder = *find(lane.operation.client);
    set_target(decoder, lane.operation, pool);
    time(decoder, lane, pool);
    learn(decoder, lane.operation);
    if (options_.reservation != 0) size_reservation(decoder, lane.operation, pool);
    EntryId standing = decoder.standing;
    if (standing != kNoEntry && pool.entries[standing].processors < lane.operation.processors)
      standing = kNoEntry;
    if (options_.lookahead == 0) return standing;
    Planner::Lane rest = lane;
    rest.operation = what_is_left(decoder, lane, pool);
    return prepared(rest, standing, pool, taken);
  }

  // A few steps of it are to run there, however long they take: else that is never known.
  bool is_tried(const ReadyOperation& operation, EntryId standing, const PoolView& pool) {
    const Decoder* decoder = is_step(operation) ? find(operation.client) : nullptr;
    return decoder != nullptr && decoder->tries < kTries && decoder->curve.known() &&
           !decoder->curve.known(pool.entries[standing].processors);
  }

  // Its reservation when that is enough; else the narrowest entry on which the step ends in time,
  // or, when that is too late on all, as soon as it can.
  EntryId prepared(const Planner::Lane& lane, EntryId standing, const PoolView& pool,
                   ComputeSet taken) {
    const ReadyOperation& operation = lane.operation;
    const std::uint64_t due = deadline(operation, pool);
    std::uint64_t by = due <= pool.now_ns ? due : pool.now_ns + (due - pool.now_ns) * kInTime / 100;
    if (standing != kNoEntry &&
        (ends_at(operation, standing, pool) <= by || is_tried(operation, standing, pool)))
      return standing;
    if (const std::uint64_t soonest = ends_at(operation, pool.entries.back().id, pool);
        soonest > by) {
      if (standing == kNoEntry && options_.reservation != 0) return kNoEntry;
      const std::uint64_t takes = soonest - std::max(pool.now_ns, operation.ready_at_ns);
      // Hardly sooner is not worth what others lose.
      if (standing != kNoEntry && ends_at(operation, standing, pool) <= soonest + takes / 10)
        return standing;
      by = soonest + takes / 50;
    }
    const ComputeSet closed = taken | others_standing(lane);
    // A step that was moved stays where it is, for every move drains somebody; else around what is
    // its own first: anything else would leave the others two pieces.
    EntryId best = kNoEntry;
    if (lane.held != kNoEntry && lane.held != runtime::kWholeDevice &&
        !pool.entries[lane.held].compute.overlaps(closed) &&
        pool.entries[lane.held].processors >= operation.processors &&
        ends_at(operation, lane.held, pool) <= by)
      best = lane.held;
    if (best == kNoEntry) best = narrowest_in_time(lane, standing, by, closed, pool);
    if (best == kNoEntry) best = narrowest_in_time(lane, kNoEntry, by, closed, pool);
    if (best == kNoEntry) return standing;
    risky_.emplace_back(operation.client, operation.lane);
    return best;
  }

  EntryId narrowest_in_time(const Planner::Lane& lane, EntryId around, std::uint64_t by,
                            ComputeSet closed, const PoolView& pool) {
    EntryId best = kNoEntry;
    const std::uint64_t start = std::max(pool.now_ns, lane.operation.ready_at_ns);
    if (start > by) return best;
    // What takes too long there need not be asked when it could begin.
    const std::span<const float> curve = curve_of(lane.operation, pool);
    const double most = static_cast<double>(by - start + 1) * static_cast<double>(curve[0]) /
                        static_cast<double>(std::max<std::uint64_t>(1, work(lane.operation)));
    for (const runtime::PoolEntry& entry : pool.entries.subspan(1)) {
      if (best != kNoEntry && entry.processors > pool.entries[best].processors) break;
      if (static_cast<double>(curve[entry.id]) > most ||
          entry.processors < lane.operation.processors || entry.compute.overlaps(closed) ||
          (around != kNoEntry && !entry.compute.contains(pool.entries[around].compute)) ||
          ends_at(lane.operation, entry.id, pool) > by)
        continue;
      // Among equals: where it is.
      if (best == kNoEntry || entry.id == lane.held) best = entry.id;
    }
    return best;
  }

  // From its step's beginning to the next one's, so that what its host does between counts, too.
  // Not on the whole device: others may be there. Not where two follow each other with one
  // deadline, which has passed then: whether that is one step or more is not known.
  void time(Decoder& decoder, const Planner::Lane& lane, const PoolView& pool) {
    const ReadyOperation& operation = lane.operation;
    if (!is_step(operation)) return;
    const bool another = operation.deadline_ns != decoder.due_ns;
    if (lane.held != decoder.throughout || (!another && operation.id != decoder.last_id))
      decoder.throughout = kNoEntry;
    if (!another) return;
    ++decoder.tries;
    if (decoder.throughout != kNoEntry && decoder.throughout != runtime::kWholeDevice)
      decoder.curve.add(pool.entries[lane.held].processors,
                        static_cast<double>(pool.now_ns - decoder.began_ns) /
                            static_cast<double>(decoder.said_ns));
    decoder.due_ns = operation.deadline_ns;
    decoder.began_ns = pool.now_ns;
    decoder.said_ns = operation.queued_ns;
    decoder.throughout = lane.held;
    decoder.curve.update(pool.entries, planner_.curves().of(operation.kernel, pool));
  }

  void learn(Decoder& decoder, const ReadyOperation& operation) {
    if (decoder.usual_ns > 0 && decoder.last_id == operation.id) return;
    decoder.last_id = operation.id;
    decoder.sized_as_of = 0;
    ++decoder.steps;
    const double now = static_cast<double>(work(operation));
    const double weight = now < decoder.usual_ns ? 0.2 : 0.01;
    // Nearer the lighter steps: lookahead sees to the heavy ones.
    decoder.usual_ns += decoder.usual_ns == 0 ? now : weight * (now - decoder.usual_ns);
  }

  // Once for each step, and when another reservation or the profile has changed.
  void size_reservation(Decoder& decoder, const ReadyOperation& operation, const PoolView& pool) {
    const std::uint64_t profile = pool.profile != nullptr ? pool.profile->version() : 0;
    if (std::exchange(profile_, profile) != profile) reservations_changed();
    if (decoder.sized_as_of == reservations_) return;
    const EntryId right = right_size(decoder, operation, pool);
    if (right == decoder.standing) decoder.right_at = decoder.steps;
    // Not for every passing step: moving a reservation drains somebody. Sooner to more than to
    // less.
    const bool to_more = decoder.standing != kNoEntry && right != kNoEntry &&
                         pool.entries[right].processors > pool.entries[decoder.standing].processors;
    if (right != decoder.standing &&
        (decoder.standing == kNoEntry ||
         decoder.steps - decoder.right_at >= (to_more ? kStepsToMore : kSteps))) {
      decoder.standing = right;
      decoder.right_at = decoder.steps;
      decoder.tries = 0;
      reservations_changed();
    }
    decoder.sized_as_of = reservations_;
  }

  EntryId right_size(Decoder& decoder, const ReadyOperation& operation, const PoolView& pool) {
    ComputeSet others;
    for (const Decoder& other : decoders_)
      if (&other != &decoder && other.standing != kNoEntry)
        others |= pool.entries[other.standing].compute;
    std::uint32_t room = pool.entries.front().processors * options_.most / 100;
    if (!others.empty())
      for (const runtime::PoolEntry& entry : pool.entries.subspan(1))
        if (entry.compute.count() == 1 && entry.compute.overlaps(others))
          room -= std::min(room, entry.processors);
    const std::span<const float> curve = curve_of(operation, pool);
    const double target = static_cast<double>(decoder.target_ns);
    double most_ns = target * options_.margin / 100;
    // Where that cannot be had anywhere, but the target can: what is nearly as good as it gets.
    const double least_ns = decoder.usual_ns * static_cast<double>(curve.back() / curve[0]);
    if (least_ns > most_ns) most_ns = std::min(target, 1.1 * least_ns);
    const double most = most_ns / decoder.usual_ns * static_cast<double>(curve[0]);
    std::uint32_t width = 0;
    EntryId best = kNoEntry;
    bool met = false;
    for (const runtime::PoolEntry& entry : pool.entries.subspan(1)) {
      if (width != 0 && entry.processors > width) break;
      if (met && entry.processors > room) break;
      const bool enough = options_.reserve != 0 ? entry.processors >= options_.reserve
                                                : static_cast<double>(curve[entry.id]) <= most;
      met = met || enough;
      if (!enough || entry.processors < operation.processors || entry.processors > room ||
          entry.compute.overlaps(others))
        continue;
      // The first of its width: narrower entries nest in wider ones from that end.
      if (width == 0 || entry.id == decoder.standing) best = entry.id;
      width = entry.processors;
    }
    if (!met) say_once(decoder, pool);
    return best;
  }

  void say_once(Decoder& decoder, const PoolView& pool) {
    if (decoder.told) return;
    decoder.told = true;
    message_ = "tpot-first: no width up to " + std::to_string(pool.entries.front().processors) +
               " processors lets client " + std::to_string(decoder.client) + " decode within " +
               std::to_string(decoder.target_ns / 1'000'000) +
               " ms a token; it is served at best effort. Give it a longer target (its class's "
               "tpot, or target=MS).";
  }

  // A decode that is expected and not there yet: its client's reservation, or more when that would
  // be too late.
  runtime::Plan ahead(const Hint& hint, const PoolView& pool) {
    if (options_.lookahead == 0 || hint.kind != OperationClass::kDecode || hint.deadline_ns == 0 ||
        first_.has(hint.client))
      return {};
    Planner::Lane lane;
    lane.operation.client = hint.client;
    lane.operation.lane = hint.lane;
    lane.operation.kernel = hint.kernel;
    lane.operation.processors = hint.processors;
    lane.operation.queued_ns = hint.queued_ns;
    lane.operation.ready_at_ns = hint.ready_at_ns;
    lane.operation.deadline_ns = hint.deadline_ns;
    const Decoder* decoder = find(hint.client);
    const EntryId standing = decoder != nullptr ? decoder->standing : kNoEntry;
    const EntryId target = prepared(lane, standing, pool, {});
    const std::uint64_t may_take = decoder != nullptr ? decoder->target_ns : target_ns_;
    return {target, true, std::max(hint.ready_at_ns, pool.now_ns) + may_take,
            decoder != nullptr ? kept(*decoder) : kNoEntry};
  }

  Options options_;
  std::uint64_t target_ns_;
  // The paper's objective: beside decodes, prefills are the ones whose curve is steep, and what
  // gains most by sharing alone would be another half for the decodes.
  Planner planner_{Objective::kPaper};
  Planner shares_{Objective::kPaper};  // the plan of `throughput`
  Planner floor_;                      // of those that yield, on what they keep
  std::unique_ptr<runtime::Policy> throughput_;
  RightOfWay first_;
  RightOfWay::Wanted wanted_;
  Beside beside_;
  bool yielding_ = false;       // in this epoch somebody has the right of way, and others make way
  bool as_throughput_ = false;  // and: nobody comes before others
  std::vector<ReadyOperation> waiting_;
  std::vector<runtime::Holding> holdings_;
  std::span<const runtime::PoolEntry> entries_;
  std::vector<Decoder> decoders_;                                   // by client
  std::vector<std::pair<runtime::ClientId, ComputeSet>> standing_;  // of all of them
  std::uint64_t reservations_ = 1;  // changes whenever any of those, or the profile, does
  std::uint64_t profile_ = 0;       // its version
  std::vector<Planner::Lane*> decodes_;
  std::vector<std::pair<runtime::ClientId, runtime::LaneId>> risky_;
  std::string message_;
  std::uint64_t planned_ = 0;
};

constexpr Parameter kParameters[] = {
    {"target", "milliseconds a token, where a client's class has no tpot (default 30)"},
    {"margin", "percent of the target that a step may take (default 65)"},
    {"reserve", "processors of the standing reservation (default 0: sized from profiles)"},
    {"reservation", "0: no standing reservation (default 1)"},
    {"lookahead", "0: never prepare a wider entry (default 1)"},
    {"lend", "0: nobody else runs on a reservation while nothing decodes there (default 1)"},
    {"quiet",
     "microseconds without a launch after which a latency client's processors are others' "
     "(default 3000)"},
    {"ahead",
     "microseconds of work that others may have submitted, while there is a latency client "
     "(default 500)"},
    {"floor", "processors that others keep beside a latency client (default 0: they wait)"},
    {"beside",
     "others go on beside a latency client, on the whole device: measured (default: while it is "
     "not slowed down), never, always"},
    {"slowdown", "percent by which it may be slowed down then, at most (default 10)"},
    {"most", "percent of the device that all reservations may hold (default 75)"},
    {"launches", "decide again after this many launches (default 0: when something changes)"}};

}  // namespace

const Description kTpotFirst = {
    "tpot-first", "who must not wait comes first; the rest as under throughput", kParameters};

std::unique_ptr<runtime::Policy> make_tpot_first(Parameters& parameters, std::uint64_t) {
  Options options;
  parameters.number("target", 1, 1'000'000, &options.target_ms);
  parameters.number("margin", 1, 100, &options.margin);
  parameters.number("reserve", 0, 100'000, &options.reserve);
  parameters.number("reservation", 0, 1, &options.reservation);
  parameters.number("lookahead", 0, 1, &options.lookahead);
  parameters.number("lend", 0, 1, &options.lend);
  parameters.number("most", 1, 100, &options.most);
  parameters.number("launches", 0, 1'000'000, &options.launches);
  parameters.number("quiet", 100, 1'000'000, &options.quiet_us);
  parameters.number("ahead", 10, 1'000'000, &options.ahead_us);
  parameters.number("floor", 0, 100'000, &options.floor);
  std::size_t beside = 0;
  parameters.word("beside", {"measured", "never", "always"}, &beside);
  options.beside.mode = static_cast<Beside::Mode>(beside);
  parameters.number("slowdown", 0, 99, &options.beside.slowdown);
  return std::make_unique<TpotFirst>(options);
}

}  // namespace vitamin::policies
