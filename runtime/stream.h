// SPDX-License-Identifier: Apache-2.0
//
// The state of one logical stream and of one application event. Guarded by the lock of the virtual
// context that they belong to; outside runtime/ they are opaque names.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/advice.h"
#include "runtime/demand.h"
#include "runtime/kernel_table.h"
#include "runtime/marker.h"
#include "runtime/operation.h"
#include "runtime/pool/physical_context_pool.h"
#include "runtime/token.h"

namespace vitamin::runtime {

// A queue that takes memory as it is needed.
template <class T>
class Ring {
 public:
  static constexpr std::size_t kFirst = 8;  // a power of two
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return items_[(first_ + i) & (items_.size() - 1)]; }
  void push(T item) {
    if (size_ == items_.size()) grow();
    (*this)[size_++] = std::move(item);
  }
  void pop() {
    items_[first_] = T();  // releases what it held
    first_ = (first_ + 1) & (items_.size() - 1);
    --size_;
  }

 private:
  void grow() {
    std::vector<T> more(std::max(kFirst, 2 * items_.size()));
    for (std::size_t i = 0; i < size_; ++i) more[i] = std::move((*this)[i]);
    items_ = std::move(more);
    first_ = 0;
  }
  std::vector<T> items_;  // a power of two of them
  std::size_t first_ = 0, size_ = 0;
};

// Markers on several queues. Behind the newest of a queue are those of before.
class NewestMarkers {
 public:
  void put(const hal::Queue& queue, MarkerRef marker) {
    for (std::size_t i = 0; i < queues_.size(); ++i)
      if (queues_[i] == &queue) return void(markers_[i] = std::move(marker));
    queues_.push_back(&queue);
    markers_.push_back(std::move(marker));
  }
  void clear() {
    queues_.clear();
    markers_.clear();
  }
  bool empty() const { return markers_.empty(); }
  std::size_t size() const { return markers_.size(); }
  auto begin() const { return markers_.begin(); }
  auto end() const { return markers_.end(); }

 private:
  std::vector<const hal::Queue*> queues_;
  std::vector<MarkerRef> markers_;
};

class VirtualContext;

enum class StreamKind : std::uint8_t {
  kLegacy,       // orders itself with every blocking stream of the context, both ways
  kBlocking,     // an ordinary stream; also every per-thread default stream
  kNonBlocking,  // takes no part in the legacy stream's order
};

// What the pipeline may do with an operation.
enum class OperationKind : std::uint8_t {
  kLaunch,          // bind it to a partition
  kCompute,         // the same, for work that is no launch of the application
  kFollow,          // needs no compute: goes wherever the stream's tail is, or onto app_stream
                    // when a predecessor of another stream lies behind a host wait; never deferred
                    // for that
  kRecord,          // as kFollow; its place is an EventVersion while it is deferred
  kWait,            // as kFollow; what it waits for is such a predecessor
  kBridge,          // on the program's own stream
  kBridgeHostWait,  // the same; it is a host wait for what follows (CallKind::kHostWait)
  kGraph,           // a graph as one operation: bind it, and wait for a grant if it ends by itself
  kDestroy,         // no operation: everything before it was submitted, the native stream may go
  kBridgePlacelessHostWait,  // kBridgeHostWait for what takes no place in the driver's queue: a
                             // wait for an event, a host function, no call at all
  kBridgePlaceless,  // kBridge for what takes no place: a record that another process may see
};
constexpr bool is_bridged_host_wait(OperationKind kind) {
  return kind == OperationKind::kBridgeHostWait || kind == OperationKind::kBridgePlacelessHostWait;
}
constexpr bool is_bridge(OperationKind kind) {
  return kind == OperationKind::kBridge || kind == OperationKind::kBridgePlaceless ||
         is_bridged_host_wait(kind);
}

// Such operations take no place in a queue of the driver, unless its markers do
// (hal::DeviceInfo::markers_take_places).
constexpr bool takes_no_place(OperationKind kind) {
  return kind == OperationKind::kRecord || kind == OperationKind::kWait ||
         kind == OperationKind::kBridgePlaceless ||
         kind == OperationKind::kBridgePlacelessHostWait || kind == OperationKind::kDestroy;
}

// One record of an event, made when it had to be deferred. Waits hold it; a later
// record of the event makes a new one and cannot move the old.
struct EventVersion {
  bool submitted = false;
  bool superseded = false;   // the event was recorded again or destroyed before this was submitted
  MarkerRef marker;          // behind the record, once submitted
  MarkerRef host_wait;       // unfired: the record lies downstream of a host wait
  Stream* stream = nullptr;  // null once submitted
  std::uint64_t serial = 0;  // of the record, in its stream
};

// Belongs to the owner of the application's event; forgotten (VirtualContext::forget) or destroyed
// before the virtual context in which it was recorded.
//
// A wait means the newest record at the time when it is issued. While that is deferred it is an
// EventVersion; once made, the event itself says where it is. A wait which is deferred itself must
// still mean the same when the event has been recorded again: for it a marker of ours stands for
// the record, recorded at the same place where waits may have to be deferred
// (Completion::marks_at_once), else when one is.
struct EventState {
  hal::Event native;  // the application's
  // Where it was recorded last; null: never, or elsewhere. Read without the lock.
  std::atomic<VirtualContext*> recorded_in{nullptr};
  std::shared_ptr<EventVersion> pending;  // its newest record, while deferred
  // Its newest record, once made: on `stream` (null: none was), as the operation of `made`.
  Stream* stream = nullptr;
  Token made;
  MarkerRef point;                 // behind it; empty: the event alone stands for it
  MarkerRef host_wait;             // unfired: it lies downstream of this host wait
  bool may_wait_for_host = false;  // without a point: whether it does is unknown until it has ended
  // Another process, or a graph when it is launched, may look at it or record it at any time: its
  // records are never deferred, and only the driver knows what it means.
  std::atomic<bool> shared{false};
  std::atomic<bool> foreign{false};  // recorded by code that is not virtualised

  // The vendor makes its newest record and no other, so what it answers about the event is about
  // what is ahead of the marker behind that record.
  bool exact = false;

  const MarkerRef& marker() const { return pending != nullptr ? pending->marker : point; }
  // The marker behind its newest record, where that is exact, made, and not seen to end.
  MarkerRef unfired() const {
    const MarkerRef& behind = marker();
    return exact && !shared && behind && !behind->fired ? behind : MarkerRef();
  }
  // The event is recorded again, here or elsewhere: the driver's answers are no longer about the
  // record that it stood for.
  void supersede() {
    if (const MarkerRef& behind = marker()) behind->superseded = true;
  }
};

// A predecessor that the default-stream rules add: that stream's operations up to a token. The
// stream may have been destroyed since and its state stand for another one; the token is completed
// then, and nothing else of the stream may be looked at.
struct Predecessor {
  Stream* stream = nullptr;
  Token token;
  // The operation is submitted behind it, and something else orders the two on the device
  // (Graph::last). The stream's tail must not: operations that are no predecessors may lie there
  // by then.
  bool submission_only = false;
};

// Memory that was allocated in stream order.
struct MemoryBlock {
  std::uint64_t address = 0;  // 0: none
  std::size_t bytes = 0;
  const void* pool = nullptr;  // the vendor's, where it comes from
};

// Whether the vendor's call may block the host until earlier work of the stream has ended. Such a
// call is made without the lock, after the host has waited for what is deferred ahead of it.
enum class Host : std::uint8_t { kReturns, kMayBlock };

// One operation on its way to the device, from the call that makes it until the driver has it. On
// the caller's stack while it can be submitted at once; moved to the stream when it is deferred.
struct Submission {
  explicit Submission(OperationKind of, Operation* is = nullptr) : kind(of), operation(is) {}

  OperationKind kind = OperationKind::kFollow;
  // The caller's, or `kept`. Null: a wait for `marker`, or nothing that is to be done any more.
  Operation* operation = nullptr;
  std::unique_ptr<Operation> kept;  // the copy, once it is deferred
  KernelRef kernel;                 // of a launch
  Host host = Host::kReturns;
  bool must_not_defer = false;
  bool exact = false;     // a record, EventState::exact
  bool flushing = false;  // it is flushed: it does not wait for a cheap move

  EventState* event = nullptr;            // of a record or a wait, while its call lasts
  const EventState* waits_for = nullptr;  // for the audit
  // Of a record that is deferred, itself; of a wait, the record when that was deferred then.
  std::shared_ptr<EventVersion> version;
  // What a wait waits for, once that is submitted. `host_wait` unfired: it lies downstream of one.
  MarkerRef marker, host_wait;
  // The same, of a wait that no marker stands for yet: `native` as long as it means `made`, that is
  // while its call lasts.
  hal::Event native;
  Token made;
  bool may_wait_for_host = false;
  MemoryBlock frees;    // what it frees: the driver cannot give that out again yet
  bool traced = false;  // its arrival is in the trace

  // Once it is deferred: what it comes behind, and the places that it will take in a queue of the
  // driver.
  std::uint64_t serial = 0;
  std::vector<Predecessor> predecessors;
  std::uint64_t places = 0;
};

// A run of operations of one stream on one partition. While it is open it has no marker; closed,
// its marker is behind its last operation.
struct CompletionBatch {
  std::uint64_t serial = 0;  // of the last operation
  MarkerRef marker;
  PartitionId partition = kNoPartition;  // kNoPartition: behind a call on the per-thread handle
  std::uint32_t operations = 0;
  std::uint32_t counted = 0;  // operations that count under the grant (Arbiter::submitted)
  std::uint32_t launches = 0;
  std::uint64_t work = 0;  // of its launches (Kernel::work)
  std::uint64_t predicted_ns = 0;
  std::uint64_t places = 0;  // that the run took in native queues
};

// An operation that waits for the host, or for work that the runtime does not see: nothing behind
// it begins before.
struct HostWait {
  std::uint64_t serial = 0;
  MarkerRef marker;  // behind it
};

// The state of a destroyed stream stands for a new one once all its work was seen to end. Its id
// and its timeline go on: serials of one id are never given out twice, so a holder of a
// token of the former stream finds it completed.
//
// Each part has one stage of the pipeline (runtime/submission) that keeps it and decides by it. It
// is named with the part; where others write, too, the part says which of them and what.
struct Stream {
  // --- what it is (VirtualContext) -------------------------------------------------------------
  StreamId id = 0;
  std::uint64_t number = 0;        // in the order of adoption; the audit's name for it
  std::uint64_t serials_from = 0;  // its operations have the serials beyond this one
  StreamKind kind = StreamKind::kNonBlocking;
  int priority = 0;
  bool retired = false;
  PhysicalQueue app_stream;                  // the program's own stream, or its stand-in
  std::unique_ptr<hal::Queue> thread_queue;  // per-thread handle; app_stream is a stand-in then
  std::vector<std::byte> attributes;         // vendor records set on the stream by the application

  // `issued` is Pipeline's, the rest Completion's. Completion counts an operation of the fast path
  // as issued, too; DeferredQueue sets `submitted` behind one that the driver refused.
  Timeline timeline;

  // --- what was submitted and is not seen complete (Completion) --------------------------------
  struct Submitted {
    // Where the newest submitted operation lies. `tail` null and a marker: only the marker says
    // where. Both null: nothing outstanding.
    PhysicalQueue* tail = nullptr;
    MarkerRef tail_marker;
    // Unfired: nothing downstream may go to a queue of a part.
    MarkerRef host_wait;
    // The newest host wait where it has no marker yet (Completion::waits_for_host). 0: none.
    std::uint64_t unmarked_host_wait = 0;
    // The host waits that have markers and were not seen to end, oldest first. Each begins a batch
    // where a marker for the batch before it could be had, unless that takes no place.
    std::deque<HostWait> host_waits;
    // Oldest first, and the one that is open. When there are so many, the open one is closed only
    // where the tail changes: all operations of a batch are on one partition.
    static constexpr std::size_t kBatches = 1024;
    bool full() const { return batches.size() >= kBatches; }
    Ring<CompletionBatch> batches;
    CompletionBatch open;
    // Predicted time of all of it, and the places in the driver's queues that it takes, with the
    // waits and records of the runtime beside it (hal::DeviceInfo::queue_depth).
    std::uint64_t ahead_ns = 0, places = 0;
    // Operations that the open batch takes before a launch has to record a marker again
    // (Pipeline::launch_fast_path).
    std::uint32_t batch_room = 0;
    std::uint64_t asked_in = 0;  // the round (MarkerPool) in which a batch had not ended
    bool reported = false;       // the arbiter is to hear of it (Completion::report)
    bool counted_whole = false;  // work on the whole device counts (Completion::look_at_whole)
  } submitted;

  // --- what the next operation comes behind, besides its tail (Ordering) -----------------------
  // Completion clears `allocated` and `extra` behind an operation that came behind them;
  // VirtualContext::allocate sets `allocated`.
  struct Order {
    bool allocated = false;  // on app_stream, and nothing was recorded behind that
    NewestMarkers extra;     // work beside the tail, and allocations
    // Blocking: has work that the legacy stream must wait for; the legacy operation that it is
    // already behind (DefaultStreamOrder).
    bool dirty = false;
    std::uint64_t legacy_seen = 0;
  } order;

  // --- where its launches go (Placer) ----------------------------------------------------------
  // Pipeline sets `last_partition`, and ends `grant` behind a graph that went elsewhere;
  // VirtualContext sets `advice` and adds to `iteration_ends`.
  struct Placing {
    GrantTerms grant{kWholeDevice, 0};  // the arbiter's last answer; `launches` 0: it is used up
    PartitionId last_partition = kNoPartition;
    // Since when it has waited for a queue on the partition of its grant; none: it does not.
    std::optional<std::chrono::steady_clock::time_point> queue_wanted_since;
    // SMs on which those of its kernels would run that the driver refused on less. Steps
    // that are announced ask for it: else each launch of such a kernel goes to the whole device by
    // itself, and the next one back.
    std::uint32_t retry_sms = 0;
    std::optional<Advice> advice;             // of what follows on the stream
    std::uint64_t announced_deadline_ns = 0;  // the last one that the arbiter heard of
    // Its next launch is the first of an iteration; and which operations, not yet submitted, are
    // the last of one.
    bool iteration_ended = false;
    std::deque<std::uint64_t> iteration_ends;
  } placing;

  // --- what waits to be submitted (DeferredQueue) ----------------------------------------------
  // VirtualContext::allocate takes the free out of a deferred operation.
  struct Deferral {
    std::deque<Submission> operations;
    std::size_t freed_bytes = 0;  // what they free
    std::uint64_t places = 0;     // that they will take in a queue of the driver
    std::uint64_t pumped_in = 0;  // the round in which what they come behind was pumped
  } deferral;
};

}  // namespace vitamin::runtime
