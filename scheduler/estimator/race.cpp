// SPDX-License-Identifier: Apache-2.0
#include "scheduler/estimator/race.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace vitamin::scheduler {
namespace {

constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();

// The belief about a block's noise counts as so many measured deviations: two rounds of four
// candidates weigh as much.
constexpr double kBelief = 3;

// A candidate so many standard errors behind the leader is dropped. After one round the error rests
// on belief alone, and more is asked.
constexpr double kBehind = 2, kBehindAtOnce = 3;

// The lead, in standard errors, that leaves the sheltered candidate: 0.6 % of the races between
// equals.
constexpr double kBeyondDoubt = 2.5;
// And not on fewer rounds: jobs whose steps are longer than a block deceive two.
constexpr unsigned kRoundsToLeave = 3;

// What a longer race is expected to find beyond the leader, of the objective. Less is left to
// looks, which cost less: a fifth of the 2 % within which a choice is to be.
constexpr double kWorthMoreRounds = 0.004;

// A deviation beyond so many standard deviations is counted as being there: a hiccup of the host
// is no property of a configuration.
constexpr double kClip = 2.5;

constexpr unsigned kRetries = 3;  // of discarded blocks, in a round

}  // namespace

double expected_gain(double mean, double sd) {
  if (sd <= 0) return std::max(0.0, mean);
  const double z = mean / sd;
  return mean * 0.5 * std::erfc(-z / std::numbers::sqrt2) +
         sd * std::exp(-0.5 * z * z) / std::sqrt(2 * std::numbers::pi);
}

std::uint64_t Random::next() {
  std::uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

void Race::begin(unsigned candidates, unsigned sheltered, double block_sd) {
  candidates_ = std::min(candidates, kCandidates);
  sheltered_ = sheltered < candidates_ ? sheltered : kNone;
  believed_sd_ = block_sd_ = block_sd;
  dropped_.fill(false);
  for (auto& round : values_) round.fill(kMissing);
  round_ = at_ = in_round_ = retries_ = 0;
  running_ = candidates_ > 1;
}

void Race::start_round(Random& random) {
  in_round_ = at_ = retries_ = 0;
  for (unsigned candidate = 0; candidate < candidates_; ++candidate)
    if (!dropped_[candidate]) order_[in_round_++] = static_cast<std::uint8_t>(candidate);
  // The first round begins with candidate 0, which is where the clients are: no drain, and a client
  // that goes at once has been moved by nothing.
  const unsigned fixed = round_ == 0 ? 1 : 0;
  for (unsigned i = in_round_; i > fixed + 1; --i)
    std::swap(order_[i - 1], order_[fixed + random.below(i - fixed)]);
}

unsigned Race::next(Random& random) {
  if (!running_) return kNone;
  if (at_ == in_round_) start_round(random);
  return order_[at_];
}

void Race::add(double value) {
  if (!running_ || at_ >= in_round_) return;
  values_[round_][order_[at_]] = static_cast<float>(value);
  if (++at_ == in_round_) end_round();
}

void Race::discard() {
  if (!running_ || at_ >= in_round_) return;
  if (retries_++ < kRetries) {
    std::swap(order_[at_], order_[in_round_ - 1]);  // later in the round, if it has others
    return;
  }
  if (++at_ == in_round_) end_round();
}

Lead Race::lead(unsigned a, unsigned b) const {
  std::array<double, kRounds> differences;
  unsigned count = 0;
  for (unsigned r = 0; r <= round_ && r < kRounds; ++r) {
    const double difference =
        static_cast<double>(values_[r][a]) - static_cast<double>(values_[r][b]);
    if (!std::isnan(difference)) differences[count++] = difference;
  }
  if (count == 0) return {};
  std::sort(differences.begin(), differences.begin() + count);
  const double median = (differences[count / 2] + differences[(count - 1) / 2]) / 2;
  const double expected = 2 * block_sd_ * block_sd_, reach = kClip * std::sqrt(expected);
  double sum = 0, squares = 0;
  for (unsigned i = 0; i < count; ++i) {
    const double clipped = std::clamp(differences[i], median - reach, median + reach);
    sum += clipped;
    squares += clipped * clipped;
  }
  const double mean = sum / count;
  const double variance =
      (kBelief * expected + std::max(0.0, squares - sum * mean)) / (kBelief + count - 1);
  return {mean, std::sqrt(variance / count), count};
}

unsigned Race::leader() const {
  unsigned best = sheltered_ != kNone ? sheltered_ : 0;
  for (unsigned candidate = 0; candidate < candidates_; ++candidate)
    if (!dropped_[candidate] && (dropped_[best] || lead(candidate, best).mean > 0))
      best = candidate;
  return best;
}

// From how the differences to one candidate scatter, in all other candidates.
void Race::learn_noise() {
  const unsigned reference = leader();
  double squares = kBelief * believed_sd_ * believed_sd_, freedom = kBelief;
  for (unsigned candidate = 0; candidate < candidates_; ++candidate) {
    if (candidate == reference) continue;
    double sum = 0, sum_of_squares = 0;
    unsigned count = 0;
    for (unsigned r = 0; r <= round_ && r < kRounds; ++r) {
      const double d =
          static_cast<double>(values_[r][candidate]) - static_cast<double>(values_[r][reference]);
      if (std::isnan(d)) continue;
      sum += d, sum_of_squares += d * d, ++count;
    }
    if (count < 2) continue;
    squares += std::max(0.0, sum_of_squares - sum * sum / count) / 2;  // of a difference: twice
    freedom += count - 1;
  }
  block_sd_ = std::max(1e-4, std::sqrt(squares / freedom));
}

void Race::end_round() {
  learn_noise();
  const unsigned best = leader();
  for (unsigned candidate = 0; candidate < candidates_; ++candidate) {
    if (dropped_[candidate] || candidate == best) continue;
    const Lead behind = lead(best, candidate);
    const bool once = behind.rounds < 2;
    if (candidate == sheltered_)
      dropped_[candidate] =
          behind.rounds >= kRoundsToLeave && behind.mean > kBeyondDoubt * behind.error;
    else
      dropped_[candidate] = behind.mean > (once ? kBehindAtOnce : kBehind) * behind.error ||
                            (!once && expected_gain(-behind.mean, behind.error) < kWorthMoreRounds);
  }
  ++round_;
  at_ = in_round_ = 0;
  unsigned left = 0;
  for (unsigned candidate = 0; candidate < candidates_; ++candidate)
    left += dropped_[candidate] ? 0 : 1;
  if (left < 2 || round_ == kRounds) running_ = false;
}

bool Race::beyond_doubt(unsigned candidate) const {
  const Lead ahead = lead(candidate, sheltered_);
  return ahead.rounds >= kRoundsToLeave && ahead.mean > kBeyondDoubt * ahead.error;
}

unsigned Race::finish() {
  running_ = false;
  const unsigned best = leader();
  if (sheltered_ == kNone || best == sheltered_ || dropped_[sheltered_] || beyond_doubt(best))
    return best;
  return sheltered_;
}

}  // namespace vitamin::scheduler
