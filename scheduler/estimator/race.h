// SPDX-License-Identifier: Apache-2.0
//
// Which of a few configurations is best, from short blocks under each of them: successive
// elimination over shuffled rounds.
//
// A round measures every remaining candidate once. Only differences within a round are compared, so
// what slows the host or the device for longer than a round falls out. The noise of a block is
// learned from all candidates together, starting from a belief, so that two rounds are enough for
// large leads.
//
// Values are logarithms (scheduler/estimator/objective.h). Pure; no allocation. Threads: one at a
// time.
#pragma once

#include <array>
#include <cstdint>

namespace vitamin::scheduler {

// A small generator (splitmix64): the same seed gives the same race on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed = 1) : state_(seed) {}
  std::uint64_t next();
  std::uint64_t below(std::uint64_t bound) { return bound < 2 ? 0 : next() % bound; }

 private:
  std::uint64_t state_;
};

// E[max(0, x)] of a normal x: what taking the better of two is expected to gain.
double expected_gain(double mean, double sd);

// How far one candidate leads another.
struct Lead {
  double mean = 0;
  double error = 1e9;  // standard error; huge: never measured in the same round
  unsigned rounds = 0;
};

class Race {
 public:
  static constexpr unsigned kCandidates = 8;
  static constexpr unsigned kRounds = 24;
  static constexpr unsigned kNone = ~0U;

  // `sheltered`: a candidate that is left only for a lead beyond doubt (sharing the whole device:
  // it needs no drain and cannot be far below the best for jobs that fill the device); kNone: no
  // such candidate. `block_sd`: belief of the standard deviation of one block's value.
  void begin(unsigned candidates, unsigned sheltered, double block_sd);
  // The candidate of the next block; kNone: decided, or no round is left. Starts rounds as needed.
  unsigned next(Random& random);
  // The block of the candidate that next() named.
  void add(double value);
  // That block could not be used. Measured again, a few times a round.
  void discard();

  bool running() const { return running_; }
  // Ends it: the candidate to keep. Before any round is complete that is the sheltered candidate.
  unsigned finish();
  bool dropped(unsigned candidate) const { return dropped_[candidate]; }
  // Of `a` over `b`, from the rounds in which both were measured.
  Lead lead(unsigned a, unsigned b) const;
  unsigned leader() const;  // the candidate that is best by means, whatever the doubt
  double block_sd() const { return block_sd_; }
  unsigned rounds() const { return round_; }  // complete ones

 private:
  void end_round();
  void learn_noise();
  void start_round(Random& random);
  bool beyond_doubt(unsigned candidate) const;

  std::array<std::array<float, kCandidates>, kRounds> values_{};  // NaN: not measured
  std::array<bool, kCandidates> dropped_{};
  std::array<std::uint8_t, kCandidates> order_{};  // of this round
  unsigned candidates_ = 0, sheltered_ = kNone, round_ = 0, at_ = 0, in_round_ = 0, retries_ = 0;
  double believed_sd_ = 0.06, block_sd_ = 0.06;
  bool running_ = false;
};

}  // namespace vitamin::scheduler
