// SPDX-License-Identifier: Apache-2.0
//
// The paper's interface (section "Policy Interface") over allocate(): a policy that is written as
// Pick, Select and Prepare runs unchanged in its structure.
//
//   Pick(Q, S)      the next operation of the ready queue Q, or none for now
//   Select(o, E, S) a partition of E: those that run o and conflict with no other client, under
//                   isolation with no other stream. Limits are applied to what is chosen
//   Prepare(h, S)   for an announced step: a partition to keep for it, and whether to revoke the
//                   grants of others that overlap it
//
// In one call rows of open grants are kept, Prepare is asked for each step that has not begun, then
// Pick and Select in turn. The ready queue holds the next launch of every stream that waits without
// an open grant and that no row of Prepare covers, oldest first. Where nothing is eligible, Select
// is not called. What Select returns becomes a row of that stream; an open grant keeps its row
// until its launches are used up, or until Prepare revokes it. What Prepare keeps for a step of
// one stream replaces that stream's row, so a stream that runs elsewhere moves at once; what it
// keeps for a step of all streams leaves rows of single streams.
//
// Threads: as AllocationPolicy.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "scheduler/policy.h"

namespace vitamin::scheduler {

class CallbackPolicy {
 public:
  struct Operation {
    ClientId client = kNoClient;
    StreamId stream = 0;
    StepKind phase = StepKind::kUnknown;  // of its client
    std::uint32_t min_sms = 1;
    std::uint64_t kernel = 0, predicted_ns = 0;
    std::uint64_t since_ns = 0;  // it is ready since then
    std::uint64_t due_ns = 0;    // of the first step of the client that is due; 0: none
  };
  // The paper's S: partitions, grants (open, or revoked and draining), what is written so far.
  struct State {
    const Snapshot& snapshot;
    std::span<const Row> rows;
  };
  struct Selection {
    PartitionId partition = kNoPartition;  // kNoPartition: not now
    std::uint32_t launches = 1;            // or kNoLaunchBound
    std::uint64_t run_ahead_ns = kNever;
  };
  struct Plan {
    // Kept for the step; kNoPartition, or one that the pool lacks: nothing.
    PartitionId target = kNoPartition;
    // The paper: close the gates of conflicting contexts. False: it gets what exclusive grants of
    // others leave.
    bool revoke_others = false;
    std::uint64_t until_ns = kNever;  // it is kept until this time
  };

  virtual ~CallbackPolicy() = default;
  // An index into `ready`, which is not empty; none: all of them wait.
  virtual std::optional<std::size_t> pick(std::span<const Operation> ready, const State& state) {
    static_cast<void>(ready), static_cast<void>(state);
    return 0;
  }
  // One of `eligible` (narrowest first, the whole device last, not empty), or none; any other
  // partition is a fault.
  virtual Selection select(const Operation& operation, std::span<const PartitionId> eligible,
                           const State& state) = 0;
  virtual Plan prepare(const Step& step, const State& state) {
    static_cast<void>(step), static_cast<void>(state);
    return {};
  }
  virtual void forget(ClientId client) { static_cast<void>(client); }
};

// `description`: name and summary; the adapter sets what it needs.
Policy adapt(std::unique_ptr<CallbackPolicy> policy, PolicyDescription description);

}  // namespace vitamin::scheduler
