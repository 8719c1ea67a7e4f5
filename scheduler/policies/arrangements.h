// SPDX-License-Identifier: Apache-2.0
//
// The ways to arrange clients with a bound of latency (services) and the others on one device, and
// what each is measured to be worth:
//
//   shared    every client on the whole device
//   parts     the services on one part, the others on the rest
//   alone     the others are paused
//
// Of each it is known, in each phase of the service, how fast the service gets on relative to alone
// (s) and how much work the others complete per nanosecond (h; h0 while no service works). For each
// nanosecond of the service's work the others gain h0 - (h0 - h) / s against being paused, and the
// service loses 1 / s - 1. The arrangement is chosen that gives the others most before the work
// ends, or what may be lost is lost.
//
// What is not known yet is tried; what that can cost is bounded by what may be lost.
//
// Threads: as AllocationPolicy.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/policies/service.h"
#include "scheduler/types.h"

namespace vitamin::scheduler {

struct Arrangement {
  // Of the services, of the others. kNoPartition: they are paused.
  PartitionId left = kWholeDevice, right = kWholeDevice;
  std::uint32_t left_sms = 0;  // of an exclusive part; 0: shared
  bool raced = true;           // where no partition stands
};

class Arrangements {
 public:
  explicit Arrangements(std::span<const Partition> pool);
  const Arrangement& operator[](std::size_t i) const { return all_[i]; }
  std::size_t size() const { return all_.size(); }
  std::size_t alone() const { return all_.size() - 1; }

  // What was done under arrangement `i` for so long: by the service, relative to alone; by the
  // others.
  void observe(std::size_t i, StepKind phase, double passed_ns, double served, double work,
               std::uint64_t now_ns);
  // By the others, while no service worked.
  void observe_idle(double passed_ns, double work);

  // For services of which the worst has so much slack. alone() where nothing else is worth it.
  std::size_t choose(const Service::Slack& slack, StepKind phase, std::uint64_t now_ns) const;
  // Of those that choose() chooses among, the narrowest part on which work that takes `alone_ns`
  // is known to take no more than `most_ns`, and the next narrower one where nothing is known of
  // that. alone(): there is none.
  struct Narrowest {
    std::size_t known, untried;
  };
  Narrowest narrowest(double alone_ns, double most_ns, StepKind phase, std::uint64_t now_ns) const;
  bool known(std::size_t i, StepKind phase, std::uint64_t now_ns) const {
    return i == alone() || tally(i, phase).known(now_ns);
  }
  // One among which choose() chooses and of which nothing is known. alone(): there is none.
  std::size_t untried(StepKind phase, std::uint64_t now_ns) const;
  // Whether slack remains to go on under arrangement `i`.
  bool bears(std::size_t i, const Service::Slack& slack, StepKind phase) const;
  // What was measured of it: how fast the service gets on relative to alone, and the others
  // relative to when no service works. Not known: nothing was measured lately.
  struct Measured {
    bool known = false;
    double service = 1, others = 0;
  };
  Measured measured(std::size_t i, StepKind phase, std::uint64_t now_ns) const;
  // The most that the others are known to do per nanosecond in any of them.
  double most(StepKind phase) const;

 private:
  struct Tally {
    double ns = 0, served = 0, work = 0;
    std::uint64_t at_ns = 0;
    bool known(std::uint64_t now_ns) const;
    double speed() const;
    double others() const { return work / ns; }
  };
  const Tally& tally(std::size_t i, StepKind phase) const {
    return tallies_[i][static_cast<std::size_t>(phase)];
  }

  std::vector<Arrangement> all_;  // shared, parts (narrowest first), alone
  std::vector<std::array<Tally, 5>> tallies_;
  Tally idle_;
};

}  // namespace vitamin::scheduler
