// SPDX-License-Identifier: Apache-2.0
//
// What a policy implements. A policy is one function over values:
//
//   AllocationPolicy   allocate(snapshot) -> rows: what each client is to have, for all clients at
//                      once. Asked when demand changes, not for each stream or launch.
//   PlacementPolicy    place(launch, eligible) -> a partition for one grant of one stream.
//
// A policy in C++ implements one of the two. What it returns is validated and clipped to quotas,
// reservations and the starvation bound (scheduler/constraints.h), so a policy can waste the device
// but cannot change a result. A policy that throws, or returns a row that names no partition or no
// client, is replaced by fifo.
//
// The paper's interface (section "Policy Interface"): Pick is Row::rank; Select is Row::partition,
// or place(); Prepare is a row for a client with an expected step (Row::hold).
// scheduler/policies/adapter.h runs a policy that is written as these three callbacks.
//
// Threads: one call at a time, perhaps with a lock held: no blocking, no I/O. Spans are valid
// during the call only.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "scheduler/grant.h"
#include "scheduler/types.h"

namespace vitamin::scheduler {

// What is known about speeds, from measurement or a model.
class Estimates {
 public:
  struct Speed {
    float mean = 0;   // progress per busy time, relative to alone on the whole device; 0: unknown
    float error = 0;  // standard error of the mean
  };
  virtual ~Estimates() = default;
  virtual Speed speed(ClientId client, Assignments configuration) const = 0;
};

// The answer of allocate(). Storage is reused: rows are cleared before the call.
struct Allocation {
  std::vector<Row> rows;
  std::uint64_t wake_ns = kNever;  // allocate() is called then, if not before
};

struct Snapshot {
  std::uint64_t now_ns = 0;
  std::uint64_t revision = 0;  // of the allocation that is asked for; grows by one
  std::span<const Partition> pool;
  // By id: clients that are active, that have a reservation, an unfinished step or an SLO, or that
  // have a row with `hold`. Their streams: those that wait or run.
  std::span<const Client> clients;
  std::span<const Grant> grants;      // of all clients, in no order
  std::span<const ClientId> changed;  // whose demand changed since the last call, in no order
  // What is in force: the rows of the last allocation, as clipped.
  const Allocation* current = nullptr;
  const Estimates* estimates = nullptr;  // null: nothing is known

  // The client with this id, or null (constraints.cpp).
  const Client* find(ClientId id) const;
};

// What becomes of one latency bound of a client's Slo.
struct SloStatus {
  ClientId client = kNoClient;
  // Of the steps that it bounds; kUnknown: of requests whose steps are not announced.
  StepKind kind = StepKind::kUnknown;
  std::uint64_t bound_ns = 0;  // 0: none, but latencies as if it were alone
  std::uint64_t alone_ns = 0;  // the bound's quantile of the work alone; 0: not known yet
  bool feasible = true;        // alone_ns <= bound_ns. False: the bound is refused
  // Of all bounds of the client together. Where it has none but "as if alone", a period is late
  // that lost more beside others than it may (scheduler/policies/service.h).
  std::uint64_t finished = 0, late = 0;
  double usable = 1;  // part of the bound that the controller uses
  // While the client is idle, too.
  PartitionId kept_partition = kNoPartition;
  double costs = 0;  // part of the other clients' progress that keeping all bounds has cost, 0 to 1
};

struct Findings;  // scheduler/estimator/estimator.h

class AllocationPolicy {
 public:
  virtual ~AllocationPolicy() = default;
  // Writes at most one row for each client and each stream. An active client without a row waits.
  virtual void allocate(const Snapshot& snapshot, Allocation& out) = 0;
  virtual void forget(ClientId client) { static_cast<void>(client); }
  // Adds a line for each bound of a client that the policy knows. None: it keeps no bounds.
  virtual void slo_statuses(std::vector<SloStatus>& out) const { static_cast<void>(out); }
  // The alternatives among which the policy chooses now. False: those of the estimator, or none.
  virtual bool explain(Findings& out) const { return static_cast<void>(out), false; }
};

// One launch that is to be placed.
struct PlacementRequest {
  ClientId client = kNoClient;
  const StreamDemand& demand;
  PartitionId last = kNoPartition;  // where the stream's grant before was
  std::uint64_t now_ns = 0;
  std::span<const Partition> pool;
};

struct Placement {
  // kNoPartition: no grant now, and the stream waits. Without vitamind, where streams are not
  // isolated from each other, the launch goes to the widest eligible partition instead.
  PartitionId partition = kNoPartition;
  std::uint32_t launches = 1;  // the stream asks again after so many, or kNoLaunchBound
};

class PlacementPolicy {
 public:
  virtual ~PlacementPolicy() = default;
  // `eligible`: partitions that run the launch and that conflict with no other client, narrowest
  // first, never empty. The whole device is among them only while no other client holds a part of
  // it, or when nothing else runs the launch. A part is granted exclusively, the whole device
  // shared: while one client has it, another may still be given a part.
  virtual Placement place(const PlacementRequest& launch,
                          std::span<const PartitionId> eligible) = 0;
  virtual void forget(ClientId client) { static_cast<void>(client); }
};

struct Parameter {
  std::string_view name;
  std::string_view meaning;  // one line, with unit and default
};

struct PolicyDescription {
  std::string_view name;
  std::string_view summary;  // one line
  std::span<const Parameter> parameters{};
  // No starvation bound: for baselines of the paper, which are compared without one.
  bool may_starve = false;
  // Bounds of latency (Client::slo) are kept: allocate() is called when a client with one rests
  // (has nothing to submit), and when it resumes; not for a rest that ends before the plan in force
  // is SchedulerOptions::replan_least_ns old.
  bool keeps_bounds = false;
  // Client::weight counts.
  bool weighs = false;
  // Exclusive grants of different streams of one client conflict, too.
  bool isolate_streams = false;
  // allocate() is called when a step is announced, begins, ends or is cancelled.
  bool uses_steps = false;
  // allocate() is called when a grant was returned while some stream waits.
  bool uses_returns = false;
  // allocate() is called when a stream begins to wait for which the last call gave no row, neither
  // of its own nor of its client. Otherwise such a stream waits for the next call.
  bool uses_streams = false;
  // Clients beside others report completed work, and when they are idle (Progress).
  bool uses_progress = false;
  // Times of single kernels are worth measuring (runtime::Profile).
  bool uses_kernel_times = false;
};

// A policy as the scheduler runs it: exactly one of the pointers is set.
struct Policy {
  PolicyDescription description;
  std::unique_ptr<AllocationPolicy> allocation{};
  std::unique_ptr<PlacementPolicy> placement{};
};

}  // namespace vitamin::scheduler
