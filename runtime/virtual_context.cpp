// SPDX-License-Identifier: Apache-2.0
#include "runtime/virtual_context.h"

#include <algorithm>
#include <utility>

#include "runtime/audit/audit.h"
#include "runtime/capture_safe_scope.h"

namespace vitamin::runtime {

using hal::NativeStatus;

hal::Result<std::unique_ptr<VirtualContext>> VirtualContext::create(
    std::unique_ptr<hal::Device> device, const MakeArbiter& alone, const DispatchOptions& options,
    void* legacy) {
  std::unique_ptr<VirtualContext> context(new VirtualContext(std::move(device)));
  auto pipeline = Pipeline::create(*context->device_, alone, options, context.get());
  if (!pipeline) return tl::unexpected(pipeline.error());
  context->pipeline_ = std::move(*pipeline);
  Stream& stream = context->add_stream(StreamKind::kLegacy, 0);
  stream.app_stream.queue = context->device_->adopt_queue(legacy);
  context->pipeline_->ordering().set_legacy(stream);
  return context;
}

VirtualContext::~VirtualContext() {
  if (pipeline_ == nullptr) return;  // it could not be made
  pipeline_->graphs().await_released();
  pipeline_->stop();
}

// --- streams ---------------------------------------------------------------------------------

Stream& VirtualContext::add_stream(StreamKind kind, int priority) {
  reclaim();
  if (unused_.empty()) {
    streams_.push_back(std::make_unique<Stream>());
    streams_.back()->id = static_cast<StreamId>(streams_.size() - 1);
    unused_.push_back(streams_.back().get());
  }
  Stream& stream = *unused_.back();
  unused_.pop_back();
  stream.number = streams_adopted_++;
  stream.kind = kind;
  stream.priority = priority;
  stream.app_stream.priority = priority;
  stream.app_stream.sms = device_->info().sms;
  if (kind == StreamKind::kBlocking) pipeline_->completion().note_blocking_stream(legacy());
  return stream;
}

// Ends when it has looked at two retired streams whose work goes on: so the cost of a call does not
// grow with their number, and whatever has ended is found.
void VirtualContext::reclaim() {
  std::size_t left = retired_.size();
  for (int busy = 0; left > 0 && busy < 2; --left) {
    Stream& stream = *retired_.front();
    retired_.pop_front();
    if (!pipeline_->completion().ended(stream)) {
      retired_.push_back(&stream);
      ++busy;
      continue;
    }
    pipeline_->ordering().default_streams().forget(stream);
    Stream unused;
    unused.id = stream.id;
    // Tokens of this stream are below the next one's first.
    unused.serials_from = stream.timeline.issued + 1;
    unused.timeline = {unused.serials_from, unused.serials_from, unused.serials_from};
    stream = std::move(unused);
    unused_.push_back(&stream);
  }
}

Stream& VirtualContext::adopt(void* native, StreamKind kind, int priority) {
  const Lock lock(pipeline_->mutex());
  Stream& stream = add_stream(kind, priority);
  stream.app_stream.queue = device_->adopt_queue(native);
  return stream;
}

Stream* VirtualContext::adopt_per_thread(void* thread_handle) {
  auto substitute = device_->create_whole_queue(0);
  if (!substitute) return nullptr;
  const Lock lock(pipeline_->mutex());
  Stream& stream = add_stream(StreamKind::kBlocking, 0);
  stream.app_stream.queue = std::move(*substitute);
  stream.thread_queue = device_->adopt_queue(thread_handle);
  return &stream;
}

NativeStatus VirtualContext::retire(Stream& stream, Operation& destroy, Host host) {
  Lock lock(pipeline_->mutex());
  stream.retired = true;
  if (host == Host::kMayBlock)
    pipeline_->wait_until(lock, [&] { return stream.deferral.operations.empty(); });
  reclaim();
  retired_.push_back(&stream);
  std::unique_ptr<Operation> kept = stream.deferral.operations.empty() ? nullptr : destroy.keep();
  if (kept != nullptr) {
    Submission last(OperationKind::kDestroy, kept.get());
    last.kept = std::move(kept);
    last.serial = stream.timeline.issued;
    pipeline_->deferred().push(stream, std::move(last));
    return hal::kNativeOk;
  }
  // The real stream is about to go: from now on a marker says where its last work is.
  pipeline_->completion().detach_tail(stream, pipeline_->completion().tail_marker(stream));
  if (Audit* const audit = this->audit()) audit->retired(stream);
  ++stream.app_stream.pins;
  lock.unlock();
  if (host == Host::kMayBlock) hal::LockRule::waits("the end of a stream");
  const NativeStatus answer = destroy.submit(*stream.app_stream.queue);
  lock.lock();
  --stream.app_stream.pins;
  return answer;
}

// --- work ------------------------------------------------------------------------------------

NativeStatus VirtualContext::launch(Stream& stream, const hal::KernelLaunch& launch,
                                    const Advice* advice) {
  Lock lock(pipeline_->mutex());
  Kernel& kernel = pipeline_->core().kernels.find(launch.kernel);
  NativeStatus status = hal::kNativeOk;
  if (pipeline_->ordering().default_streams().adds_nothing(stream) &&
      pipeline_->launch_fast_path(stream, kernel, launch, advice, status)) {
    if (status == hal::kNativeOk) pipeline_->ordering().default_streams().issue(stream);
    return status;
  }
  LaunchOperation operation(pipeline_->core().inspector, launch, advice);
  Submission submission(OperationKind::kLaunch, &operation);
  submission.kernel = KernelRef(&kernel);
  return pipeline_->submit(lock, stream, submission);
}

void VirtualContext::advise(Stream& stream, std::optional<Advice> advice) {
  const Lock lock(pipeline_->mutex());
  stream.placing.advice = advice;
}

void VirtualContext::expect(Stream& stream, const Advice& advice, bool cancelled) {
  const Lock lock(pipeline_->mutex());
  pipeline_->placer().expect(stream, advice, cancelled);
}

void VirtualContext::iteration_ends(Stream& stream) {
  const Lock lock(pipeline_->mutex());
  stream.placing.iteration_ends.push_back(stream.timeline.issued);
  Placer::pass_iteration_ends(stream);
}

NativeStatus VirtualContext::submit(Stream& stream, OperationKind kind, Operation& operation,
                                    Host host) {
  Lock lock(pipeline_->mutex());
  Submission submission(kind, &operation);
  submission.host = host;
  return pipeline_->submit(lock, stream, submission);
}

NativeStatus VirtualContext::enqueue(Stream& stream, Operation& operation) {
  return submit(stream, OperationKind::kFollow, operation);
}

NativeStatus VirtualContext::compute(Stream& stream, Operation& operation) {
  return submit(stream, OperationKind::kCompute, operation);
}

NativeStatus VirtualContext::bridge(Stream& stream, Operation& call, CallKind kind, Host host) {
  constexpr OperationKind kKinds[] = {OperationKind::kBridge, OperationKind::kBridgeHostWait,
                                      OperationKind::kBridgePlacelessHostWait};
  return submit(stream, kKinds[static_cast<unsigned>(kind)], call, host);
}

namespace {

// A launch of a graph that is not followed, with a stopwatch around some.
class UnfollowedGraphLaunch final : public Operation {
 public:
  UnfollowedGraphLaunch(Operation& operation, Stream& stream, Pipeline& pipeline,
                        stats::GraphReason reason, const Advice* advice)
      : operation_(operation),
        stream_(stream),
        placer_(pipeline.placer()),
        completion_(pipeline.completion()),
        profiler_(pipeline.core().profiler),
        page_(pipeline.core().page),
        reason_(reason),
        advice_(advice) {}
  NativeStatus submit(hal::Queue& queue) noexcept override {
    placer_.announce_step(stream_, Placer::advice_for(stream_, advice_));
    const std::uint64_t on_whole = page_.other.graph_launches.get() - page_.graphs.bound.get();
    Profiler::Stopwatch* stopwatch =
        Profiler::times_graph(on_whole) ? profiler_.start(queue) : nullptr;
    if (stopwatch != nullptr) completion_.put_beside(stream_, 2);
    const NativeStatus status = operation_.submit(queue);
    if (status == hal::kNativeOk) {
      page_.other.graph_launches.add();
      page_.graph_whole[static_cast<unsigned>(reason_)].add();
    }
    if (stopwatch == nullptr) return status;
    if (status == hal::kNativeOk)
      profiler_.stop(stopwatch, queue, [&page = page_.other](double ns) {
        page.graphs_timed.add();
        page.graph_whole_ns.add(static_cast<std::uint64_t>(ns));
      });
    else
      profiler_.abandon(stopwatch);
    return status;
  }
  std::unique_ptr<Operation> keep() const override { return nullptr; }  // as a graph cannot be

 private:
  Operation& operation_;
  Stream& stream_;
  Placer& placer_;
  Completion& completion_;
  Profiler& profiler_;
  stats::DevicePage& page_;
  stats::GraphReason reason_;
  const Advice* advice_;
};

}  // namespace

NativeStatus VirtualContext::bridge_graph(Stream& stream, Operation& graph, CallKind kind,
                                          stats::GraphReason reason, const Advice* advice) {
  UnfollowedGraphLaunch launch(graph, stream, *pipeline_, reason, advice);
  const NativeStatus status = bridge(stream, launch, kind);
  pipeline_->wake();
  return status;
}

NativeStatus VirtualContext::launch_graph(Stream& stream, GraphOperation& graph) {
  Lock lock(pipeline_->mutex());
  Submission submission(OperationKind::kGraph, &graph);
  submission.must_not_defer = graph.stays().has_value();
  const NativeStatus status = pipeline_->submit(lock, stream, submission);
  if (status == hal::kNativeOk) graph.graph()->newest = {&stream, stream.timeline.newest()};
  if (!pipeline_->core().options.thread) pipeline_->graphs().make_wanted(lock);
  return status;
}

// A launch keeps the executable as it was when it was made, so those that are deferred, of this
// graph alone, are flushed first.
void VirtualContext::submit_launches(const Graph& graph) {
  Lock lock(pipeline_->mutex());
  const Predecessor newest = graph.newest;
  if (newest.stream == nullptr || newest.token.submitted()) return;
  pipeline_->wait_submitted(lock, {&newest, 1}, Deferred::kFlush);
}

void VirtualContext::note_change(Graph& graph, hal::Followed followed) {
  const Lock lock(pipeline_->mutex());
  graph.changed(followed);
}

NativeStatus VirtualContext::destroy(Graph& graph, const VendorCall& call) {
  submit_launches(graph);
  forget(graph);
  return call();
}

void VirtualContext::forget(Graph& graph) {
  Lock lock(pipeline_->mutex());
  const std::vector<Graph::Made> made = pipeline_->graphs().forget(lock, graph);
  lock.unlock();
}

NativeStatus VirtualContext::bridge_per_thread(Stream& stream, Operation& call) {
  Lock lock(pipeline_->mutex());
  Submission submission(OperationKind::kBridge, &call);
  submission.host = Host::kMayBlock;
  return pipeline_->submit_blocking(lock, stream, submission, true);
}

NativeStatus VirtualContext::begin_capture(Stream& stream, Operation& begin) {
  Lock lock(pipeline_->mutex());
  // While a blocking stream captures the driver refuses work on the legacy stream, and breaks the
  // capture: what was issued there before goes there before, with a marker behind it.
  const bool legacy_first = stream.kind != StreamKind::kNonBlocking;
  pipeline_->wait_until(lock, [&] {
    DeferredQueue& deferred = pipeline_->deferred();
    return deferred.flush(stream) && (!legacy_first || deferred.flush(legacy()));
  });
  if (legacy_first) pipeline_->completion().close_batch(legacy());
  // A marker recorded while the stream captures would become part of the graph.
  pipeline_->completion().detach_tail(stream, pipeline_->completion().tail_marker(stream));
  return begin.submit(*stream.app_stream.queue);
}

// --- events ----------------------------------------------------------------------------------

NativeStatus VirtualContext::record(Stream& stream, EventState& event, Operation& record,
                                    bool exact) {
  const bool now = event.shared;
  Lock lock(pipeline_->mutex());
  Submission submission(now ? OperationKind::kBridgePlaceless : OperationKind::kRecord, &record);
  submission.must_not_defer = now;
  submission.event = &event;
  submission.exact = exact;
  // A deferred launch that makes the record of the event itself would make it behind this one.
  if (event.pending != nullptr && !event.exact) await_record(lock, event);
  return pipeline_->submit(lock, stream, submission);
}

// Whether the vendor puts nothing onto the stream for this wait, not even what would bring the
// stream behind the legacy one.
bool VirtualContext::leaves_nothing(const Stream& stream, const Submission& wait) {
  if (pipeline_->core().options.ended_wait_covers_legacy || stream.kind != StreamKind::kBlocking ||
      pipeline_->ordering().default_streams().adds_nothing(stream) ||
      !stream.deferral.operations.empty() || wait.version != nullptr)
    return false;
  return wait.marker ? pipeline_->core().markers.fired(wait.marker)
                     : wait.native && !pipeline_->completion().waits_for(wait.native);
}

NativeStatus VirtualContext::wait(Stream& stream, EventState& event, Operation& wait) {
  Lock lock(pipeline_->mutex());
  Submission submission(OperationKind::kWait);
  submission.waits_for = &event;
  const bool ours = event.recorded_in == this && !event.foreign && !event.shared;
  if (ours && event.pending != nullptr && event.pending->submitted) {
    event.point = event.pending->marker;
    event.host_wait = event.pending->host_wait;
    event.pending.reset();
  }
  if (ours && (event.pending != nullptr || event.point)) {
    // The event may be recorded again before this wait is submitted: hold on to what it means now.
    submission.event = &event;
    submission.version = event.pending;
    submission.marker = event.point;
    submission.host_wait = event.host_wait;
  } else if (ours && event.stream != nullptr && event.native &&
             !pipeline_->completion().waits_for_completion()) {
    submission.event = &event;
    submission.native = event.native;
    submission.made = event.made;
    // Who may wait for the host has to know; asked once.
    event.may_wait_for_host = event.may_wait_for_host && !event.made.completed() &&
                              pipeline_->completion().waits_for(event.native);
    submission.may_wait_for_host = event.may_wait_for_host;
  } else {
    // Recorded where its progress is not seen (or behind a marker that could not be had): any
    // process or graph may be needed for it to come about. Only the driver knows what the event
    // means now, so the wait is made now.
    submission.kind = OperationKind::kBridgePlacelessHostWait;
    submission.operation = &wait;
    submission.must_not_defer = true;
  }
  if (leaves_nothing(stream, submission)) return wait.submit(*stream.app_stream.queue);
  return pipeline_->submit(lock, stream, submission);
}

// Asks the vendor about the event, which stood for the record that `behind` is behind. Has that
// record ended, so has all that the marker stands for, and no wait for it is made any more:
// natively a wait for an event that has ended puts nothing onto a queue, where other work could
// hold it up (under HIP streams share hardware queues). The event itself may be gone when the
// answer comes.
NativeStatus VirtualContext::ask(EventState& event, MarkerRef behind, const VendorCall& call) {
  const NativeStatus answer = call();
  Audit* const audit = this->audit();
  if (audit != nullptr && answer == hal::kNativeOk) audit->reached(event);
  if (!behind) return answer;
  const Lock lock(pipeline_->mutex());
  if (answer == hal::kNativeOk && !behind->superseded) {
    behind->fired = true;
    if (audit != nullptr) audit->ended(behind->event);
  }
  behind.reset();
  return answer;
}

NativeStatus VirtualContext::query(EventState& event, const VendorCall& call) {
  Lock lock(pipeline_->mutex());
  if (event.pending != nullptr && !event.pending->submitted) {
    pipeline_->pump(*event.pending->stream);
    if (!event.pending->submitted) return pipeline_->core().errors.not_ready();
  }
  MarkerRef behind = event.unfired();
  lock.unlock();
  return ask(event, std::move(behind), call);
}

NativeStatus VirtualContext::synchronize(EventState& event, const VendorCall& call) {
  Lock lock(pipeline_->mutex());
  std::shared_ptr<EventVersion> version = event.pending;
  if (version == nullptr || version->submitted) {
    MarkerRef behind = event.unfired();
    version.reset();  // it holds markers, which are the lock's
    lock.unlock();
    return ask(event, std::move(behind), call);
  }
  pipeline_->wait_until(lock, [&] { return version->submitted; });
  MarkerRef behind = version->marker;
  version.reset();
  lock.unlock();
  if (!behind) return ask(event, {}, call);
  // The event may stand for another record by now, or be gone: the caller waits for the one that it
  // stood for.
  const NativeStatus answer = device_->synchronize(behind->event);
  lock.lock();
  if (answer == hal::kNativeOk) behind->fired = true;
  behind.reset();
  return answer;
}

void VirtualContext::settle(EventState& event) {
  Lock lock(pipeline_->mutex());
  await_record(lock, event);
  event.supersede();
}

void VirtualContext::await_record(Lock& lock, EventState& event) {
  if (const std::shared_ptr<EventVersion> version = event.pending; version != nullptr)
    pipeline_->wait_until(lock, [&] {
      return version->submitted ||
             (pipeline_->deferred().flush(*version->stream, version->serial), version->submitted);
    });
}

void VirtualContext::forget(EventState& event) {
  const Lock lock(pipeline_->mutex());
  if (Audit* const audit = this->audit()) audit->forget(event);
  Pipeline::drop(event);
  event.recorded_in = nullptr;
}

// --- waiting ---------------------------------------------------------------------------------

// The streams whose work a query or synchronisation of `stream` covers. Of the legacy stream that
// is the work of every blocking stream, too, though neither is a barrier (measured on an H200:
// bench/results/differential/pending_on_blocking.trace, legacy_calls_that_are_barriers.trace).
// Where a blocking stream covers the legacy stream, its newest operation may be behind the legacy
// stream's newest already; that one is behind the work of other blocking streams.
std::vector<Stream*> VirtualContext::covered(Stream& stream) {
  std::vector<Stream*> streams{&stream};
  if (stream.kind == StreamKind::kBlocking && pipeline_->core().options.blocking_covers_legacy &&
      !pipeline_->ordering().default_streams().adds_nothing(stream))
    streams.push_back(&legacy());
  if (stream.kind == StreamKind::kLegacy)
    for (Stream* blocking : pipeline_->ordering().default_streams().dirty())
      streams.push_back(blocking);
  return streams;
}

NativeStatus VirtualContext::query(Stream& stream) {
  const Lock lock(pipeline_->mutex());
  return query(stream, covered(stream));
}

// The caller holds the lock.
NativeStatus VirtualContext::query(Stream& stream, std::span<Stream* const> parts) {
  for (Stream* part : parts)
    if (!part->deferral.operations.empty()) pipeline_->pump(*part);
  if (const NativeStatus error = pipeline_->deferred().take_error(); error != hal::kNativeOk)
    return error;
  for (Stream* part : parts) {
    if (!part->deferral.operations.empty()) return pipeline_->core().errors.not_ready();
    const std::uint64_t submitted = part->timeline.submitted;
    NativeStatus status = hal::kNativeOk;
    if (part->submitted.tail != nullptr)
      status = part->submitted.tail->queue->query();
    else if (part->submitted.tail_marker)
      status = device_->query(part->submitted.tail_marker->event);
    else if (part == &stream)
      status = part->app_stream.queue->query();
    // Every operation of the application is complete; only a marker of the runtime is outstanding.
    if (status == pipeline_->core().errors.not_ready() &&
        part->timeline.completed == part->timeline.issued)
      status = hal::kNativeOk;
    if (status == hal::kNativeOk) status = query_allocations(*part);
    if (status != hal::kNativeOk) return status;
    pipeline_->completion().all_complete(*part, submitted);
  }
  return hal::kNativeOk;
}

// An allocation in stream order is work of its stream, too: it may wait for the stream that
// freed the memory.
NativeStatus VirtualContext::query_allocations(Stream& stream) {
  NativeStatus status = hal::kNativeOk;
  if (stream.order.allocated) status = stream.app_stream.queue->query();
  for (const MarkerRef& marker : stream.order.extra)
    if (status == hal::kNativeOk && !marker->fired) status = device_->query(marker->event);
  return status;
}

bool VirtualContext::idle(Stream& stream) {
  const Lock lock(pipeline_->mutex());
  const CaptureSafeScope safe(*device_);
  Stream* const alone[] = {&stream};
  return query(stream, alone) == hal::kNativeOk;
}

// `alone`: the vendor's own wait for the stream does it, and tells the stream's errors.
VirtualContext::End VirtualContext::end_of(Stream& stream, bool alone) {
  End end{&stream, stream.timeline.submitted, nullptr, {}};
  if (stream.submitted.tail == nullptr &&
      (stream.submitted.tail_marker || stream.retired || !alone))
    end.marker = stream.submitted.tail_marker;
  else if (!alone)
    end.marker = pipeline_->completion().tail_marker(stream);
  if (!end.marker && (stream.submitted.tail != nullptr || (alone && !stream.retired)))
    end.queue = stream.submitted.tail != nullptr ? stream.submitted.tail : &stream.app_stream;
  if (end.queue != nullptr) ++end.queue->pins;
  return end;
}

NativeStatus VirtualContext::synchronize(const End& end) {
  if (end.marker) return device_->synchronize(end.marker->event);
  return end.queue != nullptr ? end.queue->queue->synchronize() : hal::kNativeOk;
}

NativeStatus VirtualContext::synchronize(Stream& stream) {
  Lock lock(pipeline_->mutex());
  const std::vector<Stream*> parts = covered(stream);
  std::vector<Token> targets;
  for (const Stream* part : parts) targets.push_back(part->timeline.newest());
  pipeline_->wait_until(lock, [&] {
    return std::all_of(targets.begin(), targets.end(),
                       [](const Token& target) { return target.submitted(); });
  });
  if (const NativeStatus error = pipeline_->deferred().take_error(); error != hal::kNativeOk)
    return error;
  // All ends are noted before the host waits for the first: what comes later is not waited for.
  std::vector<End> ends;
  for (Stream* part : parts) {
    ends.push_back(end_of(*part, part == &stream));
    for (const MarkerRef& marker : part->order.extra)
      ends.push_back({part, part->timeline.submitted, nullptr, marker});
    if (!part->order.allocated) continue;
    ends.push_back({part, part->timeline.submitted, &part->app_stream, {}});
    ++part->app_stream.pins;
  }
  lock.unlock();
  NativeStatus status = hal::kNativeOk;
  for (const End& end : ends)
    if (status == hal::kNativeOk) status = synchronize(end);
  lock.lock();
  for (const End& end : ends) {
    if (end.queue != nullptr) --end.queue->pins;
    if (status == hal::kNativeOk) pipeline_->completion().all_complete(*end.stream, end.submitted);
  }
  return status;
}

NativeStatus VirtualContext::call_for_context(Deferred how, const VendorCall& call) {
  NativeStatus error = hal::kNativeOk;
  {
    Lock lock(pipeline_->mutex());
    pipeline_->wait_submitted(lock, pipeline_->all_deferred(), how);
    if (how == Deferred::kAwait) error = pipeline_->deferred().take_error();
  }
  hal::LockRule::waits("a call for the whole context");
  const NativeStatus answer = call();
  if (Audit* const audit = this->audit();
      audit != nullptr && how == Deferred::kAwait && answer == hal::kNativeOk)
    audit->reached_all();
  return answer != hal::kNativeOk ? answer : error;
}

// --- the rest --------------------------------------------------------------------------------

void VirtualContext::forget_kernels() {
  const Lock lock(pipeline_->mutex());
  pipeline_->core().kernels.clear();
  if (Audit* const audit = this->audit()) audit->forget_kernels();
}

NativeStatus VirtualContext::set_stream_attributes(
    Stream& stream, const VendorCall& call,
    const std::function<void(std::vector<std::byte>&)>& change) {
  Lock lock(pipeline_->mutex());
  pipeline_->wait_until(lock, [&] { return pipeline_->deferred().flush(stream); });
  const NativeStatus status = call();
  if (status == hal::kNativeOk) change(stream.attributes);
  return status;
}

std::vector<std::byte> VirtualContext::stream_attributes(const Stream& stream) const {
  const Lock lock(pipeline_->mutex());
  return stream.attributes;
}

void VirtualContext::for_each_partition(
    const std::function<void(hal::PhysicalContext&)>& function) {
  for (const Partition& partition : pipeline_->core().layout.partitions()) {
    if (partition.whole() || !pipeline_->core().pool.has(partition.id)) continue;
    hal::PhysicalContext& context = pipeline_->core().pool.context(partition.id);
    function(audit() != nullptr ? Audit::watched(context) : context);
  }
}

}  // namespace vitamin::runtime
