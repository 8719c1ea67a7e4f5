// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policies/slo.h"

#include <algorithm>
#include <array>
#include <utility>

#include "scheduler/policies/throughput.h"

namespace vitamin::scheduler {
namespace {

// Behind a change the work that was submitted before it drains: for so long nothing is measured.
constexpr std::uint64_t kSettlesNs = 2 * kRunAheadNs;
// Counters are read so often while a service works: beside others, alone.
constexpr std::uint64_t kLeastSampleNs = 1'000'000, kBesideNs = 2'000'000, kAloneNs = 10'000'000;
// Services on both sides keep an arrangement for so long; with so much headroom there, the others
// may go on, too.
constexpr std::uint64_t kDwellsNs = 10'000'000;
constexpr double kRoom = 1.5;
// Of the paper's reservation: what a step takes on it at the quantile is below the bound by this
// part, for what neighbors cost it.
constexpr double kKeptRoom = 0.9;
// An arrangement is tried once for so many steps that the quantile permits to be late: half of
// them are left for what the bound itself costs.
constexpr double kMissesPerTrial = 2;

double to_double(std::uint64_t ns) { return static_cast<double>(ns); }

}  // namespace

SloPolicy::SloPolicy(const SloOptions& options, Estimator& estimator,
                     std::span<const Partition> pool)
    : options_(options), estimator_(estimator), arrangements_(pool) {
  ThroughputOptions rest;
  rest.objective = options.objective;
  others_ = make_throughput(rest, estimator, pool).allocation;
}

void SloPolicy::forget(ClientId client) {
  std::erase_if(services_,
                [&](const ServiceState& state) { return state.service.client() == client; });
  others_->forget(client);
}

// What the clients without a bound have completed since the last call, by weight.
double SloPolicy::count_others(const Snapshot& snapshot) {
  counted_.clear();
  double done = 0;
  others_run_ = false;
  auto known = before_.begin();
  for (const Client& client : snapshot.clients) {
    if (client.slo.any()) continue;
    others_run_ = others_run_ || client.active;
    const double work = to_double(client.progress.work);
    while (known != before_.end() && known->client < client.id) ++known;
    if (known != before_.end() && known->client == client.id)
      done += static_cast<double>(client.weight) * std::max(0.0, work - known->work);
    counted_.push_back({client.id, work});
  }
  before_.swap(counted_);
  return done;
}

// True: some service works, or is about to.
bool SloPolicy::sample(const Snapshot& snapshot) {
  const std::uint64_t now = snapshot.now_ns;
  Service::Since since;
  since.now_ns = now;
  // A service that begins while the others have the device finds what they have submitted.
  since.settled = chosen_ != kNone && sampled_ns_ >= changed_ns_ + kSettlesNs;
  since.rested = rested_;
  since.another = situation_.two();
  since.arrangement = chosen_;
  since.others_work = others_work_;
  if (chosen_ < arrangements_.right_paused() && !situation_.two())
    since.speed = arrangements_.speed(chosen_, situation_, now);
  for (ServiceState& state : services_) state.present = false;
  bool any = false;
  auto at = services_.begin();
  for (const Client& client : snapshot.clients) {
    if (!client.slo.any()) continue;
    while (at != services_.end() && at->service.client() < client.id) ++at;
    if (at == services_.end() || at->service.client() != client.id)
      at = services_.insert(
          at, ServiceState{Service(client.id, options_.cumulative, options_.keeps_parts)});
    at->present = true;
    since.alone = is_alone(*at, chosen_);
    at->service.sample(client, estimator_.program(client.id), since, estimator_.store(),
                       estimator_.time_ns());
    any = any || at->service.counts(now);
  }
  for (ServiceState& state : services_)
    if (!state.present) state.service.leave();
  return any;
}

// What services on one side did in steps that have ended, of those whose work is counted in lumps.
// True: there is such a service, and the time since the last sample belongs to a step of it.
bool SloPolicy::measure_steps(std::uint64_t now_ns) {
  // What was measured of it before was of lumps.
  for (const ServiceState& state : services_)
    if (state.service.found_lumps()) arrangements_.forget();
  if (situation_.two()) return false;
  bool any = false;
  for (const ServiceState& state : services_) {
    any = any || state.service.by_the_clock();
    for (const Service::Measured& step : state.service.measured())
      if (step.arrangement < arrangements_.right_paused())
        arrangements_.observe(step.arrangement, {step.kind}, step.passed_ns,
                              {std::min(step.alone_ns, step.passed_ns), 0, step.others_work},
                              now_ns);
  }
  return any;
}

// What has been done since the last sample under what was in force.
void SloPolicy::measure(std::uint64_t now_ns, double passed_ns, double work) {
  const bool in_steps = measure_steps(now_ns);
  if (sampled_ns_ < changed_ns_ + kSettlesNs || passed_ns <= 0) return;
  if (chosen_ == kNone) return arrangements_.observe_idle(passed_ns, work);
  std::array<double, 2> slowest{-1, -1};  // left, right
  for (const ServiceState& state : services_)
    if (const double speed = state.service.speed(); speed >= 0) {
      double& side = slowest[state.right];
      side = side < 0 ? speed : std::min(side, speed);
    }
  got_ += work;
  could_ += passed_ns * arrangements_.most(situation_.left);
  const auto [left, right] = slowest;
  if (in_steps || left < 0 || (situation_.two() && (right < 0 || admits_))) return;
  arrangements_.observe(chosen_, situation_, passed_ns,
                        {left * passed_ns, std::max(right, 0.0) * passed_ns, work}, now_ns);
}

bool SloPolicy::keeps_a_part() const {
  return std::any_of(services_.begin(), services_.end(),
                     [](const ServiceState& state) { return state.kept_arrangement != 0; });
}

// tpot-first: the narrowest part that meets the bound of a token.
void SloPolicy::find_kept_parts(std::uint64_t now_ns) {
  for (ServiceState& state : services_) {
    const std::uint64_t tpot = state.service.slo().tpot_ns;
    if (tpot == 0) {  // a reload removed it
      state.kept_arrangement = state.untried = 0;
      continue;
    }
    const std::uint64_t alone =
        state.service.alone_ns(estimator_.store(), StepKind::kDecode, false);
    if (alone == 0 || !state.service.judged(estimator_.store(), StepKind::kDecode)) {
      state.kept_arrangement = state.untried = 0;
      continue;
    }
    const Arrangements::Narrowest found =
        arrangements_.narrowest(to_double(alone), kKeptRoom * to_double(tpot), decodes_, now_ns);
    state.kept_arrangement = found.known == arrangements_.right_paused() ? 0 : found.known;
    state.untried = found.untried == arrangements_.right_paused() ? 0 : found.untried;
  }
}

// Of what has work, or a kept part: the shortest bound is on the left, and all others on the right.
void SloPolicy::take_sides(std::uint64_t now_ns) {
  using Group = std::pair<std::uint64_t, StepKind>;
  const auto group = [](const ServiceState& state) {
    const StepKind phase = state.service.phase();
    return Group{state.service.bound_ns(),
                 phase == StepKind::kBestEffort ? StepKind::kUnknown : phase};
  };
  constexpr Group kNoGroup{kNever, StepKind::kBestEffort};
  Group left = kNoGroup, right = kNoGroup;
  for (const ServiceState& state : services_)
    if (state.kept_arrangement != 0 || state.service.counts(now_ns))
      left = std::min(left, group(state));
  for (const ServiceState& state : services_)
    if (group(state) != left && (state.kept_arrangement != 0 || state.service.counts(now_ns)))
      right = std::min(right, group(state));
  bool moved = false;
  for (ServiceState& state : services_) {
    const bool on_right = right != kNoGroup && group(state) != left;
    moved = std::exchange(state.right, on_right) != on_right || moved;
  }
  if (moved) changed_ns_ = now_ns, rested_ = false;  // what the other side submitted drains
  situation_ = {left.second, right.second};
  if (situation_.left == StepKind::kDecode && (situation_.two() || others_run_))
    decodes_ = situation_;
}

// Of the service that can lose least.
Service::Slack SloPolicy::worst(std::uint64_t now_ns) const {
  Service::Slack worst;
  bool live = false;
  for (const ServiceState& state : services_) {
    const Service::Slack slack = state.service.slack(now_ns);
    worst.learns = worst.learns || slack.learns || slack.control || slack.again;
    worst.lost = worst.lost || slack.lost;
    worst.in_period = worst.in_period || slack.in_period;
    live = live || slack.ns < worst.ns;
    if (slack.ns >= worst.ns) continue;
    worst.ns = slack.ns;
    worst.margin_ns = slack.margin_ns;
    worst.remaining_ns = slack.remaining_ns;
  }
  worst.lost = worst.lost && !live;
  return worst;
}

SloPolicy::KeptParts SloPolicy::kept_parts() const {
  KeptParts parts;
  for (const ServiceState& state : services_) {
    parts.arrangement = std::max(parts.arrangement, state.kept_arrangement);
    parts.untried = std::max(parts.untried, state.untried);
  }
  return parts;
}

std::size_t SloPolicy::best_arrangement(const KeptParts& parts, const Service::Slack& slack,
                                        std::uint64_t now_ns) const {
  const StepKind phase = situation_.left;
  if (parts.untried != 0 && arrangements_.bears(parts.untried, slack, phase)) return parts.untried;
  if (parts.arrangement == 0) return arrangements_.choose(slack, phase, now_ns);
  const bool bears = arrangements_.bears(parts.arrangement, slack, phase);
  return bears ? parts.arrangement : arrangements_.right_paused();
}

std::size_t SloPolicy::to_try(const KeptParts& parts, std::size_t best,
                              std::uint64_t now_ns) const {
  if (parts.untried != 0) return parts.untried;
  // One that is given up before it is measured is not known either.
  return best == arrangements_.right_paused() ? arrangements_.untried(situation_.left, now_ns)
                                              : best;
}

// Once for what the services have under way: a change costs a drain.
std::size_t SloPolicy::choose(std::uint64_t now_ns) {
  const std::size_t alone = arrangements_.right_paused();
  if (!others_run_) return alone;
  const Service::Slack slack = worst(now_ns);
  Occasion occasion{situation_, 0, slack.lost, slack.learns};
  for (const ServiceState& state : services_) occasion.begun += state.service.begun();
  tried_ = std::min(tried_, occasion.begun);  // the steps of a service that left are not counted
  if (chosen_ != kNone && occasion == occasion_)
    return trying_ || arrangements_.bears(chosen_, slack, situation_.left) ? chosen_ : alone;
  occasion_ = occasion;
  trying_ = false;
  if (slack.learns) return alone;
  const KeptParts parts = kept_parts();
  const std::size_t best = best_arrangement(parts, slack, now_ns);
  const std::size_t untried = to_try(parts, best, now_ns);
  return arrangements_.known(untried, situation_, now_ns) ? best : trial(untried, slack, best);
}

// Of so many steps one may be late for a trial: half of those that may be late at all.
std::size_t SloPolicy::trial(std::size_t untried, const Service::Slack& slack, std::size_t best) {
  if (slack.in_period || slack.lost) return best;
  double quantile = 0;
  for (const ServiceState& state : services_)
    quantile = std::max(quantile, static_cast<double>(state.service.slo().quantile));
  if (to_double(occasion_.begun - tried_) * (1 - quantile) < kMissesPerTrial) return best;
  tried_ = occasion_.begun;
  trying_ = true;
  return untried;
}

// Services on both sides: each gets on.
std::size_t SloPolicy::divide(std::uint64_t now_ns) {
  needs_ = {};
  std::array<bool, 2> learns{};
  for (const ServiceState& state : services_) {
    if (!state.service.counts(now_ns)) {
      std::uint32_t& least = state.right ? needs_.least_right_sms : needs_.least_left_sms;
      if (state.kept_arrangement != 0)
        least = std::max(least, arrangements_[state.kept_arrangement].left_sms);
      continue;
    }
    const Service::Slack slack = state.service.slack(now_ns);
    double& need = state.right ? needs_.right : needs_.left;
    need = std::max(need, slack.need);
    learns[state.right] = learns[state.right] || slack.learns_pace;
  }
  occasion_ = {};
  trying_ = false;
  if (learns[0] || learns[1]) {
    admits_ = false;
    return learns[0] ? arrangements_.right_paused() : arrangements_.left_paused();
  }
  if (divided_ == situation_ && chosen_ < arrangements_.right_paused() &&
      now_ns < changed_ns_ + kDwellsNs)
    return chosen_;
  divided_ = situation_;
  const std::size_t best = arrangements_.divide(situation_, needs_, chosen_, now_ns);
  const bool room = others_run_ && arrangements_.known(best, situation_, now_ns) &&
                    arrangements_.headroom(best, situation_, needs_) >= kRoom;
  if (std::exchange(admits_, room) != room) changed_ns_ = now_ns;
  return best;
}

void SloPolicy::write(const Snapshot& snapshot, Allocation& out) const {
  const Arrangement& at = arrangements_[chosen_];
  const bool paused = situation_.two() && !admits_;
  std::array<std::size_t, 2> clients{};  // left, right
  auto service = services_.begin();
  for (const Client& client : snapshot.clients) {
    if (client.slo.any())
      ++clients[service++->right];
    else
      clients[1] += client.active && !paused ? 1 : 0;
  }
  service = services_.begin();
  for (const Client& client : snapshot.clients) {
    const bool bounded = client.slo.any();
    bool right = true, holds = false;
    if (bounded) {
      const ServiceState& state = *service++;
      right = state.right;
      holds = options_.keeps_parts && state.kept_arrangement != 0;
      if (!client.active && !holds && !state.service.counts(snapshot.now_ns)) continue;
    } else if (!client.active) {
      continue;
    }
    Row& row = out.rows.emplace_back();
    row.client = client.id;
    row.partition = bounded || !paused ? at.of(right) : kNoPartition;
    row.mode = Mode::kShared;
    if (row.partition == kNoPartition) row.partition = kWholeDevice, row.mode = Mode::kPaused;
    if (row.partition != kWholeDevice && clients[right] == 1) row.mode = Mode::kExclusive;
    if (bounded)
      row.hold = holds || !client.active;
    else
      row.rank = 1;
    // Predicted times are those on the whole device. What a service has submitted to its part stays
    // there when it gets the device.
    if (!bounded || row.partition != kWholeDevice || services_.size() > 1)
      row.run_ahead_ns = kRunAheadNs * snapshot.pool[row.partition].sms / snapshot.pool.front().sms;
  }
}

// No service works. One that is still active, since it ended its work a moment ago, has a shared
// row of the whole device, before the others'.
void SloPolicy::write_without_services(const Snapshot& snapshot, Allocation& out) {
  if (services_.empty()) return others_->allocate(snapshot, out);
  rest_.clear();
  for (const Client& client : snapshot.clients)
    if (!client.slo.any()) rest_.push_back(client);
  Snapshot rest = snapshot;
  rest.clients = rest_;
  others_->allocate(rest, out);
  for (Row& row : out.rows) {
    row.rank = 1;
    row.run_ahead_ns = std::min(row.run_ahead_ns, kRunAheadNs);
  }
  for (const Client& client : snapshot.clients)
    if (client.slo.any() && client.active) {
      Row& row = out.rows.emplace_back();
      row.client = client.id;
      if (services_.size() > 1) row.run_ahead_ns = kRunAheadNs;
    }
}

// When counters are to be read again, or a service has rested for kRestNs.
std::uint64_t SloPolicy::wake_ns(std::uint64_t now_ns) const {
  const bool alone = chosen_ == arrangements_.right_paused() && !situation_.two();
  std::uint64_t wake = now_ns + (alone ? kAloneNs : kBesideNs);
  if (now_ns < changed_ns_ + kSettlesNs) wake = std::min(wake, changed_ns_ + kSettlesNs);
  for (const ServiceState& state : services_)
    if (!state.service.working() && state.service.counts(now_ns))
      wake = std::min(wake,
                      std::max(state.service.idle_since_ns() + kRestNs, now_ns + kLeastSampleNs));
  return wake;
}

void SloPolicy::allocate(const Snapshot& snapshot, Allocation& out) {
  const std::uint64_t now = snapshot.now_ns;
  const double passed = now > sampled_ns_ && sampled_ns_ != 0 ? to_double(now - sampled_ns_) : 0;
  const double work = count_others(snapshot);
  others_work_ += work;
  const bool any = sample(snapshot);
  measure(now, passed, work);
  sampled_ns_ = now;
  std::erase_if(services_, [](const ServiceState& state) { return !state.present; });
  if (options_.keeps_parts) find_kept_parts(now);
  std::size_t next = kNone;
  if (any || keeps_a_part()) {
    take_sides(now);
    if (!situation_.two()) divided_ = {};
    next = situation_.two() ? divide(now) : choose(now);
  }
  if (next == kNone) trying_ = false;
  if (next != chosen_) {
    changed_ns_ = now;
    rested_ = chosen_ == kNone;
    for (ServiceState& state : services_)
      state.service.stops(is_alone(state, next) && chosen_ != kNone);
  }
  chosen_ = next;
  if (chosen_ == kNone) return write_without_services(snapshot, out);
  // That candidates are wanted is ignored: while a service works none is compared. The estimator
  // hears who works now (what speeds are estimated for) and that the mix of before was left.
  estimator_.enter(snapshot.clients, options_.objective, now);
  estimator_.discard();  // no block of `others_` goes on
  write(snapshot, out);
  out.wake_ns = wake_ns(now);
}

namespace {

constexpr Parameter kParameters[] = {{"objective",
                                      "of clients without a bound while no client with one works: "
                                      "proportional (default), sum or fair"}};
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
  SloOptions keeping = options;
  keeping.keeps_parts = true;
  Policy policy = make_slo(keeping, estimator, pool);
  policy.description.name = "tpot-first";
  policy.description.summary = "the paper's TPOT-First: decodes keep a partition of their own";
  policy.description.parameters = kTpotParameters;
  return policy;
}

}  // namespace vitamin::scheduler
