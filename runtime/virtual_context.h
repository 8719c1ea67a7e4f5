// SPDX-License-Identifier: Apache-2.0
//
// VirtualContext: the streams, events and happens-before order of one process on one device, and
// what an interposer submits everything to.
//
// Shadow streams over real queues. The application's streams and events stay real objects of its
// primary context. What is virtual is *where a stream's newest work lies*: its tail is on a pool
// partition's queue or on the stream itself (the whole device), and the next operation, wherever it
// is bound, is ordered behind the tail by queue order, by an event recorded behind it, or by its
// observed completion. An application's event is always really recorded behind the work that it
// covers before code that is not virtualised can look at it.
//
//        application            VirtualContext                     physical queues
//     launch(stream, k) --> Submission                   --> Pipeline: what it comes behind, which
//     copy, record, wait                                       partition, submit now or defer
//
// Threads: every function may be called from any thread; one lock per device, never held while the
// host blocks. Errors: the vendor's own codes, handed to the application. Nothing throws.
// Source of the rules: docs/design.md; CUDA Driver API "Stream synchronization behavior".
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>

#include "hal/device.h"
#include "runtime/operation.h"
#include "runtime/stream.h"
#include "runtime/submission/pipeline.h"

namespace vitamin::runtime {

// What a bridged call (docs/glossary.md) means for later work of its stream.
enum class CallKind : std::uint8_t {
  kWork,      // ends by itself: a copy, a fill, a graph
  kHostWait,  // may need the host, another stream or another process to act before it ends (host
              // function, value wait, external semaphore, IPC event, collective). No queue of a
              // part waits for it: launches behind it are deferred until it is observed complete,
              // but where the stream shares the whole device freely (Placer::claim_free_sharing).
              // Copies, records and waits behind it go to the program's own stream at once.
  kPlacelessHostWait,  // a kHostWait that takes no place in the driver's queue: a wait for an
                       // event, a host function, a point in the stream at which no call is made
};

using VendorCall = std::function<hal::NativeStatus()>;

class VirtualContext {
 public:
  // `legacy` is the native handle of the context's legacy default stream.
  static hal::Result<std::unique_ptr<VirtualContext>> create(std::unique_ptr<hal::Device> device,
                                                             const MakeArbiter& alone,
                                                             const DispatchOptions& options,
                                                             void* legacy);
  ~VirtualContext();

  // No thread of ours calls the vendor any more: the process ends. What is deferred moves on only
  // while a call waits.
  void stop() { pipeline_->stop(); }
  // Between begin_fork() and end_fork() threads of ours begin no call of the vendor, and after
  // await_rest() none is in one, so that a child does not find the vendor's locks held for ever. Up
  // to a second: a thread may be in a call that takes longer, or the fork may.
  static void begin_fork() { ++Pipeline::forking; }
  void await_rest() { pipeline_->await_rest(); }
  static void end_fork() { --Pipeline::forking; }
  // Reads the times of what has ended, and hands over what was learnt.
  void finish_timing() { pipeline_->finish_timing(); }
  // No graph is made executable any more: the process ends.
  void finish_graphs() { pipeline_->graphs().finish(); }
  // While the application destroys code (GraphCache::hold). await_held_graphs() is between the two.
  void hold_graphs() { pipeline_->graphs().hold(); }
  void await_held_graphs() { pipeline_->graphs().await_held(); }
  void release_graphs() { pipeline_->graphs().release(); }

  // --- streams -------------------------------------------------------------------------------
  Stream& legacy() { return pipeline_->ordering().legacy(); }
  // Registers a stream that the program created. The reference is valid until the stream is
  // retired; what it refers to is used for another stream when the work of this one has ended.
  Stream& adopt(void* native, StreamKind kind, int priority);
  // A stand-in for the calling thread's per-thread default stream (its own handle would mean
  // another stream on every other thread). `thread_handle` is the vendor's per-thread handle, used
  // by that thread alone, for calls that take no stream argument (bridge_per_thread). Null when
  // the stand-in cannot be made: pass through natively then.
  Stream* adopt_per_thread(void* thread_handle);
  // The program destroys the stream; deferred work still runs, as natively. The vendor's call
  // `destroy` is made when all deferred work of the stream was submitted: before this returns with
  // Host::kMayBlock (the vendor's call waits for the stream), else later, by any thread. Requires
  // that `destroy` can be kept.
  hal::NativeStatus retire(Stream& stream, Operation& destroy, Host host = Host::kReturns);
  // The native stream that stands for `stream`: itself, or the stand-in of a per-thread one.
  void* native(const Stream& stream) const { return stream.app_stream.queue->native(); }

  // --- work ----------------------------------------------------------------------------------
  // Binds and submits a launch, now or as soon as it is bindable. The launch is never changed.
  // `advice`, if any, comes before that of the stream.
  hal::NativeStatus launch(Stream& stream, const hal::KernelLaunch& launch,
                           const Advice* advice = nullptr);
  // What follows on the stream, until said otherwise.
  void advise(Stream& stream, std::optional<Advice> advice);
  // Work that is not submitted yet; `cancelled`: it is not expected any more.
  void expect(Stream& stream, const Advice& advice, bool cancelled);
  // What was submitted so far ended an iteration.
  void iteration_ends(Stream& stream);
  // A stream-ordered call that needs no compute of its own (async copy or fill): goes wherever the
  // stream's tail is. What cannot be kept is flushed and made at once on the stream itself.
  hal::NativeStatus enqueue(Stream& stream, Operation& operation);
  // A stream-ordered call that the vendor turns into a kernel (fills and device copies on AMD):
  // bound to a partition as a launch is, and not counted as one.
  hal::NativeStatus compute(Stream& stream, Operation& operation);
  // Any other call: ordered behind the stream's newest work and made on the program's own stream,
  // where the newest work is then.
  hal::NativeStatus bridge(Stream& stream, Operation& call, CallKind kind = CallKind::kWork,
                           Host host = Host::kReturns);
  // bridge() for a launch of a graph that stays on the whole device because of `reason`. Its time
  // is sampled, since it runs without a grant. `advice`: null, or borrowed for the call.
  hal::NativeStatus bridge_graph(Stream& stream, Operation& graph, CallKind kind,
                                 stats::GraphReason reason, const Advice* advice = nullptr);
  // Whether launches of graphs may go to parts (DispatchOptions::graph_bytes is not 0).
  bool binds_graphs() const { return pipeline_->core().options.graph_bytes > 0; }
  // Binds a launch of a graph as launch() does that of a kernel. One that holds kernels that wait
  // for other processes does not wait for a grant. The pipeline chooses the program's executable,
  // or one that the runtime made for the partition.
  hal::NativeStatus launch_graph(Stream& stream, GraphOperation& graph);
  // The application changes the graph by `call`, whose answer is given back: launches of it that
  // were made before are submitted first. `follow` does the same to the graph's source, and says
  // how.
  template <class Call, class Follow>
  hal::NativeStatus change(Graph& graph, Call call, Follow follow) {
    submit_launches(graph);
    const hal::NativeStatus answer = call();
    note_change(graph, follow(answer));
    return answer;
  }
  // Launches of it that were made before are submitted.
  void submit_launches(const Graph& graph);
  // The application destroys the graph by `call`.
  hal::NativeStatus destroy(Graph& graph, const VendorCall& call);
  // The context goes away, and every executable with it.
  void forget(Graph& graph);
  // A call that takes no stream and runs on the calling thread's per-thread default stream. May
  // block the host.
  hal::NativeStatus bridge_per_thread(Stream& stream, Operation& call);
  // A stream-ordered allocation of `block.bytes` from `block.pool`: made at once, on the program's
  // own stream, by `call`, which sets `block.address`; later work waits for it. Memory of that size
  // that the stream frees by an operation which is still deferred is given out again instead, as
  // the driver would give it out: `block.address` is set then, and nothing is called. Other frees
  // that are deferred are made first, as far as the driver's queues have room for what is ahead of
  // them, so that the pool grows where natively it does and nowhere else. Refused for want of
  // memory, the caller flushes every context (call_for_context()) and asks again: any free that is
  // deferred may give it.
  hal::NativeStatus allocate(Stream& stream, MemoryBlock& block, Operation& call);
  // A stream-ordered free of what allocate() gave out, or of other memory.
  hal::NativeStatus free(Stream& stream, std::uint64_t address, Operation& call);
  // The memory was freed by a call that did not come here.
  void forget_block(std::uint64_t address);
  // The stream enters a capture: its earlier work is flushed, its order with later work is kept by
  // a marker recorded now, then `begin` is called. Captured calls themselves never come here.
  hal::NativeStatus begin_capture(Stream& stream, Operation& begin);

  // --- events --------------------------------------------------------------------------------
  // `record` makes the vendor's record of `event` on the queue it is given. Shared events are
  // recorded on the program's own stream, at once: what is deferred is flushed ahead of the record.
  // `exact`: `record` is the vendor's only record of what the event stands for now.
  hal::NativeStatus record(Stream& stream, EventState& event, Operation& record, bool exact = true);
  // A wait for a record that was made here waits for a marker of ours at the same place; any other
  // is `wait`, the vendor's own, which is made before this returns.
  hal::NativeStatus wait(Stream& stream, EventState& event, Operation& wait);
  // `call` is the vendor's query, synchronise or elapsed time; made without the lock, once the
  // event is really recorded. A query of an event whose record is deferred answers "not ready".
  hal::NativeStatus query(EventState& event, const VendorCall& call);
  hal::NativeStatus synchronize(EventState& event, const VendorCall& call);
  // Before a use of the event by the driver alone, and before a wait of another context for it:
  // makes sure that it is really recorded: deferred work ahead of it is flushed, which waits for
  // nothing but room in the driver's queues.
  void settle(EventState& event);
  // The event is recorded by code that is not virtualised, or destroyed: a record of it that is
  // still deferred will leave the real event alone.
  void forget(EventState& event);

  // --- waiting -------------------------------------------------------------------------------
  hal::NativeStatus query(Stream& stream);
  hal::NativeStatus synchronize(Stream& stream);
  // Whether nothing of the stream is outstanding; a question of ours, legal while others capture.
  bool idle(Stream& stream);
  // A call that concerns the whole context (synchronise it, free memory, unload a module), made
  // without the lock after all that is deferred in the context was submitted.
  hal::NativeStatus call_for_context(Deferred how, const VendorCall& call);

  // --- the rest ------------------------------------------------------------------------------
  // Kernel handles may be reused after a module was unloaded: forget what is known about them.
  void forget_kernels();
  // `call` sets attributes on the program's own stream. When it succeeds, `change` does the same to
  // the records that are made explicit on every launch that is bound elsewhere (vendor records of
  // hal::KernelInspector::attribute_record_bytes each). A launch has the attributes of the time
  // when it was issued, so what is deferred is submitted first.
  hal::NativeStatus set_stream_attributes(
      Stream& stream, const VendorCall& call,
      const std::function<void(std::vector<std::byte>&)>& change);
  std::vector<std::byte> stream_attributes(const Stream& stream) const;
  // Calls `function` for every realised partition (limits and cache configuration are per
  // context at the vendor).
  void for_each_partition(const std::function<void(hal::PhysicalContext&)>& function);
  hal::Device& device() { return *device_; }
  stats::DevicePage& page() { return pipeline_->core().page; }
  Audit* audit() const { return pipeline_->core().audit(); }  // null: none

 private:
  explicit VirtualContext(std::unique_ptr<hal::Device> device) : device_(std::move(device)) {}
  // Until a record of the event that is deferred was submitted: it is flushed.
  void await_record(Lock& lock, EventState& event);
  bool leaves_nothing(const Stream& stream, const Submission& wait);

  // Where the work of a stream ends, held on to while the lock is dropped.
  struct End {
    Stream* stream;
    std::uint64_t submitted;
    PhysicalQueue* queue;  // pinned: no stranger moves in meanwhile; or null and
    MarkerRef marker;      // empty too: nothing is outstanding
  };
  Stream& add_stream(StreamKind kind, int priority);
  void reclaim();
  hal::NativeStatus submit(Stream& stream, OperationKind kind, Operation& operation,
                           Host host = Host::kReturns);
  bool give_out_again(Stream& stream, MemoryBlock& block);
  void make_frees(Lock& lock, Stream& stream);
  MemoryBlock take_block(std::uint64_t address);
  std::vector<Stream*> covered(Stream& stream);
  hal::NativeStatus query(Stream& stream, std::span<Stream* const> parts);
  hal::NativeStatus query_allocations(Stream& stream);
  End end_of(Stream& stream, bool alone);
  hal::NativeStatus synchronize(const End& end);
  hal::NativeStatus ask(EventState& event, MarkerRef behind, const VendorCall& call);
  void note_change(Graph& graph, hal::Followed followed);

  std::unique_ptr<hal::Device> device_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::uint64_t streams_adopted_ = 0;
  std::deque<Stream*> retired_;  // whose work may not have ended
  std::vector<Stream*> unused_;  // which stand for no stream now
  std::unordered_map<std::uint64_t, MemoryBlock>
      blocks_;  // allocated in stream order and not freed
};

}  // namespace vitamin::runtime
