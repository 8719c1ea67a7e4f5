// SPDX-License-Identifier: Apache-2.0
//
// The values that the scheduler, the estimator and policies exchange. No behavior.
//
// A client is one session of a process on one device: a process that reconnects has a second one
// until the first is closed. A stream is one logical stream of a client (in vitamind: a lane). A
// partition is one of the device's pool (runtime/pool/layout.h): a fixed set of SMs or CUs;
// partition 0 is the whole device.
//
// Units: times are nanoseconds of one monotonic clock that the caller chooses (the host's, or
// virtual); widths are counts of SMs or CUs.
// Ownership: spans refer to the scheduler's storage and are valid during the call that passes them.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "hal/compute_set.h"
#include "runtime/demand.h"

namespace vitamin::scheduler {

// In vitamind also of a process that has not connected (DeviceArbiter::reserve_for_absent()).
using ClientId = std::uint32_t;
using runtime::kNever;
using runtime::kNoPartition;
using runtime::kWholeDevice;
using runtime::Partition;
using runtime::PartitionId;
using runtime::StreamId;
inline constexpr ClientId kNoClient = 0;
inline constexpr StreamId kAllStreams = 0xffffffff;
// `launches` of a row, grant or decision (0 in the policy ABI, too): the grant ends by revocation
// only.
inline constexpr std::uint32_t kNoLaunchBound = 0;
// The same for the runtime, which counts launches down.
constexpr std::uint32_t runtime_launches(std::uint32_t launches) {
  return launches == kNoLaunchBound ? runtime::kUntilRevoked : launches;
}

// What a step of a client computes, as far as the client said so.
enum class StepKind : std::uint8_t { kUnknown, kPrefill, kDecode, kIteration, kBestEffort };

// How a client may use a partition.
//   kExclusive  no other client's exclusive grant overlaps it
//   kShared     any number of shared grants may overlap it; they promise nothing
//   kPaused     no grant
enum class Mode : std::uint8_t { kExclusive, kShared, kPaused };

// Demand of one stream.
struct StreamDemand {
  enum class State : std::uint8_t { kIdle, kWaiting, kRunning };
  StreamId id = 0;
  State state = State::kIdle;
  std::uint32_t min_sms = 1;  // narrowest partition that its next launch fits
  // Of its launches: of one (kernel, grid, block, shared memory) in a process without vitamind, of
  // all launches of the client in vitamind.
  std::uint64_t profile_key = 0;
  std::uint64_t predicted_ns = 0;      // of that launch on the whole device; 0: unknown
  std::uint64_t waiting_since_ns = 0;  // kWaiting: since then without a grant
};

// A unit of work that a client announced: a prefill, one token, one training iteration.
// Announcements are hints: they change placement only, within the client's limits.
struct Step {
  std::uint64_t id = 0;       // chosen by the client; unique among its unfinished steps
  std::uint64_t request = 0;  // the steps of one request are due one after the other; 0: none
  ClientId client = kNoClient;
  StreamId stream = kAllStreams;
  StepKind kind = StepKind::kUnknown;
  std::uint64_t ready_ns = 0;  // it can begin then
  std::uint64_t begin_ns = 0;  // it began then; 0: expected
  std::uint64_t due_ns = 0;    // cumulative in its request (arrival + TTFT + k * TPOT); 0: none
  std::uint64_t work_ns = 0;   // alone on the whole device; 0: the estimator's
  std::uint32_t min_sms = 1;
};

// Cumulative progress of one client; each word only grows.
struct Progress {
  std::uint64_t work = 0;       // weighted completed launches (estimator.h says how they are used)
  std::uint64_t busy_ns = 0;    // during which work was queued or running
  std::uint64_t misplaced = 0;  // part of `work` that ran elsewhere than on the granted partition
  std::uint64_t launches = 0;
  std::uint64_t collectives = 0;  // launches that wait for kernels of other processes
};

// A quota of a group: the grants of its clients cover at most so many SMs together.
struct GroupQuota {
  std::uint32_t group = 0;  // 0: none
  std::uint32_t max_sms = 0;
  friend bool operator==(const GroupQuota&, const GroupQuota&) = default;
};

// What constrains a client, whatever the policy says (constraints.h enforces it).
struct Limits {
  std::uint32_t max_sms = 0;       // 0: no quota
  std::uint32_t reserved_sms = 0;  // kept for the client also while it is idle
  std::uint32_t group = 0;         // clients of one group share max_sms and reserved_sms; 0: none
  // False: a shared grant must not be wider than max_sms allows (a quota cannot hold on SMs that
  // are shared with others), so the client gets exclusive partitions only.
  bool may_share = true;
  // Of further groups that the client is in: of its user, its job. Without a group: unused.
  std::array<GroupQuota, 7> outer{};
  // What the client may have at most, by all of its quotas; 0: no quota.
  std::uint32_t most_sms() const {
    std::uint32_t most = max_sms;
    for (const GroupQuota& quota : outer)
      if (quota.max_sms != 0 && (most == 0 || quota.max_sms < most)) most = quota.max_sms;
    return most;
  }
  friend bool operator==(const Limits&, const Limits&) = default;
};

// A latency bound that is no number: latencies as if the client were alone.
inline constexpr std::uint64_t kAsAloneNs = 1;
constexpr bool is_as_alone(std::uint64_t bound_ns) { return bound_ns != 0 && bound_ns < 1'000; }

// Service-level objective of a class; 0: none. At most one of the latency bounds per StepKind.
struct Slo {
  std::uint64_t ttft_ns = 0;     // first token (prefill)
  std::uint64_t tpot_ns = 0;     // each further token (decode)
  std::uint64_t latency_ns = 0;  // a request without steps: one busy period of the client
  std::uint64_t step_ns = 0;     // an iteration
  float quantile = 0.99F;        // of the latencies that meet the bound
  bool any() const { return ttft_ns != 0 || tpot_ns != 0 || latency_ns != 0 || step_ns != 0; }
  friend bool operator==(const Slo&, const Slo&) = default;
};

struct Client {
  ClientId id = kNoClient;
  float weight = 1;
  Limits limits;
  Slo slo;
  // Of the step under way that began last; between two steps, of the one before.
  StepKind phase = StepKind::kUnknown;
  bool active = false;  // some stream waits, runs, or ended less than a moment ago
  bool reports_progress = false;
  // It launched collectives within the last minute: what it gets done depends on the other devices
  // of its job, too.
  bool distributed = false;
  Progress progress;
  std::uint64_t active_since_ns = 0;
  std::span<const StreamDemand> streams;
  std::span<const Step> steps;  // unfinished, by due time
};

// A row of an allocation: what a client, or one stream of it, is to have.
// A row for one stream overrides its client's row.
struct Row {
  ClientId client = kNoClient;
  StreamId stream = kAllStreams;
  PartitionId partition = kWholeDevice;
  Mode mode = Mode::kShared;
  std::uint8_t rank = 0;                    // lower first; of one rank: constraints.h
  bool hold = false;                        // the partition stays reserved while the client is idle
  std::uint32_t launches = kNoLaunchBound;  // of each grant
  std::uint64_t run_ahead_ns = kNever;      // predicted work submitted and not complete, at most
  std::uint64_t until_ns = kNever;          // the policy is asked then; the row stands until it is
  friend bool operator==(const Row&, const Row&) = default;
};

// A configuration in the estimator's sense: which client gets what, without streams and times.
// Clients that are not listed are paused. Ordered by client.
struct Assignment {
  ClientId client = kNoClient;
  PartitionId partition = kWholeDevice;
  Mode mode = Mode::kShared;
  friend bool operator==(const Assignment&, const Assignment&) = default;
};
using Assignments = std::span<const Assignment>;

}  // namespace vitamin::scheduler
