// SPDX-License-Identifier: Apache-2.0
//
// What one client with a bound of latency (a service) has under way, and how much later it is than
// it would be alone.
//
// Two kinds of work are under way:
//
//   a step    announced, of a kind that the class bounds: ttft (prefill), tpot (decode), step
//             (iteration), latency (any other). Deadlines of a request add up: token k is due at
//             the first token's deadline + k * tpot.
//   a period  the client has something to do and bounds a latency, and no such step is announced.
//             It ends when the client is no longer active.
//
// Lost time. The client's counter of completed work, over its pace (work per nanosecond while
// nothing ran beside it), says how long the work would have taken alone; what passed beyond that is
// lost. In a queue that is served one by one no request ends later than alone by more than its
// period has lost until then, whatever the arrivals are. So a bound on what each period may lose
// (its allowance) bounds every quantile of the requests' latencies, and it need not be known which
// requests there were.
//
// The allowance of a period is its bound, less the quantile of the periods alone. Where the bound
// is no number, or cannot be met alone, it is kAsAlone of the latency alone at the quantile. That
// is taken to be 1.5 times the mean period that Poisson arrivals have alone, load / (1 - load) *
// mean pause (it is 2 to 2.2 times for equal requests at loads of 0.2 to 0.8, and more for less
// equal ones), and no more than the quantile of the periods alone (for regular arrivals).
//
// A step that would be late alone, too, is due kAsAlone of what it takes alone later than it would
// end alone: it leaves others as much as such a period does.
//
// What is alone is learned where nothing runs beside the service: in all periods until some are
// known, and in one of eight afterwards. What steps take is known best by the clock, of those that
// nothing ran beside. Until there are enough of them it is taken from what each step did, which
// scatters where work is counted in lumps: a whole step may be one launch of a graph, and then one
// step seems to do nothing and the next one twice as much. A service whose work is counted so, and
// that pauses between steps, has no step that nothing ran beside: what the others submitted
// meanwhile drains when the step begins, and counts as part of what it takes alone. Where that is
// more than the bound, the others are paused for a sixteenth of the time all the same, so that it
// is seen when it no longer is.
//
// Threads: as AllocationPolicy.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "scheduler/estimator/estimate_store.h"
#include "scheduler/types.h"

namespace vitamin::scheduler {

// The part of a latency alone that others may add to it where the bound is no number (kAsAloneNs).
inline constexpr double kAsAlone = 0.15;

// For so long after a service has begun to rest (has nothing to submit) its period counts as under
// way, and the others stay stopped where they were: as long as their work takes to drain when the
// service comes back. A service that comes back later, but before the scheduler takes it to be
// idle, goes on with the same period.
inline constexpr std::uint64_t kRestNs = 2'000'000;

// A bound that applies to steps of this kind; 0: none.
std::uint64_t bound_of(const Slo& slo, StepKind kind);

class Service {
 public:
  // What was in force since the last sample.
  struct Since {
    std::uint64_t now_ns = 0;
    bool alone = false;    // nothing else ran, or was to run
    bool settled = false;  // for so long that the work before has drained
    bool rested = false;   // what drains was submitted while no service worked: kRunAheadNs at most
    bool another = false;  // another service worked, on the other side
    std::size_t arrangement = 0;
    double speed = -1;       // of steps in it, relative to alone; negative: not known
    double others_work = 0;  // completed by clients without a bound
  };

  // A step that has ended, and ran in one arrangement from its beginning.
  struct Measured {
    StepKind kind = StepKind::kUnknown;
    std::size_t arrangement = 0;
    double passed_ns = 0, alone_ns = 0;  // alone: the mean of such steps
    double others_work = 0;              // completed meanwhile
  };

  // `keeps_parts`: how its work is counted is found out also where all of it runs beside others.
  Service(ClientId client, bool cumulative, bool keeps_parts)
      : client_(client), cumulative_(cumulative), keeps_parts_(keeps_parts) {}

  // What the client did since the last call.
  void sample(const Client& client, ProgramHash program, const Since& since, EstimateStore& store,
              std::uint64_t store_ns);
  // It is attached no longer, or has no bound.
  void leave();

  ClientId client() const { return client_; }
  const Slo& slo() const { return slo_; }
  StepKind phase() const { return phase_; }
  // Of what it does now: of steps of its phase, else of the period that it is in; kNever: none.
  std::uint64_t bound_ns() const {
    const std::uint64_t of_steps = bound_of(slo_, phase_);
    return of_steps != 0 ? of_steps : slo_.latency_ns != 0 ? slo_.latency_ns : kNever;
  }
  // It has work, is about to have, or has rested for less than kRestNs.
  bool counts(std::uint64_t now_ns) const;
  bool working() const { return working_; }
  std::uint64_t idle_since_ns() const { return idle_ns_; }  // while not working()
  // How fast it was since the last sample, relative to alone, by its counters of work; negative:
  // not known.
  double speed() const { return speed_; }
  // Its work is counted in lumps, and it was in a step since the last sample, of which measured()
  // says at its end how fast it was.
  bool by_the_clock() const { return in_step_ && in_lumps_; }
  // What a step of this kind takes is not taken from counts of which it is not known whether they
  // come in lumps.
  bool judged(const EstimateStore& store, StepKind kind) const;
  // With the last sample it was found that its work is counted in lumps.
  bool found_lumps() const { return found_lumps_; }
  // Steps that ended with the last sample, if its work is counted in lumps.
  const std::vector<Measured>& measured() const { return measured_; }

  // Time that may still be lost; negative: too much was. `lost`: all work is late beyond hope.
  struct Slack {
    double ns = 1e18;
    double margin_ns = 0;     // is lost while the others are being stopped
    double remaining_ns = 0;  // of the work under way, alone
    // Of its speed alone, the part with which all of that ends just in time, margin_ns left over:
    // 0 (nothing is under way) to 1 (it is late, or has no slack).
    double need = 0;
    bool lost = false;
    bool learns = false;       // what alone is is not known: nothing is to run beside it
    bool learns_pace = false;  // its pace is not known: services on the other side are paused
    bool control = false;      // it is learned again where others without a bound are paused
    bool again = false;        // the same, of steps
    bool in_period = false;
  };
  Slack slack(std::uint64_t now_ns) const;
  // The others are stopped, since nothing more may be lost; or go on again.
  void stops(bool stop);

  // Of work of this kind alone, at the quantile; 0: not known.
  std::uint64_t alone_ns(const EstimateStore& store, StepKind kind, bool period) const;
  std::uint64_t begun() const { return begun_; }  // steps and periods
  std::uint64_t finished() const { return finished_; }
  std::uint64_t late() const { return late_; }
  double usable() const { return usable_; }  // part of the bound of steps

 private:
  struct WorkItem {
    std::uint64_t id = 0;  // of the step
    StepKind kind = StepKind::kUnknown;
    bool period = false, seen = false;
    std::uint64_t ready_ns = 0;
    std::uint64_t begin_ns = kNever;  // of a step; kNever: it has not begun
    double done_ns = 0;               // alone
    // Of a step.
    std::uint64_t due_ns = 0, bound_ns = 0;
    std::uint64_t promised_ns = 0;     // by the bound itself, where due_ns is by what alone takes
    std::size_t arrangement = 0;       // in which it began to run
    bool runs = false, moved = false;  // it is, or was, the first; in more than one arrangement
    double others_from = 0;            // others_work_ when it began to run
    double work_ns = 0;                // alone, at the quantile
    double worked_ns = 0;   // pauses of the client left out; of a step, while it was the first
    bool control = false;   // nothing ran beside it
    bool drained = false;   // but what drained at its beginning
    bool counted = true;    // done_ns is by the client's counters
    bool hopeless = false;  // its bound is less than what it takes alone
    // Of a period.
    double work = 0;
    double allowance_ns = 0;  // of worked_ns - done_ns
    double lost_from_ns = 0;  // of worked_ns
    bool stopped = false;     // the others are
    double stopped_ns = 0;    // lost when they were
  };
  struct Pace {
    double work = 0, ns = 0;
    std::uint64_t at_ns = 0;
    void add(double work_done, double passed_ns, std::uint64_t now_ns);
    bool known(std::uint64_t now_ns) const;
  };

  void advance(const Client& client, const Since& since);
  void begin_step(const Step& step, std::uint64_t ready_ns, const EstimateStore& store);
  void begin_period(std::uint64_t now_ns, const EstimateStore& store);
  void correct(bool harmed);  // of a step: the others made it late
  void finish(const WorkItem& item, std::uint64_t now_ns, EstimateStore& store,
              std::uint64_t store_ns);
  // Whether it is time to see again what steps take alone.
  void look(std::uint64_t now_ns, const EstimateStore& store);
  void measure(const WorkItem& step, EstimateStore& store, std::uint64_t store_ns);
  // Enough steps of the kind were; `what`: kStepByClock or kStepAfterRest.
  bool measured_by_clock(const EstimateStore& store, StepKind kind, Quantity what) const;
  const Estimate* step_alone(const EstimateStore& store, StepKind kind) const;
  Pace& pace() { return paces_[static_cast<std::size_t>(phase_)]; }
  const Pace& pace() const { return paces_[static_cast<std::size_t>(phase_)]; }

  ClientId client_;
  bool cumulative_, keeps_parts_;
  Slo slo_;
  double z_ = 0;  // of the quantile
  ProgramHash program_ = 0;
  StepKind phase_ = StepKind::kUnknown;
  // What has begun is before what waits behind it, which is by due time; at most one period.
  std::vector<WorkItem> items_;
  std::uint64_t last_request_ = 0, last_due_ns_ = 0;
  std::array<Pace, 5> paces_;  // by phase
  bool working_ = false, has_steps_ = false, in_step_ = false;
  std::uint64_t sampled_ns_ = 0, idle_ns_ = 0;
  double before_ = 0, speed_ = -1;
  // Of steps that nothing ran beside: how far the work that was counted was from that of the time
  // that had passed, relative to it. Begins with what is known of the program.
  double count_error_ = 0;
  bool in_lumps_ = false, found_lumps_ = false;
  double judged_ = 0;         // steps by which that was judged
  bool knows_steps_ = false;  // enough of the phase, by the clock
  bool looks_ = false;        // the others are paused, to learn what steps take alone
  std::uint64_t looked_ns_ = 0;
  double others_work_ = 0;  // in all
  std::vector<Measured> measured_;
  // Of the newest periods: how many, what they took alone, the pauses behind them, all of the time.
  struct Cycles {
    double count = 0, done_ns = 0, pause_ns = 0, span_ns = 0;
    double mean_ns() const;  // of a period alone, if arrivals are Poisson; 0: not known
  };
  Cycles cycles_;
  double last_done_ns_ = 0;
  std::uint64_t began_ns_ = 0, ended_ns_ = 0;  // the last period
  double margin_ns_ = kRestNs;
  std::uint64_t periods_ = 0, begun_ = 0, finished_ = 0, late_ = 0;
  std::uint64_t window_ = 0, window_harmed_ = 0;
  double usable_ = 1;
};

}  // namespace vitamin::scheduler
