// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policies/service.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>
#include <utility>

#include "scheduler/policies/throughput.h"

namespace vitamin::scheduler {
namespace {

// Steps, and periods, whose scatter says what alone takes.
constexpr double kKnown = 20, kKnownByClock = 5, kKnownPeriods = 10;
// Work is counted in lumps where the counts of the newest steps are off by so much, until they are
// off by half of that.
constexpr double kLumps = 0.3, kNewestSteps = 16;
// One of so many periods is left alone, so that what is known stays true.
constexpr std::uint64_t kControls = 8;
// Steps of which it is to be seen what they take alone are left alone for a sixteenth of the time,
// kInARow of them and until what ran beside has drained.
constexpr std::uint64_t kLooks = 16, kInARow = 2, kDrainsNs = 2 * kRunAheadNs;
// The latency alone at the quantile, of the mean period (service.h), which is that of the newest
// hundred or so.
constexpr double kTailOfMean = 1.5, kNewest = 64;
// What stopping the others costs is the most that was seen, and forgotten by so much a period.
constexpr double kForgets = 0.02, kLeastMarginNs = 1e6;
// This part of what may be lost is kept for arrangements in which hardly anything is.
constexpr double kReserve = 0.15;

// A pace is that of the newest second or so, of 20 ms at least, and is learned anew after ten
// seconds.
constexpr double kPaceNs = 1e9, kLeastPaceNs = 20e6;
constexpr std::uint64_t kPaceLastsNs = 10'000'000'000;

// Work that is late by so many bounds is lost, and others wait for it no longer: work that never
// ends, or a client that is given more than it can serve.
constexpr std::uint64_t kLost = 4;
// It gets on beside another service, and costs that no more than work that needs this.
constexpr double kLostNeed = 0.5;
// Of periods, so many times their quantile: at a high load some are long, and what is lost in them
// is lost for many requests. Where the quantile is not known yet, after so long.
constexpr double kLostPeriods = 20;
constexpr std::uint64_t kUnknownLostNs = 5'000'000'000;

// 1 % of 300 are 3, the fewest whose excess can be told from chance.
// So much of the bound is given up where more than may be were late that would not have been alone,
// some taken back where fewer than half as many were: of what will wait behind a step nothing is
// known when it begins.
constexpr std::uint64_t kStepsPerCorrection = 300;
constexpr double kGiveUp = 0.15, kTakeBack = 0.01, kLeastUsable = 0.5;

// Work of which nothing is known is taken to be so many times its bound: it runs alone, which is
// where it is learned what it takes.
constexpr std::uint64_t kUnknownWork = 100;
// A step that has done all that was expected of it has this part of it left.
constexpr double kOverrun = 0.05;

// A step that is announced for within this time is about to begin: others are moved out of its way
// meanwhile.
constexpr std::uint64_t kLeadNs = 5'000'000;

// A client that rests says so after so long (daemon/client/lease_client.h).
constexpr std::uint64_t kSaysRestNs = 1'000'000;

double to_double(std::uint64_t ns) { return static_cast<double>(ns); }

// x with P(normal <= x) = p.
double normal_quantile(double p) {
  double low = -8, high = 8;
  for (int i = 0; i < 60; ++i) {
    const double x = (low + high) / 2;
    (0.5 * std::erfc(-x / std::sqrt(2.0)) < p ? low : high) = x;
  }
  return high;
}

EstimateKey key_of(ProgramHash program, StepKind kind, Quantity what) {
  return {program, kByItself, 0, kind, what};
}

bool works(const Client& client) {
  return std::any_of(client.streams.begin(), client.streams.end(),
                     [](const auto& s) { return s.state != StreamDemand::State::kIdle; });
}

}  // namespace

std::uint64_t bound_of(const Slo& slo, StepKind kind) {
  switch (kind) {
    case StepKind::kPrefill:
      return slo.ttft_ns;
    case StepKind::kDecode:
      return slo.tpot_ns;
    case StepKind::kIteration:
      return slo.step_ns;
    case StepKind::kUnknown:
    case StepKind::kBestEffort:
      break;
  }
  return slo.latency_ns;
}

void Service::Pace::add(double work_done, double passed_ns, std::uint64_t now_ns) {
  const double kept = std::exp2(-passed_ns / kPaceNs);
  work = kept * work + work_done;
  ns = kept * ns + passed_ns;
  at_ns = now_ns;
}

bool Service::Pace::known(std::uint64_t now_ns) const {
  return ns >= kLeastPaceNs && work > 0 && now_ns - std::min(now_ns, at_ns) < kPaceLastsNs;
}

const Estimate* Service::step_alone(const EstimateStore& store, StepKind kind) const {
  const Estimate* known = store.find(key_of(program_, kind, Quantity::kStepByClock));
  const Estimate* const rested = store.find(key_of(program_, kind, Quantity::kStepAfterRest));
  if (in_lumps_ && rested != nullptr && (known == nullptr || rested->n_eff > known->n_eff))
    return rested;
  if (known != nullptr && (known->n_eff >= kKnownByClock || in_lumps_)) return known;
  known = store.find(key_of(program_, kind, Quantity::kStep));
  return known != nullptr && known->n_eff >= kKnown ? known : nullptr;
}

bool Service::measured_by_clock(const EstimateStore& store, StepKind kind, Quantity what) const {
  const Estimate* const known = store.find(key_of(program_, kind, what));
  return known != nullptr && known->n_eff >= kKnownByClock;
}

bool Service::judged(const EstimateStore& store, StepKind kind) const {
  return judged_ >= kNewestSteps || measured_by_clock(store, kind, Quantity::kStepByClock);
}

std::uint64_t Service::alone_ns(const EstimateStore& store, StepKind kind, bool period) const {
  const Estimate* const known =
      period ? store.find(key_of(program_, kind, Quantity::kBusy)) : step_alone(store, kind);
  if (known == nullptr || (period && known->n_eff < kKnown)) return 0;
  return static_cast<std::uint64_t>(std::exp(known->log_mean + z_ * std::sqrt(known->variance)));
}

void Service::leave() {
  items_.clear();
  measured_.clear();
  working_ = has_steps_ = false;
  sampled_ns_ = 0;
  speed_ = -1;
}

bool Service::counts(std::uint64_t now_ns) const {
  return working_ || has_steps_ || (!items_.empty() && now_ns - idle_ns_ < kRestNs);
}

void Service::begin_step(const Step& step, std::uint64_t ready_ns, const EstimateStore& store) {
  WorkItem item;
  ++begun_;
  item.id = step.id;
  item.kind = step.kind;
  item.seen = item.control = true;
  item.ready_ns = ready_ns;
  item.bound_ns = bound_of(slo_, step.kind);
  item.due_ns = ready_ns + item.bound_ns;
  if (cumulative_) {
    if (step.due_ns != 0)
      item.due_ns = step.due_ns;
    else if (step.request != 0 && step.request == last_request_)
      item.due_ns = last_due_ns_ + item.bound_ns;
  }
  last_request_ = step.request;
  last_due_ns_ = item.promised_ns = item.due_ns;
  // What cannot be met alone is as late as alone, and by kAsAlone of that later.
  const std::uint64_t alone = alone_ns(store, step.kind, false);
  if (ready_ns + alone > item.due_ns) {
    const auto later = static_cast<std::uint64_t>((1 + kAsAlone) * to_double(alone));
    item.due_ns = ready_ns + later;
    item.bound_ns = std::max(item.bound_ns, later);
    item.hopeless = alone > bound_of(slo_, step.kind);
  }
  // The steps before, the client's own word, or as good as for ever.
  item.work_ns = to_double(alone != 0          ? alone
                           : step.work_ns != 0 ? step.work_ns
                                               : kUnknownWork * item.bound_ns);
  items_.push_back(item);
}

double Service::Cycles::mean_ns() const {
  if (count < kKnownPeriods || done_ns >= span_ns) return 0;
  return done_ns / (span_ns - done_ns) * pause_ns / count;
}

void Service::begin_period(std::uint64_t now_ns, const EstimateStore& store) {
  if (began_ns_ != 0 && ended_ns_ > began_ns_) {
    const double kept = 1 - 1 / kNewest;
    cycles_.count = kept * cycles_.count + 1;
    cycles_.done_ns = kept * cycles_.done_ns + last_done_ns_;
    cycles_.pause_ns = kept * cycles_.pause_ns + to_double(now_ns - ended_ns_);
    cycles_.span_ns = kept * cycles_.span_ns + to_double(now_ns - began_ns_);
  }
  began_ns_ = now_ns;
  WorkItem item;
  ++begun_;
  item.kind = phase_;
  item.period = item.seen = true;
  item.ready_ns = now_ns;
  item.due_ns = ~std::uint64_t{0};
  item.lost_from_ns = to_double(kUnknownLostNs);
  const Estimate* const known = store.find(key_of(program_, StepKind::kUnknown, Quantity::kBusy));
  const double mean = cycles_.mean_ns();
  item.control = true;
  if (known != nullptr && known->n_eff >= kKnownPeriods && mean > 0) {
    const double most = std::exp(known->log_mean + z_ * std::sqrt(known->variance));
    const double bound = to_double(slo_.latency_ns);
    item.work_ns = mean;
    item.allowance_ns = bound > most ? bound - most : kAsAlone * std::min(kTailOfMean * mean, most);
    item.lost_from_ns = kLostPeriods * std::max(bound, most);
    item.control = periods_++ % kControls == 0;
  }
  items_.push_back(item);
}

void Service::stops(bool stop) {
  for (WorkItem& item : items_) {
    if (!item.period) continue;
    const double lost = item.worked_ns - item.done_ns;
    if (item.stopped) margin_ns_ = std::max(margin_ns_, lost - item.stopped_ns);
    item.stopped = stop;
    item.stopped_ns = lost;
  }
}

void Service::correct(bool harmed) {
  window_harmed_ += harmed ? 1 : 0;
  if (++window_ < kStepsPerCorrection) return;
  const double permitted = (1 - static_cast<double>(slo_.quantile)) * to_double(window_);
  if (to_double(window_harmed_) > permitted)
    usable_ -= kGiveUp;
  else if (to_double(window_harmed_) <= permitted / 2)
    usable_ += kTakeBack;
  usable_ = std::clamp(usable_, kLeastUsable, 1.0);
  window_ = window_harmed_ = 0;
}

// How well it is counted, and how fast it was by the clock.
void Service::measure(const WorkItem& step, EstimateStore& store, std::uint64_t store_ns) {
  // Where nothing was ever counted in steps alone, it is counted in the pauses.
  const Pace& own = paces_[static_cast<std::size_t>(step.kind)];
  const bool never_counted = own.ns >= kLeastPaceNs && own.work == 0;
  if (step.control && (step.counted || never_counted) && step.worked_ns > 0) {
    const double drained = step.drained ? to_double(kRunAheadNs) : 0;
    const double did = never_counted ? 0 : step.done_ns;
    const double off = std::max(did - step.worked_ns, step.worked_ns - drained - did);
    const double error = std::clamp(off / step.worked_ns, 0.0, 1.0);
    count_error_ += (error - count_error_) / kNewestSteps;
    judged_ = std::min(judged_ + 1, kNewestSteps);
    found_lumps_ = found_lumps_ || (!in_lumps_ && count_error_ > kLumps);
    in_lumps_ = count_error_ > (in_lumps_ ? kLumps / 2 : kLumps);
    store.add(key_of(program_, StepKind::kUnknown, Quantity::kCountError), error, 1, store_ns);
  }
  if (!in_lumps_) return;
  const Estimate* const alone = step_alone(store, step.kind);
  if (!step.runs || step.moved || alone == nullptr) return;
  measured_.push_back({step.kind, step.arrangement, step.worked_ns, std::exp(alone->log_mean),
                       others_work_ - step.others_from});
}

void Service::finish(const WorkItem& item, std::uint64_t now_ns, EstimateStore& store,
                     std::uint64_t store_ns) {
  ++finished_;
  if (!item.period) {
    measure(item, store, store_ns);
    late_ += now_ns > item.promised_ns;
    correct(now_ns > item.due_ns &&
            to_double(item.ready_ns) + item.done_ns <= to_double(item.due_ns));
    if (item.done_ns > 0)
      store.add(key_of(program_, item.kind, Quantity::kStep), std::log(item.done_ns), 1, store_ns);
    if (item.control && item.worked_ns > 0)
      store.add(key_of(program_, item.kind,
                       item.drained ? Quantity::kStepAfterRest : Quantity::kStepByClock),
                std::log(item.worked_ns), 1, store_ns);
    return;
  }
  // A bound that is no number is missed where a period loses more than it may.
  late_ += is_as_alone(slo_.latency_ns)
               ? item.work_ns > 0 && item.worked_ns - item.done_ns > item.allowance_ns
               : item.worked_ns > to_double(slo_.latency_ns);
  ended_ns_ = now_ns;
  last_done_ns_ = item.done_ns;
  margin_ns_ = std::max((1 - kForgets) * margin_ns_, kLeastMarginNs);
  if (item.stopped)
    margin_ns_ = std::max(margin_ns_, item.worked_ns - item.done_ns - item.stopped_ns);
  if (!item.control || item.worked_ns <= 0) return;
  if (item.kind == StepKind::kUnknown)
    paces_[static_cast<std::size_t>(item.kind)].add(item.work, item.worked_ns, now_ns);
  store.add(key_of(program_, StepKind::kUnknown, Quantity::kBusy), std::log(item.worked_ns), 1,
            store_ns);
}

// What it did since the last sample, in the phase that it was in. What it reports after it began to
// pause it did before.
void Service::advance(const Client& client, const Since& since) {
  double passed =
      sampled_ns_ != 0 && since.now_ns > sampled_ns_ ? to_double(since.now_ns - sampled_ns_) : 0;
  if (!working_) passed = 0;
  const double work = to_double(client.progress.work);
  const double done = std::max(0.0, work - before_);
  before_ = work;
  sampled_ns_ = since.now_ns;
  speed_ = -1;
  // Of work of which it is not said what it is, one part is faster than another: only the whole
  // period has a pace. Another service does not wait for the end of the period.
  const bool in_period = !items_.empty() && items_.back().period && phase_ == StepKind::kUnknown;
  const bool tells_pace = !in_period || (since.another && !pace().known(since.now_ns));
  if (since.alone && since.settled && client.reports_progress && tells_pace && passed > 0)
    pace().add(done, passed, since.now_ns);
  double got = since.alone ? passed : 0;  // of what is not known, the worst
  const bool counted = client.reports_progress && pace().known(since.now_ns);
  if (counted) {
    got = done * pace().ns / pace().work;
    if (since.settled && passed > 0) speed_ = got / passed;
  }
  // Where its launches are counted when it has ended it is as fast as other steps were until then.
  const bool in_step =
      std::any_of(items_.begin(), items_.end(), [](const WorkItem& item) { return !item.period; });
  if (in_step && in_lumps_ && since.speed >= 0) got = passed * since.speed;
  bool first = true;               // of the steps
  for (WorkItem& item : items_) {  // one after the other
    // The first part of a period may be shared with what the others had submitted, that of a step
    // that is measured may not.
    const bool alone = since.alone && (item.period || since.settled || since.rested);
    item.control = item.control && (alone || passed == 0);
    item.drained = item.drained || (passed > 0 && !since.settled);
    if (item.period) {
      item.worked_ns += passed;
      item.work += done;
      item.done_ns += got;
      continue;
    }
    if (std::exchange(first, false) && passed > 0) {
      if (!std::exchange(item.runs, true)) {
        item.arrangement = since.arrangement;
        item.others_from = others_work_;
      }
      item.moved = item.moved || item.arrangement != since.arrangement;
      item.counted = item.counted && counted;
      item.worked_ns += passed;
    }
    const bool last = &item == &items_.back() || (&item + 1)->period;
    const double part = last ? got : std::min(got, std::max(0.0, item.work_ns - item.done_ns));
    item.done_ns += part;
    got -= part;
  }
  in_step_ = in_step;
  others_work_ = since.others_work;
}

void Service::sample(const Client& client, ProgramHash program, const Since& since,
                     EstimateStore& store, std::uint64_t store_ns) {
  if (slo_ != client.slo || z_ == 0) {
    slo_ = client.slo;
    z_ = normal_quantile(static_cast<double>(slo_.quantile));
  }
  if (std::exchange(program_, program) != program) {
    const Estimate* const error =
        store.find(key_of(program, StepKind::kUnknown, Quantity::kCountError));
    judged_ = error != nullptr ? std::min(error->n_eff, kNewestSteps) : 0;
    count_error_ = error != nullptr ? error->log_mean * judged_ / kNewestSteps : 0;
    in_lumps_ = count_error_ > kLumps;
  }
  measured_.clear();
  found_lumps_ = false;
  advance(client, since);
  const std::uint64_t now = since.now_ns;
  phase_ = client.phase;
  knows_steps_ = measured_by_clock(store, phase_, Quantity::kStepByClock) ||
                 measured_by_clock(store, phase_, Quantity::kStepAfterRest);
  for (WorkItem& item : items_) item.seen = false;
  has_steps_ = false;
  bool steps = false;
  for (const Step& step : client.steps) {
    if (bound_of(slo_, step.kind) == 0) continue;
    if (is_as_alone(slo_.latency_ns) && bound_of(slo_, step.kind) == slo_.latency_ns) continue;
    const std::uint64_t ready = step.begin_ns != 0 ? step.begin_ns : step.ready_ns;
    if (ready > now + kLeadNs) continue;
    steps = has_steps_ = true;
    auto item = std::find_if(items_.begin(), items_.end(),
                             [&](const WorkItem& u) { return !u.period && u.id == step.id; });
    if (item == items_.end()) {
      begin_step(step, std::min(ready, step.ready_ns != 0 ? step.ready_ns : ready), store);
      item = std::prev(items_.end());
    }
    item->seen = true;
    item->begin_ns = step.begin_ns != 0 && step.begin_ns <= now ? step.begin_ns : kNever;
  }
  const bool worked = std::exchange(working_, works(client));
  if (worked && !working_) {
    idle_ns_ = now - std::min(now, kSaysRestNs);
    for (WorkItem& item : items_)
      if (item.period) item.worked_ns -= std::min(item.worked_ns, to_double(kSaysRestNs));
  }
  const auto period =
      std::find_if(items_.begin(), items_.end(), [](const WorkItem& u) { return u.period; });
  if (period != items_.end()) {
    // A period that is lost is a backlog, which a client that shares may never work off: when the
    // others have had as long as it had, another one begins.
    period->seen = !steps && client.active && period->worked_ns < 2 * period->lost_from_ns;
  }
  for (const WorkItem& item : items_)
    if (!item.seen) finish(item, now, store, store_ns);
  std::erase_if(items_, [](const WorkItem& item) { return !item.seen; });
  if (!steps && working_ && slo_.latency_ns != 0 && items_.empty()) begin_period(now, store);
  std::sort(items_.begin(), items_.end(), [](const WorkItem& a, const WorkItem& b) {
    return std::tie(a.begin_ns, a.due_ns) < std::tie(b.begin_ns, b.due_ns);
  });
  look(now, store);
}

void Service::look(std::uint64_t now_ns, const EstimateStore& store) {
  looks_ = false;
  const auto first =
      std::find_if(items_.begin(), items_.end(), [](const WorkItem& u) { return !u.period; });
  if (first == items_.end()) return;
  const bool unjudged =
      keeps_parts_ && alone_ns(store, first->kind, false) != 0 && !judged(store, first->kind);
  if (!first->hopeless && !unjudged) return;
  const std::uint64_t lasts = kDrainsNs + kInARow * static_cast<std::uint64_t>(first->work_ns);
  if (now_ns - looked_ns_ >= kLooks * lasts) looked_ns_ = now_ns;
  looks_ = now_ns - looked_ns_ < lasts;
}

Service::Slack Service::slack(std::uint64_t now_ns) const {
  Slack worst;
  worst.margin_ns = to_double(kRestNs);
  worst.learns = worst.learns_pace =
      working_ && !pace().known(now_ns) && !(in_lumps_ && knows_steps_);
  worst.again = looks_;
  worst.lost = !items_.empty();
  double at = to_double(now_ns);
  for (const WorkItem& item : items_) {
    if (item.period ? item.worked_ns > item.lost_from_ns
                    : now_ns > item.due_ns + kLost * item.bound_ns)
      continue;
    worst.lost = false;
    double ns = 0, left = item.work_ns;
    if (item.period) {
      worst.in_period = true;
      worst.learns = worst.learns || (item.control && item.work_ns == 0);
      worst.control = item.control;
      worst.margin_ns = margin_ns_ + kReserve * item.allowance_ns;
      ns = item.allowance_ns - (item.worked_ns - item.done_ns);
    } else {
      left = std::max(kOverrun * item.work_ns, item.work_ns - item.done_ns);
      at = std::max(at, to_double(item.ready_ns)) + left;
      ns = to_double(item.due_ns) - (1 - usable_) * to_double(item.bound_ns) - at;
    }
    worst.remaining_ns += left;
    worst.ns = std::min(worst.ns, ns);
    const double room = std::max(0.0, ns - worst.margin_ns);
    const double all = worst.remaining_ns + room;
    worst.need = std::max(worst.need, all > 0 ? worst.remaining_ns / all : 1);
  }
  if (worst.lost) worst.need = kLostNeed;
  return worst;
}

}  // namespace vitamin::scheduler
