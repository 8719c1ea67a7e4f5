// SPDX-License-Identifier: Apache-2.0
//
// slo: clients with a bound of latency (services) meet it, and the others get as much as that
// leaves them.
//
// While no service works, the others have the device; they submit no more ahead than drains in
// kRunAheadNs, since a service may come back at any time. While one works, the others go on in the
// arrangement that is measured to be worth most to them (Arrangements), for as long as no service
// has lost what it may lose (Service); then they are paused until its work has ended. A service of
// which nothing is known yet works alone. Where the slack is never enough to try an arrangement of
// which nothing is known, it is tried during few enough steps that their quantile holds if all of
// them are late.
//
// Work that is late beyond hope is lost: others wait for it no longer.
//
// Where services with different bounds work at once, those with the shortest are on one side and
// the rest on the other. Neither is paused, but to learn what the other one does alone: both are in
// the arrangement with the most headroom for the side that has less (Arrangements::divide). It is
// chosen again every kDwellsNs. Clients without a bound go on beside the services on the right
// while there is room for them.
//
// tpot-first, the paper's TPOT-First: the same, and each client with a bound of its tokens keeps a
// partition while it is idle, too: the narrowest that meets the bound. With `cumulative` off a
// token is due one tpot after the one before it, as in the paper.
//
// A partition is granted exclusively where one client is alone on its side; several share theirs.
//
// Threads: as AllocationPolicy. The estimator outlives the policy and is used under the same lock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "scheduler/estimator/estimator.h"
#include "scheduler/estimator/objective.h"
#include "scheduler/policies/arrangements.h"
#include "scheduler/policies/service.h"
#include "scheduler/policy.h"

namespace vitamin::scheduler {

struct SloOptions {
  Objective objective;       // of clients without a bound, while no service works
  bool keeps_parts = false;  // tpot-first
  bool cumulative = true;    // deadlines of one request
};

class SloPolicy final : public AllocationPolicy {
 public:
  SloPolicy(const SloOptions& options, Estimator& estimator, std::span<const Partition> pool);
  void allocate(const Snapshot& snapshot, Allocation& out) override;
  void forget(ClientId client) override;
  void slo_statuses(std::vector<SloStatus>& out) const override;
  bool explain(Findings& out) const override;

 private:
  struct ServiceState {  // of one client
    Service service;
    bool present = false;
    bool right = false;  // its side in the arrangement in force
    // Arrangements; 0 (the shared one, which has no part): none.
    std::size_t kept_arrangement = 0;  // its part is kept while it is idle, too
    std::size_t untried = 0;           // the one that is to be tried next
  };
  struct KeptParts {  // of all services together; 0: none
    std::size_t arrangement = 0, untried = 0;
  };
  struct Counter {
    ClientId client = kNoClient;
    double work = 0;
  };

  struct Occasion {  // of a choice
    Situation situation;
    std::uint64_t begun = 0;  // steps and periods, so far, of the services that are there
    bool lost = false, learns = false;
    friend bool operator==(const Occasion&, const Occasion&) = default;
  };

  double count_others(const Snapshot& snapshot);
  bool sample(const Snapshot& snapshot);
  bool measure_steps(std::uint64_t now_ns);
  void measure(std::uint64_t now_ns, double passed_ns, double work);
  void find_kept_parts(std::uint64_t now_ns);
  void take_sides(std::uint64_t now_ns);
  KeptParts kept_parts() const;
  // In which no service loses more than it may; right_paused(): the others are paused.
  std::size_t best_arrangement(const KeptParts& parts, const Service::Slack& slack,
                               std::uint64_t now_ns) const;
  // What a trial would be of; one that is known: none is needed.
  std::size_t to_try(const KeptParts& parts, std::size_t best, std::uint64_t now_ns) const;
  std::size_t choose(std::uint64_t now_ns);
  std::size_t divide(std::uint64_t now_ns);
  std::size_t trial(std::size_t untried, const Service::Slack& slack, std::size_t best);
  void write_without_services(const Snapshot& snapshot, Allocation& out);
  void write(const Snapshot& snapshot, Allocation& out) const;
  std::uint64_t wake_ns(std::uint64_t now_ns) const;
  ChoiceReason reason(const Service::Slack& slack) const;
  CandidateReport report(std::size_t arrangement, const Service::Slack& slack) const;
  Service::Slack worst(std::uint64_t now_ns) const;
  bool keeps_a_part() const;
  bool keeps_bounds(std::size_t arrangement, const Service::Slack& slack) const;
  // Nothing ran beside the service, or is to run.
  bool is_alone(const ServiceState& state, std::size_t arrangement) const {
    return arrangement ==
           (state.right ? arrangements_.left_paused() : arrangements_.right_paused());
  }

  SloOptions options_;
  Estimator& estimator_;
  std::unique_ptr<AllocationPolicy> others_;  // while no service works
  Arrangements arrangements_;

  std::vector<ServiceState> services_;     // by client
  std::vector<Counter> before_, counted_;  // others, by client
  std::vector<Client> rest_;               // the others, of a snapshot
  std::size_t chosen_ = kNone;             // arrangement in force; kNone: no service works
  bool rested_ = false;                    // none worked before it was
  Situation situation_;
  Situation decodes_{StepKind::kDecode};  // the last one with decodes on the left, and work beside
  // Of services on both sides.
  Situation divided_;  // for which `chosen_` was chosen
  Arrangements::Needs needs_;
  bool admits_ = false;  // the others go on, too
  Occasion occasion_;
  bool trying_ = false;      // whatever is lost, until the work under way has ended
  std::uint64_t tried_ = 0;  // Occasion::begun, then
  bool others_run_ = false;
  std::uint64_t sampled_ns_ = 0, changed_ns_ = 0;
  double others_work_ = 0;      // in all
  double got_ = 0, could_ = 0;  // by the others while services worked, and with no bound
  static constexpr std::size_t kNone = ~std::size_t{0};
};

Policy make_slo(const SloOptions& options, Estimator& estimator, std::span<const Partition> pool);
Policy make_tpot_first(const SloOptions& options, Estimator& estimator,
                       std::span<const Partition> pool);

}  // namespace vitamin::scheduler
