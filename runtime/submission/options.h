// SPDX-License-Identifier: Apache-2.0
//
// How the submission pipeline of a device works: what its caller chooses.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "runtime/arbiter.h"
#include "runtime/pool/layout.h"
#include "runtime/profile/profiler.h"
#include "runtime/stats.h"

namespace vitamin::runtime {

class Audit;
namespace trace {
class Recorder;
}

struct Window {
  // Submission may run ahead of completion by this much predicted GPU time; 0: a launch waits until
  // its predecessors were seen to end, the paper's rule.
  std::uint64_t ahead_ns = kNever;
};

struct DispatchOptions {
  Window window;
  PoolLimits pool;
  // What a kernel is taken to last where the profile knows nothing: half of the kernels of real
  // programs are shorter than 2-12 us (facts of the H200: p50 1.7 us decoding, 11.5 us training).
  std::uint64_t predicted_kernel_ns = 10'000;
  ProfilerOptions profiler;
  // Given what this process learnt so far, every few seconds and at its end. Without the lock.
  std::function<void(const Profile&)> keep_profile;
  // A stream moves to another partition only while fewer operations of it than this are unfinished.
  // Every queue that it moved to and that has not begun yet is blocked in a device-side wait, and
  // the device looks at blocked queues in turn: a move costs 2 us on an H200 when it is made just
  // in time and 10 us when it is made hundreds of kernels ahead (bench/results/slice).
  std::uint32_t ahead_of_move = 10;
  // Where pool queues are scarce: no queue takes another's slot sooner than this after the last
  // did.
  std::chrono::milliseconds slots_stay{250};
  // The same where another process granted the partition: its scheduler has weighed the move. A
  // launch waits so many times as long for the queue before it goes to the whole device.
  std::chrono::milliseconds remote_slots_stay{10};
  static constexpr int kWaitForSlot = 50;
  // Device memory that executables of graphs for partitions may take, as far as can be told; 0:
  // graphs stay on the whole device.
  std::uint64_t graph_bytes = std::uint64_t{256} << 20;
  std::size_t markers = 2048;  // native events made at start
  // Operations of one stream beyond which the caller blocks, where no depth is known.
  std::size_t deferred_max = 8192;
  std::chrono::milliseconds hang_after{5000};        // the watchdog names a kernel that runs longer
  std::unordered_set<std::string> resident_kernels;  // by name; their whole grid must be resident
  bool cautious = false;                             // any other may (KernelTable)
  // Parts of the names of kernels that wait for other processes (KernelTable).
  std::vector<std::string> collectives;
  // Every cooperative launch may be one: beside other clients it is not deferred for a grant.
  bool cooperative_collective = false;
  // Told once of each kernel that the watchdog caught, to remember it. Any thread, lock held.
  void (*on_hang)(const char* kernel, std::uint32_t sms, double seconds) = nullptr;
  stats::DevicePage* page = nullptr;       // required
  std::shared_ptr<Audit> audit;            // null: none (runtime/audit/audit.h)
  std::shared_ptr<trace::Recorder> trace;  // null: none (runtime/trace/trace.h)
  MakeArbiter make_arbiter;                // unset, or null made: create()'s own
  // Whether a query of a blocking stream and a wait for it cover what is outstanding on the legacy
  // default stream, too. Versions of a vendor's runtime differ in it.
  bool blocking_covers_legacy = false;
  // Whether a blocking stream comes behind what is outstanding on the legacy default stream by a
  // wait for an event that has ended. Versions differ in it, too.
  bool ended_wait_covers_legacy = true;
  bool thread = true;  // off: deferred work moves only while a call waits (deterministic tests)
  // Called, without the lock, by a call that waits and has nothing to do. Unset: spin, sleep. A
  // device in virtual time is moved on here.
  std::function<void()> idle;
};

}  // namespace vitamin::runtime
