// SPDX-License-Identifier: Apache-2.0
//
// The ways to arrange clients with a bound of latency (services) and the others on one device, and
// what each is measured to be worth:
//
//   shared    every client on the whole device
//   parts     the services on one part, the others on the rest
//   alone     the others are paused; with services on both sides, one of the sides is
//
// Of each it is known, in each situation, how fast the service gets on relative to alone (s) and
// how much work the others complete per nanosecond (h; h0 while no service works). For each
// nanosecond of the service's work the others gain h0 - (h0 - h) / s against being paused, and the
// service loses 1 / s - 1. The arrangement is chosen that gives the others most before the work
// ends, or what may be lost is lost.
//
// Where services with different bounds work at once, some are on the left and some on the right,
// and a speed is measured for each side. Each service needs a part of its speed alone
// (Service::Slack::need). What it gets, relative to that, is its headroom: from 1 on its bound is
// met. The arrangement is chosen whose lower headroom is highest. So a side with slack gives way to
// one without, whichever it is, and where not all bounds can be met both sides miss theirs in
// proportion.
//
// What is not known yet is tried; what that can cost is bounded by what may be lost.
//
// Threads: as AllocationPolicy.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/policies/service.h"
#include "scheduler/types.h"

namespace vitamin::scheduler {

struct Arrangement {
  // kNoPartition: they are paused.
  PartitionId left = kWholeDevice, right = kWholeDevice;
  std::uint32_t left_sms = 0, right_sms = 0;  // of parts, or with the other side paused; else 0
  bool selectable = true;                     // by choose(), divide(), narrowest(), untried()
  PartitionId of(bool on_right) const { return on_right ? right : left; }
};

// What the services on the left do, and those on the right. kBestEffort: the others are there.
struct Situation {
  StepKind left = StepKind::kUnknown, right = StepKind::kBestEffort;
  bool two() const { return right != StepKind::kBestEffort; }
  friend bool operator==(const Situation&, const Situation&) = default;
};

class Arrangements {
 public:
  explicit Arrangements(std::span<const Partition> pool);
  const Arrangement& operator[](std::size_t i) const { return all_[i]; }
  std::size_t size() const { return all_.size(); }
  // That in which one side is paused and the other has the whole device. right_paused() also says
  // "none" in the answers below.
  std::size_t right_paused() const { return all_.size() - 2; }
  std::size_t left_paused() const { return all_.size() - 1; }

  // What was done under arrangement `i` for so long: by the services, relative to alone (right: 0
  // where there are none); by the others.
  struct Done {
    double left_ns = 0, right_ns = 0, work = 0;
  };
  void observe(std::size_t i, Situation situation, double passed_ns, const Done& done,
               std::uint64_t now_ns);
  // Forgets all that was observed of arrangements.
  void forget() { std::fill(tallies_.begin(), tallies_.end(), decltype(tallies_)::value_type{}); }
  // By the others, while no service worked.
  void observe_idle(double passed_ns, double work);

  // For services of which the worst has so much slack. right_paused() where nothing else is worth
  // it.
  std::size_t choose(const Service::Slack& slack, StepKind phase, std::uint64_t now_ns) const;
  // What services on both sides need: of their speeds alone, such parts; and SMs, where a side is
  // to have a part of at least so many (0: it need not).
  struct Needs {
    double left = 0, right = 0;
    std::uint32_t least_left_sms = 0, least_right_sms = 0;
  };
  // For services on both sides: one that was not measured lately, or for too short a time, else the
  // one with most headroom.
  // `present` stays where no other has kBetter times as much.
  std::size_t divide(Situation situation, const Needs& needs, std::size_t present,
                     std::uint64_t now_ns) const;
  // Of the side that has less, as measured; 0 where one is paused.
  double headroom(std::size_t i, Situation situation, const Needs& needs) const;
  // Of those that choose() chooses among, the narrowest part on which work that takes `alone_ns`
  // is known to take no more than `most_ns`, and the next narrower one where nothing is known of
  // that. right_paused(): there is none.
  struct Narrowest {
    std::size_t known, untried;
  };
  Narrowest narrowest(double alone_ns, double most_ns, Situation situation,
                      std::uint64_t now_ns) const;
  bool known(std::size_t i, Situation situation, std::uint64_t now_ns) const {
    return i >= right_paused() || tally(i, situation).known(now_ns);
  }
  // One among which choose() chooses and of which nothing is known. right_paused(): there is none.
  std::size_t untried(StepKind phase, std::uint64_t now_ns) const;
  // Whether slack remains to go on under arrangement `i`.
  bool bears(std::size_t i, const Service::Slack& slack, StepKind phase) const;
  // What was measured of it: how fast the services get on relative to alone, and the others
  // relative to when no service works. Not known: nothing was measured lately.
  struct Measured {
    bool known = false;
    double left = 1, right = 0, others = 0;
  };
  Measured measured(std::size_t i, Situation situation, std::uint64_t now_ns) const;
  // Of the services on the left, relative to alone; negative: not known.
  double speed(std::size_t i, Situation situation, std::uint64_t now_ns) const {
    return known(i, situation, now_ns) ? tally(i, situation).left() : -1;
  }
  // The most that the others are known to do per nanosecond in any of them.
  double most(StepKind phase) const;

 private:
  struct Tally {
    double ns = 0;
    Done done;
    std::uint64_t at_ns = 0;
    bool known(std::uint64_t now_ns) const;
    // Known, and not to be measured again. Counts that come in lumps, or a host that stalls, make a
    // short trial show any speed, and what looks bad is seen in trials only: what was measured for
    // less than a second is believed for that part of a minute.
    bool believed(std::uint64_t now_ns) const;
    double left() const;
    double right() const;
    double others() const { return done.work / ns; }
  };
  static constexpr std::size_t kKinds = 5;
  static std::size_t index(Situation at) {
    return static_cast<std::size_t>(at.left) * kKinds + static_cast<std::size_t>(at.right);
  }
  const Tally& tally(std::size_t i, Situation at) const { return tallies_[i][index(at)]; }
  const Tally& tally(std::size_t i, StepKind phase) const { return tally(i, Situation{phase}); }

  std::vector<Arrangement> all_;  // shared, parts (narrowest first), right_, left_paused()
  std::vector<std::array<Tally, kKinds * kKinds>> tallies_;
  Tally idle_;
};

}  // namespace vitamin::scheduler
