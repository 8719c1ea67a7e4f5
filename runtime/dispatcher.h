// SPDX-License-Identifier: Apache-2.0
//
// The dispatcher: binds each operation to a physical queue, orders it there, submits it, and keeps
// what cannot be submitted yet. Pipelined late binding (DESIGN section 4) lives here.
//
// An operation is *bindable* when every predecessor is complete or already submitted; then the
// device keeps the order (same queue, or a device-side wait for a marker recorded behind the
// predecessor). It is *deferred* when
//   gate         a predecessor lies downstream of work that needs the host or another process and
//                was not observed complete: never waited for on a pool queue;
//   window       more work of the stream is outstanding than the window admits (0: the strict rule
//                of the paper, every predecessor observed complete), or than a queue takes without
//                blocking the caller inside the driver;
//   lease        no eligible entry is free of other lessees;
//   predecessor  something ahead of it is deferred itself.
// Deferred operations are retried, oldest first in each stream, by a thread of the dispatcher and
// by every application thread that waits for them.
//
// Order. Streams submit in program order, and an operation is submitted only when the predecessors
// are: submission order is a linear extension of H, so no set of waits can form a cycle.
//
// Threads: every function but the constructor, start() and stop() wants the lock held. Two threads:
// the one that moves deferred work, watches and times makes no vendor call that can block, whatever
// the application does; what is slow or may wait for the device (new queues, executables of graphs,
// the profile's file) is done by the worker, without the lock.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hal/lock_rule.h"
#include "runtime/arbiter.h"
#include "runtime/descriptor.h"
#include "runtime/graph.h"
#include "runtime/kernel_table.h"
#include "runtime/marker.h"
#include "runtime/physical_context_pool.h"
#include "runtime/profiler.h"
#include "runtime/stats.h"
#include "runtime/stream.h"

namespace vitamin::runtime {

class Audit;
namespace trace {
class Recorder;
}

// Launches of a kernel on a width where it was not seen to end yet are watched one by one.
inline constexpr std::size_t kWatchedMax = 256;

struct Window {
  static constexpr std::uint64_t kUnbounded = ~0ULL;
  // Submission may run ahead of completion by this much predicted GPU time; 0: the strict rule.
  std::uint64_t ahead_ns = kUnbounded;
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
  // A stream moves to another entry only while fewer operations of it than this are unfinished.
  // Every queue that it moved to and that has not begun yet is blocked in a device-side wait, and
  // the device looks at blocked queues in turn: a move costs 2 us on an H200 when it is made just
  // in time and 10 us when it is made hundreds of kernels ahead (bench/results/slice).
  std::uint32_t ahead_of_move = 10;
  // Where pool queues are scarce: no queue takes another's slot sooner than this after the last
  // did.
  std::chrono::milliseconds slots_stay{250};
  // The same where another process granted the entry: whoever moves leases has weighed that. A
  // launch waits so many times as long for the queue before it goes to the whole device.
  std::chrono::milliseconds leased_slots_stay{10};
  static constexpr int kWaitForSlot = 50;
  // Device memory that executables of graphs for entries may take, as far as anybody can tell; 0:
  // graphs stay on the whole device.
  std::uint64_t graph_bytes = std::uint64_t{256} << 20;
  std::size_t markers = 2048;  // native events made at start
  // Operations of one stream beyond which the caller blocks, where no depth is known.
  std::size_t deferred_max = 8192;
  std::chrono::milliseconds hang_after{5000};  // the watchdog names a kernel that runs longer
  std::unordered_set<std::string> wide_only;   // kernels that need their whole grid resident
  bool cautious = false;                       // any other may (KernelTable)
  // Kernels that wait for other processes, besides NCCL's own: beginnings of their names.
  std::vector<std::string> collectives;
  // Every cooperative launch may be one: among other tenants it is not deferred for a lease.
  bool cooperative_collective = false;
  // Told once of each kernel that the watchdog caught, to remember it. Any thread, lock held.
  void (*on_hang)(const char* kernel, std::uint32_t processors, double seconds) = nullptr;
  stats::DevicePage* page = nullptr;       // required
  std::shared_ptr<Audit> audit;            // null: none (runtime/audit.h)
  std::shared_ptr<trace::Recorder> trace;  // null: none (runtime/trace.h)
  MakeArbiter make_arbiter;                // unset, or null made: create()'s own
  // Whether the native handle that stands for the legacy default stream is that stream itself,
  // which the driver orders with the application's blocking streams.
  bool native_legacy_order = true;
  // Whether a query of a blocking stream and a wait for it cover what is outstanding on the legacy
  // default stream, too. Versions of a vendor's runtime differ in it.
  bool blocking_covers_legacy = false;
  bool thread = true;  // off: deferred work moves only when somebody waits (deterministic tests)
  // Called, without the lock, by whoever waits and has nothing to do. Unset: spin, then sleep. A
  // device in virtual time is moved on here.
  std::function<void()> idle;
};

enum class Blocked : std::uint8_t {
  kNo,
  kGate,
  kWindow,
  kLease,
  kPredecessor,
  kGraph,  // the graph is to be looked at, or an executable of it to be made (prepare_graph)
};

// The outcome of one try to submit: blocked and nothing changed, or the vendor's answer.
struct Attempt {
  Blocked blocked = Blocked::kNo;
  hal::NativeStatus status = hal::kNativeOk;
  EntryId entry =
      kNoEntry;  // kGraph: that the executable is for; none: the graph is to be looked at
};

struct Request {
  Operation* operation = nullptr;  // null: a wait, for `marker` if it is not empty
  Intent intent = Intent::kFollow;
  Kernel* kernel = nullptr;
  std::span<const Predecessor> after;
  MarkerRef marker;         // waited for on the queue that is chosen
  MarkerRef gate;           // of what is waited for; unfired: gated
  bool own_stream = false;  // on the application's real stream, whatever the policy says
  stats::WholeReason own_reason = stats::WholeReason::kHostGated;  // why, for the report
  bool may_prepare = false;  // of a graph: the caller can prepare it and try again
};

class Dispatcher {
 public:
  static hal::Result<std::unique_ptr<Dispatcher>> create(hal::Device& device,
                                                         const MakeArbiter& alone,
                                                         const DispatchOptions& options);
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  using Lock = std::unique_lock<std::mutex>;
  std::mutex& mutex() { return mutex_; }

  // Submits now if it is bindable, else changes nothing.
  Attempt attempt(Stream& stream, Request& request);
  // The short way of most launches: this one, which comes behind nothing but its own stream, goes
  // where the one before it went, and nothing has to be decided, waited for, timed or watched. Does
  // what attempt() would do, in half of the instructions: between the launches of a program that
  // is bound by the host its caches have forgotten us. False: nothing was done, take the long way.
  bool launch_straight_on(Stream& stream, Kernel& kernel, const hal::KernelLaunch& launch,
                          const Advice* advice, hal::NativeStatus& status);
  void defer(Stream& stream, Deferred deferred);
  // Submits what is deferred of the stream, up to an operation, and whatever that waits for, onto
  // the streams' own real queues with device-side waits. Waits for nothing; false when the
  // driver's queue is full.
  bool flush(Stream& stream, std::uint64_t up_to_serial = ~0ULL);
  // Retries deferred operations once; true when any was submitted.
  bool pump();
  // The same for one stream, and for what its operations come behind.
  void pump(Stream& stream);
  // Streams with deferred operations.
  std::span<Stream* const> deferring() const { return deferring_; }
  // In the last pump something waited for work that may need the host to end. Everything else that
  // is deferred goes on by itself.
  bool waits_for_host() const { return waits_for_host_; }
  // Blocks until `done`, pumping meanwhile. The lock is dropped while it sleeps.
  template <class Done>
  void wait_until(Lock& lock, Done done) {
    wait_until(lock, done, [] {});
  }
  // The same; `moved` is told each time that something was submitted meanwhile.
  template <class Done, class Moved>
  void wait_until(Lock& lock, Done done, Moved moved);

  bool gated(Stream& stream);
  // The oldest gate that was not seen to end, or null.
  const Gate* oldest_gate(Stream& stream);
  // The stream's newest operation, which ends at `marker`, is a gate. The caller has called
  // close_segment() before submitting it: what is ahead may end long before it does.
  void note_gate(Stream& stream, MarkerRef marker);
  // Whether the driver takes an operation of this kind next, and everything that goes with it,
  // without blocking; what ends meanwhile is looked for. `kernel`: of a launch, else null.
  bool takes(Stream& stream, std::span<const Predecessor> after, const Kernel* kernel,
             Intent intent);
  // Whether the stream's own queue would take the operation behind what is deferred, as far as the
  // depth of the queue is known. Where it would not, the caller blocks, as natively. So the
  // deferred operations always fit the stream's own queue, and a call that flushes them does not
  // block.
  bool may_defer(Stream& stream, const Kernel* kernel, Intent intent);
  // Behind the stream's newest submitted operation; empty when nothing is outstanding.
  MarkerRef tail_marker(Stream& stream);
  // Behind what is on `queue` now, counted as the stream's; empty when there is none to be had.
  MarkerRef mark(Stream& stream, hal::Queue& queue);
  // So many waits or records of ours were put on queues for the stream beside its operations.
  void put_beside(Stream& stream, std::uint64_t count) const {
    if (markers_take_places_) take_places(stream, count);
  }
  // The run of operations that ends at the stream's tail gets its marker, and is observed complete
  // on its own.
  void close_segment(Stream& stream);
  // The arbiter is to hear when the stream's operations end.
  void note_outstanding(Stream& stream);
  // Tells the arbiter what ended.
  void report();
  // The stream's tail becomes a point that is known only by `marker`.
  void detach_tail(Stream& stream, MarkerRef marker);
  // One more operation of the stream was submitted on a queue that is not ours; it ends at
  // `marker`.
  void commit_elsewhere(Stream& stream, MarkerRef marker);
  // Device-side waits on `queue` for everything that the stream's next operation comes behind.
  hal::NativeStatus order(Stream& stream, hal::Queue& queue, const PhysicalQueue* physical,
                          std::span<const Predecessor> after, unsigned& waits);
  // What the driver answered to deferred operations that it refused, the first of them, once. As
  // natively, a failure that the call itself could not tell is told by a later one that waits.
  hal::NativeStatus take_error() { return std::exchange(error_, hal::kNativeOk); }
  // The operation was accepted by the backend: it is the stream's tail now. `leased`: it is work on
  // a leased entry, outstanding there until it is observed complete.
  // `work`: of a launch (Kernel::work); 0: it is none.
  void commit(Stream& stream, PhysicalQueue& queue, std::uint64_t places, bool leased,
              std::uint64_t predicted_ns, std::uint32_t work);
  void commit(Stream& stream, PhysicalQueue& queue, Intent intent) {
    commit(stream, queue, places_of(intent), false, options_.predicted_kernel_ns, 0);
  }
  // Where an operation that needs no compute of its own goes.
  PhysicalQueue& queue_for(Stream& stream, Intent intent, std::span<const Predecessor> after);
  // The stream's next operation comes behind everything that is on `queue` now. False: the driver
  // gives no more events.
  bool come_after(Stream& stream, hal::Queue& queue);
  // Of a retired stream: all its work was seen to end, and no thread is inside a call on it.
  bool ended(Stream& stream);
  // Everything submitted of the stream was seen complete.
  void all_complete(Stream& stream, std::uint64_t submitted);

  MarkerPool& markers() { return markers_; }
  KernelTable& kernels() { return kernels_; }
  PhysicalContextPool& pool() { return pool_; }
  const PoolLayout& layout() const { return layout_; }
  stats::DevicePage& page() { return page_; }
  const DispatchOptions& options() const { return options_; }
  Audit* audit() const { return options_.audit.get(); }
  // An operation came in, and what it comes behind; null: none of ours.
  void trace_arrival(const Stream& stream, Intent intent, Kernel* kernel, const EventState* event,
                     std::span<const Predecessor> after);
  bool traced() const { return options_.trace != nullptr; }
  Profiler& profiler() { return profiler_; }
  // The application changed the graph; `followed`: so did its source. Otherwise it stays where
  // natively it runs from now on.
  void graph_changed(Graph& graph, bool followed);
  // Does what an attempt said that a graph needs (Blocked::kGraph). Drops the lock meanwhile, and
  // waits for no call of the application: what would have to is left to the worker.
  void prepare_graph(Lock& lock, const std::shared_ptr<Graph>& graph, EntryId entry);
  // Does now what is wanted for graphs; the lock is dropped meanwhile. The worker does, where there
  // is one.
  void make_graphs(Lock& lock);
  // It is gone. What it held goes away with the answer, which must happen without the lock.
  std::vector<Graph::Made> forget_graph(Graph& graph);
  // No graph is looked at or made any more: the process ends. Waits for the one at hand; without
  // the lock.
  void finish_graphs();
  // Somebody says what is to come on the stream (lookahead).
  void expect(Stream& stream, const Advice& advice, bool cancelled);
  // What is told of iterations holds behind the operations that it was told behind.
  static void pass_iteration_ends(Stream& stream);
  // Something is awaited that nobody else looks for. Any thread.
  void look_soon() { wake_.notify_one(); }
  // Reads the times of what has ended, and gives what was learnt to DispatchOptions::keep_profile.
  // Takes the lock.
  void finish_timing();
  bool strict() const { return options_.window.ahead_ns == 0; }
  // How far the stream's submission may run ahead: as configured, and what it was granted.
  std::uint64_t window(const Stream& stream) const {
    return std::min(options_.window.ahead_ns, stream.grant.ahead_ns);
  }
  bool bounded(const Stream& stream) const {
    return !strict() && window(stream) != Window::kUnbounded;
  }
  // Blocking streams exist: the legacy stream's marker must then be recorded at once, since one
  // recorded later would also cover what blocking streams did in between.
  void note_blocking_stream(Stream& legacy) {
    if (!blocking_streams_) tail_marker(legacy);
    blocking_streams_ = true;
  }
  void stop();

 private:
  Dispatcher(hal::Device& device, std::unique_ptr<Arbiter> arbiter, const DispatchOptions& options,
             PoolLayout layout);
  struct Watched {
    Kernel* kernel;
    std::uint32_t processors;
    std::uint64_t predicted_ns;
    MarkerRef marker;
    std::chrono::steady_clock::time_point since;
    bool named;
    std::shared_ptr<Graph> graph;  // whose the kernel is; null: the table's,
    KernelRef held;                // which keeps it
  };
  struct WantedGraph {
    std::shared_ptr<Graph> graph;
    EntryId entry;  // to make an executable for; kNoEntry: to look at
  };
  // Where a launch of a graph goes.
  struct GraphPlace {
    PhysicalQueue* queue;
    Graph::Made* made = nullptr;  // null: the application's own executable, on its own stream
    stats::GraphReason reason = stats::GraphReason::kPolicy;  // why that
    // The graph has to be prepared first, for this entry (Attempt::entry).
    std::optional<EntryId> prepare = std::nullopt;
  };
  struct Binding {
    PhysicalQueue* queue = nullptr;
    stats::WholeReason reason = stats::WholeReason::kPolicy;
    bool narrow_eligible = false;
  };

  Attempt attempt_launch(Stream& stream, Request& request);
  Attempt attempt_graph(Stream& stream, Request& request);
  std::optional<stats::GraphReason> stays(Graph& graph);
  GraphPlace place_graph(Stream& stream, Graph& graph, bool may_prepare);
  hal::NativeStatus launch_graph(Stream& stream, Request& request, const GraphPlace& place);
  void count(Stream& stream, Graph& graph, const GraphPlace& place);
  void watch(const std::shared_ptr<Graph>& graph, Stream& stream, PhysicalQueue& queue);
  void want(const std::shared_ptr<Graph>& graph, EntryId entry);
  void look_at(Lock& lock, const std::shared_ptr<Graph>& graph);
  void describe(Graph& graph, const hal::GraphContents& contents);
  void make(Lock& lock, const std::shared_ptr<Graph>& graph, EntryId entry, bool may_wait);
  std::vector<Graph::Made> make_room(std::uint64_t bytes, const Graph& but);
  void drop(Graph::Made& made);
  bool graphs_awaited() const { return !wanted_graphs_.empty() && !graphs_finished_; }
  // `operation` is null for a computing call of the vendor's own.
  Binding bind(Stream& stream, Kernel& kernel, const LaunchOperation* operation,
               std::uint32_t needed);
  Choice ask(Stream& stream, const Kernel& kernel, const LaunchOperation* operation,
             std::uint32_t needed, std::span<const EntryId> eligible);
  static const Advice* advice_for(const Stream& stream, const LaunchOperation* operation);
  std::uint64_t predicted_ns(const Kernel& kernel, const hal::KernelLaunch* launch,
                             std::uint32_t processors) const;
  std::uint32_t next_wider(const Kernel& kernel, EntryId entry) const;
  std::span<const EntryId> eligible(Stream& stream, const Kernel& kernel, std::uint32_t needed);
  PhysicalQueue* free_queue(Stream& stream, EntryId entry);
  hal::NativeStatus launch_on(Stream& stream, Request& request, PhysicalQueue& queue);
  // The driver has refused a launch of the stream for which the queue waits by now: no other stream
  // gets the queue before these waits have ended.
  void leave_waits(Stream& stream, PhysicalQueue& queue);
  void tell(Stream& stream, const Advice* advice);
  hal::NativeStatus timed_launch(Stream& stream, Request& request, PhysicalQueue& queue,
                                 unsigned waits, Profiler::Turn turn);
  hal::NativeStatus submit_launch(Stream& stream, Request& request, PhysicalQueue& queue,
                                  unsigned waits);
  hal::AttributeList with_stream_attributes(const Stream& stream, const hal::AttributeList& asked);
  PhysicalQueue& follow_queue(Stream& stream, Intent intent, bool others_gated);
  bool others_gated(Request& request);
  hal::NativeStatus wait_for(Stream& stream, hal::Queue& queue, const MarkerRef& marker);
  void retire_front(Stream& stream);
  std::uint32_t segment_operations(std::uint64_t ahead_ns) const;
  static void take_places(Stream& stream, std::uint64_t count) {
    stream.held += count;
    stream.held_since_segment += count;
  }
  std::uint64_t places_of(Intent intent) const {
    const bool marker = intent == Intent::kRecord || intent == Intent::kWait ||
                        intent == Intent::kBridgeMarker || intent == Intent::kBridgeMarkerGate ||
                        intent == Intent::kDestroy;
    return marker && !markers_take_places_ ? 0 : 1;
  }
  // `kernel`: of a launch, else null.
  std::uint64_t places_of(const Kernel* kernel, Intent intent) const {
    return kernel != nullptr ? kernel->places : places_of(intent);
  }
  bool room(Stream& stream, std::span<const Predecessor> after, bool launch, std::uint64_t places,
            std::uint64_t predicted_ns = 0);
  bool fits_queue(Stream& stream, std::span<const Predecessor> after, std::uint64_t places);
  void poll(Stream& stream);
  void release_idle();
  void leave(Stream& stream, PhysicalQueue& queue);
  void end_segment(Stream& stream);
  bool may_move(Stream& stream, const Kernel& kernel, std::uint32_t needed);
  bool grant_stands(const Stream& stream, const Kernel& kernel, std::uint32_t needed) const;
  bool gives_up_slot(const Stream& stream) const;
  bool awaits_queue(Stream& stream) const;
  bool may_want() const;
  void count(Stream& stream, Kernel& kernel, const Binding& binding, const PhysicalQueue& queue);
  void watch(Kernel& kernel, Stream& stream, PhysicalQueue& queue, const hal::KernelLaunch& launch);
  Attempt submit_front(Stream& stream, bool own_stream);
  void pump_only(Stream& stream);
  void serve_arbiter();
  void trace(std::uint16_t kind, const Stream& stream, std::uint64_t serial, EntryId entry,
             std::uint64_t a = 0);

  void run_thread();
  void run_worker();
  // Something was learnt since it was kept last.
  bool unkept() const {
    return options_.keep_profile && profiler_.learnt().version() != kept_version_;
  }
  bool work_awaited() const { return !wanted_queues_.empty() || graphs_awaited() || keep_due_; }
  void check_watched();
  void grow_queues(Lock& lock);
  void keep_to_share(Lock& lock);

  hal::Device& device_;
  DispatchOptions options_;
  stats::DevicePage& page_;
  PoolLayout layout_;
  // hal::DeviceInfo's.
  const std::uint64_t depth_;
  const bool depth_measured_;
  const bool markers_take_places_;
  MarkerPool markers_;  // outlives the queues, which hold markers
  Profiler profiler_;   // outlives the arbiter, whose policy reads it
  PhysicalContextPool pool_;
  std::unique_ptr<Arbiter> arbiter_;
  KernelTable kernels_;
  Kernel vendor_kernel_;           // stands for the kernels that the vendor's own calls launch
  std::vector<EntryId> by_width_;  // realised entries, narrowest first, the whole device last
  std::vector<EntryId> scratch_;   // eligible entries when some are barred
  std::vector<stats::WidthSlot*> widths_;  // where launches on each entry are counted
  std::vector<std::byte> attributes_;      // a launch's attributes with the stream's made explicit
  std::uint32_t widest_ = 0;               // processors of the widest entry made of units
  std::uint32_t widest_narrow_ = 0;        // and of the widest that is less than the whole device
  bool unobserved_ = false;                // no window, audit or trace looks at every launch
  std::uint32_t segment_operations_ = 1;   // a marker behind so many operations of a stream
  std::uint64_t kept_version_ = 0;
  std::uint64_t traced_kernels_ = 0;
  bool lanes_share_ = true;
  bool between_processes_ = false;
  bool blocking_streams_ = false;
  bool waits_for_host_ = false;
  hal::NativeStatus error_ = hal::kNativeOk;

  std::mutex mutex_;
  const hal::LockRule::Watched watched_mutex_{mutex_, "the lock of a device is held"};
  std::condition_variable wake_;
  std::vector<Stream*> deferring_;  // streams with deferred operations
  // While the arbiter wants reports: streams whose operations are not all seen complete, and since
  // when there are any, or when that was reported last.
  bool reporting_ = false;
  std::vector<Stream*> outstanding_;
  std::chrono::steady_clock::time_point busy_since_{};
  std::vector<Watched> watched_;
  std::deque<WantedGraph> wanted_graphs_;  // what is to be done for graphs off the path
  std::vector<EntryId> ready_;             // entries that a graph could go to at once
  std::vector<Graph*> graphs_;             // those that have executables of ours
  std::uint64_t graph_bytes_ = 0;          // what those take
  std::uint64_t graph_clock_ = 0;          // counts their launches
  std::condition_variable graph_made_;
  unsigned graphs_in_work_ = 0;  // by how many threads
  bool graphs_finished_ = false;
  std::vector<std::pair<EntryId, int>> wanted_queues_;  // (entry, priority) to grow off the path
  std::chrono::steady_clock::time_point slots_stay_until_;
  std::condition_variable work_;  // of the worker
  std::thread thread_, worker_;
  bool keep_due_ = false;  // what was learnt is to be kept
  bool stopping_ = false;
};

// Spins first, since most waits end within microseconds, then sleeps: near 20 us until the wait has
// lasted for some 10 ms, which keeps a thread below a tenth of a core. A processor that sleeps
// wakes late, by 50 to 100 us in a virtual machine; where somebody else waits for what this wait is
// for
// (`urgent`), it gives the processor to whoever wants it instead, for 20 ms.
class Backoff {
 public:
  Backoff() = default;
  ~Backoff();  // gives the thread back the slack that its timers had
  Backoff(const Backoff&) = delete;
  Backoff& operator=(const Backoff&) = delete;
  void pause(bool urgent = false);
  void reset() { rounds_ = 0; }

 private:
  unsigned rounds_ = 0;
  int slack_ns_ = -1;  // what it was; -1: untouched
};

template <class Done, class Moved>
void Dispatcher::wait_until(Lock& lock, Done done, Moved moved) {
  Backoff backoff;
  while (!done()) {
    if (pump()) {
      moved();
      backoff.reset();
      continue;
    }
    lock.unlock();
    if (options_.idle)
      options_.idle();
    else
      backoff.pause();
    lock.lock();
  }
}

}  // namespace vitamin::runtime
