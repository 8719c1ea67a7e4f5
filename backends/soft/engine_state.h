// SPDX-License-Identifier: Apache-2.0
//
// The engine's insides: operations in queues, kernels in flight, the event heap, and who may touch
// what.
//
// Everything is guarded by Impl::mutex. Device state moves only in the *stepper*: the thread inside
// step(), one thread at a time (the device thread in real time, a caller of advance() in virtual
// time). The stepper lets the mutex go while it runs code that is not the engine's (kernels,
// copies, host functions in virtual time); others may then enqueue, but not step. What others cause
// (a gate opened, a host function returned) is handed to the stepper through `arrivals`.
//
//   queue:  idle ── enqueue ──▶ ready ── stepper ──▶ running │ waiting ──▶ ready (next operation) …
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "backends/soft/engine.h"
#include "backends/soft/hash.h"
#include "backends/soft/ledger.h"

namespace vitamin::soft {

// Nodes that come and go by the million: memory is kept, objects are made anew.
template <class T>
class NodePool {
 public:
  template <class... Arguments>
  T* make(Arguments&&... arguments) {
    if (free_.empty()) grow();
    void* at = free_.back();
    free_.pop_back();
    return new (at) T(std::forward<Arguments>(arguments)...);
  }
  void destroy(T* object) {
    object->~T();
    free_.push_back(object);
  }

 private:
  static constexpr std::size_t kChunk = 64;
  struct alignas(T) Slot {
    unsigned char bytes[sizeof(T)];
  };
  void grow() {
    chunks_.push_back(std::make_unique<Slot[]>(kChunk));
    for (std::size_t i = 0; i < kChunk; ++i) free_.push_back(&chunks_.back()[i]);
  }
  std::vector<std::unique_ptr<Slot[]>> chunks_;
  std::vector<void*> free_;
};

class Queue;

// One recording of an event: what a wait captures. Counted references: the event's newest, each
// enqueued record or wait.
struct EventRecording {
  std::uint32_t references = 1;
  bool done = false;
  Nanoseconds at = 0;
  Queue* waiters = nullptr;  // linked by Queue::next_waiter
};

class Event {
 public:
  EventRecording* newest = nullptr;
};

class Gate {
 public:
  bool open = false;
  bool destroyed = false;
  Nanoseconds opened_at = 0;     // real time
  std::uint32_t references = 0;  // enqueued waits
  Queue* waiters = nullptr;
};

// The packed parameters of one launch; most fit.
class ParameterBuffer {
 public:
  void assign(const void* bytes, std::size_t count) {
    if (count > sizeof inline_) heap_ = std::make_unique<unsigned char[]>(count);
    if (count != 0) std::memcpy(data(), bytes, count);
  }
  unsigned char* data() { return heap_ != nullptr ? heap_.get() : inline_; }

 private:
  alignas(16) unsigned char inline_[128];
  std::unique_ptr<unsigned char[]> heap_;
};

// One launch, from its enqueuing to its end.
struct KernelRun {
  Queue* queue = nullptr;
  Launch launch;  // launch.parameters points to `parameters`
  ParameterBuffer parameters;
  SmUsage footprint;              // of one block
  std::uint64_t launch_hash = 0;  // only while tracing
  std::uint64_t order = 0;        // a function of (grid, SmSet, seed): every choice of this run
  bool late = false;              // plain blocks touch memory when they end
  std::uint64_t total = 0, placed = 0, ended = 0;
  bool tried = false;    // placement looked at every SM of its queue
  bool started = false;  // a block was placed
};

// A block in flight: holds its SM's resources from placement to end.
struct Block {
  BlockContext context;
  KernelRun* run = nullptr;
  enum class Stage : std::uint8_t {
    kFresh,      // placed
    kLate,       // plain: takes its time, then runs
    kTimed,      // plain: has run, takes its time
    kSuspended,  // waiting: its coroutine waits
    kOver,
  } stage = Stage::kFresh;
  std::uint32_t sm = 0;
  void* coroutine = nullptr;
  struct AlignedDelete {
    void operator()(unsigned char* at) const;
  };
  std::unique_ptr<unsigned char, AlignedDelete> shared;
  Block* next = nullptr;  // in a group that wakes together
};

struct Operation {
  EngineOperationKind kind = EngineOperationKind::kMarker;
  bool implicit = false;  // legacy order: waits for `await_ticket` of `await_queue`; not traced
  enum class State : std::uint8_t { kQueued, kStarted, kFinished } state = State::kQueued;
  bool even_on_error = false;
  bool late = false;  // work: runs when it ends
  Width width = Width::k32;
  Compare compare = Compare::kEqual;
  Operation* next = nullptr;
  std::uint64_t ticket = 0;
  Nanoseconds not_before = 0;  // real time: when it was enqueued; device time may be behind
  std::uint64_t value = 0;
  Nanoseconds duration = 0;
  void* address = nullptr;
  EventRecording* record = nullptr;
  Gate* gate = nullptr;
  KernelRun* run = nullptr;
  Queue* await_queue = nullptr;
  std::uint64_t await_ticket = 0;
  Task<void()> task;
  Task<void(Status)> host;
};

struct SyncGroup {
  Queue* legacy = nullptr;
  std::vector<Queue*> members;  // every queue of the group
};

class Queue {
 public:
  QueueOptions options;
  std::uint64_t serial = 0;
  SyncGroup* group = nullptr;
  std::vector<std::uint32_t> sms;                          // options.sms as a list
  std::vector<std::vector<std::uint32_t>> cluster_groups;  // within options.sms
  std::uint64_t order_seed = 0;

  Operation* head = nullptr;
  Operation* tail = nullptr;
  std::uint64_t submitted = 0, completed = 0;  // tickets
  bool ready = false;                          // in Impl::ready or Impl::arrivals
  bool destroyed = false;
  std::uint32_t references = 0;      // implicit waits enqueued elsewhere
  std::uint64_t covered = 0;         // kBlocking: the newest legacy ticket that it waits for
  std::uint64_t legacy_covered = 0;  // kBlocking: its newest ticket that the legacy queue waits for
  Nanoseconds kernel_end = 0;
  bool had_kernel = false;
  Queue* next_waiter = nullptr;
  std::vector<Queue*> awaiting;  // queues whose head waits for a ticket of this one
};

struct TimedEvent {
  Nanoseconds at = 0;
  std::uint64_t tie = 0;    // among equal times
  Queue* queue = nullptr;   // its head operation goes on; or
  Block* blocks = nullptr;  // these blocks go on
  friend bool operator>(const TimedEvent& a, const TimedEvent& b) {
    return a.at != b.at ? a.at > b.at : a.tie > b.tie;
  }
};

struct Arrival {
  Nanoseconds at = 0;
  Queue* queue = nullptr;
};

struct HostCall {
  Queue* queue = nullptr;
  Task<void(Status)> function;
  Status status = kOk;
};

using Lock = std::unique_lock<std::mutex>;

struct Engine::Impl {
  explicit Impl(EngineOptions given, std::unique_ptr<ResidencyLedger> ledger);
  ~Impl();

  enum class Step : std::uint8_t { kMoved, kIdle, kBlocked, kLater };

  // engine.cpp: enqueuing and waiting.
  Status begin_enqueue(FaultPoint point, const Queue& queue);
  Operation* append(Queue& queue, EngineOperationKind kind);
  void commit(Queue& queue, Operation* operation);
  void order_implicitly(Queue& queue);
  void await(Queue& queue, Queue& target);
  bool injected(FaultPoint point, const SmSet* sms, Status* status);
  void wake_device();
  void make_ready_from_outside(Queue& queue);
  template <class Done>
  Status wait_until(Lock& lock, Done done);
  bool group_done(const SyncGroup& group, bool blocking_only) const;
  bool queue_done(const Queue& queue) const;
  SmUsage footprint(const KernelDescriptor& kernel, std::uint64_t threads,
                    std::uint32_t dynamic_shared) const;
  Nanoseconds wall() const;
  void trace(TraceRecord::Phase phase, const Queue& queue, const Operation& operation,
             Status status = kOk);

  // engine_step.cpp: the stepper.
  Step step(Lock& lock);
  AdvanceResult advance_one(Lock& lock);
  void device_thread();
  void host_thread();
  void process(Lock& lock, Queue& queue);
  void start(Lock& lock, Queue& queue, Operation& operation);
  Nanoseconds event_delay();
  void start_work(Lock& lock, Queue& queue, Operation& operation);
  void start_kernel(Lock& lock, Queue& queue, Operation& operation);
  bool value_matches(const Operation& operation) const;
  void fire(Lock& lock, const TimedEvent& event);
  bool poll(Lock& lock);
  void run_host_call(Lock& lock, std::size_t index);
  void complete(Queue& queue);
  void make_ready(Queue& queue);
  void schedule(Queue& queue, Nanoseconds at);
  void finish_record(EventRecording& record);
  void wake_waiters(Queue*& list);
  void drop(EventRecording* record);
  void drop(Gate* gate);
  void retire_if_drained(Queue& queue);
  std::optional<Nanoseconds> next_due() const;
  bool has_pollable() const;

  // kernel_run.cpp: placement and blocks.
  void dispatch(Lock& lock);
  bool place(KernelRun& run, const SmSet& held, bool everywhere, std::vector<Block*>& batch);
  bool place_spread(KernelRun& run, const SmSet& held, bool everywhere, std::vector<Block*>& batch);
  bool place_gang(KernelRun& run, const SmSet& held, std::vector<Block*>& batch);
  bool place_clusters(KernelRun& run, const SmSet& held, std::vector<Block*>& batch);
  bool place_group(KernelRun& run, const std::vector<std::uint32_t>& sms, const SmSet& held,
                   std::uint64_t blocks, std::vector<Block*>& batch);
  Block* put_block(KernelRun& run, std::uint32_t sm);
  void shuffle(const KernelRun& run, std::vector<Block*>& batch, std::size_t first);
  void run_blocks(Lock& lock, const std::vector<Block*>& blocks);
  void execute(Block& block);
  void give_shared(Block& block);
  void settle(Block& block);
  void schedule_block(Block& block, Nanoseconds after);
  void end_block(Block& block);
  void end_run_if_done(KernelRun& run);
  void raise(BlockFault what);
  void abort_everything();
  Nanoseconds stretched(Nanoseconds duration, std::uint64_t choice) const;

  EngineOptions options;
  bool real = false;
  const std::chrono::steady_clock::time_point epoch = std::chrono::steady_clock::now();
  std::shared_ptr<const ClusterRule> whole_rule;
  mutable std::mutex mutex;
  std::condition_variable done_changed;    // wakes threads that wait for completions
  std::condition_variable device_changed;  // the device thread sleeps
  std::condition_variable host_changed;    // the host threads sleep
  std::condition_variable stepper_left;    // another thread wants to step
  std::uint32_t waiting_threads = 0;
  bool device_sleeps = false;
  bool stepping = false;
  std::uint32_t steppers_waiting = 0;
  bool stop = false;

  Nanoseconds now = 0;
  Random random;
  Status fault = kOk;
  bool abort_pending = false;
  Status lost = kOk;  // of lose_context(), until the next step
  std::function<void(Status)> told_of_fault;
  std::uint64_t outstanding = 0;
  void set_outstanding(std::uint64_t operations) {
    outstanding = operations;
    if (ResidencyLedger* const ledger = residency.ledger()) ledger->set_outstanding(operations);
  }
  std::uint64_t queue_serial = 0;

  std::unordered_map<std::uint32_t, std::unique_ptr<SyncGroup>> groups;
  std::unordered_set<Queue*> queues;
  std::unordered_set<Event*> events;
  std::unordered_set<Gate*> gates;
  NodePool<Operation> operations;
  NodePool<EventRecording> records;
  NodePool<KernelRun> runs;
  NodePool<Block> blocks;

  std::vector<Queue*> ready;      // may move now
  std::deque<Arrival> arrivals;   // real time: may move once device time gets there
  std::vector<TimedEvent> timed;  // a min-heap
  std::vector<Queue*> polled;     // heads that wait for a value
  std::vector<Block*> spinning;   // suspended blocks that wait for memory
  std::deque<HostCall> host_calls;
  std::uint64_t tie_counter = 0;
  bool something_moved = false;  // since memory was last looked at
  Nanoseconds poll_at = 0;       // real time: when to look again anyway

  Residency residency;
  std::vector<KernelRun*>
      dispatching;                    // kernels with blocks to place, in the order they are served
  std::uint32_t kernels_running = 0;  // their turn has come, and they have not ended
  SmSet freed;                        // SMs where something ended since the last placement
  bool place_everywhere = false;      // another process may have freed any SM
  std::vector<Block*> batch, woken;   // kept for their capacity
  Block* group_tail = nullptr;        // the newest scheduled block, to join its wake-up
  Nanoseconds group_at = 0;
  std::unique_ptr<unsigned char, Block::AlignedDelete> scratch;  // shared memory of plain blocks
  std::uint32_t scratch_bytes = 0;

  std::vector<InjectedFault> faults;
  TraceSink sink;
  std::map<std::uintptr_t, std::size_t> allocations;  // by address
  std::size_t memory_used = 0;                        // by this process
  std::size_t memory_limit = ~std::size_t{0};         // of this process
  bool take_memory(std::size_t bytes);
  void give_memory(std::size_t bytes);

  std::thread device;
  std::vector<std::thread> hosts;
};

}  // namespace vitamin::soft
