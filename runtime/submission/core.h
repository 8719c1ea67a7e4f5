// SPDX-License-Identifier: Apache-2.0
//
// What the stages of a device's submission pipeline share: the device, its pool, markers, kernels,
// the arbiter, the lock.
//
//   VirtualContext      API of the interposers; takes the lock, once for each call
//     Pipeline          submits an operation or defers it; the mover and the worker (threads)
//       DeferredQueue   operations that wait, in the order of their stream
//       Placer          which partition a launch goes to, on which queue; QueueManager: its queues
//       GraphCache      executables of graphs for partitions
//       Watchdog        kernels that do not end
//       Ordering        what an operation comes behind, and the waits on the device for it
//       Completion      what was submitted, what of it has ended, how much more fits
//         Core
//
// Each stage knows those below it. Where a stage needs one above, the caller passes what it needs.
// Each part of a stream's state has one stage that decides by it (stream.h), and few other writers.
//
// Threads: one lock for each device (`mutex`). Every function of a stage wants it held; one that
// drops it takes it as a parameter. No call of the vendor that can block is made with it held.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "hal/lock_rule.h"
#include "runtime/arbiter.h"
#include "runtime/kernel_table.h"
#include "runtime/marker.h"
#include "runtime/pool/physical_context_pool.h"
#include "runtime/profile/profiler.h"
#include "runtime/stats.h"
#include "runtime/stream.h"
#include "runtime/submission/lock.h"
#include "runtime/submission/options.h"
#include "runtime/trace/trace.h"

namespace vitamin::runtime {

class Audit;

struct Core {
  Core(hal::Device& device, std::unique_ptr<Arbiter> arbiter, const DispatchOptions& options,
       PoolLayout layout);

  // SMs of the whole device.
  std::uint32_t whole() const { return layout.at(kWholeDevice).sms; }
  // The width where the stream's next launch would go by its standing grant.
  std::uint32_t width_of_grant(const Stream& stream) const {
    const GrantTerms& grant = stream.placing.grant;
    return grant.partition != kNoPartition && grant.launches > 0 ? layout.at(grant.partition).sms
                                                                 : whole();
  }
  // `launch`: null for a call of the vendor that computes.
  std::uint64_t predicted_ns(const Kernel& kernel, const hal::KernelLaunch* launch,
                             std::uint32_t sms) const;
  Audit* audit() const { return options.audit.get(); }
  bool traced() const { return options.trace != nullptr; }
  // Only where traced() says so.
  void trace(trace::TraceKind kind, const Stream& stream, std::uint64_t serial,
             PartitionId partition, std::uint64_t a = 0);

  hal::Device& device;
  hal::KernelInspector& inspector;     // the device's
  const hal::ErrorClassifier& errors;  // the device's
  DispatchOptions options;
  stats::DevicePage& page;
  PoolLayout layout;
  MarkerPool markers;  // outlives the queues, which hold markers
  Profiler profiler;   // outlives the arbiter, which it tells of samples
  PhysicalContextPool pool;
  std::unique_ptr<Arbiter> arbiter;
  KernelTable kernels;
  bool streams_share = true;
  const bool driver_orders_legacy_stream;  // hal::DeviceInfo
  bool between_processes = false;
  bool stopping = false;

  std::mutex mutex;
  const hal::LockRule::Watched watched_mutex{mutex, "the lock of a device is held"};
  std::condition_variable wake;  // of the mover
  std::condition_variable work;  // of the worker
};

}  // namespace vitamin::runtime
