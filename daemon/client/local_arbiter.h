// SPDX-License-Identifier: Apache-2.0
//
// The arbiter of a process that shares its device with nobody Vitamin knows: the scheduler that
// vitamind runs, with one client. A policy that places launches is asked for each, over the entries
// that the dispatcher found for it.
//
// One client has nobody to wait for, so what it holds is followed only where the policy keeps its
// streams apart.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/arbiter.h"
#include "scheduler/announced_steps.h"
#include "scheduler/estimator.h"
#include "scheduler/ledger.h"
#include "scheduler/policies/registry.h"
#include "scheduler/scheduler.h"

namespace vitamin::client {

// Told once when the policy failed, which fifo takes the place of; null: nobody is told.
using SayPolicy = void (*)(const char* line);

// Makes the arbiters of one process. An error: the policy cannot be made, and why.
hal::Result<runtime::MakeArbiter> local_arbiter(const std::string& policy, std::uint64_t seed,
                                                SayPolicy say = nullptr);

class LocalArbiter final : public runtime::Arbiter {
 public:
  explicit LocalArbiter(runtime::PoolLayout layout, SayPolicy say = nullptr);
  // The policy is to be made for this; use() comes before everything else.
  scheduler::PolicyContext context(std::uint64_t seed) {
    return {layout_.entries(), estimator_, nullptr, seed};
  }
  void use(scheduler::Policy policy);

  hal::ComputeSet barred(runtime::LaneId lane) const override;
  runtime::Choice grant(const runtime::ReadyOperation& operation,
                        std::span<const runtime::EntryId> eligible) override;
  bool admits(runtime::EntryId entry, runtime::LaneId lane) const override;
  void submitted(runtime::EntryId entry, runtime::LaneId lane) override;
  void retired(runtime::EntryId entry, runtime::LaneId lane, std::uint32_t operations) override;
  void release(runtime::EntryId entry, runtime::LaneId lane) override;
  bool lanes_share() const override { return !isolated_; }
  void expect(const runtime::Hint& hint) override;

 private:
  static constexpr scheduler::ClientId kSelf = 1;
  // An entry on which an isolated lane may submit, or has work.
  struct Held {
    runtime::EntryId entry;
    runtime::LaneId lane;
    scheduler::GrantId grant;
    std::uint32_t outstanding;
    bool released;
  };
  struct Lane {
    bool known = false;  // to the ledger, which is asked where lanes are isolated
    scheduler::Ledger::StreamIndex stream = 0;
    scheduler::AnnouncedSteps steps;
    // By the scheduler.
    scheduler::GrantId grant = scheduler::kNoGrant;
    runtime::EntryId entry = runtime::kNoEntry;
    std::uint32_t launches = 0;  // 0: no such end
    std::uint64_t ahead_ns = scheduler::kNever;
  };

  Lane& lane(runtime::LaneId id);
  runtime::Choice place(const runtime::ReadyOperation& operation,
                        std::span<const runtime::EntryId> eligible, std::uint64_t now_ns);
  runtime::Choice allocate(const runtime::ReadyOperation& operation,
                           std::span<const runtime::EntryId> eligible, std::uint64_t now_ns);
  void obey(std::uint64_t now_ns);
  void returned(Held& held);
  Held* find(runtime::EntryId entry, runtime::LaneId lane);
  void tell_of_fault(const std::string& fault);

  runtime::PoolLayout layout_;
  SayPolicy say_;
  scheduler::Estimator estimator_;
  std::unique_ptr<scheduler::PlacementPolicy> placement_;  // null: scheduler_ decides
  std::string name_;                                       // of that
  bool isolated_ = false;
  scheduler::Scheduler scheduler_;
  scheduler::Ledger ledger_;
  std::vector<Lane> lanes_;
  std::vector<Held> held_;
  std::uint64_t steps_ = 0;  // that were announced
  bool told_ = false;
};

}  // namespace vitamin::client
