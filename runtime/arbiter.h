// SPDX-License-Identifier: Apache-2.0
//
// The one seam between a client and what decides where its work runs: an object in this process
// (daemon/client/local_arbiter.h), or a daemon behind rings (daemon/client/remote_arbiter.h).
//
// Threads: called with the device lock held, but for on_change(). Nothing here sleeps;
// grant() may poll for an answer for some microseconds.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <span>

#include "runtime/demand.h"
#include "runtime/profile/profile.h"

namespace vitamin::runtime {

// `eligible` ascends (PoolLayout: narrowest first), but for the whole device, which comes last.
inline bool is_eligible(std::span<const PartitionId> eligible, PartitionId partition) {
  if (eligible.empty()) return false;
  if (eligible.back() == partition) return true;
  return std::ranges::binary_search(eligible.first(eligible.size() - 1), partition);
}

class Arbiter {
 public:
  virtual ~Arbiter() = default;
  // What the stream must not be given now.
  virtual hal::ComputeSet barred(StreamId stream) const = 0;
  // A grant of a partition of `eligible` for the stream of the operation; kNoPartition when there
  // is none now. The end of an iteration and a deadline that the operation carries count as
  // announced only when GrantTerms::heard says so.
  virtual GrantTerms grant(const ReadyOperation& operation,
                           std::span<const PartitionId> eligible) = 0;
  // The stream may submit on the partition. Asked before every submission that relies on an earlier
  // grant.
  virtual bool admits(PartitionId partition, StreamId stream) const = 0;
  // What counts as outstanding under a grant, which is returned when all of that was seen to end:
  //
  //   * on a part, every launch, of a kernel or a graph;
  //   * on the whole device, a launch under a grant that the client has for itself, or under a
  //     shared one for a number of launches, whose policy bounds what is in flight
  //     (GrantTerms::counts_outstanding). Of a graph that is so when it is known that it ends by
  //     itself.
  //
  // What does not count:
  //   * a launch under a shared grant of the whole device until it is revoked, which promises
  //     nothing: no other client waits for its end, neither when it is revoked nor when an
  //     exclusive grant follows it;
  //   * what never waits for a grant (collectives, launches behind a host wait, launches
  //     that cannot be copied) and goes to the whole device: its end may depend on another client,
  //     which may wait for this very grant;
  //   * copies, fills and events: they ask for no grant.
  //
  // What has counted goes on to count under its grant until it has ended, whichever grants its
  // stream has meanwhile, on the same partition, too. Operations of a stream on one partition end
  // in their order.
  virtual void submitted(PartitionId partition, StreamId stream) = 0;
  // So many of those were seen to end, oldest first. (completed() tells of launches whether they
  // count or not, progressed() of every submitted operation.)
  virtual void ended(PartitionId partition, StreamId stream, std::uint32_t operations) = 0;
  // One more operation was submitted, wherever it went: the client gets on.
  virtual void progressed() {}
  // That operation was a launch of kernels that wait for kernels of other processes
  // (runtime/kernel_names.h): what the client gets done depends on other devices, too.
  virtual void collective() {}
  // Completions are wanted: completed() and busy() are called while this is true.
  virtual bool reports() const { return false; }
  // Operations of the stream were observed complete: so many kernel and graph launches, which weigh
  // `work` together, on the partition (kNoPartition: not known).
  virtual void completed(PartitionId partition, StreamId stream, std::uint32_t launches,
                         std::uint64_t work) {
    (void)partition, (void)stream, (void)launches, (void)work;
  }
  // Since the call before, some operation had not been seen to end for so long.
  virtual void busy(std::uint64_t ns) { (void)ns; }
  // While reports() is true: from now on some submitted operation, whether it counts as outstanding
  // or not, has not been seen to end, or all have.
  virtual void set_busy(bool busy) { (void)busy; }
  // The stream submits nothing more on the partition: its grant there ends when nothing of it is
  // outstanding. Has an effect only where streams_share() is false.
  virtual void release(PartitionId partition, StreamId stream) = 0;
  // False: the arbiter isolates the streams of this process from each other, so that barred() and
  // release() have an effect. Constant.
  virtual bool streams_share() const = 0;
  // What a stream is expected to want.
  virtual void expect(const ExpectedOperation& expected) { static_cast<void>(expected); }
  // Launches, of whatever kernels, that were timed on one SM count since the last call for it.
  virtual void timed(const TimedLaunches& launches) { static_cast<void>(launches); }
  // Whether grants keep this process apart from others. A launch then waits a moment for a queue on
  // the partition it was granted, instead of going where it shares with them.
  virtual bool between_processes() const { return false; }

  // For an arbiter elsewhere. Answers, closed gates and the end of the daemon come at any time:
  // `wake` is then called by a thread of the arbiter, takes the device lock for a moment, and the
  // mover (submission/pipeline.h) calls service() for as long as wants_service() says so.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): overrides keep it
  virtual void on_change(std::function<void()> /*wake*/) {}
  virtual bool wants_service() const { return false; }
  virtual void service() {}
  // Grants were closed on which work is outstanding: a thread must look for its end.
  virtual bool draining() const { return false; }
};

// Makes the arbiter of a device before its pool is realised, and may change the limits of the pool.
using MakeArbiter =
    std::function<std::unique_ptr<Arbiter>(const hal::DeviceInfo& info, PoolLimits& limits)>;

}  // namespace vitamin::runtime
