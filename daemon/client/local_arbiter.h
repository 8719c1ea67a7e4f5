// SPDX-License-Identifier: Apache-2.0
//
// The arbiter of a process that runs without vitamind: the scheduler that vitamind runs, with one
// client. A placement policy is asked when the stream's last answer is used up or does not fit.
//
// A single client never waits for another, so grants are tracked only for a policy that isolates
// streams from each other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/arbiter.h"
#include "scheduler/announced_steps.h"
#include "scheduler/estimator/estimator.h"
#include "scheduler/ledger.h"
#include "scheduler/policies/registry.h"
#include "scheduler/scheduler.h"

namespace vitamin::client {

// Gets one line when the policy fails for the first time: why, and what decides from then on. May
// be null.
using ReportFault = void (*)(const char* line);

// Makes the arbiters of one process. The error says why the policy cannot be made.
hal::Result<runtime::MakeArbiter> local_arbiter(const std::string& policy, std::uint64_t seed,
                                                ReportFault report = nullptr);

class LocalArbiter final : public runtime::Arbiter {
 public:
  explicit LocalArbiter(runtime::PoolLayout layout, ReportFault report = nullptr);
  // The argument of scheduler::make() for the policy. Call use() before any other function.
  scheduler::PolicyContext context(std::uint64_t seed) {
    return {layout_.partitions(), estimator_, nullptr, seed};
  }
  void use(scheduler::Policy policy);

  hal::ComputeSet barred(runtime::StreamId stream) const override;
  runtime::GrantTerms grant(const runtime::ReadyOperation& operation,
                            std::span<const runtime::PartitionId> eligible) override;
  bool admits(runtime::PartitionId partition, runtime::StreamId stream) const override;
  void submitted(runtime::PartitionId partition, runtime::StreamId stream) override;
  void ended(runtime::PartitionId partition, runtime::StreamId stream,
             std::uint32_t operations) override;
  void release(runtime::PartitionId partition, runtime::StreamId stream) override;
  bool streams_share() const override { return !isolated_; }
  void expect(const runtime::ExpectedOperation& expected) override;

 private:
  static constexpr scheduler::ClientId kSelf = 1;
  // A partition on which an isolated stream may submit, or has work.
  struct Held {
    runtime::PartitionId partition;
    runtime::StreamId stream;
    scheduler::GrantId grant;
    std::uint32_t outstanding;
    bool released;
  };
  struct StreamState {
    bool known = false;  // to the ledger, which is used if streams are isolated
    scheduler::Ledger::StreamIndex ledger_stream = 0;
    scheduler::AnnouncedSteps steps;
    // The scheduler's last decision.
    scheduler::GrantId grant = scheduler::kNoGrant;
    runtime::PartitionId partition = runtime::kNoPartition;
    std::uint32_t launches = scheduler::kNoLaunchBound;  // of the grant
    std::uint64_t ahead_ns = scheduler::kNever;
  };

  StreamState& state_of(runtime::StreamId id);
  runtime::GrantTerms place(const runtime::ReadyOperation& operation,
                            std::span<const runtime::PartitionId> eligible, std::uint64_t now_ns);
  runtime::GrantTerms allocate(const runtime::ReadyOperation& operation,
                               std::span<const runtime::PartitionId> eligible,
                               std::uint64_t now_ns);
  void apply_decisions(std::uint64_t now_ns);
  void returned(Held& held);
  Held* find(runtime::PartitionId partition, runtime::StreamId stream);
  void report_fault(const std::string& fault, const char* consequence);

  runtime::PoolLayout layout_;
  ReportFault report_;
  scheduler::Estimator estimator_;
  std::unique_ptr<scheduler::PlacementPolicy> placement_;  // null: scheduler_ decides
  std::string name_;                                       // of the placement policy
  bool isolated_ = false;
  scheduler::Scheduler scheduler_;
  scheduler::Ledger ledger_;
  std::vector<StreamState> streams_;
  std::vector<Held> held_;
  std::uint64_t steps_ = 0;  // announced so far
  bool fault_reported_ = false;
};

}  // namespace vitamin::client
