// SPDX-License-Identifier: Apache-2.0
//
// tpot-first: who must not wait comes first; everybody else shares what is left as under
// `throughput` (the paper, "TPOT-First Policy").
//
// Three kinds of clients. Those that say how long a token may take (decodes) get what that needs:
//
//   reservation  each decoding client has an entry of its own, for all its lanes, the narrowest on
//                which its steps, as they have been lately, take no longer than the target
//                (policies/decoders.h); with `lend` others have it while nothing decodes
//   lookahead    a step predicted to end there after its deadline gets the narrowest wider entry on
//                which it would end in time; what overlaps it drains before the step is ready
//   late         no entry would do any more: its reservation, where that is hardly slower, else the
//                narrowest that is nearly the fastest, unless no width meets the target at all;
//                then it is served at best effort
//
// The deadline of a step is the client's own where it gives one, else the last step's end + target.
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
#include "policies/decoders.h"
#include "policies/planner.h"
#include "policies/right_of_way.h"

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
  Decoders::Options decodes;
  std::uint32_t lookahead = 1;
  std::uint32_t lend = 1;
  std::uint32_t launches = 0;
  std::uint32_t quiet_us = 3'000;
  std::uint32_t ahead_us = 500;
  std::uint32_t floor = 0;  // processors
  Beside::Options beside;
};

// Some of the time that is left is for what nobody predicts: percent.
constexpr std::uint64_t kInTime = 80;

class TpotFirst final : public runtime::Policy {
 public:
  explicit TpotFirst(const Options& options)
      : options_(options),
        decoders_(options.decodes, planner_.curves()),
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
      if (!best || decoders_.deadline(ready[i]) < decoders_.deadline(ready[*best])) best = i;
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
      if (id == runtime::kWholeDevice ||
          pool.entries[id].compute.overlaps(decoders_.others_standing(operation.client)))
        continue;
      if (id == lane->target) return {id, stands};
      best = id;
      if (ends_at(operation, id, pool) <= decoders_.deadline(operation)) break;
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
    const Decoder* decoder = decoders_.find(hint.client);
    if (decoder != nullptr && decoder->lane == hint.lane) plan.standing = kept(*decoder);
    return plan;
  }

  std::uint64_t look_at() const override {
    const std::uint64_t at = std::min(first_.look_at(), beside_.look_at());
    return as_throughput_ ? std::min(at, throughput_->look_at()) : at;
  }

  void forget(runtime::ClientId client) override {
    decoders_.forget(client);
    first_.forget(client);
    beside_.forget(client);
    throughput_->forget(client);
  }

  std::string take_message() override { return decoders_.take_message(); }

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

  std::uint64_t ends_at(const ReadyOperation& operation, EntryId entry, const PoolView& pool) {
    return std::max(pool.now_ns + drain_ns(operation.client, entry, pool), operation.ready_at_ns) +
           decoders_.takes(operation, entry, pool);
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

  bool at_risk(const Planner::Lane& lane) {
    return std::find(risky_.begin(), risky_.end(),
                     std::pair{lane.operation.client, lane.operation.lane}) != risky_.end();
  }

  // Once for each epoch: the decodes, most urgent first, then everybody else.
  void plan(const PoolView& pool) {
    if (pool.epoch == planned_) return;
    planned_ = pool.epoch;
    risky_.clear();
    planner_.begin(pool);
    wanted_ = {};
    for (const Planner::Lane& lane : planner_.lanes()) {
      const ReadyOperation& operation = lane.operation;
      wanted_.of_claimants |= yields(operation);
      wanted_.of_decodes |= operation.kind != OperationClass::kDecode;
      if (operation.kind == OperationClass::kDecode && lane.held != kNoEntry)
        first_.expect(operation.client,
                      operation.since_ns + decoders_.takes(operation, lane.held, pool));
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
    decoders_.look(pool, decodes_);
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
                       return decoders_.deadline(a->operation) < decoders_.deadline(b->operation);
                     });
    // What each would have under `throughput`: never less than that.
    shares_.begin(pool);
    shares_.assign(pool, left - decoders_.idle_standing(pool));
    ComputeSet taken = pool.entries.front().compute - left;
    for (Planner::Lane* lane : decodes_) {
      if (decoders_.find(lane->operation.client)->leads != lane) continue;
      lane->target = no_less_than_its_share(*lane, target_of(*lane, pool, taken), pool, taken);
      if (lane->target != kNoEntry) taken |= pool.entries[lane->target].compute;
    }
    for (Planner::Lane* lane : decodes_)
      if (const EntryId with = decoders_.find(lane->operation.client)->leads->target;
          with != kNoEntry && pool.entries[with].processors >= lane->operation.processors)
        lane->target = with;
    planner_.assign(pool, left - (taken | reserved(pool) | ending));
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
    for (const Decoder& decoder : decoders_.all())
      if (kept(decoder) != kNoEntry) set |= pool.entries[decoder.standing].compute;
    return set;
  }

  // What is its own also while it has nothing to run. What is lent meanwhile is only a size: when a
  // step comes, whoever runs there leaves it, and the step waits for the kernel that is running.
  EntryId kept(const Decoder& decoder) const {
    return options_.lend == 0 ? decoder.standing : kNoEntry;
  }

  // The widest entry around what it needs that is no wider than its share of the device; what it
  // needs, where that has been seen to do.
  EntryId no_less_than_its_share(const Planner::Lane& lane, EntryId needed, const PoolView& pool,
                                 ComputeSet taken) {
    const Planner::Lane* share = shares_.find(lane.operation.client, lane.operation.lane);
    if (needed == kNoEntry || share == nullptr || share->target == kNoEntry) return needed;
    if (is_step(lane.operation) && !at_risk(lane) && decoders_.known(lane.operation.client))
      return needed;
    const ComputeSet closed = taken | decoders_.others_standing(lane.operation.client);
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
    decoders_.follow(lane, pool);
    EntryId standing = decoders_.find(lane.operation.client)->standing;
    if (standing != kNoEntry && pool.entries[standing].processors < lane.operation.processors)
      standing = kNoEntry;
    if (options_.lookahead == 0) return standing;
    Planner::Lane rest = lane;
    rest.operation = decoders_.what_is_left(lane, pool);
    return prepared(rest, standing, pool, taken);
  }

  // Its reservation when that is enough; else the narrowest entry on which the step ends in time,
  // or, when that is too late on all, as soon as it can.
  EntryId prepared(const Planner::Lane& lane, EntryId standing, const PoolView& pool,
                   ComputeSet taken) {
    const ReadyOperation& operation = lane.operation;
    const std::uint64_t due = decoders_.deadline(operation);
    std::uint64_t by = due <= pool.now_ns ? due : pool.now_ns + (due - pool.now_ns) * kInTime / 100;
    if (standing != kNoEntry &&
        (ends_at(operation, standing, pool) <= by || decoders_.is_tried(operation, standing, pool)))
      return standing;
    if (const std::uint64_t soonest = ends_at(operation, pool.entries.back().id, pool);
        soonest > by) {
      if (standing == kNoEntry && options_.decodes.reservation != 0) return kNoEntry;
      const std::uint64_t takes = soonest - std::max(pool.now_ns, operation.ready_at_ns);
      // Hardly sooner is not worth what others lose.
      if (standing != kNoEntry && ends_at(operation, standing, pool) <= soonest + takes / 10)
        return standing;
      by = soonest + takes / 50;
    }
    const ComputeSet closed = taken | decoders_.others_standing(lane.operation.client);
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
    const std::span<const float> curve = decoders_.curve_of(lane.operation, pool);
    const double most =
        static_cast<double>(by - start + 1) * static_cast<double>(curve[0]) /
        static_cast<double>(std::max<std::uint64_t>(1, Decoders::work(lane.operation)));
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
    const Decoder* decoder = decoders_.find(hint.client);
    const EntryId standing = decoder != nullptr ? decoder->standing : kNoEntry;
    const EntryId target = prepared(lane, standing, pool, {});
    return {target, true,
            std::max(hint.ready_at_ns, pool.now_ns) + decoders_.target_ns(hint.client),
            decoder != nullptr ? kept(*decoder) : kNoEntry};
  }

  Options options_;
  // The paper's objective: beside decodes, prefills are the ones whose curve is steep, and what
  // gains most by sharing alone would be another half for the decodes.
  Planner planner_{Objective::kPaper};
  Planner shares_{Objective::kPaper};  // the plan of `throughput`
  Planner floor_;                      // of those that yield, on what they keep
  Decoders decoders_;
  std::unique_ptr<runtime::Policy> throughput_;
  RightOfWay first_;
  RightOfWay::Wanted wanted_;
  Beside beside_;
  bool yielding_ = false;       // in this epoch somebody has the right of way, and others make way
  bool as_throughput_ = false;  // and: nobody comes before others
  std::vector<ReadyOperation> waiting_;
  std::vector<runtime::Holding> holdings_;
  std::vector<Planner::Lane*> decodes_;
  std::vector<std::pair<runtime::ClientId, runtime::LaneId>> risky_;
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
    {"patience",
     "percent by which it may be slowed down at the beginning of a stretch of requests, as long as "
     "long stretches hardly get longer (default 35; 0: not)"},
    {"most", "percent of the device that all reservations may hold (default 75)"},
    {"launches", "decide again after this many launches (default 0: when something changes)"}};

}  // namespace

const Description kTpotFirst = {
    "tpot-first", "who must not wait comes first; the rest as under throughput", kParameters};

std::unique_ptr<runtime::Policy> make_tpot_first(Parameters& parameters, std::uint64_t) {
  Options options;
  parameters.number("target", 1, 1'000'000, &options.decodes.target_ms);
  parameters.number("margin", 1, 100, &options.decodes.margin);
  parameters.number("reserve", 0, 100'000, &options.decodes.reserve);
  parameters.number("reservation", 0, 1, &options.decodes.reservation);
  parameters.number("lookahead", 0, 1, &options.lookahead);
  parameters.number("lend", 0, 1, &options.lend);
  parameters.number("most", 1, 100, &options.decodes.most);
  parameters.number("launches", 0, 1'000'000, &options.launches);
  parameters.number("quiet", 100, 1'000'000, &options.quiet_us);
  parameters.number("ahead", 10, 1'000'000, &options.ahead_us);
  parameters.number("floor", 0, 100'000, &options.floor);
  std::size_t beside = 0;
  parameters.word("beside", {"measured", "never", "always"}, &beside);
  options.beside.mode = static_cast<Beside::Mode>(beside);
  parameters.number("slowdown", 0, 99, &options.beside.slowdown);
  parameters.number("patience", 0, 99, &options.beside.patience);
  return std::make_unique<TpotFirst>(options);
}

}  // namespace vitamin::policies
