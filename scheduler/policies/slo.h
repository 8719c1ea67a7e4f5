// SPDX-License-Identifier: Apache-2.0
//
// slo: clients with a bound of latency meet it, and the others get as much as that leaves them.
//
// A bound (Slo) is one of: first token (prefill steps), each further token (decode steps), an
// iteration, or a request that is not announced, which is a busy period of its client. Deadlines of
// a request add up: token k is due at the first token's deadline + k * tpot, so tokens that came
// early pay for one that comes late.
//
// Earliest deadline first, over configurations instead of processes: of each configuration it is
// known how fast every client gets on (Estimator), so
//
//     slack = due - now - remaining work / speed
//
// of every unfinished step follows. The configuration with the most progress of the other clients
// among those in which no slack is negative is chosen; where there is none, the one in which the
// worst slack is least bad. The remaining work is taken at the bound's quantile; of a busy period,
// at that quantile of what remains of periods that have lasted as long as this one: others keep
// what they have at first, and leave the long periods alone.
//
// A controller makes up for what the model does not see: after each 300 requests of a client it
// gives up a part of the slack when more than 1 - q of them were late, and takes some back when
// fewer were.
//
// A bound that the client does not meet alone is not met by pausing others: its deadline becomes
// what the client takes alone, and Promise::feasible says so. So a bound below a microsecond asks
// for latencies as alone.
//
// A step that is late by many bounds is lost: others wait for it no longer. A busy period that is
// lost is a backlog, which a client that shares may never work off: when the others have had as
// long as the period had, it counts as late, and another one begins.
//
// tpot-first, the paper's TPOT-First: the same, and each client with a bound of its tokens keeps an
// exclusive partition while it is idle, too: the narrowest that meets the bound. A step at risk
// gets the narrowest wider one that meets its deadline. With `cumulative` off a token is due one
// tpot after the one before it, as in the paper.
//
// Threads: as AllocationPolicy. The estimator outlives the policy and is used under the same lock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "scheduler/estimator.h"
#include "scheduler/objective.h"
#include "scheduler/policy.h"

namespace vitamin::scheduler {

struct SloOptions {
  Objective objective;     // of clients without a bound, while none with one has work
  bool standing = false;   // tpot-first
  bool cumulative = true;  // deadlines of one request
};

class SloPolicy final : public AllocationPolicy {
 public:
  SloPolicy(const SloOptions& options, Estimator& estimator, std::span<const Partition> pool);
  void allocate(const Snapshot& snapshot, Allocation& out) override;
  void forget(ClientId client) override;
  void promises(std::vector<Promise>& out) const override;
  bool explain(Findings& out) const override;

 private:
  struct Unit {            // of work that has a deadline
    std::uint64_t id = 0;  // of the step; of a busy period its begin
    StepKind kind = StepKind::kUnknown;
    std::uint64_t request = 0, ready_ns = 0, due_ns = 0, bound_ns = 0;
    std::uint64_t promised_ns = 0;  // due by the bound itself, where due_ns is by what alone takes
    double work_ns = 0;             // alone, at the quantile; 0: unknown
    double done_ns = 0;             // alone
    std::uint64_t busy_ns = 0;      // of a period: its client's counter at the begin
    bool known = false;             // what it takes alone
    bool period = false, seen = false;
  };
  struct Bounded {  // a client with a bound
    ClientId client = kNoClient;
    Slo slo;
    StepKind phase = StepKind::kUnknown;
    Program program = 0;
    double z = 0;  // of the quantile
    std::vector<Unit> units;
    std::uint64_t last_request = 0, last_due_ns = 0;
    double usable = 1;
    std::uint64_t finished = 0, late = 0, window = 0, window_late = 0;
    PartitionId standing = kNoPartition;
    std::uint64_t busy_ns = 0, looked_ns = 0;  // the counter at the last call, and that call
    bool counted = false;                      // active, or about to be
    bool present = false;
  };
  struct Option {                      // a configuration
    std::size_t begin = 0, count = 0;  // in assignments_
    std::uint32_t left_sms = 0;        // of the bounded clients' part; 0: shared with others
    bool measured = true;              // of all bounded clients
    double harvest = 0;                // sum of weight * speed of the others
    std::size_t speeds = 0;            // first of bounded_.size() in speeds_
  };
  struct Outlook {
    double slack_ns = 0, hopeful_ns = 0;  // the worst; where what is not measured is at its best
  };

  bool look(const Snapshot& snapshot);
  void follow(Bounded& bounded, const Client& client, std::uint64_t now_ns);
  void start(Bounded& bounded, const Step* step, std::uint64_t id, std::uint64_t since_ns);
  void finish(Bounded& bounded, const Unit& unit, std::uint64_t now_ns);
  void work(std::uint64_t now_ns);
  double remaining_ns(const Bounded& bounded, const Unit& unit) const;
  std::uint64_t alone_ns(const Bounded& bounded, StepKind kind, bool period) const;
  void build(const Snapshot& snapshot);
  void add_option(const Snapshot& snapshot, PartitionId left, PartitionId right);
  void refresh(const Snapshot& snapshot, Option& option);
  static std::uint64_t lost_from_ns(const Unit& unit);
  Outlook outlook(const Option& option, std::uint64_t now_ns) const;
  std::size_t choose(std::uint64_t now_ns);
  void stand(std::uint64_t now_ns);
  bool may_probe() const;
  void measure(const Snapshot& snapshot);
  void write(const Snapshot& snapshot, Allocation& out) const;
  std::span<const Assignment> assignments(const Option& option) const {
    return {assignments_.data() + option.begin, option.count};
  }
  bool is_bounded(ClientId client) const;

  SloOptions options_;
  Estimator& estimator_;
  std::span<const Partition> pool_;
  std::unique_ptr<AllocationPolicy> others_;  // while no bounded client has work
  struct Split {
    PartitionId left, right;
  };
  std::vector<Split> splits_;  // narrowest left first

  std::vector<Bounded> bounded_;  // by client
  std::vector<ClientId> built_for_, wanted_;
  std::vector<Assignment> assignments_;
  std::vector<Option> table_;
  struct Speed {
    double mean = 1;  // relative to alone
    double hope = 1;  // at its best, as far as the model can be wrong
  };
  std::vector<Speed> speeds_;
  std::size_t chosen_ = kNone, refreshed_ = 0;
  static constexpr std::size_t kNone = ~std::size_t{0};
  std::vector<Client> before_;  // counters when the present measurement began
  std::uint64_t measured_from_ns_ = 0, changed_ns_ = 0, worked_ns_ = 0;
  std::uint64_t probes_ = 0;
  bool probing_ = false;
  double got_ = 0, could_ = 0;  // harvest so far, and without bounds
};

Policy make_slo(const SloOptions& options, Estimator& estimator, std::span<const Partition> pool);
Policy make_tpot_first(const SloOptions& options, Estimator& estimator,
                       std::span<const Partition> pool);

}  // namespace vitamin::scheduler
