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
#include "runtime/kernel_table.h"
#include "runtime/marker.h"
#include "runtime/operation.h"
#include "runtime/physical_context_pool.h"
#include "runtime/policy.h"
#include "runtime/token.h"

namespace vitamin::runtime {

// A queue of bounded room, a power of two, that takes memory as it is needed.
template <class T, std::size_t kRoom>
class Ring {
 public:
  static constexpr std::size_t kFirst = 8;
  static_assert((kRoom & (kRoom - 1)) == 0 && kRoom >= kFirst);
  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == kRoom; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return items_[(first_ + i) & (items_.size() - 1)]; }
  void push(T item) {
    if (size_ == items_.size()) grow();
    (*this)[size_++] = std::move(item);
  }
  void pop() {
    items_[first_] = T();  // lets go of what it held
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

// What the dispatcher may do with an operation.
enum class Intent : std::uint8_t {
  kLaunch,            // bind it to an entry
  kCompute,           // the same, for work that is no launch of the application
  kFollow,            // needs no compute: goes wherever the stream's tail is
  kRecord,            // as kFollow; its position is an event generation
  kWait,              // as kFollow, but onto the real stream when the event is gated
  kBridge,            // on the application's real stream
  kBridgeGate,        // the same, and what follows is gated until it is observed complete
  kGraph,             // a graph as one operation: bind it, but never wait for a lease
  kDestroy,           // no operation: everything before it was submitted, the native stream may go
  kBridgeMarkerGate,  // kBridgeGate for what takes no place in the driver's queue: a wait for an
                      // event, a host function, no call at all
  kBridgeMarker,      // kBridge for what takes no place: a record that another process may see
};
constexpr bool is_bridge_gate(Intent intent) {
  return intent == Intent::kBridgeGate || intent == Intent::kBridgeMarkerGate;
}
constexpr bool is_bridge(Intent intent) {
  return intent == Intent::kBridge || intent == Intent::kBridgeMarker || is_bridge_gate(intent);
}

// One generation of an event, made when its record had to be deferred. Waits hold it; a later
// record of the event makes a new one and cannot move the old.
struct Generation {
  bool submitted = false;
  bool superseded = false;   // the event was recorded again or destroyed before this was submitted
  MarkerRef marker;          // behind the record, once submitted
  MarkerRef gate;            // unfired: the record lies downstream of host-gated work
  Stream* stream = nullptr;  // null once submitted
  std::uint64_t serial = 0;  // of the record, in its stream
};

// Belongs to whoever keeps the application's event; forgotten (VirtualContext::forget) or destroyed
// before the virtual context in which it was recorded.
//
// A wait means the newest record at the time when it is issued. While that is deferred it is a
// Generation; once made, a marker of ours recorded at the same place stands for it, so that a wait
// which is deferred itself still means the same when the event has been recorded again.
struct EventState {
  // Where it was recorded last; null: never, or elsewhere. Read without the lock.
  std::atomic<VirtualContext*> home{nullptr};
  std::shared_ptr<Generation> pending;  // its newest record, while deferred
  MarkerRef point;                      // behind its newest record, once made
  MarkerRef gate;                       // of its newest record
  // Another process, or a graph when it is launched, may look at it or record it at any time: its
  // records are never deferred, and only the driver knows what it means.
  std::atomic<bool> shared{false};
  std::atomic<bool> foreign{false};  // recorded by somebody who is not virtualised
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
struct Block {
  std::uint64_t address = 0;  // 0: none
  std::size_t bytes = 0;
  const void* pool = nullptr;  // the vendor's, where it comes from
};

// A launch, or any other operation, that waits to be submitted.
struct Deferred {
  std::unique_ptr<Operation> operation;  // null for a wait: `generation` or `marker` says it all
  Intent intent = Intent::kFollow;
  KernelRef kernel;  // of a launch
  std::uint64_t serial = 0;
  std::vector<Predecessor> predecessors;
  std::shared_ptr<Generation> generation;  // of a record, or what a wait waits for
  MarkerRef marker;  // what a wait waits for, when that was already submitted as it was issued
  MarkerRef gate;    // unfired: that lies downstream of host-gated work
  Block freed;       // what it frees: the driver cannot give that to anybody yet
  std::uint64_t places = 0;  // that it will take in a queue of the driver
};

// A run of operations of one stream on one entry; its marker is behind the last of them.
struct Segment {
  std::uint64_t serial = 0;
  MarkerRef marker;
  EntryId entry = kNoEntry;  // kNoEntry: behind a call on the per-thread handle
  std::uint32_t leased = 0;  // operations counted as outstanding in the lease table
  std::uint64_t predicted_ns = 0;
  std::uint64_t held = 0;  // places in the driver's queues that the run took
  std::uint32_t launches = 0;
  std::uint64_t work = 0;  // of its launches (Kernel::work)
};

// An operation that waits for the host, or for work that the runtime does not see: nothing behind
// it begins before.
struct Gate {
  std::uint64_t serial = 0;
  MarkerRef marker;  // behind it
};

// The state of a destroyed stream stands for a new one once all its work was seen to end. Its lane
// and its timeline go on: serials of a lane are never given out twice, so whoever still holds a
// token of the former stream finds it completed.
struct Stream {
  LaneId lane = 0;
  std::uint64_t number = 0;        // in the order of adoption; the audit's name for it
  std::uint64_t serials_from = 0;  // its operations have the serials beyond this one
  StreamKind kind = StreamKind::kNonBlocking;
  int priority = 0;
  bool retired = false;
  PhysicalQueue own;                         // the application's real stream, or its stand-in
  std::unique_ptr<hal::Queue> thread_queue;  // the per-thread handle, where `own` is a stand-in
  Timeline timeline;

  // The tail: where the newest submitted operation lies. `tail` null and a marker: only the marker
  // says where. Both null: nothing outstanding.
  PhysicalQueue* tail = nullptr;
  MarkerRef tail_marker;
  MarkerRef gate;          // unfired: nothing downstream may go to a pool queue
  bool allocated = false;  // on the real stream, and nothing was recorded behind that
  // What the next operation waits for besides: work beside the tail, and allocations.
  NewestMarkers also_after;

  // Predicted time of what is submitted and not seen complete, and of what no segment covers yet.
  std::uint64_t ahead_ns = 0, since_segment_ns = 0;

  // Since when it has waited for a queue on the entry of its grant; none: it does not.
  std::optional<std::chrono::steady_clock::time_point> queue_wanted_since;
  std::deque<Deferred> deferred;
  std::size_t freed_bytes = 0;  // what the deferred operations free
  std::uint64_t deferred_places = 0;

  std::optional<Advice> advice;        // of what follows on the stream
  std::uint64_t told_deadline_ns = 0;  // the last one that the arbiter heard of
  // Processors on which those of its kernels would run that the driver refused on less. Steps that
  // are announced ask for it: else each launch of such a kernel goes to the whole device by itself,
  // and the next one back.
  std::uint32_t prefers = 0;
  // Its next launch is the first of an iteration; and which operations, not yet submitted, are the
  // last of one.
  bool iteration_ended = false;
  std::deque<std::uint64_t> iteration_ends;

  // The standing answer of the policy.
  Choice grant{kWholeDevice, 0};
  EntryId last_entry = kNoEntry;

  // Default-stream order.
  bool dirty = false;             // blocking: has work that the legacy stream must wait for
  std::uint64_t legacy_seen = 0;  // blocking: the legacy operation that it is already behind

  // Outstanding work, oldest first.
  Ring<Segment, 1024> segments;
  std::uint64_t asked_in = 0;   // the round (MarkerPool) in which one of them had not ended
  std::uint64_t pumped_in = 0;  // the round in which what it comes behind was pumped
  std::uint32_t since_segment = 0;
  std::uint32_t leased_since_segment = 0;
  std::uint32_t launches_since_segment = 0;
  std::uint64_t work_since_segment = 0;
  bool reported = false;  // it is in Dispatcher::outstanding_
  // Places in the driver's queues (hal::DeviceInfo::queue_depth) that operations which are not seen
  // complete take, with the waits and records of ours beside them. And those of them that no
  // segment covers yet.
  std::uint64_t held = 0, held_since_segment = 0;
  // The gates that the runtime knows of and did not see end, oldest first. Each begins a run where
  // a marker for the run before it could be had.
  std::deque<Gate> gates;
  // Operations that the open segment takes before a launch has to record a marker again
  // (Dispatcher::launch_straight_on).
  std::uint32_t segment_room = 0;

  std::vector<std::byte> attributes;  // vendor records set on the stream by the application
};

}  // namespace vitamin::runtime
