// SPDX-License-Identifier: Apache-2.0
//
// The submission pipeline of one device: binds each operation to a physical queue, orders it there
// and submits it, or keeps what cannot be submitted yet (docs/design.md, "Pipelined late binding").
//
// An operation is *bindable* when every predecessor is complete or already submitted; then the
// device keeps the order (same queue, or a device-side wait for a marker recorded behind the
// predecessor). Otherwise, or when it is blocked for another reason (Blocked), it is deferred, and
// retried, oldest first in each stream, by the mover and by every application thread
// that waits for it. What cannot be copied is never deferred: what is ahead of it is flushed
// (DeferredQueue::flush), and it goes behind that, onto the program's own stream.
//
// The stages are in core.h.
//
// Threads: every function but create(), the destructor, stop(), finish_timing() and wake() wants
// the lock held. The pipeline has two threads. The *mover* submits deferred work, watches for
// kernels that do not end and reads times; it makes no vendor call that can block, whatever the
// application does. The *worker* does, without the lock, what is slow or may wait for the device:
// new queues, executables of graphs, the profile's file.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "runtime/submission/backoff.h"
#include "runtime/submission/core.h"
#include "runtime/submission/deferred_queue.h"
#include "runtime/submission/graph_cache.h"
#include "runtime/submission/ordering.h"
#include "runtime/submission/placer.h"
#include "runtime/submission/watchdog.h"

namespace vitamin::runtime {

// What a call that concerns the whole context does about what is deferred when it is made.
enum class Deferred : std::uint8_t {
  kAwait,  // waits until that is submitted, as natively the call waits for its end
  kFlush,  // submits that at once (DeferredQueue::flush), waiting for no grant, window or host
           // wait: the native call waits for nothing
};

class Pipeline final : private SubmitsNow {
 public:
  // `alone` makes the arbiter where the options make none. `owner` outlives it, as the device does.
  static hal::Result<std::unique_ptr<Pipeline>> create(hal::Device& device,
                                                       const MakeArbiter& alone,
                                                       const DispatchOptions& options,
                                                       VirtualContext* owner);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;
  void stop();

  std::mutex& mutex() { return core_.mutex; }
  Core& core() { return core_; }
  Completion& completion() { return completion_; }
  Ordering& ordering() { return ordering_; }
  Placer& placer() { return placer_; }
  DeferredQueue& deferred() { return deferred_; }
  GraphCache& graphs() { return graphs_; }

  // --- submitting ------------------------------------------------------------------------------
  // Submits now or defers, whatever it takes; the lock may be dropped meanwhile. The vendor's
  // answer, or success for what is deferred.
  hal::NativeStatus submit(Lock& lock, Stream& stream, Submission& submission);
  // The fast path: this launch, which comes behind nothing but its own stream, goes where the one
  // before it went, and nothing has to be decided, waited for, timed or watched. Not under a grant
  // that bounds run-ahead. Equivalent to submit() for such a launch; kept short because caches are
  // cold between launches of a host-bound program (record 12). False: nothing was submitted or
  // counted; submit() is to be called.
  bool launch_fast_path(Stream& stream, Kernel& kernel, const hal::KernelLaunch& launch,
                        const Advice* advice, hal::NativeStatus& status);
  // A call of the vendor that may block the host, on the stream's queue or (`per_thread`) on its
  // per-thread handle.
  hal::NativeStatus submit_blocking(Lock& lock, Stream& stream, Submission& submission,
                                    bool per_thread);
  // The event of the record stands for it from now on: the stream's newest operation.
  void recorded(Stream& stream, const Submission& submission);
  // Forgets what the event stood for.
  static void drop(EventState& event);

  // --- waiting ---------------------------------------------------------------------------------
  // Retries what is deferred; true when something was submitted.
  bool pump();
  void pump(Stream& stream);
  // Blocks until `done`, pumping meanwhile. The lock is dropped while it sleeps.
  template <class Done>
  void wait_until(Lock& lock, Done done) {
    wait_until(lock, done, [] {});
  }
  // The same; `moved` is told each time that something was submitted meanwhile.
  template <class Done, class Moved>
  void wait_until(Lock& lock, Done done, Moved moved);
  // Until what is deferred of these was submitted.
  void wait_submitted(Lock& lock, std::span<const Predecessor> targets, Deferred how);
  // Everything that is deferred now.
  std::vector<Predecessor> all_deferred() const;

  // Something is awaited that no other call looks for. Any thread.
  void wake() { core_.wake.notify_one(); }
  // Reads the times of what has ended, and gives what was learnt to DispatchOptions::keep_profile.
  // Takes the lock.
  void finish_timing();
  // As of VirtualContext.
  void await_rest();
  // Forks that have begun and not ended, of the process.
  static std::atomic<int> forking;

 private:
  Pipeline(hal::Device& device, std::unique_ptr<Arbiter> arbiter, const DispatchOptions& options,
           PoolLayout layout, VirtualContext* owner);
  // Where a launch of a graph goes.
  struct GraphBinding {
    PhysicalQueue* queue;         // null: it waits for a grant
    Graph::Made* made = nullptr;  // null: the program's executable, on its own stream
    stats::GraphReason reason = stats::GraphReason::kPolicy;  // why that
    bool counts_outstanding = false;                          // Placer::Binding
    // The graph has to be prepared first, for this partition (SubmitResult::partition).
    std::optional<PartitionId> prepare = std::nullopt;
    std::optional<SubmitResult> blocked() const {
      if (prepare) return SubmitResult{Blocked::kGraph, hal::kNativeOk, *prepare};
      if (queue == nullptr) return SubmitResult{Blocked::kNoGrant};
      return std::nullopt;
    }
  };

  // --- submitting (pipeline.cpp)
  void note_arrival(Stream& stream, Submission& submission,
                    std::span<const Predecessor> predecessors);
  void trace_arrival(const Stream& stream, const Submission& submission,
                     std::span<const Predecessor> predecessors);
  SubmitResult issue(Stream& stream, Submission& submission,
                     std::span<const Predecessor> predecessors, bool own_stream,
                     bool may_prepare = false);
  hal::NativeStatus defer_or_flush(Lock& lock, Stream& stream, Submission& submission);
  void defer(Stream& stream, Submission& submission);
  bool clear_way(Stream& stream, const Submission& submission);
  void make_way(Lock& lock, Stream& stream, const Submission& submission);
  void let_through(Lock& lock, Stream& stream, const Submission& submission);
  SubmitResult submit_now(Stream& stream, Submission& submission,
                          std::span<const Predecessor> predecessors, bool own_stream) override;
  bool keeps_meaning(const Stream& stream, Submission& wait);
  // How long a launch lasts where it would go now, by the window's clock; 0: it has no window.
  std::uint64_t predicted_now(const Stream& stream, const Kernel& kernel,
                              const hal::KernelLaunch* launch) const {
    if (!completion_.has_window(stream)) return 0;
    return core_.predicted_ns(kernel, launch, core_.width_of_grant(stream));
  }

  // --- launches of kernels (launch.cpp)
  SubmitResult launch_now(Stream& stream, Submission& submission,
                          std::span<const Predecessor> predecessors, bool own_stream);
  hal::NativeStatus launch_on(Stream& stream, Submission& submission,
                              std::span<const Predecessor> predecessors, PhysicalQueue& queue);
  hal::NativeStatus timed_launch(Stream& stream, Submission& submission, PhysicalQueue& queue,
                                 unsigned waits, Profiler::Turn turn);
  hal::NativeStatus native_launch(Stream& stream, Submission& submission, PhysicalQueue& queue,
                                  unsigned waits);
  hal::AttributeList with_stream_attributes(const Stream& stream, const hal::AttributeList& asked);
  void leave_waits(Stream& stream, PhysicalQueue& queue);
  void count(Stream& stream, Kernel& kernel, const Placer::Binding& binding,
             const PhysicalQueue& queue);
  void watch(Kernel& kernel, Stream& stream, PhysicalQueue& queue, const hal::KernelLaunch& launch);

  // --- launches of graphs (graph_launch.cpp)
  SubmitResult launch_graph_now(Stream& stream, Submission& submission,
                                std::span<const Predecessor> predecessors, bool own_stream,
                                bool may_prepare);
  bool must_look(const Stream& stream, const Graph& graph) const;
  std::optional<stats::GraphReason> stays(const Graph& graph) const;
  // `needed`: SMs, at least.
  GraphBinding bind_graph(Stream& stream, const GraphOperation& operation, std::uint32_t needed,
                          bool may_prepare);
  GraphBinding without_grant(Stream& stream, Graph& graph, bool may_prepare);
  void want_look(Graph& graph);
  std::optional<PartitionId> prepared_ahead(Stream& stream, Graph& graph);
  PartitionId soonest_made(Stream& stream, Graph& graph, PartitionId partition);
  hal::NativeStatus launch_graph_on(Stream& stream, GraphOperation& operation,
                                    std::span<const Predecessor> predecessors,
                                    const MarkerRef& behind, const GraphBinding& binding);
  void count(Stream& stream, Graph& graph, const GraphBinding& binding);

  // --- threads (threads.cpp)
  void serve_arbiter();
  void rest_while_forking(Lock& lock);
  void run_mover();
  void run_worker();
  // Something was learnt since it was kept last.
  bool unkept() const {
    return core_.options.keep_profile && core_.profiler.learnt().version() != kept_version_;
  }
  bool work_awaited() const { return queues_.awaited() || graphs_.awaited() || keep_due_; }

  VirtualContext* const owner_;  // in which events are recorded here
  Core core_;
  Completion completion_;
  Ordering ordering_;
  QueueManager queues_;
  Placer placer_;
  Watchdog watchdog_;
  GraphCache graphs_;
  DeferredQueue deferred_;

  Kernel vendor_kernel_;  // stands for the kernels that the vendor's own calls launch
  std::vector<stats::WidthSlot*> widths_;  // where launches on each partition are counted
  std::vector<std::byte> attributes_;      // a launch's attributes with the stream's made explicit
  std::vector<PartitionId> ready_;         // partitions that a graph could go to at once
  std::uint64_t traced_kernels_ = 0;
  std::uint64_t kept_version_ = 0;
  bool keep_due_ = false;  // what was learnt is to be kept
  unsigned busy_ = 0;      // threads of ours that may be in a call of the vendor without the lock
  std::thread mover_, worker_;
};

template <class Done, class Moved>
void Pipeline::wait_until(Lock& lock, Done done, Moved moved) {
  Backoff backoff;
  while (!done()) {
    if (pump()) {
      moved();
      backoff.reset();
      continue;
    }
    lock.unlock();
    if (core_.options.idle)
      core_.options.idle();
    else
      backoff.pause();
    lock.lock();
  }
}

}  // namespace vitamin::runtime
