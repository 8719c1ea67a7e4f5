// SPDX-License-Identifier: Apache-2.0
//
// The engine of the software device: a discrete-event model of one GPU whose memory is host memory
// and whose kernels are host functions (kernel.h), run block by block.
//
// Order. A queue is in order. Nothing orders two queues but events, value and gate operations, and
// the implicit rules of legacy and blocking queues of one sync group (SyncClass).
// Placement. Blocks occupy threads, block slots, shared memory and registers of the SMs of their
// queue's SmSet until they end; kernels of several queues are resident at once. In which order the
// blocks of a grid run, and on which SM, is a function of (grid, SmSet, seed) when the kernel has
// its SMs to itself, and differs between SmSets: a kernel whose result depends on it shows.
// Clock. kVirtual: device time jumps to the next event and moves only inside advance() (and inside
// synchronize(), which calls it). One seed, one run. kReal: a thread of the engine lets device time
// follow the monotonic clock; when the host cannot keep up, time stamps are still those of the
// model. All times are nanoseconds of device time.
// Threads. Every function may be called from any thread. One mutex; kernels, copies and host
// functions run outside it. Host functions run on a thread of the engine (kReal) or inside
// advance() (kVirtual); they may not call advance() or synchronize.
//
// Errors. A kernel's fault is sticky: it is the answer to every later call that enqueues or
// synchronises, and operations not begun by then end without being run.
//
// Ownership. Handles belong to the engine; destroy_* gives them back, and what is still enqueued is
// carried out all the same. Destroying the engine abandons unfinished work.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "backends/soft/kernel.h"
#include "hal/result.h"

namespace vitamin::soft {

class ResidencyLedger;  // ledger.h

using Nanoseconds = std::uint64_t;

// The software device's status codes: the hal::NativeStatus of this backend.
enum Status : int {
  kOk = 0,
  kNotReady = 1,         // a query: the work is still running
  kInvalidArgument = 2,  // the caller's mistake
  kOutOfMemory = 3,
  kInvalidLaunch = 4,        // no SM of any size could run such a block, or an empty grid
  kCooperativeTooLarge = 5,  // the grid cannot be resident at once on this queue's SMs
  kClusterTooLarge = 6,      // no cluster of this size fits this queue's SMs
  kIllegalAddress = 7,       // sticky
  kLaunchFailure = 8,        // sticky: a trap, or too little static shared memory declared
  kStuck = 9,                // kVirtual: nothing that is enqueued can finish by itself
  kInjected = 10,            // what fault injection answers unless it is told otherwise
  kUnsupported = 11,
};
const char* status_name(int status);

// A set of SMs of one device.
class SmSet {
 public:
  static constexpr unsigned kMaxSms = 512;
  static constexpr unsigned kWords = kMaxSms / 64;

  static SmSet range(unsigned first, unsigned count) {
    SmSet set;
    for (unsigned sm = first; sm < first + count; ++sm) set.add(sm);
    return set;
  }
  void add(unsigned sm) { words_[sm / 64] |= std::uint64_t{1} << sm % 64; }
  void remove(unsigned sm) { words_[sm / 64] &= ~(std::uint64_t{1} << sm % 64); }
  bool has(unsigned sm) const { return (words_[sm / 64] >> sm % 64 & 1) != 0; }
  bool empty() const { return count() == 0; }
  unsigned count() const {
    unsigned sum = 0;
    for (const std::uint64_t word : words_) sum += static_cast<unsigned>(std::popcount(word));
    return sum;
  }
  bool overlaps(const SmSet& other) const { return !(*this & other).empty(); }
  bool contains(const SmSet& other) const { return (*this & other) == other; }
  std::vector<std::uint32_t> list() const {  // ascending
    std::vector<std::uint32_t> sms;
    sms.reserve(count());
    for (unsigned i = 0; i < kWords; ++i)
      for (std::uint64_t word = words_[i]; word != 0; word &= word - 1)
        sms.push_back(64 * i + static_cast<unsigned>(std::countr_zero(word)));
    return sms;
  }
  std::uint64_t hash() const;
  const std::array<std::uint64_t, kWords>& words() const { return words_; }

  friend SmSet operator|(SmSet a, const SmSet& b) {
    for (unsigned i = 0; i < kWords; ++i) a.words_[i] |= b.words_[i];
    return a;
  }
  friend SmSet operator&(SmSet a, const SmSet& b) {
    for (unsigned i = 0; i < kWords; ++i) a.words_[i] &= b.words_[i];
    return a;
  }
  friend bool operator==(const SmSet&, const SmSet&) = default;

 private:
  std::array<std::uint64_t, kWords> words_{};
};

// Which clusters a queue can hold: every cluster lies inside one of the groups.
struct ClusterRule {
  std::vector<SmSet> groups;
  std::uint32_t max_blocks = 1;
};

// What one SM holds, and what one block may ask for. Defaults: sm_90.
struct SmLimits {
  std::uint32_t threads = 2048;
  std::uint32_t blocks = 32;
  std::uint32_t shared_bytes = 228 * 1024;
  std::uint32_t registers = 65536;
  std::uint32_t reserved_shared_per_block = 1024;  // taken from shared_bytes by every block
  std::uint32_t block_threads = 1024;
  std::uint32_t block_shared_bytes = 227 * 1024;
};

struct DeviceDescription {
  std::string name = "Vitamin software device";
  std::string uuid = "SOFT-00000000-0000-0000-0000-000000000000";
  std::vector<std::uint32_t> unit_sms;   // SMs of each unit; SM ids run unit by unit
  std::vector<std::uint32_t> gpc_of_sm;  // the group that bounds a cluster on the whole device
  SmLimits sm;
  std::uint32_t max_cluster_in_unit = 8;            // on a queue made of units
  std::uint32_t max_cluster_whole = 16;             // on the whole device
  Nanoseconds kernel_gap_ns = 0;                    // from one kernel's end to the next one's start
  std::uint64_t copy_bytes_per_us = 400'000;        // for copy_ns()
  std::size_t memory_bytes = std::size_t{1} << 34;  // limit of allocate()
  std::uint32_t pool_queues_max = 0;                // hal::DeviceInfo's, told and not enforced

  // 132 SMs as measured on an H200 (co-scheduled split): 15 units of 8 and one of 12.
  static DeviceDescription h200();
  // The same SMs, co-scheduling ignored: 16 units of 8 and one of 4, or 66 of 2. Clusters up to 2.
  static DeviceDescription h200_ignoring_coscheduling(std::uint32_t sms_per_unit);
  // units × sms_per_unit, one GPC for each two units.
  static DeviceDescription uniform(std::uint32_t units, std::uint32_t sms_per_unit);

  std::uint32_t sms() const;
  std::uint32_t units() const { return static_cast<std::uint32_t>(unit_sms.size()); }
  SmSet all() const { return SmSet::range(0, sms()); }
  SmSet unit(std::uint32_t index) const;
  SmSet units_of(std::uint64_t unit_bits) const;  // the SMs of a hal::ComputeSet
  ClusterRule whole_rule() const;                 // GPCs, max_cluster_whole
  ClusterRule unit_rule() const;                  // units, max_cluster_in_unit
  Nanoseconds copy_ns(std::size_t bytes) const { return 1000 + bytes * 1000 / copy_bytes_per_us; }
};

// A move-only callable without allocation for captures up to 64 bytes. Made from a callable without
// ceremony, and never from another Task.
template <class Signature>
class Task;
template <class Answer, class... Arguments>
class Task<Answer(Arguments...)> {
 public:
  static constexpr std::size_t kInline = 64;
  Task() = default;
  // NOLINTBEGIN(google-explicit-constructor,bugprone-forwarding-reference-overload)
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, Task> &&
             std::is_invocable_r_v<Answer, F&, Arguments...>)
  Task(F&& function) {
    // NOLINTEND(google-explicit-constructor,bugprone-forwarding-reference-overload)
    using Stored = std::remove_cvref_t<F>;
    if constexpr (sizeof(Stored) <= kInline && alignof(Stored) <= alignof(std::max_align_t) &&
                  std::is_nothrow_move_constructible_v<Stored>) {
      new (storage_) Stored(std::forward<F>(function));
      operations_ = &kInlineOperations<Stored>;
    } else {
      *reinterpret_cast<Stored**>(storage_) = new Stored(std::forward<F>(function));
      operations_ = &kHeapOperations<Stored>;
    }
  }
  Task(Task&& other) noexcept { take(other); }
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() { reset(); }

  explicit operator bool() const { return operations_ != nullptr; }
  Answer operator()(Arguments... arguments) {
    return operations_->call(storage_, std::forward<Arguments>(arguments)...);
  }
  void reset() {
    if (operations_ != nullptr) std::exchange(operations_, nullptr)->destroy(storage_);
  }

 private:
  struct Operations {
    Answer (*call)(void*, Arguments&&...);
    void (*move)(void* from, void* to);  // leaves `from` destroyed
    void (*destroy)(void*);
  };
  template <class Stored>
  static constexpr Operations kInlineOperations{
      [](void* at, Arguments&&... arguments) -> Answer {
        return (*static_cast<Stored*>(at))(std::forward<Arguments>(arguments)...);
      },
      [](void* from, void* to) {
        new (to) Stored(std::move(*static_cast<Stored*>(from)));
        static_cast<Stored*>(from)->~Stored();
      },
      [](void* at) { static_cast<Stored*>(at)->~Stored(); }};
  template <class Stored>
  static constexpr Operations kHeapOperations{
      [](void* at, Arguments&&... arguments) -> Answer {
        return (**static_cast<Stored**>(at))(std::forward<Arguments>(arguments)...);
      },
      [](void* from, void* to) { *static_cast<Stored**>(to) = *static_cast<Stored**>(from); },
      [](void* at) { delete *static_cast<Stored**>(at); }};

  void take(Task& other) {
    operations_ = std::exchange(other.operations_, nullptr);
    if (operations_ != nullptr) operations_->move(other.storage_, storage_);
  }

  const Operations* operations_ = nullptr;
  alignas(std::max_align_t) unsigned char storage_[kInline];
};

// Handles. Only the engine looks inside.
class Queue;
class Event;
class Gate;

// How a queue takes part in the legacy default stream's implicit order (CUDA's rules): an operation
// of the kLegacy queue of a group waits for everything enqueued before on the group's kBlocking
// queues, and everything enqueued on these later waits for it.
enum class SyncClass : std::uint8_t { kNonBlocking, kBlocking, kLegacy };

struct QueueOptions {
  SmSet sms;                                    // not empty
  std::shared_ptr<const ClusterRule> clusters;  // null: the device's whole_rule()
  int priority = 0;                             // lower numbers are served first, as in CUDA
  SyncClass sync = SyncClass::kNonBlocking;
  std::uint32_t sync_group = 0;  // a context; at most one kLegacy queue in each
  std::uint64_t tag = 0;         // the caller's; appears in the trace
};

struct Launch {
  const KernelDescriptor* kernel = nullptr;
  Index3 grid, block;
  std::uint32_t dynamic_shared = 0;
  std::uint32_t cluster_blocks = 1;  // consecutive blocks in linear order form a cluster
  bool cooperative = false;
  const void* parameters = nullptr;  // packed, kernel->parameter_bytes; copied by the call
  const void* attributes = nullptr;  // opaque; only hashed, for the trace
  std::size_t attribute_bytes = 0;
  std::uint32_t form = 0;  // the caller's entry point; only hashed, for the trace
  std::uint64_t tag = 0;   // the caller's; appears in the trace
};

enum class Compare : std::uint8_t { kGreaterOrEqual, kEqual, kAnd, kNor };  // as CU_STREAM_WAIT_*
enum class Width : std::uint8_t { k32, k64 };

enum class EngineOperationKind : std::uint8_t {
  kKernel,
  kWork,
  kRecord,
  kWait,
  kHostFunction,
  kValueWait,
  kValueWrite,
  kGate,
  kMarker,
};

// One line of the trace. `launch_hash` covers kernel, geometry, shared memory, parameters and
// attributes, and nothing that depends on the placement.
struct TraceRecord {
  enum class Phase : std::uint8_t { kEnqueue, kStart, kEnd };
  Phase phase = Phase::kEnqueue;
  EngineOperationKind kind = EngineOperationKind::kMarker;
  Status status = kOk;  // kEnd: how it ended
  Nanoseconds at = 0;
  std::uint64_t queue = 0;  // serial number of the queue
  std::uint64_t queue_tag = 0;
  std::uint64_t ticket = 0;  // the operation's number in its queue, from 1
  std::uint64_t tag = 0;     // Launch::tag
  const SmSet* sms = nullptr;
  const KernelDescriptor* kernel = nullptr;
  Index3 grid, block;
  std::uint32_t dynamic_shared = 0;
  std::uint64_t launch_hash = 0;
};

// Called with the engine's mutex held: may not call the engine.
using TraceSink = std::function<void(const TraceRecord&)>;

enum class FaultPoint : std::uint8_t { kSubmit, kLaunch, kCreateQueue, kCreateEvent, kAllocate };

// One scripted fault: after `skip` matching calls have passed, the next `count` answer `status` and
// have no effect. kSubmit matches every call that enqueues, kLaunch kernel launches only. When
// `sms` is not empty, only calls on queues over exactly these SMs match.
struct InjectedFault {
  FaultPoint point = FaultPoint::kSubmit;
  std::uint64_t skip = 0;
  std::uint64_t count = 1;
  Status status = kInjected;
  SmSet sms;
};

enum class Clock : std::uint8_t { kVirtual, kReal };

// What advance() found.
enum class AdvanceResult : std::uint8_t {
  kMoved,    // something happened
  kIdle,     // nothing is enqueued
  kBlocked,  // work is enqueued, and none of it can move unless the host acts (or ever, if it
             // cannot): value waits, gates, spinning kernels, waits on such work
};

// Per-SM facts about processes that share the device (EngineOptions::ledger_path).
struct SmSharing {
  std::uint32_t processes_now = 0;
  std::uint32_t processes_max = 0;  // most processes with a resident block at one time
  Nanoseconds shared_ns = 0;        // time with two or more
  std::uint64_t blocks = 0;         // blocks ever placed
};

struct EngineOptions {
  DeviceDescription device;  // empty unit_sms: h200()
  Clock clock = Clock::kVirtual;
  std::uint64_t seed = 1;
  // Durations are stretched by a pseudo-random 0 … jitter_percent of themselves.
  std::uint32_t jitter_percent = 0;
  // From when an event's turn has come to its time stamp: so long, and while kernels of other
  // queues run up to `event_beside_ns` more, little as a rule and sometimes much (a cube of
  // chance), as where a GPU's front end has others to serve.
  Nanoseconds event_ns = 0;
  Nanoseconds event_beside_ns = 0;
  // Plain kernels and copies touch memory either when they begin or when they end, chosen by seed,
  // so that a missing order shows from both sides. false: always when they begin.
  bool seeded_effect_time = true;
  // kReal only: a file that every process sharing this device maps. Empty: not shared.
  std::string ledger_path;
  // kReal: how often spinning blocks and value waits look at memory.
  Nanoseconds poll_ns = 20'000;
  // kReal: how many host functions may run at a time. CUDA allows them to be serialised.
  std::uint32_t host_threads = 1;
};

class Engine {
 public:
  static hal::Result<std::unique_ptr<Engine>> create(EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const DeviceDescription& device() const;
  Clock clock() const;
  Nanoseconds now() const;

  // Queues and events.
  Status create_queue(const QueueOptions& options, Queue** queue);
  void destroy_queue(Queue* queue);
  const QueueOptions& options_of(const Queue* queue) const;
  std::uint64_t serial_of(const Queue* queue) const;
  Status create_event(Event** event);
  void destroy_event(Event* event);  // returns at once; pending records and waits stay valid
  Gate* create_gate();               // closed
  void open_gate(Gate* gate);        // for good
  void destroy_gate(Gate* gate);     // opens it first

  // Operations. Each call enqueues one and returns at once.
  Status launch(Queue* queue, const Launch& launch);
  // A copy, a fill or anything else that takes no SM: runs once, lasts duration.
  Status work(Queue* queue, Task<void()> function, Nanoseconds duration);
  Status record(Queue* queue, Event* event);
  // Waits for the record that is newest now. An event never recorded is no wait.
  Status wait(Queue* queue, Event* event);
  // `even_on_error`: run, with the sticky status, also after a fault (CUDA's callbacks do, its host
  // functions do not).
  Status host_function(Queue* queue, Task<void(Status)> function, bool even_on_error = false);
  Status wait_value(Queue* queue, const void* address, std::uint64_t value, Width width,
                    Compare compare);
  Status write_value(Queue* queue, void* address, std::uint64_t value, Width width);
  Status wait_gate(Queue* queue, Gate* gate);
  Status marker(Queue* queue);  // nothing, in order

  // What launch() would answer for reasons of size: kOk, kInvalidLaunch, kCooperativeTooLarge,
  // kClusterTooLarge.
  Status check_launch(const Queue* queue, const Launch& launch) const;
  // The same for SMs without a queue.
  Status check_launch(const SmSet& sms, const ClusterRule& clusters, const Launch& launch) const;
  // Resident blocks of one SM that is otherwise empty; 0: no SM takes such a block.
  std::uint32_t blocks_per_sm(const KernelDescriptor& kernel, std::uint64_t block_threads,
                              std::uint32_t dynamic_shared) const;
  std::uint32_t max_active_clusters(const SmSet& sms, const ClusterRule& clusters,
                                    const Launch& launch) const;

  // Completion. Queries never move time. synchronize() blocks (kReal) or advances (kVirtual) and
  // answers kStuck when nothing can move in virtual time. On the kLegacy queue both include what is
  // enqueued on the blocking queues of its group.
  Status query(Queue* queue);
  Status synchronize(Queue* queue);
  Status query(Event* event);
  Status synchronize(Event* event);
  // The number of the newest operation of a queue, and waiting for one in particular.
  std::uint64_t last_ticket(const Queue* queue) const;
  Status query(Queue* queue, std::uint64_t ticket);
  Status synchronize(Queue* queue, std::uint64_t ticket);
  Status query_group(std::uint32_t sync_group);  // every queue of a group
  Status synchronize_group(std::uint32_t sync_group);
  // Device time of the newest record. kInvalidArgument: never recorded; kNotReady: not yet fired.
  Status event_time(const Event* event, Nanoseconds* at) const;

  // Virtual time: one step. kBlocked in virtual time is a deadlock unless the host can still act.
  AdvanceResult advance();
  // Advances until advance() no longer answers kMoved. kReal: waits for that.
  AdvanceResult drain();
  // Operations enqueued and not ended.
  std::uint64_t outstanding() const;

  // The sticky error, kOk if none. clear_fault() is a device reset: it requires an idle device.
  Status fault() const;
  void clear_fault();
  // As if a kernel had faulted, which another process's kernel did. Nothing after a fault.
  void lose_context(Status status);
  // Called by the thread of the engine, with its lock held, when a kernel of its own faults.
  void on_fault(std::function<void(Status)> told);
  void inject(const InjectedFault& fault);
  void clear_injected();
  void set_trace(TraceSink sink);  // empty: off

  // Device memory: host memory with a limit. free_memory fills what it gives back with 0xdd.
  Status allocate(std::size_t bytes, void** address);  // aligned to 512 bytes
  Status free_memory(void* address);
  // Memory of the device that lies elsewhere on the host: counted against the same limit.
  Status take_memory(std::size_t bytes);
  void give_memory(std::size_t bytes);
  // The allocation that holds `address`; base stays null when there is none.
  void find_allocation(const void* address, void** base, std::size_t* bytes) const;
  std::size_t memory_used() const;  // by all processes of the ledger
  // From now on this process gets no more than so much of the device.
  void limit_memory(std::size_t bytes);
  std::size_t memory_free() const;  // that this process may still take
  ResidencyLedger* ledger() const;  // null: none

  // One element an SM; empty without a ledger.
  std::vector<SmSharing> sharing() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace vitamin::soft
