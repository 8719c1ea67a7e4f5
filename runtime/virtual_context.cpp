// SPDX-License-Identifier: Apache-2.0
#include "runtime/virtual_context.h"

#include <algorithm>
#include <utility>

#include "runtime/audit.h"

namespace vitamin::runtime {

using hal::NativeStatus;

namespace {
// Rounds of waiting in which nothing moved, some milliseconds (see Backoff), after which a call
// that waits for deferred work stops waiting for the host.
constexpr unsigned kPatience = 90;
// No legacy operation has this number.
constexpr std::uint64_t kNothingSeen = ~std::uint64_t{0};
}  // namespace

hal::Result<std::unique_ptr<VirtualContext>> VirtualContext::create(
    std::unique_ptr<hal::Device> device, std::unique_ptr<Policy> policy,
    const DispatchOptions& options, void* legacy) {
  std::unique_ptr<VirtualContext> context(new VirtualContext(std::move(device)));
  auto dispatcher = Dispatcher::create(*context->device_, std::move(policy), options);
  if (!dispatcher) return tl::unexpected(dispatcher.error());
  context->dispatcher_ = std::move(*dispatcher);
  context->legacy_ = &context->add_stream(StreamKind::kLegacy, 0);
  context->legacy_->own.queue = context->device_->adopt_queue(legacy);
  return context;
}

VirtualContext::~VirtualContext() {
  if (dispatcher_ != nullptr) dispatcher_->stop();  // null: it could not be made
}

// --- streams ---------------------------------------------------------------------------------

Stream& VirtualContext::add_stream(StreamKind kind, int priority) {
  auto stream = std::make_unique<Stream>();
  stream->lane = static_cast<LaneId>(streams_.size());
  stream->kind = kind;
  stream->priority = priority;
  stream->own.priority = priority;
  stream->own.processors = device_->info().processors;
  if (kind == StreamKind::kBlocking) dispatcher_->note_blocking_stream(*legacy_);
  streams_.push_back(std::move(stream));
  return *streams_.back();
}

Stream& VirtualContext::adopt(void* native, StreamKind kind, int priority) {
  const Dispatcher::Lock lock(dispatcher_->mutex());
  Stream& stream = add_stream(kind, priority);
  stream.own.queue = device_->adopt_queue(native);
  return stream;
}

Stream* VirtualContext::adopt_per_thread(void* thread_handle) {
  auto stand_in = device_->create_whole_queue(0);
  if (!stand_in) return nullptr;
  const Dispatcher::Lock lock(dispatcher_->mutex());
  Stream& stream = add_stream(StreamKind::kBlocking, 0);
  stream.own.queue = std::move(*stand_in);
  stream.thread_queue = device_->adopt_queue(thread_handle);
  return &stream;
}

NativeStatus VirtualContext::retire(Stream& stream, Operation& destroy) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  while (!dispatcher_->flush(stream)) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  // The real stream is about to go: from now on a marker says where its last work is.
  dispatcher_->detach_tail(stream, dispatcher_->tail_marker(stream));
  stream.retired = true;
  return destroy.submit(*stream.own.queue);
}

// --- default-stream order --------------------------------------------------------------------

// What the arriving operation comes behind besides its own stream's tail (DESIGN section 5; CUDA
// Driver API, "Legacy default stream"): applied in program order, whatever is submitted when.
void VirtualContext::collect(Stream& stream) {
  after_.clear();
  if (stream.kind == StreamKind::kLegacy) {
    ++legacy_operations_;
    for (Stream* blocking : dirty_) {
      blocking->dirty = false;
      after_.push_back({blocking, Token(blocking->timeline, blocking->timeline->issued)});
    }
    dirty_.clear();
  } else if (stream.kind == StreamKind::kBlocking) {
    if (!stream.dirty) {
      stream.dirty = true;
      dirty_.push_back(&stream);
    }
    if (stream.legacy_seen != legacy_operations_) {
      stream.legacy_seen = legacy_operations_;
      after_.push_back({legacy_, Token(legacy_->timeline, legacy_->timeline->issued)});
    }
  }
}

bool VirtualContext::behind_deferred(const Stream& stream) const {
  return !stream.deferred.empty() ||
         std::any_of(after_.begin(), after_.end(),
                     [](const Predecessor& p) { return !p.token.submitted(); });
}

// --- the way in ------------------------------------------------------------------------------

NativeStatus VirtualContext::run(Stream& stream, Arrival arrival) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  return run(lock, stream, arrival);
}

NativeStatus VirtualContext::run(Dispatcher::Lock& lock, Stream& stream, Arrival& arrival) {
  if (stream.error != hal::kNativeOk) return take_error(stream);
  if (arrival.intent == Intent::kLaunch)
    arrival.kernel = &dispatcher_->kernels().find(
        static_cast<LaunchOperation*>(arrival.operation)->launch().kernel);
  collect(stream);
  if (Audit* audit = dispatcher_->audit()) [[unlikely]]
    audit->arrived(stream, arrival.intent, launch_of(arrival), arrival.event, after_);
  if (arrival.host == Host::kMayBlock) {
    // What can be copied is an async call that would not block: it waits its turn like any other.
    const bool may_defer = arrival.intent == Intent::kFollow && behind_deferred(stream);
    if (may_defer && defer(stream, arrival)) return hal::kNativeOk;
    return blocking_call(lock, stream, arrival);
  }
  if (arrival.now) {
    const NativeStatus status = make_way(lock, stream, Host::kReturns);
    if (status != hal::kNativeOk) return status;
  }
  const bool waits_for_record =
      arrival.intent == Intent::kWait && arrival.event->pending != nullptr;
  if (!behind_deferred(stream) && !waits_for_record) {
    const Attempt attempt = this->attempt(stream, arrival, arrival.now);
    if (attempt.blocked == Blocked::kNo) return attempt.status;
  }
  return later(lock, stream, arrival);
}

const hal::KernelLaunch* VirtualContext::launch_of(const Arrival& arrival) {
  if (arrival.intent != Intent::kLaunch) return nullptr;
  return &static_cast<const LaunchOperation*>(arrival.operation)->launch();
}

Attempt VirtualContext::attempt(Stream& stream, Arrival& arrival, bool own_stream) {
  Request request;
  request.operation = arrival.operation;
  request.intent = arrival.intent;
  request.kernel = arrival.kernel;
  request.after = after_;
  request.own_stream = own_stream;
  if (arrival.intent == Intent::kWait) request.gate = arrival.event->gate;
  ++stream.timeline->issued;
  const Attempt attempt = dispatcher_->attempt(stream, request);
  if (attempt.blocked == Blocked::kNo && attempt.status != hal::kNativeOk) uncollect(stream);
  if (attempt.blocked != Blocked::kNo || attempt.status != hal::kNativeOk)
    --stream.timeline->issued;  // it never was
  else if (arrival.event != nullptr && arrival.intent != Intent::kWait)
    recorded(stream, *arrival.event);
  return attempt;
}

// It cannot be submitted now. The lock may be dropped here, and another thread's arrival would
// overwrite after_.
NativeStatus VirtualContext::later(Dispatcher::Lock& lock, Stream& stream, Arrival& arrival) {
  const std::vector<Predecessor> after = after_;
  if (arrival.kernel != nullptr) {
    const NativeStatus invalid = device_->validate(
        static_cast<LaunchOperation*>(arrival.operation)->launch());
    if (invalid != hal::kNativeOk) {
      uncollect(stream);
      return invalid;
    }
  }
  // Our own queue is deeper than a driver's: the caller blocks no earlier than natively.
  const std::size_t room = dispatcher_->options().deferred_max;
  dispatcher_->wait_until(lock, [&] { return stream.deferred.size() < room; });
  after_ = after;
  if (!arrival.now && defer(stream, arrival)) return hal::kNativeOk;

  // It cannot be copied: everything ahead of it goes onto the real streams, and it behind that.
  if (const NativeStatus status = make_way(lock, stream, Host::kReturns); status != hal::kNativeOk)
    return status;
  Attempt attempt;
  dispatcher_->wait_until(lock, [&] {
    after_ = after;
    attempt = this->attempt(stream, arrival, true);
    return attempt.blocked == Blocked::kNo;
  });
  return attempt.status;
}

bool VirtualContext::defer(Stream& stream, Arrival& arrival) {
  Deferred deferred;
  deferred.intent = arrival.intent;
  deferred.kernel = arrival.kernel;
  if (arrival.intent == Intent::kWait) {
    EventState& event = *arrival.event;
    deferred.gate = event.gate;
    if (event.pending != nullptr) {
      deferred.generation = event.pending;
    } else {
      // The event may be recorded again before this wait is submitted: hold on to what it means.
      deferred.marker = dispatcher_->capture_generation(*arrival.operation);
      if (!deferred.marker) return false;
      if (Audit* audit = dispatcher_->audit()) audit->captured(deferred.marker->event, event);
    }
  } else {
    deferred.operation = arrival.operation->keep();
    if (deferred.operation == nullptr) return false;
  }
  if (arrival.intent == Intent::kRecord) {
    EventState& event = *arrival.event;
    drop(event);
    event.home = this;
    event.pending = std::make_shared<Generation>();
    event.pending->stream = &stream;
    deferred.generation = event.pending;
  }
  deferred.serial = ++stream.timeline->issued;
  if (arrival.intent == Intent::kRecord) deferred.generation->serial = deferred.serial;
  deferred.predecessors = after_;
  dispatcher_->defer(stream, std::move(deferred));
  return true;
}

void VirtualContext::recorded(Stream& stream, EventState& event) {
  drop(event);
  event.home = this;
  if (dispatcher_->gated(stream)) event.gate = stream.gate;
}

NativeStatus VirtualContext::take_error(Stream& stream) {
  return std::exchange(stream.error, hal::kNativeOk);
}

// Nothing of the stream, nor of what the arriving operation comes behind, stays deferred.
NativeStatus VirtualContext::make_way(Dispatcher::Lock& lock, Stream& stream, Host host) {
  // The lock may be dropped here, and another thread's arrival would overwrite after_.
  std::vector<Predecessor> after = after_;
  auto deferred = [&] {
    return !stream.deferred.empty() ||
           std::any_of(after.begin(), after.end(),
                       [](const Predecessor& p) { return !p.token.submitted(); });
  };
  auto flush = [&] {
    bool done = dispatcher_->flush(stream);
    for (const Predecessor& p : after)
      done = dispatcher_->flush(*p.stream, p.token.serial()) && done;
    return done;
  };
  // A call that waits for the stream anyway lets its work be bound first. But what that waits for
  // may need the host, who may be this very thread: then patience has an end.
  if (host == Host::kMayBlock) {
    unsigned idle_rounds = 0;
    dispatcher_->wait_until(
        lock,
        [&] {
          // Even what goes on by itself may turn out to wait for the host: a kernel can.
          idle_rounds += dispatcher_->waits_for_host() ? 8 : 1;
          return !deferred() || idle_rounds > 8 * kPatience;
        },
        [&] { idle_rounds = 0; });
  }
  dispatcher_->wait_until(lock, [&] { return !deferred() || flush(); });
  after_ = std::move(after);
  return stream.error != hal::kNativeOk ? take_error(stream) : hal::kNativeOk;
}

// The vendor's call may block the host, so it is made without the lock. It is committed behind the
// call: a marker that was recorded before it would not cover it. What another thread submitted to
// this stream meanwhile raced with the call natively, too; the stream's tail covers both.
NativeStatus VirtualContext::blocking_call(Dispatcher::Lock& lock, Stream& stream,
                                           Arrival& arrival) {
  if (const NativeStatus status = make_way(lock, stream, Host::kMayBlock);
      status != hal::kNativeOk)
    return status;
  PhysicalQueue& queue = dispatcher_->queue_for(stream, arrival.intent, after_);
  unsigned waits = 0;
  const NativeStatus status =
      dispatcher_->order(stream, *queue.queue, &queue, after_, waits);
  if (status != hal::kNativeOk) return status;
  if (arrival.intent != Intent::kFollow) dispatcher_->page().other.calls_bridged.add();
  const bool gated = gated_behind(stream);
  ++queue.pins;  // nobody else moves in before the call is made
  lock.unlock();
  const NativeStatus answer = arrival.operation->submit(*queue.queue);
  lock.lock();
  --queue.pins;
  if (!stream.deferred.empty()) {
    // Another thread's launch was deferred meanwhile; it and all that follows come behind the call.
    dispatcher_->come_after(stream, *queue.queue);
    return answer;
  }
  dispatcher_->order(stream, *queue.queue, &queue, {}, waits);
  remark(stream);
  ++stream.timeline->issued;
  dispatcher_->commit(stream, queue);
  if (gated) stream.gate = dispatcher_->tail_marker(stream);
  return answer;
}

// The host did not wait for the call's predecessors, or they need it still.
bool VirtualContext::gated_behind(Stream& stream) {
  return dispatcher_->gated(stream) ||
         std::any_of(after_.begin(), after_.end(),
                     [&](const Predecessor& p) { return dispatcher_->gated(*p.stream); });
}

// A call was made while the lock was dropped: whoever took its stream for seen, or for clean,
// meanwhile, has to look again.
void VirtualContext::remark(Stream& stream) {
  if (stream.kind == StreamKind::kLegacy) ++legacy_operations_;
  if (stream.kind == StreamKind::kBlocking && !stream.dirty) {
    stream.dirty = true;
    dirty_.push_back(&stream);
  }
}

// The arriving operation did not come about: what collect() took for done is not.
void VirtualContext::uncollect(Stream& stream) {
  stream.legacy_seen = kNothingSeen;
  for (const Predecessor& p : after_)
    if (p.stream->kind == StreamKind::kBlocking) remark(*p.stream);
}

// --- work ------------------------------------------------------------------------------------

NativeStatus VirtualContext::launch(Stream& stream, const hal::KernelLaunch& launch) {
  LaunchOperation operation(*device_, launch);
  return run(stream, {.operation = &operation, .intent = Intent::kLaunch});
}

NativeStatus VirtualContext::enqueue(Stream& stream, Operation& operation, Host host) {
  return run(stream, {.operation = &operation, .intent = Intent::kFollow, .host = host});
}

NativeStatus VirtualContext::compute(Stream& stream, Operation& operation) {
  return run(stream, {.operation = &operation, .intent = Intent::kCompute});
}

NativeStatus VirtualContext::bridge(Stream& stream, Operation& call, Behind behind, Host host) {
  const Intent intent = behind == Behind::kGate ? Intent::kBridgeGate : Intent::kBridge;
  return run(stream, {.operation = &call, .intent = intent, .host = host});
}

NativeStatus VirtualContext::bridge_per_thread(Stream& stream, Operation& call) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  if (stream.error != hal::kNativeOk) return take_error(stream);
  collect(stream);
  if (const NativeStatus status = make_way(lock, stream, Host::kMayBlock);
      status != hal::kNativeOk)
    return status;
  unsigned waits = 0;
  const NativeStatus ordered =
      dispatcher_->order(stream, *stream.thread_queue, nullptr, after_, waits);
  if (ordered != hal::kNativeOk) return ordered;
  const bool gated = gated_behind(stream);
  lock.unlock();
  const NativeStatus status = call.submit(*stream.thread_queue);
  lock.lock();
  if (!stream.deferred.empty()) {
    dispatcher_->come_after(stream, *stream.thread_queue);
    return status;
  }
  remark(stream);
  MarkerRef marker = dispatcher_->markers().acquire();
  if (marker && stream.thread_queue->record(marker->event) == hal::kNativeOk) {
    if (gated) stream.gate = marker;
    ++stream.timeline->issued;
    dispatcher_->commit_elsewhere(stream, std::move(marker));
  }
  return status;
}

NativeStatus VirtualContext::allocate(Stream& stream, Operation& call) {
  // Without the lock: an allocation may wait for other work of the device (seen on an H200).
  const NativeStatus status = call.submit(*stream.own.queue);
  if (status != hal::kNativeOk) return status;
  const Dispatcher::Lock lock(dispatcher_->mutex());
  // An allocation on the legacy stream is no barrier there, and a record would be one (measured:
  // legacy_calls_that_are_barriers.trace): it is made when the stream's next operation comes.
  if (stream.kind == StreamKind::kLegacy) stream.allocated = true;
  else dispatcher_->come_after(stream, *stream.own.queue);
  return status;
}

NativeStatus VirtualContext::begin_capture(Stream& stream, Operation& begin) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  after_.clear();
  if (const NativeStatus status = make_way(lock, stream, Host::kReturns); status != hal::kNativeOk)
    return status;
  // A marker recorded while the stream captures would become part of the graph.
  dispatcher_->detach_tail(stream, dispatcher_->tail_marker(stream));
  return begin.submit(*stream.own.queue);
}

// --- events ----------------------------------------------------------------------------------

NativeStatus VirtualContext::record(Stream& stream, EventState& event, Operation& record) {
  // Another process may look at an interprocess event at any time: never deferred.
  const bool now = event.interprocess;
  return run(stream, {.operation = &record,
                      .intent = now ? Intent::kBridge : Intent::kRecord,
                      .event = &event,
                      .now = now});
}

NativeStatus VirtualContext::wait(Stream& stream, EventState& event, Operation& wait) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  Arrival arrival{.operation = &wait, .intent = Intent::kWait, .event = &event};
  if (Audit* audit = dispatcher_->audit()) audit->waits_for(stream, event);
  // Never recorded here, or by somebody whose progress we do not see: it may need anybody.
  const bool unknown = event.home != this || event.foreign || event.interprocess;
  if (!unknown && event.pending != nullptr && event.pending->submitted) {
    event.gate = event.pending->gate;
    event.pending.reset();
  }
  // Under the strict rule the host observes every predecessor.
  if (unknown || (dispatcher_->strict() && event.pending == nullptr)) {
    arrival.intent = Intent::kBridgeGate;
    arrival.event = nullptr;
  }
  return run(lock, stream, arrival);
}

// The answer of a question about an event.
NativeStatus VirtualContext::told(EventState& event, NativeStatus answer) {
  if (Audit* audit = dispatcher_->audit(); audit != nullptr && answer == hal::kNativeOk)
    audit->reached(event);
  return answer;
}

NativeStatus VirtualContext::query(EventState& event, const VendorCall& call) {
  {
    const Dispatcher::Lock lock(dispatcher_->mutex());
    if (event.pending != nullptr && !event.pending->submitted) {
      dispatcher_->pump();
      if (!event.pending->submitted) return device_->not_ready();
    }
  }
  return told(event, call());
}

NativeStatus VirtualContext::synchronize(EventState& event, const VendorCall& call) {
  {
    Dispatcher::Lock lock(dispatcher_->mutex());
    const std::shared_ptr<Generation> generation = event.pending;
    if (generation != nullptr)
      dispatcher_->wait_until(lock, [&] { return generation->submitted; });
  }
  return told(event, call());
}

void VirtualContext::settle(EventState& event) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  const std::shared_ptr<Generation> generation = event.pending;
  if (generation == nullptr || generation->submitted) return;
  dispatcher_->wait_until(lock, [&] {
    return generation->submitted ||
           (dispatcher_->flush(*generation->stream, generation->serial), generation->submitted);
  });
}

void VirtualContext::forget(EventState& event) {
  const Dispatcher::Lock lock(dispatcher_->mutex());
  if (Audit* audit = dispatcher_->audit()) audit->forget(event);
  drop(event);
  event.home = nullptr;
}

void VirtualContext::drop(EventState& event) {
  if (event.pending != nullptr) event.pending->superseded = true;
  event.pending.reset();
  event.gate.reset();
  event.foreign = false;
}

// --- waiting ---------------------------------------------------------------------------------

// The streams whose work a query or synchronisation of `stream` covers. Of the legacy stream that
// is the work of every blocking stream, too, though neither is a barrier (measured on an H200:
// bench/results/differential/pending_on_blocking.trace, legacy_calls_that_are_barriers.trace).
std::vector<Stream*> VirtualContext::covered(Stream& stream) const {
  std::vector<Stream*> streams{&stream};
  if (stream.kind == StreamKind::kLegacy)
    streams.insert(streams.end(), dirty_.begin(), dirty_.end());
  return streams;
}

NativeStatus VirtualContext::query(Stream& stream) {
  const Dispatcher::Lock lock(dispatcher_->mutex());
  if (stream.error != hal::kNativeOk) return take_error(stream);
  if (dispatcher_->anything_deferred()) dispatcher_->pump();
  for (Stream* part : covered(stream)) {
    if (!part->deferred.empty()) return device_->not_ready();
    const std::uint64_t submitted = part->timeline->submitted;
    NativeStatus status = hal::kNativeOk;
    if (part->tail != nullptr) status = part->tail->queue->query();
    else if (part->tail_marker) status = device_->query(part->tail_marker->event);
    else if (part == &stream) status = part->own.queue->query();
    if (status != hal::kNativeOk) return status;
    dispatcher_->all_complete(*part, submitted);
  }
  return hal::kNativeOk;
}

NativeStatus VirtualContext::synchronize(Stream& stream) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  const std::vector<Stream*> parts = covered(stream);
  std::vector<Token> targets;
  for (const Stream* part : parts) targets.emplace_back(part->timeline, part->timeline->issued);
  dispatcher_->wait_until(lock, [&] {
    return std::all_of(targets.begin(), targets.end(),
                       [](const Token& target) { return target.submitted(); });
  });
  if (stream.error != hal::kNativeOk) return take_error(stream);
  for (Stream* part : parts)
    if (const NativeStatus status = synchronize_tail(lock, *part); status != hal::kNativeOk)
      return status;
  return hal::kNativeOk;
}

NativeStatus VirtualContext::synchronize_tail(Dispatcher::Lock& lock, Stream& stream) {
  const std::uint64_t submitted = stream.timeline->submitted;
  NativeStatus status = hal::kNativeOk;
  if (stream.retired && stream.tail == nullptr && !stream.tail_marker) return status;
  if (stream.tail == nullptr && stream.tail_marker) {
    const MarkerRef marker = stream.tail_marker;
    lock.unlock();
    status = device_->synchronize(marker->event);
    lock.lock();
  } else {
    PhysicalQueue& queue = stream.tail != nullptr ? *stream.tail : stream.own;
    ++queue.pins;  // no stranger moves in while we wait for this stream's work
    lock.unlock();
    status = queue.queue->synchronize();
    lock.lock();
    --queue.pins;
  }
  if (status == hal::kNativeOk) dispatcher_->all_complete(stream, submitted);
  return status;
}

NativeStatus VirtualContext::drain(Drain how, const VendorCall& call) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  dispatcher_->wait_until(lock, [&] {
    if (how == Drain::kFlush)
      for (const auto& stream : streams_) dispatcher_->flush(*stream);
    return !dispatcher_->anything_deferred();
  });
  lock.unlock();
  const NativeStatus answer = call();
  if (Audit* audit = dispatcher_->audit();
      audit != nullptr && how == Drain::kWait && answer == hal::kNativeOk)
    audit->reached_all();
  return answer;
}

// --- the rest --------------------------------------------------------------------------------

void VirtualContext::forget_kernels() {
  const Dispatcher::Lock lock(dispatcher_->mutex());
  dispatcher_->kernels().clear();
  if (Audit* audit = dispatcher_->audit()) audit->forget_kernels();
}

void VirtualContext::set_stream_attributes(Stream& stream, std::vector<std::byte> records) {
  const Dispatcher::Lock lock(dispatcher_->mutex());
  stream.attribute_count = static_cast<std::uint32_t>(records.size() / kAttributeRecordBytes);
  stream.attributes = std::move(records);
}

void VirtualContext::for_each_entry(
    const std::function<void(hal::PhysicalContext&)>& function) {
  for (const PoolEntry& entry : dispatcher_->layout().entries()) {
    if (entry.whole() || !dispatcher_->pool().has(entry.id)) continue;
    hal::PhysicalContext& context = dispatcher_->pool().context(entry.id);
    function(dispatcher_->audit() != nullptr ? Audit::watched(context) : context);
  }
}

}  // namespace vitamin::runtime
