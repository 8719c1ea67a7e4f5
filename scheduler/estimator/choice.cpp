// SPDX-License-Identifier: Apache-2.0
//
// What the estimator runs next, and what it concludes from a block.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "scheduler/estimator/estimator.h"
#include "scheduler/estimator/workload_mix.h"

namespace vitamin::scheduler {
namespace {

// Blocks of a race and of looks last kSettlings times what a change of allocation takes, so that it
// costs a fifth of a block at most, within two bounds. Below kBlockNs a block holds less than a
// step of a training, and eight candidates are measured twice within kRaceNs; above kLongBlockNs a
// race would hold too few blocks.
constexpr double kSettlings = 5;
constexpr std::uint64_t kBlockNs = 100'000'000, kLongBlockNs = 250'000'000;
// Where workload mixes are short, so that some blocks fit into a visit: five times 5 ms of
// settling.
constexpr std::uint64_t kShortBlockNs = 25'000'000;
constexpr unsigned kBlocksInVisit = 4;
constexpr unsigned kVisits = 3;  // until the length of visits is believed
constexpr double kLongVisits = 500e6;

// A device that one client has for itself needs no measuring every quarter of a second.
constexpr std::uint64_t kOnlyBlockNs = 2'000'000'000;
constexpr unsigned kOnlyBlocks = 4;

// With the first shared block and the last settling the choice falls within 2 s, besides blocks of
// clients alone.
constexpr std::uint64_t kRaceNs = 1'500'000'000;

// Of a block of 0.1 s: weighted launches of recorded jobs vary by 0.05 to 0.15 in 20 ms [C], and
// co-run perhaps by twice that; the value is a mean over clients.
constexpr double kBlockSd = 0.06;

// All blocks of a race fall into a second or two. What jobs do more slowly than that does not show
// in how they scatter, and they lie right behind changes, so a race is believed no better than this
// (on an H200 one candidate in six was 0.1 off), and looked at again at once.
constexpr double kRaceSd = 0.08;

// Right behind a change a look does not count: on an H200 decoders and prefills run at their speed
// 80 ms behind a change.
constexpr std::uint64_t kUnsettledNs = 100'000'000;
constexpr unsigned kMostBlocksOfLook = 8;
constexpr double kProveS = 0.2;  // saved up for looks when a race ends

// Looks use long blocks where the standard deviation of a block of the race is above this.
constexpr double kNoisySd = 0.05;
// What looks may cost, as a part of the kept time: a third of the 1 % that races, looks and changes
// may cost together. kCreditS is the most that is saved up, of 100 s.
constexpr double kLookShare = 0.003;
constexpr double kCreditS = 0.3;
// A look is expected to gain for so long: as long as its result is believed.
constexpr double kHorizonS = static_cast<double>(kHalfLifeNs) / 1e9;

// A candidate that is believed to lead by so much is looked at without savings, and taken when
// looks confirm it: a configuration that is more than 2 % below the best known is not kept.
constexpr double kWorthwhile = 0.02;
// Less than this is not worth a change.
constexpr double kWorthMoving = 0.01;
// The lead of another candidate in standard errors, to leave sharing and to leave a part.
constexpr double kBeyondDoubt = 2.5, kLikely = 1;

// Two kept blocks in a row so many deviations away: 1 in 10^8 were noise normal.
constexpr double kStrange = 4, kLeastStrange = 0.1, kMostAlarm = 4;
constexpr double kLaunchWorkTolerance = 0.1;      // log of the work of a launch, of one regime
constexpr double kLaunchWorkCount = 3;            // blocks, until the usual of a regime is known
constexpr std::uint64_t kCalmNs = 3'000'000'000;  // between races of one regime: two of them
constexpr std::size_t kRegimes = 4;
// What was known of a regime that was left, in variance.
constexpr double kStale = 4;

// Blocks behind a change until what programs submitted during it has run. A long block holds a step
// of most trainings, and as much as a queue of launches.
constexpr unsigned kSettledBlocks = 2;

constexpr unsigned kAloneTries = 3;
constexpr std::uint64_t kMostExtensions = 4;

// How many of the kept blocks in a row say what is compared with: not the first, which is right
// behind a change, and no old ones.
double settled_blocks(unsigned run) { return std::clamp(run, 2U, 5U) - 1; }

double loss(double gap) { return -std::expm1(std::min(0.0, gap)); }

double seconds(std::uint64_t ns) { return static_cast<double>(ns) / 1e9; }

}  // namespace

// How long a visit is expected to last: as those before, or as long as this one has already.
double Estimator::dwell_ns() const {
  const WorkloadMix& c = *workload_;
  if (c.visits < kVisits) return std::numeric_limits<double>::infinity();
  return std::max(c.dwell_ns, static_cast<double>(now_ns_ - c.entered_ns));
}

bool Estimator::too_short() const { return dwell_ns() < 2 * static_cast<double>(kShortBlockNs); }

std::uint64_t Estimator::block_ns(Purpose purpose) const {
  const WorkloadMix& c = *workload_;
  const auto settling = static_cast<std::uint64_t>(kSettlings * settle_ns_);
  const std::uint64_t block = std::clamp(settling, kBlockNs, kLongBlockNs);
  const double dwell = dwell_ns();
  if (purpose == Purpose::kOnly) {
    if (c.racing_count > 1) return too_short() ? 2 * kShortBlockNs : kLongBlockNs;
    return c.now().candidates[0].blocks < kOnlyBlocks ? kLongBlockNs : kOnlyBlockNs;
  }
  if (dwell < kLongVisits) {
    const auto part = static_cast<std::uint64_t>(dwell) / kBlocksInVisit;
    return std::clamp(part, std::max(kShortBlockNs, settling), block);
  }
  const bool noisy = c.now().race.rounds() > 1 && c.now().race.block_sd() > kNoisySd;
  if (purpose == Purpose::kLook && noisy) return kLongBlockNs;
  // A kept block that decides something is not longer than what it is compared with.
  const bool decides = c.now().strange > 0;
  return purpose == Purpose::kKeep && !decides ? kLongBlockNs : block;
}

// Some client was busy all the time and finished nothing.
bool Estimator::unfinished() const {
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (workload_->assigned_to(candidate_, i).mode != Mode::kPaused && seen_[i] &&
        members_[i].reports && now_[i].work == base_[i].work && now_[i].busy_ns > base_[i].busy_ns)
      return true;
  return false;
}

bool Estimator::close_block(std::uint64_t now_ns, bool cut) {
  WorkloadMix& c = *workload_;
  Regime& r = c.now();
  const std::uint64_t elapsed = now_ns - counted_ns_;
  if (!cut && unfinished() && length_ns_ < kMostExtensions * block_ns(purpose_)) {
    length_ns_ += block_ns(purpose_);
    return false;
  }
  counting_ = false;
  const bool measured = 2 * elapsed >= length_ns_ && take(now_ns);
  if (!measured) {
    if (purpose_ == Purpose::kRace && !cut) r.race.discard();
    c.kept_run = 0;
    return true;
  }
  const double length_s = static_cast<double>(elapsed) / 1e9;
  const double v = value();
  // A regime that ends must not be mixed with what ended it.
  const bool odd = purpose_ == Purpose::kKeep && differs();
  if (!odd) {
    learn(candidate_, length_s / (static_cast<double>(kBlockNs) / 1e9));
    for (std::size_t i = 0; i < members_.size(); ++i)
      if (!block_rates_[i].paused && std::isfinite(block_rates_[i].log_launch_work))
        r.launch_work[i].add(block_rates_[i].log_launch_work);
  }
  ++r.candidates[candidate_].blocks;
  if (purpose_ == Purpose::kRace) r.race.add(v);
  if (purpose_ == Purpose::kLook) looked(v, length_s);
  if (purpose_ != Purpose::kKeep) return true;
  if (!odd) {
    r.strange = 0;
    kept(v, length_s);
  } else if (++r.strange >= 2) {
    r.strange = 0;
    change_regime();
  }
  return true;
}

void Estimator::kept(double value, double length_s) {
  WorkloadMix& c = *workload_;
  Regime& r = c.now();
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (!block_rates_[i].paused) r.rates[i].add(block_rates_[i].log_rate);
  c.credit_s = std::min(kCreditS, c.credit_s + kLookShare * length_s);
  if (candidate_ == r.chosen) ++c.kept_run;
  c.kept_before += (value - c.kept_before) / settled_blocks(c.kept_run);
}

// The configuration of the present block is in force.
void Estimator::in_force(std::uint64_t now_ns) {
  if (purpose_ != Purpose::kLook || dwell_ns() < kLongVisits) return baseline(now_ns);
  counts_from_ns_ = now_ns + kUnsettledNs;
}

double Estimator::look_cost_s(const CandidateState& candidate) const {
  return seconds(kUnsettledNs + block_ns(Purpose::kLook)) * loss(candidate.gap) +
         2 * settle_ns_ / 1e9;
}

void Estimator::pay(double cost_s) {
  WorkloadMix& c = *workload_;
  c.credit_s = std::max(-kCreditS, c.credit_s - cost_s);
  c.spent_s += cost_s;
}

void Estimator::looked(double value, double length_s) {
  WorkloadMix& c = *workload_;
  Regime& r = c.now();
  CandidateState& candidate = r.candidates[candidate_];
  Look& look = c.look;
  if (look.blocks == 0)
    look = {0, 0, 0, look.kept_s, candidate.gap, candidate.variance_at(c.time_ns), r.flattery};
  ++look.blocks;
  look.length_s += length_s;
  look.sum += value - c.kept_before;
  const double sd = r.race.rounds() > 1 ? r.race.block_sd() : kBlockSd;
  const double noise = sd * sd * seconds(kBlockNs) * (1 / look.length_s + 1 / look.kept_s);
  double mean = look.sum / look.blocks;
  if (r.chosen == c.sheltered) mean -= r.flattery;
  // A hiccup is no property of a configuration: what is far from expected counts as less far.
  const double reach = 3 * std::sqrt(look.variance + noise);
  const double away = std::clamp(mean - look.gap, -reach, reach);
  const double gain = look.variance / (look.variance + noise);
  if (candidate_ == c.sheltered) r.flattery = std::max(0.0, look.flattery + gain * away);
  candidate.gap = look.gap + gain * away;
  candidate.variance = (1 - gain) * look.variance;
  candidate.at_ns = c.time_ns;
  const double doubt = r.chosen == c.sheltered ? kBeyondDoubt : kLikely;
  if (candidate.gap < std::max(kWorthMoving, doubt * std::sqrt(candidate.variance))) return;
  if (candidate.gap * dwell_ns() < settle_ns_) return;
  change_chosen(candidate_, ChoiceReason::kLooked);
}

// Whether another block of the present look is worth what it costs, which is no change.
bool Estimator::worth_staying() const {
  const WorkloadMix& c = *workload_;
  if (!open_ || purpose_ != Purpose::kLook || candidate_ == c.now().chosen) return false;
  if (c.look.blocks == 0 || c.look.blocks >= kMostBlocksOfLook) return false;
  const CandidateState& candidate = c.now().candidates[candidate_];
  const double cost = seconds(block_ns(Purpose::kLook)) * loss(candidate.gap);
  if (c.credit_s < cost) return false;
  return kHorizonS * expected_gain(candidate.gap, std::sqrt(candidate.variance)) > cost;
}

void Estimator::change_chosen(unsigned candidate, ChoiceReason why) {
  WorkloadMix& c = *workload_;
  Regime& r = c.now();
  const double gap = r.candidates[candidate].gap,
               variance = r.candidates[candidate].variance_at(c.time_ns);
  for (CandidateState& other : r.candidates) {
    other.variance = std::min(kUnknownSd * kUnknownSd, other.variance_at(c.time_ns) + variance);
    other.gap -= gap;
    other.at_ns = c.time_ns;
  }
  r.candidates[candidate].gap = r.candidates[candidate].variance = 0;
  r.chosen = candidate;
  r.why = why;
  r.rates.assign(c.members, {});
  r.strange = 0;
  r.unproved = c.sheltered != Race::kNone && candidate != c.sheltered;
  c.kept_run = 0;
}

// Whether a kept block is far from what kept blocks of this regime are.
bool Estimator::differs() {
  const Regime& r = workload_->now();
  const auto far = [&](const Watch& watch, double x) {
    return watch.count >= kLaunchWorkCount && std::isfinite(x) &&
           std::abs(x - watch.mean) > r.alarm * std::max(kLeastStrange, kStrange * watch.sd());
  };
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (!block_rates_[i].paused && (far(r.rates[i], block_rates_[i].log_rate) ||
                                    far(r.launch_work[i], block_rates_[i].log_launch_work)))
      return true;
  return false;
}

// Whether what runs now has the mix of launches of a regime.
bool Estimator::alike(const Regime& regime) const {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Watch& usual = regime.launch_work[i];
    if (block_rates_[i].paused || usual.count < kLaunchWorkCount ||
        !std::isfinite(block_rates_[i].log_launch_work))
      continue;
    if (std::abs(block_rates_[i].log_launch_work - usual.mean) >
        std::max(kLaunchWorkTolerance, 3 * usual.sd()))
      return false;
  }
  return true;
}

void Estimator::change_regime() {
  WorkloadMix& c = *workload_;
  Regime& old = c.now();
  old.used_ns = c.time_ns;
  c.kept_run = 0;
  c.credit_s = std::min(c.credit_s, 0.0);  // it was saved for looks at what has ended
  if (alike(old)) {                        // the same launches, faster or slower
    if (c.time_ns - old.raced_ns >= kCalmNs) begin_race(old);
    old.rates.assign(c.members, {});
    return;
  }
  for (unsigned i = 0; i < c.regimes.size(); ++i) {
    Regime& known = c.regimes[i];
    if (i == c.regime || !alike(known)) continue;
    c.regime = i;
    for (CandidateState& candidate : known.candidates)
      candidate.variance =
          std::min(kUnknownSd * kUnknownSd, kStale * candidate.variance_at(c.time_ns));
    known.rates.assign(c.members, {});
    known.strange = 0;
    if (known.racing) begin_race(known);
    return;
  }
  if (c.regimes.size() < kRegimes) {
    c.regime = static_cast<unsigned>(c.regimes.size());
    c.regimes.emplace_back();
  } else {
    unsigned oldest = c.regime == 0 ? 1 : 0;
    for (unsigned i = 0; i < c.regimes.size(); ++i)
      if (i != c.regime && c.regimes[i].used_ns < c.regimes[oldest].used_ns) oldest = i;
    c.regime = oldest;
    c.now() = {};
  }
  Regime& fresh = c.now();
  fresh.rates.assign(c.members, {});
  fresh.launch_work.assign(c.members, {});
  fresh.began_ns = c.time_ns;
  begin_race(fresh);
}

void Estimator::begin_race(Regime& r) {
  const WorkloadMix& c = *workload_;
  r.race.begin(c.racing_count, c.sheltered, r.race.rounds() > 1 ? r.race.block_sd() : kBlockSd);
  r.racing = true;
  r.raced_ns = c.time_ns;
  r.best.assign(c.members, std::numeric_limits<double>::quiet_NaN());
}

void Estimator::settle_race(Regime& r) {
  WorkloadMix& c = *workload_;
  const unsigned before = r.chosen, chosen = r.race.finish();
  const bool first = r.decided_s == 0;
  r.racing = false;
  const double block = seconds(block_ns(Purpose::kRace));
  for (unsigned candidate = 0; candidate < c.racing_count; ++candidate) {
    CandidateState& state = r.candidates[candidate];
    const Lead lead = r.race.lead(candidate, chosen);
    state = {0, kUnknownSd * kUnknownSd, c.time_ns, state.blocks, r.race.dropped(candidate)};
    if (candidate == chosen) {
      state.variance = 0;
    } else if (lead.rounds > 0) {
      state.gap = lead.mean;
      state.variance = lead.error * lead.error + kRaceSd * kRaceSd;
      const double cost = lead.rounds * (block * loss(lead.mean) + settle_ns_ / 1e9);
      c.spent_s += cost;
    }
  }
  // A race that changed nothing was a false alarm.
  r.alarm = first || chosen != before ? 1 : std::min(kMostAlarm, 1.5 * r.alarm);
  r.chosen = chosen;
  r.why = chosen == c.sheltered ? ChoiceReason::kNoLead : ChoiceReason::kWon;
  if (first) r.decided_s = static_cast<double>(c.time_ns - r.began_ns) / 1e9;
  r.rates.assign(c.members, {});
  c.credit_s = std::max(c.credit_s, kProveS);
  c.kept_run = 0;
  r.unproved = c.sheltered != Race::kNone && chosen != c.sheltered;
  // What the race saw of sharing, it saw right behind changes.
  if (r.unproved) r.candidates[c.sheltered].variance = kUnknownSd * kUnknownSd;
}

// The candidate whose block is worth most for what it costs, or none.
unsigned Estimator::worth_a_look() const {
  const WorkloadMix& c = *workload_;
  const Regime& r = c.now();
  unsigned best = Race::kNone;
  double best_ratio = 1;
  for (unsigned candidate = 0; candidate < c.racing_count; ++candidate) {
    if (candidate == r.chosen) continue;
    const CandidateState& state = r.candidates[candidate];
    const bool promising = state.gap > kWorthwhile;
    const double cost = look_cost_s(state);
    if (!promising && c.credit_s < cost) continue;
    const double gain =
        kHorizonS * expected_gain(state.gap, std::sqrt(state.variance_at(c.time_ns)));
    if (gain / cost > best_ratio) best = candidate, best_ratio = gain / cost;
  }
  return best;
}

void Estimator::choose(std::uint64_t now_ns) {
  WorkloadMix& c = *workload_;
  Regime& r = c.now();
  const bool counted = std::all_of(members_.begin(), members_.end(),
                                   [](const Member& member) { return member.reports; });
  if (!counted || c.racing_count < 2) {
    r.why = counted ? ChoiceReason::kOnly : ChoiceReason::kUncounted;
    r.raced_ns = c.time_ns;
    return begin_block(0, Purpose::kOnly, now_ns);
  }
  if (too_short()) {
    if (r.racing) r.why = ChoiceReason::kShort, r.raced_ns = c.time_ns;
    return begin_block(r.racing ? 0 : r.chosen, Purpose::kOnly, now_ns);
  }
  if (r.racing && open_ && purpose_ == Purpose::kAlone)
    r.raced_ns = std::min(c.time_ns, r.raced_ns + (now_ns - began_ns_));
  if (needs_alone(objective_) && (r.racing || !open_))
    for (unsigned candidate = c.racing_count; candidate < c.candidate_count; ++candidate)
      for (std::size_t i = 0; i < c.members; ++i)
        if (c.assigned_to(candidate, i).mode != Mode::kPaused && std::isnan(log_alone(i)) &&
            c.tries[candidate] < kAloneTries) {
          ++c.tries[candidate];
          return begin_block(candidate, Purpose::kAlone, now_ns);
        }
  if (r.racing) {
    const unsigned candidate =
        c.time_ns - r.raced_ns < kRaceNs ? r.race.next(random_) : Race::kNone;
    if (candidate != Race::kNone) return begin_block(candidate, Purpose::kRace, now_ns);
    settle_race(r);
  }
  if (worth_staying()) {
    pay(seconds(block_ns(Purpose::kLook)) * loss(r.candidates[candidate_].gap));
    return begin_block(candidate_, Purpose::kLook, now_ns);
  }
  const bool settled = c.kept_run >= (dwell_ns() < kLongVisits ? 1 : kSettledBlocks);
  if (settled && r.strange == 0 && open_) {
    const unsigned candidate = std::exchange(r.unproved, false) ? c.sheltered : worth_a_look();
    if (candidate != Race::kNone) {
      pay(look_cost_s(r.candidates[candidate]));
      c.look = {.kept_s = settled_blocks(c.kept_run) * seconds(block_ns(Purpose::kKeep))};
      c.kept_run = 0;
      return begin_block(candidate, Purpose::kLook, now_ns);
    }
  }
  begin_block(r.chosen, Purpose::kKeep, now_ns);
}

}  // namespace vitamin::scheduler
