// SPDX-License-Identifier: Apache-2.0
//
// The structure audit: does what reaches the backend have the binary, the structure and the order
// that the application submitted, whatever the bits say?
//
// Two sides, told apart on purpose. *Logical*: each operation as it arrives, with everything that
// it comes behind (its own stream, events, the default-stream rules). *Physical*: what the backend
// is really asked to do, seen by standing between the runtime and the backend. A vector clock for
// each queue says what is ahead of the next operation there; records carry clocks, waits and
// observed completions join them. At the moment an operation is submitted
//   * the launch that the backend got must equal the one that arrived, byte by byte, but for the
//     two differences that the contract allows (docs/design.md): stream attributes made explicit,
//     and programmatic serialisation (PDL) cleared where the predecessor is not directly ahead;
//   * everything that it comes behind must be ahead of it on its queue, or have been seen complete.
// The runtime's own bookkeeping is not consulted, so a mistake in it shows.
//
// Both sides are written to a log (log.h), which is compared between runs: a program that saw
// its allocation launches something else.
//
// What is believed: that the application's own calls (event records and waits, copies), made by the
// vendor's functions on the queue that the runtime chose, do what they are for.
//
// Limits. Threads that submit to one stream at the same time race natively, too; what they do there
// is then compared in the order in which it was submitted. Work made on streams of the driver's own
// behind our back (foreign contexts) is not seen; of a graph, what its executable was made from is.
//
// Threads: any; it has a lock of its own. Off by default: without an Audit the runtime pays one
// predictable branch for an operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "hal/device.h"
#include "hal/graph.h"
#include "hal/lock_rule.h"
#include "runtime/audit/log.h"
#include "runtime/stream.h"

namespace vitamin::runtime {

// Memory of the host that a copy writes: slices of rows of `width` bytes, `pitch` bytes apart.
struct HostBox {
  const std::byte* host = nullptr;
  std::size_t width = 0, rows = 1, pitch = 0;
  std::size_t slices = 1, slice_pitch = 0;

  std::size_t bytes() const { return width * rows * slices; }
};

class Audit {
 public:
  // A log in `directory`; null when it cannot be made.
  static std::shared_ptr<Audit> create(const char* directory, std::uint32_t ordinal);
  ~Audit();

  // The device that the runtime is given instead: it passes everything on and is looked at.
  static std::unique_ptr<hal::Device> watch(std::shared_ptr<Audit> audit,
                                            std::unique_ptr<hal::Device> device);
  // The context behind one that a watched device made.
  static hal::PhysicalContext& watched(hal::PhysicalContext& context);

  // --- the logical side --------------------------------------------------------------------------
  // The stream's newest operation recorded the application's event.
  void recorded(const Stream& stream, hal::Event event) {
    const std::lock_guard lock(mutex_);
    recorded(stream.submitted.tail->queue->native(), event);
  }
  // The next operation of the stream waits for the event.
  void waits_for(const Stream& stream, const EventState& event);
  // An operation came in; its serial is the stream's next one. An operation that was refused is
  // followed by another of the same serial.
  void arrived(const Stream& stream, const Submission& submission,
               std::span<const Predecessor> predecessors);
  // The stream's next operation, already issued, failed: the application has its error.
  void refused(const Stream& stream, std::uint64_t serial);
  // The stream's native handle is gone and may become another's.
  void retired(const Stream& stream);
  void forget(const EventState& event);
  void forget_kernels() { kernels_.clear(); }

  // --- the physical side -------------------------------------------------------------------------
  void submitted(const Stream& stream, const PhysicalQueue& queue);
  // A graph was launched on a queue; `got`: what its executable was made from, read back from the
  // vendor, or null when it is the application's own.
  void launched_graph(const PhysicalQueue& queue, const hal::GraphShape* got);
  // The next operation of the stream was made on a queue of the driver's own; `marker` is behind.
  void submitted_elsewhere(const Stream& stream, const MarkerRef& marker);

  // --- results -----------------------------------------------------------------------------------
  // A copy to the host was made as the newest operation of the stream. Its bytes are looked at when
  // the host has waited for them: from then on the program may read them. Any thread; the lock need
  // not be held.
  void copied(const Stream& stream, const HostBox& box);
  // The host has seen the end of the stream's work up to a serial, of what an event covers, of all.
  void reached(const Stream& stream, std::uint64_t serial);
  void reached(const EventState& event);
  void reached_all();
  // The vendor told the host that everything ahead of a marker's record has ended.
  void ended(hal::Event marker) {
    const std::lock_guard lock(mutex_);
    completed_.join(events_[marker.native]);
  }

  std::uint64_t operations() const { return operations_; }
  // Of these, those of which the backend was asked something else, or that got lost.
  std::uint64_t changed() const { return changed_; }
  std::uint64_t uncovered() const { return uncovered_; }

 private:
  friend class WatchedDevice;
  friend class WatchedQueue;

  // For each stream: the serial up to which its operations are covered.
  class Clock {
   public:
    void raise(StreamId stream_id, std::uint64_t serial);
    void join(const Clock& other);
    std::uint64_t of(StreamId stream_id) const {
      return stream_id < upto_.size() ? upto_[stream_id] : 0;
    }

   private:
    std::vector<std::uint64_t> upto_;
  };
  struct Edge {
    StreamId stream_id;
    std::uint64_t serial;
    // The same as every run of the program has it, whatever id the stream was given.
    std::uint64_t stream, position;
  };
  struct Attribute {
    std::uint32_t id;
    std::uint64_t hash;
    friend bool operator==(const Attribute&, const Attribute&) = default;
  };
  // What two launches must have in common to be the same launch.
  struct Shape {
    std::uint64_t exact = 0;      // everything but attributes, argument bytes as they are
    std::uint64_t arguments = 0;  // with addresses masked
    std::vector<Attribute> attributes;
    std::uint32_t blocks = 0;
    bool readable = true;
    bool programmatic = false;
  };
  // A native queue: what is ahead of the next operation there.
  struct QueueState {
    Clock clock;
    std::uint32_t sms = 0;  // 0: unknown
    // Its newest operation, and whether the queue was made to wait since.
    StreamId stream_id = 0;
    std::uint64_t serial = 0;
    bool waited = false;
  };
  // A launch that the backend took since the last operation was submitted.
  struct Launched {
    void* queue;
    Shape shape;
  };
  struct LaunchedGraph {
    void* queue;
    std::optional<hal::GraphShape> shape;  // empty: the application's own
  };
  struct Pending {
    std::uint64_t serial = 0;
    audit::AuditKind kind = audit::AuditKind::kOther;
    Shape shape;
    std::uint64_t structure = 0;
    std::uint32_t name = 0;
    std::optional<hal::GraphShape> graph;
    std::vector<Edge> predecessors;  // as the runtime has them
    std::vector<Edge> required;      // as the default-stream rules have them
  };
  struct KernelFacts {
    hal::Result<hal::KernelLayout> layout;
    std::uint32_t name;
    std::uint64_t name_hash;
  };
  struct StreamState {
    std::deque<Pending> pending;
    const Stream* stream = nullptr;  // once something arrived on it
    std::uint64_t number = 0;        // of that stream: another one may have its id by now
    const EventState* waits_for = nullptr;
    std::uint64_t last_serial = 0;
  };

  struct Copied {
    StreamId stream_id;
    std::uint64_t serial;
    std::uint64_t stream;
    HostBox box;
  };

  explicit Audit(std::unique_ptr<audit::Log> log) : log_(std::move(log)) {}
  Shape shape_of(const hal::KernelLaunch& launch);
  // Of the vendor's records, one behind another.
  std::vector<Attribute> attributes_of(const void* records, std::size_t bytes) const;
  std::vector<Edge> default_stream_edges(const Stream& stream) const;
  void hash_arguments(const hal::KernelLaunch& launch, const KernelFacts& facts, Shape& shape);
  KernelFacts& facts_of(hal::KernelHandle kernel);
  std::uint32_t name_of(const std::string& text);
  bool is_changed(const Stream& stream, const PhysicalQueue& queue, const Pending& pending,
                  std::uint64_t last_serial) const;
  bool is_uncovered(const Pending& pending, const Clock& clock) const;
  void native_order(const Stream& stream, const PhysicalQueue& queue);
  static Edge edge_to(const Stream& stream, std::uint64_t serial);
  StreamState& state_of(const Stream& stream);
  void write_results(StreamId stream_id, std::uint64_t up_to);
  void write_result(const Copied& copy);

  // Told by the watched device, with the lock held. What the host observed complete is what was
  // there when it began to look.
  void recorded(void* queue, hal::Event event) { events_[event.native] = queues_[queue].clock; }
  void waited(void* queue, hal::Event event) {
    queues_[queue].clock.join(events_[event.native]);
    queues_[queue].waited = true;
  }

  std::unique_ptr<audit::Log> log_;
  hal::Device* device_ = nullptr;
  // The physical side is told by calls that are made with and without the device lock (a host
  // that waits holds none), so it has a lock of its own.
  mutable std::mutex mutex_;
  const hal::LockRule::Watched watched_{mutex_, "the lock of the audit is held"};
  std::vector<StreamState> states_;
  std::unordered_map<const EventState*, Edge> records_;  // newest logical record
  std::unordered_map<void*, QueueState> queues_;         // by native handle
  std::unordered_map<void*, Clock> events_;              // markers
  Clock completed_;
  void* legacy_ = nullptr;  // its queue; null: nothing came there yet
  std::vector<void*> blocking_;
  std::unordered_map<hal::KernelHandle, KernelFacts> kernels_;
  std::unordered_map<std::string, std::uint32_t> names_;
  std::vector<Copied> copied_;  // whose end was not waited for yet
  std::vector<Launched> launched_;
  std::vector<LaunchedGraph> launched_graphs_;
  bool broken_ = false;  // after a device's fault nothing is waited for any more
  std::uint64_t operations_ = 0, changed_ = 0, uncovered_ = 0;
};

}  // namespace vitamin::runtime
