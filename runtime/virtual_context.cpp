// SPDX-License-Identifier: Apache-2.0
#include "runtime/virtual_context.h"

#include <algorithm>
#include <utility>

#include "runtime/audit.h"

namespace vitamin::runtime {

using hal::NativeStatus;

namespace {
// Rounds of waiting in which nothing moved, some milliseconds (see Backoff), after which a call
// that waits for deferred work stops waiting for the host; and how many rounds, more than 0.1 s,
// when nothing is known to wait for the host.
constexpr unsigned kPatience = 240;
constexpr unsigned kLongPatience = 4 * kPatience;
// Of one launch of a graph: it is looked at, and an executable made.
constexpr int kPreparations = 2;
}  // namespace

hal::Result<std::unique_ptr<VirtualContext>> VirtualContext::create(
    std::unique_ptr<hal::Device> device, const MakeArbiter& alone, const DispatchOptions& options,
    void* legacy) {
  std::unique_ptr<VirtualContext> context(new VirtualContext(std::move(device)));
  auto dispatcher = Dispatcher::create(*context->device_, alone, options);
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
  reclaim();
  if (unused_.empty()) {
    streams_.push_back(std::make_unique<Stream>());
    streams_.back()->lane = static_cast<LaneId>(streams_.size() - 1);
    unused_.push_back(streams_.back().get());
  }
  Stream& stream = *unused_.back();
  unused_.pop_back();
  stream.number = streams_adopted_++;
  stream.kind = kind;
  stream.priority = priority;
  stream.own.priority = priority;
  stream.own.processors = device_->info().processors;
  if (kind == StreamKind::kBlocking) dispatcher_->note_blocking_stream(*legacy_);
  return stream;
}

// Ends when it has looked at two retired streams whose work goes on: so the cost of a call does not
// grow with their number, and whatever has ended is found.
void VirtualContext::reclaim() {
  std::size_t left = retired_.size();
  for (int busy = 0; left > 0 && busy < 2; --left) {
    Stream& stream = *retired_.front();
    retired_.pop_front();
    if (!dispatcher_->ended(stream)) {
      retired_.push_back(&stream);
      ++busy;
      continue;
    }
    default_order_.forget(stream);
    Stream unused;
    unused.lane = stream.lane;
    // Tokens of this stream are below the next one's first.
    unused.serials_from = stream.timeline.issued + 1;
    unused.timeline = {unused.serials_from, unused.serials_from, unused.serials_from};
    stream = std::move(unused);
    unused_.push_back(&stream);
  }
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

NativeStatus VirtualContext::retire(Stream& stream, Operation& destroy, Host host) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  stream.retired = true;
  if (host == Host::kMayBlock)
    dispatcher_->wait_until(lock, [&] { return stream.deferred.empty(); });
  reclaim();
  retired_.push_back(&stream);
  std::unique_ptr<Operation> kept = stream.deferred.empty() ? nullptr : destroy.keep();
  if (kept != nullptr) {
    Deferred deferred;
    deferred.operation = std::move(kept);
    deferred.intent = Intent::kDestroy;
    deferred.serial = stream.timeline.issued;
    dispatcher_->defer(stream, std::move(deferred));
    return hal::kNativeOk;
  }
  // The real stream is about to go: from now on a marker says where its last work is.
  dispatcher_->detach_tail(stream, dispatcher_->tail_marker(stream));
  if (Audit* audit = dispatcher_->audit()) audit->retired(stream);
  ++stream.own.pins;
  lock.unlock();
  if (host == Host::kMayBlock) hal::LockRule::waits("the end of a stream");
  const NativeStatus answer = destroy.submit(*stream.own.queue);
  lock.lock();
  --stream.own.pins;
  return answer;
}

// --- the way in ------------------------------------------------------------------------------

bool VirtualContext::behind_deferred(const Stream& stream, std::span<const Predecessor> after) {
  return !stream.deferred.empty() ||
         std::any_of(after.begin(), after.end(),
                     [](const Predecessor& p) { return !p.token.submitted(); });
}

std::span<const Predecessor> VirtualContext::behind(Stream& stream, const Arrival& arrival) {
  behind_.clear();
  default_order_.list(stream, *legacy_, behind_);
  if (arrival.intent != Intent::kGraph) return behind_;
  // Natively the launches of one executable run in the order in which they are made. One that is
  // deferred holds back the next, which has no edge to it that the program asked for.
  const Predecessor& newest = static_cast<GraphOperation*>(arrival.operation)->graph()->newest;
  if (newest.stream != nullptr && newest.stream != &stream && !newest.token.submitted())
    behind_.push_back({newest.stream, newest.token, true});
  return behind_;
}

NativeStatus VirtualContext::run(Stream& stream, Arrival arrival) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  return run(lock, stream, arrival);
}

NativeStatus VirtualContext::run(Dispatcher::Lock& lock, Stream& stream, Arrival& arrival) {
  if (arrival.host == Host::kMayBlock) return make_outside(lock, stream, arrival, false);
  if (arrival.now) make_way(lock, stream, arrival);
  const bool waits_for_record =
      arrival.intent == Intent::kWait && arrival.event->pending != nullptr;
  // A graph is looked at, then an executable made; the state may change while the lock is dropped.
  for (int prepared = 0;; ++prepared) {
    const std::span<const Predecessor> after = behind(stream, arrival);
    if (behind_deferred(stream, after) || waits_for_record) break;
    const bool may_prepare = arrival.intent == Intent::kGraph && prepared < kPreparations;
    const Attempt attempt = this->attempt(stream, arrival, after, arrival.now, may_prepare);
    if (attempt.blocked == Blocked::kNo) return attempt.status;
    if (attempt.blocked != Blocked::kGraph) break;
    dispatcher_->prepare_graph(lock, static_cast<GraphOperation*>(arrival.operation)->graph(),
                               attempt.entry);
  }
  return later(lock, stream, arrival);
}

// Told whenever the operation is about to be issued: to the audit each time, since only the last
// time counts, to the trace once.
void VirtualContext::announce(Stream& stream, Arrival& arrival,
                              std::span<const Predecessor> after) {
  if (Audit* audit = dispatcher_->audit()) [[unlikely]] {
    if (arrival.waits_for != nullptr) audit->waits_for(stream, *arrival.waits_for);
    audit->arrived(stream, arrival.intent, launch_of(arrival), arrival.event, after,
                   graph_of(arrival));
  }
  if (dispatcher_->traced() && !std::exchange(arrival.traced, true)) [[unlikely]]
    dispatcher_->trace_arrival(stream, arrival.intent, arrival.kernel, arrival.event, after);
}

std::optional<hal::GraphShape> VirtualContext::graph_of(const Arrival& arrival) {
  if (arrival.intent != Intent::kGraph) return std::nullopt;
  return static_cast<const GraphOperation*>(arrival.operation)->asked();
}

const hal::KernelLaunch* VirtualContext::launch_of(const Arrival& arrival) {
  if (arrival.intent != Intent::kLaunch) return nullptr;
  return &static_cast<const LaunchOperation*>(arrival.operation)->launch();
}

Attempt VirtualContext::attempt(Stream& stream, Arrival& arrival,
                                std::span<const Predecessor> after, bool own_stream,
                                bool may_prepare) {
  announce(stream, arrival, after);
  Request request;
  request.operation = arrival.operation;
  request.intent = arrival.intent;
  request.kernel = arrival.kernel;
  request.after = after;
  request.own_stream = own_stream;
  request.may_prepare = may_prepare;
  // A launch that nothing waits for is sent there because it cannot be kept for later.
  if (own_stream && !arrival.now) request.own_reason = stats::WholeReason::kUnsupportedLayout;
  if (arrival.intent == Intent::kWait) {
    request.operation = nullptr;
    request.marker = arrival.event->point;
    request.gate = arrival.event->gate;
  }
  ++stream.timeline.issued;
  const Attempt attempt = dispatcher_->attempt(stream, request);
  if (attempt.blocked != Blocked::kNo || attempt.status != hal::kNativeOk) {
    --stream.timeline.issued;  // it never was
    return attempt;
  }
  default_order_.issue(stream);
  if (arrival.event != nullptr && arrival.intent != Intent::kWait) recorded(stream, *arrival.event);
  return attempt;
}

// It cannot be submitted now.
NativeStatus VirtualContext::later(Dispatcher::Lock& lock, Stream& stream, Arrival& arrival) {
  bool may_wait = !arrival.now;
  const KernelRef kernel(arrival.kernel);  // while the lock is dropped
  if (arrival.kernel != nullptr) {
    const NativeStatus invalid =
        device_->validate(static_cast<LaunchOperation*>(arrival.operation)->launch());
    if (invalid == hal::kOnlyTheCallTells)
      may_wait = false;
    else if (invalid != hal::kNativeOk)
      return invalid;
  }
  Deferred deferred;
  if (may_wait && keep(arrival, deferred)) {
    dispatcher_->wait_until(
        lock, [&] { return dispatcher_->may_defer(stream, arrival.kernel, arrival.intent); });
    defer(stream, arrival, std::move(deferred));
    return hal::kNativeOk;
  }
  // It cannot be copied: everything ahead of it goes onto the real streams, and it behind that.
  Attempt attempt;
  dispatcher_->wait_until(lock, [&] {
    if (!clear_way(stream, arrival)) return false;
    attempt = this->attempt(stream, arrival, behind(stream, arrival), true);
    return attempt.blocked == Blocked::kNo;
  });
  return attempt.status;
}

// The operation as it is now; false when it cannot be kept.
bool VirtualContext::keep(const Arrival& arrival, Deferred& deferred) {
  deferred.intent = arrival.intent;
  deferred.kernel = KernelRef(arrival.kernel);
  if (arrival.intent == Intent::kWait) {
    // The event may be recorded again before this wait is submitted: hold on to what it means now.
    deferred.generation = arrival.event->pending;
    deferred.marker = arrival.event->point;
    deferred.gate = arrival.event->gate;
    return true;
  }
  deferred.operation = arrival.operation->keep();
  return deferred.operation != nullptr;
}

void VirtualContext::defer(Stream& stream, Arrival& arrival, Deferred deferred) {
  const std::span<const Predecessor> after = behind(stream, arrival);
  announce(stream, arrival, after);
  deferred.predecessors.assign(after.begin(), after.end());
  deferred.serial = ++stream.timeline.issued;
  if (arrival.intent == Intent::kRecord) {
    EventState& event = *arrival.event;
    drop(event);
    event.home = this;
    event.pending = std::make_shared<Generation>();
    event.pending->stream = &stream;
    event.pending->serial = deferred.serial;
    deferred.generation = event.pending;
  }
  deferred.freed = arrival.freed;
  stream.freed_bytes += arrival.freed.bytes;
  default_order_.issue(stream);
  dispatcher_->defer(stream, std::move(deferred));
}

void VirtualContext::recorded(Stream& stream, EventState& event) {
  drop(event);
  event.home = this;
  event.point = dispatcher_->tail_marker(stream);
  dispatcher_->close_segment(stream);  // there is a marker, and work ahead is seen to end sooner
  if (dispatcher_->gated(stream)) event.gate = stream.gate;
}

// What is deferred of the stream, and of what the arriving operation comes behind, goes onto the
// real streams; false when the driver's queues have no room for all of it, and for the operation.
bool VirtualContext::clear_way(Stream& stream, const Arrival& arrival) {
  const std::span<const Predecessor> after = behind(stream, arrival);
  bool done = true;
  if (behind_deferred(stream, after)) {
    done = dispatcher_->flush(stream);
    for (const Predecessor& p : after)
      done = dispatcher_->flush(*p.stream, p.token.serial()) && done;
  }
  return done && dispatcher_->takes(stream, after, arrival.kernel, arrival.intent);
}

void VirtualContext::make_way(Dispatcher::Lock& lock, Stream& stream, const Arrival& arrival) {
  dispatcher_->wait_until(lock, [&] { return clear_way(stream, arrival); });
}

// A call that waits for the stream anyway lets the work that is there now be bound first. But what
// that waits for may need the host, who may be this very thread: then patience has an end.
void VirtualContext::let_through(Dispatcher::Lock& lock, Stream& stream, const Arrival& arrival) {
  const std::span<const Predecessor> after = behind(stream, arrival);
  std::vector<Token> targets{stream.timeline.newest()};
  for (const Predecessor& p : after) targets.push_back(p.token);
  unsigned idle_rounds = 0;
  dispatcher_->wait_until(
      lock,
      [&] {
        // Even what goes on by itself may turn out to wait for the host: a kernel can.
        idle_rounds += dispatcher_->waits_for_host() ? kLongPatience / kPatience : 1;
        return idle_rounds > kLongPatience ||
               std::all_of(targets.begin(), targets.end(),
                           [](const Token& target) { return target.submitted(); });
      },
      [&] { idle_rounds = 0; });
  make_way(lock, stream, arrival);
}

// The vendor's call may block the host, so it is made without the lock, on the stream's queue or
// (`per_thread`) on its per-thread handle. It is committed behind the call: a marker that was
// recorded before it would not cover it. What another thread submitted to this stream meanwhile
// raced with the call natively, too; the stream's tail covers both.
NativeStatus VirtualContext::make_outside(Dispatcher::Lock& lock, Stream& stream, Arrival& arrival,
                                          bool per_thread) {
  let_through(lock, stream, arrival);
  const std::span<const Predecessor> after = behind(stream, arrival);
  PhysicalQueue* const physical =
      per_thread ? nullptr : &dispatcher_->queue_for(stream, arrival.intent, after);
  hal::Queue& queue = per_thread ? *stream.thread_queue : *physical->queue;
  if (!per_thread) announce(stream, arrival, after);
  unsigned waits = 0;
  const NativeStatus ordered = dispatcher_->order(stream, queue, physical, after, waits);
  if (ordered != hal::kNativeOk) return ordered;
  const bool gated = gated_behind(stream, after);
  if (gated) dispatcher_->close_segment(stream);
  default_order_.issue(stream);
  if (!per_thread && arrival.intent != Intent::kFollow)
    dispatcher_->page().other.calls_bridged.add();
  if (physical != nullptr) ++physical->pins;  // nobody else moves in before the call is made
  lock.unlock();
  hal::LockRule::waits("a call that may block");
  const NativeStatus answer = arrival.operation->submit(queue);
  lock.lock();
  if (physical != nullptr) --physical->pins;
  default_order_.end_late(stream);
  if (!stream.deferred.empty()) {
    // Another thread's launch was deferred meanwhile; it and all that follows come behind the call.
    dispatcher_->come_after(stream, queue);
    return answer;
  }
  if (per_thread) {
    MarkerRef marker = dispatcher_->mark(stream, queue);
    if (!marker) return answer;
    ++stream.timeline.issued;
    dispatcher_->commit_elsewhere(stream, marker);
    if (gated) dispatcher_->note_gate(stream, std::move(marker));
    return answer;
  }
  dispatcher_->order(stream, queue, physical, {}, waits);
  ++stream.timeline.issued;
  dispatcher_->commit(stream, *physical, arrival.intent);
  if (gated) dispatcher_->note_gate(stream, dispatcher_->tail_marker(stream));
  return answer;
}

// The host did not wait for the call's predecessors, or they need it still.
bool VirtualContext::gated_behind(Stream& stream, std::span<const Predecessor> after) {
  return dispatcher_->gated(stream) ||
         std::any_of(after.begin(), after.end(), [&](const Predecessor& p) {
           return !p.token.completed() && dispatcher_->gated(*p.stream);
         });
}

// --- work ------------------------------------------------------------------------------------

NativeStatus VirtualContext::launch(Stream& stream, const hal::KernelLaunch& launch,
                                    const Advice* advice) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  Kernel& kernel = dispatcher_->kernels().find(launch.kernel);
  NativeStatus status = hal::kNativeOk;
  if (default_order_.adds_nothing(stream) &&
      dispatcher_->launch_straight_on(stream, kernel, launch, advice, status)) {
    if (status == hal::kNativeOk) default_order_.issue(stream);
    return status;
  }
  LaunchOperation operation(*device_, launch, advice);
  Arrival arrival{.operation = &operation, .intent = Intent::kLaunch, .kernel = &kernel};
  return run(lock, stream, arrival);
}

void VirtualContext::advise(Stream& stream, std::optional<Advice> advice) {
  const Dispatcher::Lock lock(dispatcher_->mutex());
  stream.advice = advice;
}

void VirtualContext::expect(Stream& stream, const Advice& advice, bool cancelled) {
  const Dispatcher::Lock lock(dispatcher_->mutex());
  dispatcher_->expect(stream, advice, cancelled);
}

void VirtualContext::iteration_ends(Stream& stream) {
  const Dispatcher::Lock lock(dispatcher_->mutex());
  stream.iteration_ends.push_back(stream.timeline.issued);
  Dispatcher::pass_iteration_ends(stream);
}

NativeStatus VirtualContext::enqueue(Stream& stream, Operation& operation) {
  return run(stream, {.operation = &operation, .intent = Intent::kFollow});
}

NativeStatus VirtualContext::compute(Stream& stream, Operation& operation) {
  return run(stream, {.operation = &operation, .intent = Intent::kCompute});
}

NativeStatus VirtualContext::bridge(Stream& stream, Operation& call, Behind behind, Host host) {
  constexpr Intent kIntents[] = {Intent::kBridge, Intent::kBridgeGate, Intent::kBridgeMarkerGate};
  const Intent intent = kIntents[static_cast<unsigned>(behind)];
  return run(stream, {.operation = &call, .intent = intent, .host = host});
}

namespace {

// A launch of a graph that is not followed, with a stopwatch around some.
class Timed final : public Operation {
 public:
  Timed(Operation& operation, Stream& stream, Dispatcher& dispatcher, stats::GraphReason reason)
      : operation_(operation),
        stream_(stream),
        dispatcher_(dispatcher),
        profiler_(dispatcher.profiler()),
        page_(dispatcher.page()),
        reason_(reason) {}
  NativeStatus submit(hal::Queue& queue) noexcept override {
    const std::uint64_t unleased = page_.other.graph_launches.get() - page_.graphs.bound.get();
    Profiler::Stopwatch* stopwatch =
        Profiler::times_graph(unleased) ? profiler_.start(queue) : nullptr;
    if (stopwatch != nullptr) dispatcher_.put_beside(stream_, 2);
    const NativeStatus status = operation_.submit(queue);
    if (status == hal::kNativeOk) {
      page_.other.graph_launches.add();
      page_.graph_whole[static_cast<unsigned>(reason_)].add();
    }
    if (stopwatch == nullptr) return status;
    if (status == hal::kNativeOk)
      profiler_.stop(stopwatch, queue, [&page = page_.other](double ns) {
        page.graphs_timed.add();
        page.graph_unleased_ns.add(static_cast<std::uint64_t>(ns));
      });
    else
      profiler_.abandon(stopwatch);
    return status;
  }
  std::unique_ptr<Operation> keep() const override { return nullptr; }  // as a graph cannot be

 private:
  Operation& operation_;
  Stream& stream_;
  Dispatcher& dispatcher_;
  Profiler& profiler_;
  stats::DevicePage& page_;
  stats::GraphReason reason_;
};

}  // namespace

NativeStatus VirtualContext::replay(Stream& stream, Operation& graph, Behind behind,
                                    stats::GraphReason reason) {
  Timed timed(graph, stream, *dispatcher_, reason);
  const NativeStatus status = bridge(stream, timed, behind);
  dispatcher_->look_soon();
  return status;
}

NativeStatus VirtualContext::replay(Stream& stream, GraphOperation& graph) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  Arrival arrival{.operation = &graph, .intent = Intent::kGraph, .now = graph.stays().has_value()};
  const NativeStatus status = run(lock, stream, arrival);
  if (status == hal::kNativeOk) graph.graph()->newest = {&stream, stream.timeline.newest()};
  if (!dispatcher_->options().thread) dispatcher_->make_graphs(lock);
  return status;
}

// A launch keeps the executable as it was when it was made, so those that are deferred, of this
// graph alone, go onto the real streams first.
void VirtualContext::submit_launches(const Graph& graph) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  const Predecessor newest = graph.newest;
  if (newest.stream != nullptr) submit(lock, {&newest, 1}, Drain::kFlush);
}

NativeStatus VirtualContext::change(Graph& graph, const VendorCall& call,
                                    const std::function<bool(NativeStatus)>& follow) {
  submit_launches(graph);
  const NativeStatus answer = call();
  const bool followed = follow(answer);
  const Dispatcher::Lock lock(dispatcher_->mutex());
  dispatcher_->graph_changed(graph, followed);
  return answer;
}

NativeStatus VirtualContext::destroy(Graph& graph, const VendorCall& call) {
  submit_launches(graph);
  forget(graph);
  return call();
}

void VirtualContext::forget(Graph& graph) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  const std::vector<Graph::Made> made = dispatcher_->forget_graph(graph);
  lock.unlock();
}

NativeStatus VirtualContext::bridge_per_thread(Stream& stream, Operation& call) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  Arrival arrival{.operation = &call, .intent = Intent::kBridge, .host = Host::kMayBlock};
  return make_outside(lock, stream, arrival, true);
}

// --- memory in stream order ------------------------------------------------------------------

NativeStatus VirtualContext::allocate(Stream& stream, Block& block, Operation& call) {
  {
    Dispatcher::Lock lock(dispatcher_->mutex());
    if (stream.freed_bytes > 0 && !give_out_again(stream, block)) make_frees(lock, stream);
  }
  const bool again = block.address != 0;
  // Without the lock: an allocation may wait for other work of the device (seen on an H200).
  hal::LockRule::waits("a stream-ordered allocation");
  const NativeStatus status = again ? hal::kNativeOk : call.submit(*stream.own.queue);
  if (status != hal::kNativeOk) return status;
  const Dispatcher::Lock lock(dispatcher_->mutex());
  blocks_[block.address] = block;
  // Recorded when the stream's next operation comes, so that any number of allocations costs one
  // record; and an allocation on the legacy stream is no barrier there, but a record is one
  // (measured: legacy_calls_that_are_barriers.trace).
  if (!again) stream.allocated = true;
  // The legacy stream's next operation comes behind it.
  if (stream.kind == StreamKind::kBlocking) default_order_.end_late(stream);
  return status;
}

// Behind the operation that frees it, the memory may belong to any later operation of the stream.
// The newest such operation is not made then.
bool VirtualContext::give_out_again(Stream& stream, Block& block) {
  const auto freed =
      std::find_if(stream.deferred.rbegin(), stream.deferred.rend(), [&](const Deferred& one) {
        return one.freed.address != 0 && one.freed.bytes == block.bytes &&
               one.freed.pool == block.pool;
      });
  if (freed == stream.deferred.rend()) return false;
  block.address = std::exchange(freed->freed, {}).address;
  stream.freed_bytes -= block.bytes;
  freed->operation.reset();
  freed->intent = Intent::kFollow;
  return true;
}

// Where the driver's queue has no room for all that is ahead of the frees, the caller waits for
// room, as natively it would soon, but not for ever: what runs may wait for the host, who is here.
void VirtualContext::make_frees(Dispatcher::Lock& lock, Stream& stream) {
  std::size_t left = stream.deferred.size();
  unsigned idle_rounds = 0;
  dispatcher_->wait_until(lock, [&] {
    if (dispatcher_->flush(stream)) return true;
    if (std::exchange(left, stream.deferred.size()) != stream.deferred.size()) idle_rounds = 0;
    idle_rounds += dispatcher_->waits_for_host() ? kLongPatience / kPatience : 1;
    return idle_rounds > kLongPatience;
  });
}

Block VirtualContext::take_block(std::uint64_t address) {
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return {};
  const Block block = found->second;
  blocks_.erase(found);
  return block;
}

NativeStatus VirtualContext::free(Stream& stream, std::uint64_t address, Operation& call) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  Arrival arrival{.operation = &call, .intent = Intent::kBridge, .freed = take_block(address)};
  return run(lock, stream, arrival);
}

void VirtualContext::forget_block(std::uint64_t address) {
  const Dispatcher::Lock lock(dispatcher_->mutex());
  take_block(address);
}

NativeStatus VirtualContext::begin_capture(Stream& stream, Operation& begin) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  // While a blocking stream captures the driver refuses work on the legacy stream, and breaks the
  // capture: what was issued there before goes there before, with a marker behind it.
  const bool legacy_first = stream.kind != StreamKind::kNonBlocking;
  dispatcher_->wait_until(lock, [&] {
    return dispatcher_->flush(stream) && (!legacy_first || dispatcher_->flush(*legacy_));
  });
  if (legacy_first) dispatcher_->close_segment(*legacy_);
  // A marker recorded while the stream captures would become part of the graph.
  dispatcher_->detach_tail(stream, dispatcher_->tail_marker(stream));
  return begin.submit(*stream.own.queue);
}

// --- events ----------------------------------------------------------------------------------

NativeStatus VirtualContext::record(Stream& stream, EventState& event, Operation& record) {
  const bool now = event.shared;
  return run(stream, {.operation = &record,
                      .intent = now ? Intent::kBridgeMarker : Intent::kRecord,
                      .event = &event,
                      .now = now});
}

NativeStatus VirtualContext::wait(Stream& stream, EventState& event, Operation& wait) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  Arrival arrival{
      .operation = &wait, .intent = Intent::kWait, .event = &event, .waits_for = &event};
  const bool ours = event.home == this && !event.foreign && !event.shared;
  if (ours && event.pending != nullptr && event.pending->submitted) {
    event.point = event.pending->marker;
    event.gate = event.pending->gate;
    event.pending.reset();
  }
  // Recorded by somebody whose progress we do not see (or behind a marker that could not be had):
  // it may need anybody to come about. Only the driver knows what the event means now, so the wait
  // is made now.
  if (!ours || (event.pending == nullptr && !event.point)) {
    arrival.intent = Intent::kBridgeMarkerGate;
    arrival.event = nullptr;
    arrival.now = true;
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
      dispatcher_->pump(*event.pending->stream);
      if (!event.pending->submitted) return device_->not_ready();
    }
  }
  return told(event, call());
}

NativeStatus VirtualContext::synchronize(EventState& event, const VendorCall& call) {
  MarkerRef behind;
  {
    Dispatcher::Lock lock(dispatcher_->mutex());
    const std::shared_ptr<Generation> generation = event.pending;
    if (generation != nullptr && !generation->submitted) {
      dispatcher_->wait_until(lock, [&] { return generation->submitted; });
      behind = generation->marker;
    }
  }
  if (!behind) return told(event, call());
  // The event may stand for another record by now, or be gone: the caller waits for the one that it
  // stood for.
  const NativeStatus answer = device_->synchronize(behind->event);
  const Dispatcher::Lock lock(dispatcher_->mutex());
  behind.reset();
  return answer;
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
  event.point.reset();
  event.gate.reset();
  event.foreign = false;
}

// --- waiting ---------------------------------------------------------------------------------

// The streams whose work a query or synchronisation of `stream` covers. Of the legacy stream that
// is the work of every blocking stream, too, though neither is a barrier (measured on an H200:
// bench/results/differential/pending_on_blocking.trace, legacy_calls_that_are_barriers.trace).
// Where a blocking stream covers the legacy stream, its newest operation may be behind the legacy
// stream's newest already; that one is behind the work of other blocking streams.
std::vector<Stream*> VirtualContext::covered(Stream& stream) const {
  std::vector<Stream*> streams{&stream};
  if (stream.kind == StreamKind::kBlocking && dispatcher_->options().blocking_covers_legacy &&
      !default_order_.adds_nothing(stream))
    streams.push_back(legacy_);
  if (stream.kind == StreamKind::kLegacy)
    streams.insert(streams.end(), default_order_.dirty().begin(), default_order_.dirty().end());
  return streams;
}

NativeStatus VirtualContext::query(Stream& stream) {
  const Dispatcher::Lock lock(dispatcher_->mutex());
  return query(stream, covered(stream));
}

// The caller holds the lock.
NativeStatus VirtualContext::query(Stream& stream, std::span<Stream* const> parts) {
  for (Stream* part : parts)
    if (!part->deferred.empty()) dispatcher_->pump(*part);
  if (const NativeStatus error = dispatcher_->take_error(); error != hal::kNativeOk) return error;
  for (Stream* part : parts) {
    if (!part->deferred.empty()) return device_->not_ready();
    const std::uint64_t submitted = part->timeline.submitted;
    NativeStatus status = hal::kNativeOk;
    if (part->tail != nullptr)
      status = part->tail->queue->query();
    else if (part->tail_marker)
      status = device_->query(part->tail_marker->event);
    else if (part == &stream)
      status = part->own.queue->query();
    // Every operation of the application is complete; only a marker of the runtime is outstanding.
    if (status == device_->not_ready() && part->timeline.completed == part->timeline.issued)
      status = hal::kNativeOk;
    if (status == hal::kNativeOk) status = query_allocations(*part);
    if (status != hal::kNativeOk) return status;
    dispatcher_->all_complete(*part, submitted);
  }
  return hal::kNativeOk;
}

// An allocation in stream order is work of its stream, too: it may wait for whoever freed the
// memory.
NativeStatus VirtualContext::query_allocations(Stream& stream) {
  NativeStatus status = hal::kNativeOk;
  if (stream.allocated) status = stream.own.queue->query();
  for (const MarkerRef& marker : stream.also_after)
    if (status == hal::kNativeOk && !marker->fired) status = device_->query(marker->event);
  return status;
}

bool VirtualContext::idle(Stream& stream) {
  const Dispatcher::Lock lock(dispatcher_->mutex());
  device_->enter_internal();
  Stream* const alone[] = {&stream};
  const bool ended = query(stream, alone) == hal::kNativeOk;
  device_->leave_internal();
  return ended;
}

// `alone`: the vendor's own wait for the stream does it, and tells the stream's errors.
VirtualContext::End VirtualContext::end_of(Stream& stream, bool alone) {
  End end{&stream, stream.timeline.submitted, nullptr, {}};
  if (stream.tail == nullptr && (stream.tail_marker || stream.retired || !alone))
    end.marker = stream.tail_marker;
  else if (!alone)
    end.marker = dispatcher_->tail_marker(stream);
  if (!end.marker && (stream.tail != nullptr || (alone && !stream.retired)))
    end.queue = stream.tail != nullptr ? stream.tail : &stream.own;
  if (end.queue != nullptr) ++end.queue->pins;
  return end;
}

NativeStatus VirtualContext::synchronize(const End& end) {
  if (end.marker) return device_->synchronize(end.marker->event);
  return end.queue != nullptr ? end.queue->queue->synchronize() : hal::kNativeOk;
}

NativeStatus VirtualContext::synchronize(Stream& stream) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  const std::vector<Stream*> parts = covered(stream);
  std::vector<Token> targets;
  for (const Stream* part : parts) targets.push_back(part->timeline.newest());
  dispatcher_->wait_until(lock, [&] {
    return std::all_of(targets.begin(), targets.end(),
                       [](const Token& target) { return target.submitted(); });
  });
  if (const NativeStatus error = dispatcher_->take_error(); error != hal::kNativeOk) return error;
  // All ends are noted before the host waits for the first: what comes later is not waited for.
  std::vector<End> ends;
  for (Stream* part : parts) {
    ends.push_back(end_of(*part, part == &stream));
    for (const MarkerRef& marker : part->also_after)
      ends.push_back({part, part->timeline.submitted, nullptr, marker});
    if (!part->allocated) continue;
    ends.push_back({part, part->timeline.submitted, &part->own, {}});
    ++part->own.pins;
  }
  lock.unlock();
  NativeStatus status = hal::kNativeOk;
  for (const End& end : ends)
    if (status == hal::kNativeOk) status = synchronize(end);
  lock.lock();
  for (const End& end : ends) {
    if (end.queue != nullptr) --end.queue->pins;
    if (status == hal::kNativeOk) dispatcher_->all_complete(*end.stream, end.submitted);
  }
  return status;
}

std::vector<Predecessor> VirtualContext::all_deferred() const {
  std::vector<Predecessor> targets;
  for (Stream* stream : dispatcher_->deferring())
    targets.push_back({stream, stream->timeline.newest()});
  return targets;
}

void VirtualContext::submit(Dispatcher::Lock& lock, std::span<const Predecessor> targets,
                            Drain how) {
  dispatcher_->wait_until(lock, [&] {
    if (how == Drain::kFlush)
      for (const Predecessor& p : targets) dispatcher_->flush(*p.stream, p.token.serial());
    return std::all_of(targets.begin(), targets.end(),
                       [](const Predecessor& p) { return p.token.submitted(); });
  });
}

NativeStatus VirtualContext::drain(Drain how, const VendorCall& call) {
  NativeStatus error = hal::kNativeOk;
  {
    Dispatcher::Lock lock(dispatcher_->mutex());
    submit(lock, all_deferred(), how);
    if (how == Drain::kWait) error = dispatcher_->take_error();
  }
  hal::LockRule::waits("a call for the whole context");
  const NativeStatus answer = call();
  if (Audit* audit = dispatcher_->audit();
      audit != nullptr && how == Drain::kWait && answer == hal::kNativeOk)
    audit->reached_all();
  return answer != hal::kNativeOk ? answer : error;
}

// --- the rest --------------------------------------------------------------------------------

void VirtualContext::forget_kernels() {
  const Dispatcher::Lock lock(dispatcher_->mutex());
  dispatcher_->kernels().clear();
  if (Audit* audit = dispatcher_->audit()) audit->forget_kernels();
}

NativeStatus VirtualContext::set_stream_attributes(
    Stream& stream, const VendorCall& call,
    const std::function<void(std::vector<std::byte>&)>& change) {
  Dispatcher::Lock lock(dispatcher_->mutex());
  dispatcher_->wait_until(lock, [&] { return dispatcher_->flush(stream); });
  const NativeStatus status = call();
  if (status == hal::kNativeOk) change(stream.attributes);
  return status;
}

std::vector<std::byte> VirtualContext::stream_attributes(const Stream& stream) const {
  const Dispatcher::Lock lock(dispatcher_->mutex());
  return stream.attributes;
}

void VirtualContext::for_each_entry(const std::function<void(hal::PhysicalContext&)>& function) {
  for (const PoolEntry& entry : dispatcher_->layout().entries()) {
    if (entry.whole() || !dispatcher_->pool().has(entry.id)) continue;
    hal::PhysicalContext& context = dispatcher_->pool().context(entry.id);
    function(dispatcher_->audit() != nullptr ? Audit::watched(context) : context);
  }
}

}  // namespace vitamin::runtime
