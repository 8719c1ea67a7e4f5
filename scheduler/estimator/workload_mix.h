// SPDX-License-Identifier: Apache-2.0
//
// What the estimator keeps of one workload mix. Included by scheduler/estimator only.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "scheduler/estimator/estimator.h"

namespace vitamin::scheduler {

// Of a candidate of which nothing is known: it may lead or lag by 30 % (the best fixed parts of an
// H200 lead sharing by 35 % and lag it by as much).
inline constexpr double kUnknownSd = 0.3;

// Those of the race, and behind them up to as many that run one client alone.
inline constexpr unsigned kMostCandidates = 2 * Race::kCandidates;

struct Watch {  // the usual value of kept blocks
  double mean = 0, variance = 0, count = 0;
  void add(double x);
  double sd() const;
};

struct CandidateState {
  double gap = 0;  // of its value over the chosen candidate's
  double variance = kUnknownSd * kUnknownSd;
  std::uint64_t at_ns = 0;  // workload time of the last change
  unsigned blocks = 0;
  bool dropped = false;
  // What is known fades: its variance doubles in a half-life.
  double variance_at(std::uint64_t now_ns) const {
    const double doublings =
        now_ns > at_ns ? static_cast<double>(now_ns - at_ns) / static_cast<double>(kHalfLifeNs) : 0;
    return std::min(kUnknownSd * kUnknownSd, variance * std::exp2(doublings));
  }
};

struct Estimator::Regime {
  std::array<CandidateState, kMostCandidates> candidates{};
  Race race;
  bool racing = false;
  unsigned chosen = 0;
  ChoiceReason why = ChoiceReason::kUnmeasured;
  std::uint64_t began_ns = 0, raced_ns = 0;  // workload time: the regime, its last race
  double decided_s = 0;
  std::vector<Watch> rates, launch_work;  // by member; rates: under the chosen candidate
  std::vector<double> best;  // by member: the highest log rate since the race began, or NaN
  double alarm = 1;          // false alarms made the watch less sensitive by this factor
  bool unproved = false;     // left sharing, and sharing was not looked at since
  double flattery = 0;       // what a block right behind a change shows parts better by
  unsigned strange = 0;      // kept blocks in a row that differ from the usual
  std::uint64_t used_ns = 0;
};

// The present look, of one block or several in a row under the same candidate.
struct Look {
  unsigned blocks = 0;
  double sum = 0;                   // of the blocks' values over that of the kept blocks before
  double length_s = 0, kept_s = 1;  // of both
  double gap = 0, variance = 0;     // of the candidate, as believed before
  double flattery = 0;              // of the regime, as believed before
};

struct Estimator::WorkloadMix {
  struct Assigned {
    PartitionId partition = kWholeDevice;
    Mode mode = Mode::kPaused;
  };
  std::uint64_t hash = 0, terms = 0;
  std::size_t members = 0;
  std::vector<Member> clients;     // by member, of the last visit
  std::uint64_t left_ns = 0;       // when that ended
  std::vector<Assigned> assigned;  // by candidate, then member
  std::array<std::uint64_t, kMostCandidates> hashes{};
  std::array<double, kMostCandidates> predicted{};
  unsigned candidate_count = 0, racing_count = 0;  // those behind racing_count run one client alone
  unsigned sheltered = Race::kNone;
  std::array<std::uint8_t, kMostCandidates> tries{};  // of candidates behind racing_count
  std::vector<Regime> regimes;
  unsigned regime = 0;
  std::uint64_t time_ns = 0, used_ns = 0, entered_ns = 0;
  unsigned visits = 0;
  double dwell_ns = 0;  // of visits, smoothed
  double credit_s = 0, spent_s = 0;
  Look look;
  unsigned kept_run = 0;   // kept blocks in a row, measured without a change before or between
  double kept_before = 0;  // the value of the newest settled ones

  const Assigned& assigned_to(unsigned candidate, std::size_t member) const {
    return assigned[candidate * members + member];
  }
  Regime& now() { return regimes[regime]; }
  const Regime& now() const { return regimes[regime]; }
};

inline void Watch::add(double x) {
  // The newest twenty blocks, 5 s, count: slow drift is followed and is no change.
  count = std::min(count + 1, 20.0);
  const double step = 1 / count, away = x - mean;
  mean += step * away;
  variance = (1 - step) * (variance + step * away * away);
}

inline double Watch::sd() const {
  // Few blocks say little of their own scatter: 5 % is believed as if by three.
  constexpr double kBelief = 3, kSd = 0.05;
  return std::sqrt((kBelief * kSd * kSd + count * variance) / (kBelief + count));
}

}  // namespace vitamin::scheduler
