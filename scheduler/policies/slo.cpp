// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policies/slo.h"

#include <algorithm>
#include <cmath>

#include "scheduler/policies/throughput.h"

namespace vitamin::scheduler {
namespace {

// Requests of a client between two corrections: 1 % of 300 are 3, the fewest whose excess can be
// told from chance.
constexpr std::uint64_t kWindow = 300;
// A tenth of the bound is given up where too many were late, half as much taken back where less
// than half of the permitted ones were. More than the bound is used where the model is too careful:
// it takes every step at the quantile, and hardly one request has all of its steps there.
constexpr double kGiveUp = 0.1, kTakeBack = 0.02, kLeastUsable = 0.5, kMostUsable = 1.2;

// Of one client's bound and deviation, a bound that holds with this much room alone is feasible.
constexpr double kKnownSteps = 20;  // steps whose scatter says what alone takes

// Configurations that were not measured may be better than the model says by so many of its errors.
constexpr double kHope = 1.5;
constexpr double kSlowest = -20;  // log of a speed: slower is as good as paused
// So many steps may try a configuration that the model would not choose, then one for each
// thousand that q = 0.99 allows a hundredth of: a tenth of the permitted misses.
constexpr std::uint64_t kFreeProbes = 8;
constexpr double kProbeShare = 0.1;

// A change of the configuration costs about this much (run-ahead, a kernel, the revocation); what
// is left of a step must be worth it, and counters are read behind it.
constexpr double kChangeNs = 5e6;
// Others get more in the middle of a step no sooner than ten changes after the last.
constexpr double kRelaxNs = 10 * kChangeNs;
// Less slack than this is none: rounding.
constexpr double kNoSlackNs = -1e4;
constexpr std::uint64_t kLeastMeasureNs = 2'000'000, kMostMeasureNs = 100'000'000;

// A step that is late by so many bounds is lost, and others wait for it no longer: a step that
// never ends, or a client that is given more requests than it can serve.
constexpr std::uint64_t kLost = 4;
// Where the bound is no number but `as alone`, and that is not known yet, after so long.
constexpr std::uint64_t kNoNumberNs = 1'000, kUnknownLostNs = 1'000'000'000;

// Work of which nothing is known is taken to be so many times its bound: it runs alone, which is
// where it is learned what it takes.
constexpr std::uint64_t kUnknownWork = 100;

// A step that has done all that was expected of it has this part of it left.
constexpr double kOverrun = 0.05;

// Slack is looked at so often while a bounded client works.
constexpr std::uint64_t kLooksInBound = 20, kLeastLookNs = 1'000'000, kMostLookNs = 20'000'000;

// A client whose step is announced for within this time counts as working: others are moved out of
// its way meanwhile.
constexpr std::uint64_t kLeadNs = 5'000'000;

// Of the paper's reservation: what a step takes on it at the quantile is below the bound by this
// part, for what neighbors cost it.
constexpr double kStandingRoom = 0.9;

// x with P(normal <= x) = p.
double normal_quantile(double p) {
  double low = -8, high = 8;
  for (int i = 0; i < 60; ++i) {
    const double x = (low + high) / 2;
    (0.5 * std::erfc(-x / std::sqrt(2.0)) < p ? low : high) = x;
  }
  return high;
}

double survival(double z) { return 0.5 * std::erfc(z / std::sqrt(2.0)); }

// Of a log-normal length that has lasted for `done` already: what remains, at the quantile whose
// complement is `tail`.
double residual_ns(double log_mean, double sd, double done, double tail) {
  const double from = done > 0 ? survival((std::log(done) - log_mean) / sd) : 1;
  double low = done, high = std::max(2 * done, std::exp(log_mean + 6 * sd));
  if (from <= 1e-12) return done;  // longer than any before: as long again
  for (int i = 0; i < 40; ++i) {
    const double x = (low + high) / 2;
    (survival((std::log(x) - log_mean) / sd) > tail * from ? low : high) = x;
  }
  return high - done;
}

std::uint64_t bound_of(const Slo& slo, StepKind kind) {
  if (kind == StepKind::kPrefill && slo.ttft_ns != 0) return slo.ttft_ns;
  if (kind == StepKind::kDecode && slo.tpot_ns != 0) return slo.tpot_ns;
  if (kind == StepKind::kIteration && slo.step_ns != 0) return slo.step_ns;
  return slo.latency_ns;
}

double to_double(std::uint64_t ns) { return static_cast<double>(ns); }

}  // namespace

SloPolicy::SloPolicy(const SloOptions& options, Estimator& estimator,
                     std::span<const Partition> pool)
    : options_(options), estimator_(estimator), pool_(pool) {
  ThroughputOptions rest;
  rest.objective = options.objective;
  others_ = make_throughput(rest, estimator, pool).allocation;
  for (const Partition& left : pool_)
    for (const Partition& right : pool_) {
      if (left.whole() || right.whole() || right.compute != pool_.front().compute - left.compute)
        continue;
      if (std::none_of(splits_.begin(), splits_.end(),
                       [&](const Split& s) { return pool_[s.left].processors == left.processors; }))
        splits_.push_back({left.id, right.id});
    }
}

bool SloPolicy::is_bounded(ClientId client) const {
  return std::any_of(bounded_.begin(), bounded_.end(),
                     [&](const Bounded& b) { return b.client == client && b.present; });
}

void SloPolicy::forget(ClientId client) {
  std::erase_if(bounded_, [&](const Bounded& b) { return b.client == client; });
  built_for_.clear();
  chosen_ = kNone;
  others_->forget(client);
}

double SloPolicy::remaining_ns(const Bounded& bounded, const Unit& unit) const {
  // What has taken longer than expected is not about to end.
  const double known_ns = std::max(kOverrun * unit.work_ns, unit.work_ns - unit.done_ns);
  if (!unit.period) return known_ns;
  const Estimate* const known =
      estimator_.store().find({bounded.program, kByItself, 0, bounded.phase, Quantity::kBusy});
  // Of nothing is known how long it takes: as long as its bound.
  if (known == nullptr || known->n_eff < 1) return known_ns;
  const double sd = std::max(0.05, std::sqrt(known->variance));
  return residual_ns(known->log_mean, sd, unit.done_ns,
                     1 - static_cast<double>(bounded.slo.quantile));
}

// The bound's quantile of what the work of a client takes alone; 0: unknown.
std::uint64_t SloPolicy::alone_ns(const Bounded& bounded, StepKind kind, bool period) const {
  const Estimate* const known = estimator_.store().find(
      {bounded.program, kByItself, 0, kind, period ? Quantity::kBusy : Quantity::kStep});
  if (known == nullptr || known->n_eff < kKnownSteps) return 0;
  return static_cast<std::uint64_t>(
      std::exp(known->log_mean + bounded.z * std::sqrt(known->variance)));
}

void SloPolicy::start(Bounded& bounded, const Step* step, std::uint64_t id,
                      std::uint64_t since_ns) {
  Unit unit;
  unit.id = id;
  unit.period = step == nullptr;
  unit.kind = step != nullptr ? step->kind : bounded.phase;
  unit.request = step != nullptr ? step->request : 0;
  unit.ready_ns = since_ns;
  unit.bound_ns = bound_of(bounded.slo, unit.kind);
  const std::uint64_t promised_ns = unit.bound_ns;
  const std::uint64_t alone = alone_ns(bounded, unit.kind, unit.period);
  unit.known = alone != 0;
  // What cannot be met alone is as late as alone, and not later.
  if (alone > unit.bound_ns) unit.bound_ns = alone;
  unit.due_ns = since_ns + unit.bound_ns;
  if (step != nullptr && step->due_ns != 0 && options_.cumulative) {
    unit.due_ns = step->due_ns;
  } else if (options_.cumulative && unit.request != 0 && unit.request == bounded.last_request) {
    unit.due_ns = bounded.last_due_ns + unit.bound_ns;
  }
  unit.promised_ns = unit.due_ns - (unit.bound_ns - promised_ns);
  bounded.last_request = unit.request;
  bounded.last_due_ns = unit.due_ns;
  // The client's own word, the steps before, or as long as the bound.
  unit.work_ns = to_double(alone != 0                              ? alone
                           : step != nullptr && step->work_ns != 0 ? step->work_ns
                                                                   : kUnknownWork * unit.bound_ns);
  bounded.units.push_back(unit);
  probing_ = false;
}

void SloPolicy::finish(Bounded& bounded, const Unit& unit, std::uint64_t now_ns) {
  // A busy period ended when its client's busy time ended, which is seen at the next call.
  if (unit.period && bounded.busy_ns > unit.busy_ns)
    now_ns = std::min(now_ns, unit.ready_ns + (bounded.busy_ns - unit.busy_ns));
  if (unit.done_ns > 0)
    estimator_.store().add(
        {bounded.program, kByItself, 0, unit.kind, unit.period ? Quantity::kBusy : Quantity::kStep},
        std::log(unit.done_ns), 1, estimator_.time_ns());
  ++bounded.finished, ++bounded.window;
  bounded.late += now_ns > unit.promised_ns;
  bounded.window_late += now_ns > unit.due_ns;
  if (bounded.window < kWindow) return;
  const double permitted =
      (1 - static_cast<double>(bounded.slo.quantile)) * to_double(bounded.window);
  if (to_double(bounded.window_late) > permitted)
    bounded.usable -= kGiveUp;
  else if (to_double(bounded.window_late) <= permitted / 2)
    bounded.usable += kTakeBack;
  bounded.usable = std::clamp(bounded.usable, kLeastUsable, kMostUsable);
  bounded.window = bounded.window_late = 0;
}

// Units of one client: those that have begun or are about to, and those that have ended.
void SloPolicy::follow(Bounded& bounded, const Client& client, std::uint64_t now_ns) {
  for (Unit& unit : bounded.units) unit.seen = false;
  const std::uint64_t busy =
      client.reports_progress
          ? client.progress.busy_ns - std::min(client.progress.busy_ns, bounded.busy_ns)
          : 0;
  bounded.busy_ns = client.progress.busy_ns;
  const std::uint64_t since =
      now_ns - std::min({busy, now_ns, now_ns - std::min(now_ns, bounded.looked_ns)});
  bounded.looked_ns = now_ns;
  bool steps = false;
  bounded.counted = client.active;
  for (const Step& step : client.steps) {
    steps = true;
    const std::uint64_t ready = step.begin_ns != 0 ? step.begin_ns : step.ready_ns;
    if (ready > now_ns + kLeadNs || bound_of(bounded.slo, step.kind) == 0) continue;
    bounded.counted = true;
    const auto known = std::find_if(bounded.units.begin(), bounded.units.end(),
                                    [&](const Unit& u) { return !u.period && u.id == step.id; });
    if (known != bounded.units.end())
      known->seen = true;
    else {
      start(bounded, &step, step.id, std::min(ready, step.ready_ns != 0 ? step.ready_ns : ready));
      bounded.units.back().seen = true;
    }
  }
  const bool working = std::any_of(client.streams.begin(), client.streams.end(), [](const auto& s) {
    return s.state != StreamDemand::State::kIdle;
  });
  if (!steps && working && bound_of(bounded.slo, bounded.phase) != 0) {
    auto known = std::find_if(bounded.units.begin(), bounded.units.end(),
                              [](const Unit& u) { return u.period; });
    if (known != bounded.units.end()) {
      const std::uint64_t lost_from = lost_from_ns(*known);
      if (now_ns > lost_from && now_ns - lost_from > lost_from - known->ready_ns) {
        known->done_ns = 0;  // how long it takes is not seen
        finish(bounded, *known, now_ns);
        bounded.units.erase(known);
        known = bounded.units.end();
      }
    }
    if (known != bounded.units.end())
      known->seen = true;
    else {
      start(bounded, nullptr, now_ns, since);
      bounded.units.back().seen = true;
      bounded.units.back().busy_ns = bounded.busy_ns - (now_ns - since);
    }
  }
  for (const Unit& unit : bounded.units)
    if (!unit.seen) finish(bounded, unit, now_ns);
  std::erase_if(bounded.units, [](const Unit& unit) { return !unit.seen; });
  std::sort(bounded.units.begin(), bounded.units.end(),
            [](const Unit& a, const Unit& b) { return a.due_ns < b.due_ns; });
}

// What the present configuration has done for every unit since the last call.
void SloPolicy::work(std::uint64_t now_ns) {
  // The clock may jump, and the policy is called more often than this.
  const double passed =
      now_ns > worked_ns_ ? to_double(std::min(now_ns - worked_ns_, 2 * kMostMeasureNs)) : 0;
  worked_ns_ = now_ns;
  if (chosen_ == kNone || chosen_ >= table_.size()) return;
  const Option& option = table_[chosen_];
  double best = 0;
  for (const Option& other : table_) best = std::max(best, other.harvest);
  got_ += passed * option.harvest;
  could_ += passed * best;
  for (std::size_t i = 0; i < bounded_.size(); ++i) {
    double done = passed * speeds_[option.speeds + i].mean;
    for (Unit& unit : bounded_[i].units) {  // one after the other
      const double room = unit.period ? done : std::max(0.0, unit.work_ns - unit.done_ns);
      const bool last = &unit == &bounded_[i].units.back();
      const double part = last ? done : std::min(done, room);
      unit.done_ns += part;
      done -= part;
    }
  }
}

// True: some client with a bound has work, or is about to.
bool SloPolicy::look(const Snapshot& snapshot) {
  for (Bounded& bounded : bounded_) bounded.present = false;
  bool any = false;
  for (const Client& client : snapshot.clients) {
    if (!client.slo.any()) continue;
    auto at = std::lower_bound(bounded_.begin(), bounded_.end(), client.id,
                               [](const Bounded& b, ClientId id) { return b.client < id; });
    if (at == bounded_.end() || at->client != client.id) {
      at = bounded_.insert(at, Bounded{});
      at->client = client.id;
      built_for_.clear();
      chosen_ = kNone;  // speeds are by index
    }
    at->present = true;
    if (at->slo != client.slo || at->z == 0) {
      at->slo = client.slo;
      at->z = normal_quantile(static_cast<double>(client.slo.quantile));
    }
    at->phase = client.phase;
    at->program = estimator_.program(client.id);
    follow(*at, client, snapshot.now_ns);
    any = any || at->counted;
  }
  for (Bounded& bounded : bounded_)
    if (!bounded.present) bounded.units.clear(), bounded.counted = false;
  return any;
}

void SloPolicy::add_option(const Snapshot& snapshot, PartitionId left, PartitionId right) {
  Option option;
  option.begin = assignments_.size();
  std::size_t inside = 0, outside = 0;
  for (const Client& client : snapshot.clients) {
    const bool bounded = is_bounded(client.id);
    if (bounded ? std::none_of(bounded_.begin(), bounded_.end(),
                               [&](const Bounded& b) { return b.client == client.id && b.counted; })
                : !client.active)
      continue;
    ++(bounded ? inside : outside);
    const PartitionId at = bounded ? left : right;
    if (at == kNoPartition) continue;
    if (client.limits.max_sms != 0 && pool_[at].processors > client.limits.max_sms && !bounded &&
        at != kWholeDevice)
      return assignments_.resize(option.begin);
    assignments_.push_back({client.id, at, Mode::kShared});
  }
  for (std::size_t i = option.begin; i < assignments_.size(); ++i) {
    Assignment& a = assignments_[i];
    const bool single = (is_bounded(a.client) ? inside : outside) == 1;
    if (single && a.partition != kWholeDevice) a.mode = Mode::kExclusive;
  }
  option.count = assignments_.size() - option.begin;
  if (left != kWholeDevice)
    option.left_sms = pool_[left].processors;
  else if (right == kNoPartition)
    option.left_sms = pool_.front().processors;
  option.speeds = speeds_.size();
  speeds_.resize(speeds_.size() + bounded_.size());
  table_.push_back(option);
  refresh(snapshot, table_.back());
}

// The configurations of the clients that are active now.
void SloPolicy::build(const Snapshot& snapshot) {
  wanted_.clear();
  bool others = false;
  for (const Client& client : snapshot.clients) {
    const auto bounded = std::find_if(bounded_.begin(), bounded_.end(),
                                      [&](const Bounded& b) { return b.client == client.id; });
    const bool in =
        bounded != bounded_.end() && bounded->present ? bounded->counted : client.active;
    if (!in) continue;
    wanted_.push_back(client.id);
    others = others || !is_bounded(client.id);
  }
  if (wanted_ == built_for_ && !table_.empty()) {
    refreshed_ = (refreshed_ + 1) % table_.size();  // one a call: what was learned meanwhile
    return refresh(snapshot, table_[refreshed_]);
  }
  built_for_ = wanted_;
  assignments_.clear(), table_.clear(), speeds_.clear();
  chosen_ = kNone;
  add_option(snapshot, kWholeDevice, kWholeDevice);
  if (!others) return;
  for (const Split& split : splits_) add_option(snapshot, split.left, split.right);
  add_option(snapshot, kWholeDevice, kNoPartition);  // the others are paused
}

void SloPolicy::refresh(const Snapshot& snapshot, Option& option) {
  const std::span<const Assignment> has = assignments(option);
  const std::uint64_t hash = estimator_.hash_of(has);
  option.harvest = 0;
  option.measured = true;
  for (std::size_t i = 0; i < bounded_.size(); ++i) {
    const Estimator::LogSpeed speed = estimator_.log_speed(bounded_[i].client, has, hash);
    // Alone on the whole device its speed is 1 by definition.
    const bool by_itself = has.size() == 1 && has.front().client == bounded_[i].client &&
                           has.front().partition == kWholeDevice;
    if (by_itself)
      speeds_[option.speeds + i] = {};
    else
      speeds_[option.speeds + i] = {
          std::exp(std::max(kSlowest, speed.log_mean)),
          std::clamp(std::exp(speed.log_mean + kHope * speed.error), 1e-9, 1.0)};
    if (bounded_[i].counted && !by_itself) option.measured = option.measured && speed.measured;
  }
  for (const Client& client : snapshot.clients)
    if (client.active && !is_bounded(client.id))
      option.harvest += static_cast<double>(client.weight) *
                        std::exp(estimator_.log_speed(client.id, has, hash).log_mean);
}

std::uint64_t SloPolicy::lost_from_ns(const Unit& unit) {
  if (!unit.known && unit.bound_ns < kNoNumberNs) return unit.due_ns + kUnknownLostNs;
  return unit.due_ns + kLost * unit.bound_ns;
}

SloPolicy::Outlook SloPolicy::outlook(const Option& option, std::uint64_t now_ns) const {
  Outlook worst{1e18, 1e18};
  for (std::size_t i = 0; i < bounded_.size(); ++i) {
    const Bounded& bounded = bounded_[i];
    const Speed& speed = speeds_[option.speeds + i];
    const double hope = option.measured ? speed.mean : speed.hope;
    double at = to_double(now_ns), hopeful = at;
    for (const Unit& unit : bounded.units) {  // in the order in which they are due
      if (now_ns > lost_from_ns(unit)) continue;
      const double ready = to_double(unit.ready_ns), left = remaining_ns(bounded, unit);
      at = std::max(at, ready) + left / speed.mean;
      hopeful = std::max(hopeful, ready) + left / hope;
      const double due = to_double(unit.due_ns) - (1 - bounded.usable) * to_double(unit.bound_ns);
      worst.slack_ns = std::min(worst.slack_ns, due - at);
      worst.hopeful_ns = std::min(worst.hopeful_ns, due - hopeful);
    }
  }
  return worst;
}

bool SloPolicy::may_probe() const {
  double allowed = static_cast<double>(kFreeProbes);
  for (const Bounded& b : bounded_)
    allowed += kProbeShare * (1 - static_cast<double>(b.slo.quantile)) * to_double(b.finished);
  return static_cast<double>(probes_) < allowed;
}

// tpot-first: the narrowest part that meets the bound of a token.
void SloPolicy::stand(std::uint64_t now_ns) {
  static_cast<void>(now_ns);
  for (std::size_t i = 0; i < bounded_.size(); ++i) {
    Bounded& bounded = bounded_[i];
    if (bounded.slo.tpot_ns == 0) continue;
    const std::uint64_t alone = alone_ns(bounded, StepKind::kDecode, false);
    if (alone == 0) continue;
    PartitionId best = kNoPartition;
    for (const Option& option : table_) {
      if (option.left_sms == 0 || option.left_sms == pool_.front().processors) continue;
      const double speed = speeds_[option.speeds + i].mean;
      if (to_double(alone) / speed > kStandingRoom * to_double(bounded.slo.tpot_ns)) continue;
      if (best == kNoPartition || option.left_sms < pool_[best].processors)
        for (const Assignment& a : assignments(option))
          if (a.client == bounded.client) best = a.partition;
    }
    if (best != kNoPartition) bounded.standing = best;
  }
}

std::size_t SloPolicy::choose(std::uint64_t now_ns) {
  std::uint32_t least_left = 0;
  if (options_.standing) {
    stand(now_ns);
    for (const Bounded& bounded : bounded_)
      if (bounded.counted && bounded.standing != kNoPartition)
        least_left = std::max(least_left, pool_[bounded.standing].processors);
  }
  std::size_t best = kNone, safest = 0, hoped = kNone;
  double best_harvest = -1, most_slack = -1e19, hoped_harvest = -1;
  Outlook of_chosen{-1, -1};
  for (std::size_t i = 0; i < table_.size(); ++i) {
    const Option& option = table_[i];
    if (option.left_sms < least_left) continue;
    const Outlook outlook = this->outlook(option, now_ns);
    if (i == chosen_) of_chosen = outlook;
    // Ten microseconds are nothing; among such equals the more protective comes last and wins.
    if (outlook.slack_ns >= most_slack - 1e4)
      safest = i, most_slack = std::max(most_slack, outlook.slack_ns);
    if (outlook.slack_ns >= kNoSlackNs && option.harvest > best_harvest)
      best = i, best_harvest = option.harvest;
    if (!option.measured && outlook.hopeful_ns >= 0 && option.harvest > hoped_harvest)
      hoped = i, hoped_harvest = option.harvest;
  }
  if (best == kNone) best = safest;
  // One unit at a time tries what the model would not choose, if that promises the others more.
  if (probing_ && chosen_ != kNone && of_chosen.hopeful_ns >= 0) return chosen_;
  if (hoped != kNone && hoped != best && hoped_harvest > 1.02 * table_[best].harvest &&
      may_probe()) {
    ++probes_;
    probing_ = true;
    return hoped;
  }
  // What is in force stays where it is as good, or where too little is left to gain by a change.
  const bool idle = of_chosen.slack_ns > 1e17;
  if (chosen_ != kNone && of_chosen.slack_ns >= kNoSlackNs &&
      (table_[best].harvest <= 1.02 * table_[chosen_].harvest ||
       (!idle && to_double(now_ns - changed_ns_) < kRelaxNs)))
    return chosen_;
  return best;
}

// Feeds what the clients did under a configuration that has been in force for long enough.
void SloPolicy::measure(const Snapshot& snapshot) {
  const std::uint64_t now = snapshot.now_ns;
  const bool valid = chosen_ != kNone && !before_.empty() && measured_from_ns_ != 0;
  if (valid && now - measured_from_ns_ < kLeastMeasureNs) return;
  if (valid)
    estimator_.observe(assignments(table_[chosen_]), before_, snapshot.clients,
                       now - measured_from_ns_);
  before_.assign(snapshot.clients.begin(), snapshot.clients.end());
  measured_from_ns_ = now;
}

void SloPolicy::write(const Snapshot& snapshot, Allocation& out) const {
  const std::span<const Assignment> has = assignments(table_[chosen_]);
  for (const Client& client : snapshot.clients) {
    const auto bounded = std::find_if(bounded_.begin(), bounded_.end(), [&](const Bounded& b) {
      return b.client == client.id && b.present;
    });
    const auto at = std::find_if(has.begin(), has.end(),
                                 [&](const Assignment& a) { return a.client == client.id; });
    const bool stands =
        bounded != bounded_.end() && options_.standing && bounded->standing != kNoPartition;
    if (!client.active && at == has.end() && !stands) continue;
    Row& row = out.rows.emplace_back();
    row.client = client.id;
    row.mode = Mode::kPaused;
    if (at != has.end()) row.partition = at->partition, row.mode = at->mode;
    if (bounded != bounded_.end()) {
      row.hold = stands || (!client.active && at != has.end());
      if (stands && at == has.end()) row.partition = bounded->standing, row.mode = Mode::kExclusive;
    } else {
      row.rank = 1;
      row.run_ahead_ns = kRunAheadNs;
    }
  }
}

void SloPolicy::allocate(const Snapshot& snapshot, Allocation& out) {
  const std::uint64_t now = snapshot.now_ns;
  work(now);
  const bool any = look(snapshot);
  bool stands = false;
  for (const Bounded& b : bounded_) stands = stands || (b.present && b.standing != kNoPartition);
  if (!any && !(options_.standing && stands)) {
    chosen_ = kNone;
    measured_from_ns_ = 0;
    return others_->allocate(snapshot, out);
  }
  for (Bounded& b : bounded_)  // a standing partition is kept of all others by a client that idles
    if (options_.standing && b.present && b.standing != kNoPartition) b.counted = true;
  // Behind a change counters are read when it has settled.
  if (chosen_ != kNone && to_double(now - changed_ns_) >= kChangeNs / 2) measure(snapshot);
  estimator_.enter(snapshot.clients, options_.objective, now);
  estimator_.discard();  // no block of `others_` goes on
  build(snapshot);
  const std::size_t next = choose(now);
  if (next != chosen_) {
    chosen_ = next;
    changed_ns_ = now;
    measured_from_ns_ = 0;
    before_.clear();
  }
  write(snapshot, out);
  std::uint64_t wake = kNever;
  for (const Bounded& b : bounded_)
    for (const Unit& unit : b.units)
      wake = std::min(wake,
                      now + std::clamp(unit.bound_ns / kLooksInBound, kLeastLookNs, kMostLookNs));
  out.wake_ns = wake != kNever ? wake : now + kMostMeasureNs;
}

namespace {

constexpr Parameter kParameters[] = {
    {"objective", "of clients without a bound while no other has work: as of throughput"}};
constexpr Parameter kTpotParameters[] = {
    {"cumulative",
     "deadlines of the tokens of a request add up: yes (default), or no as in the "
     "paper"}};

}  // namespace

Policy make_slo(const SloOptions& options, Estimator& estimator, std::span<const Partition> pool) {
  PolicyDescription description;
  description.name = "slo";
  description.summary = "latency bounds of classes are met, the other clients get what is left";
  description.parameters = kParameters;
  description.keeps_bounds = true;
  description.weighs = true;
  description.uses_steps = true;
  description.uses_progress = true;
  return {description, std::make_unique<SloPolicy>(options, estimator, pool), nullptr};
}

Policy make_tpot_first(const SloOptions& options, Estimator& estimator,
                       std::span<const Partition> pool) {
  SloOptions standing = options;
  standing.standing = true;
  Policy policy = make_slo(standing, estimator, pool);
  policy.description.name = "tpot-first";
  policy.description.summary = "the paper's TPOT-First: decodes keep a partition of their own";
  policy.description.parameters = kTpotParameters;
  return policy;
}

}  // namespace vitamin::scheduler
