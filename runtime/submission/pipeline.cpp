// SPDX-License-Identifier: Apache-2.0
#include "runtime/submission/pipeline.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "runtime/audit/audit.h"

namespace vitamin::runtime {
namespace {

using hal::NativeStatus;

// Rounds of waiting in which nothing moved, some milliseconds (see Backoff), after which a call
// that waits for deferred work stops waiting for the host; and how many rounds, more than 0.1 s,
// when nothing is known to wait for the host.
constexpr unsigned kRoundsForHost = 240;
constexpr unsigned kIdleRounds = 4 * kRoundsForHost;
// Of one launch of a graph: it is looked at, and an executable made.
constexpr int kPreparations = 2;

// Of this process; 0: unknown.
std::uint64_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  unsigned long total = 0, resident = 0;
  const bool read = std::fscanf(file, "%lu %lu", &total, &resident) == 2;
  std::fclose(file);
  return read ? std::uint64_t{resident} * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace

// --- life --------------------------------------------------------------------------------------

hal::Result<std::unique_ptr<Pipeline>> Pipeline::create(hal::Device& device,
                                                        const MakeArbiter& alone,
                                                        const DispatchOptions& options,
                                                        VirtualContext* owner) {
  const auto begin = std::chrono::steady_clock::now();
  const std::uint64_t free_before = device.free_bytes();
  const std::uint64_t resident_before = resident_bytes();
  PoolLimits limits = options.pool;
  std::unique_ptr<Arbiter> arbiter;
  if (options.make_arbiter) arbiter = options.make_arbiter(device.info(), limits);
  if (arbiter == nullptr) arbiter = alone(device.info(), limits);
  std::unique_ptr<Pipeline> pipeline(new Pipeline(device, std::move(arbiter), options,
                                                  PoolLayout::build(device.info(), limits), owner));
  Core& core = pipeline->core_;
  auto pool = PhysicalContextPool::realise(device, core.layout);
  if (!pool) return tl::unexpected(pool.error());
  core.pool = std::move(*pool);
  for (const Partition& partition : core.layout.partitions())
    pipeline->widths_.push_back(&core.page.width(partition.sms));
  pipeline->placer_.list_partitions();
  pipeline->graphs_.set_widest(pipeline->placer_.widest());

  stats::PoolFigures& facts = core.page.pool;
  facts.device_name.set(device.info().name.c_str());
  facts.device_uuid.set(device.info().uuid.c_str());
  facts.sms.set(device.info().sms);
  facts.units.set(device.info().units());
  facts.partitions.set(core.pool.realised() + 1);
  facts.queues.set(core.pool.queue_count());
  facts.creation_ns.set(static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count()));
  // Upper bounds, each: others may have allocated meanwhile.
  const std::uint64_t free_after = device.free_bytes();
  facts.device_bytes.set(free_before - std::min(free_before, free_after));
  facts.host_bytes.set(std::max(resident_bytes(), resident_before) - resident_before);
  if (options.thread) {
    pipeline->busy_ = 2;  // until they have attached themselves to the device
    pipeline->mover_ = std::thread([raw = pipeline.get()] { raw->run_mover(); });
    pipeline->worker_ = std::thread([raw = pipeline.get()] { raw->run_worker(); });
  }
  return pipeline;
}

Pipeline::Pipeline(hal::Device& device, std::unique_ptr<Arbiter> arbiter,
                   const DispatchOptions& options, PoolLayout layout, VirtualContext* owner)
    : owner_(owner),
      core_(device, std::move(arbiter), options, std::move(layout)),
      completion_(core_),
      ordering_(core_, completion_),
      queues_(core_, completion_),
      placer_(core_, completion_, queues_),
      watchdog_(core_),
      graphs_(core_),
      deferred_(core_, completion_, *this) {
  core_.arbiter->on_change([this] {
    // Under the lock, so that the mover cannot miss it between looking and sleeping.
    const Lock lock(core_.mutex);
    core_.wake.notify_one();
  });
}

Pipeline::~Pipeline() { stop(); }

// --- submitting --------------------------------------------------------------------------------

NativeStatus Pipeline::submit(Lock& lock, Stream& stream, Submission& submission) {
  if (submission.host == Host::kMayBlock) return submit_blocking(lock, stream, submission, false);
  if (submission.must_not_defer) make_way(lock, stream, submission);
  const bool waits_for_record =
      submission.kind == OperationKind::kWait && submission.version != nullptr;
  // A graph is looked at, then an executable made; the state may change while the lock is dropped.
  for (int prepared = 0;; ++prepared) {
    const std::span<const Predecessor> predecessors = ordering_.predecessors(stream, submission);
    const bool may_prepare = submission.kind == OperationKind::kGraph && prepared < kPreparations;
    SubmitResult result{Blocked::kPredecessor};
    if (!Ordering::any_deferred(stream, predecessors) && !waits_for_record)
      result = issue(stream, submission, predecessors, submission.must_not_defer, may_prepare);
    if (result.blocked == Blocked::kNo) return result.status;
    std::optional<PartitionId> partition;
    if (result.blocked == Blocked::kGraph)
      partition = result.partition;
    else if (may_prepare && !submission.must_not_defer)
      partition = prepared_ahead(stream, *submission.operation->as_graph()->graph());
    if (!partition) break;
    graphs_.prepare(lock, submission.operation->as_graph()->graph(), *partition);
  }
  if (submission.native && !keeps_meaning(stream, submission)) submission.must_not_defer = true;
  return defer_or_flush(lock, stream, submission);
}

// Told whenever the operation is about to be issued: to the audit each time, since only the last
// time counts, to the trace once.
void Pipeline::note_arrival(Stream& stream, Submission& submission,
                            std::span<const Predecessor> predecessors) {
  if (Audit* audit = core_.audit()) [[unlikely]] {
    if (submission.waits_for != nullptr) audit->waits_for(stream, *submission.waits_for);
    audit->arrived(stream, submission, predecessors);
  }
  if (core_.traced() && !std::exchange(submission.traced, true)) [[unlikely]]
    trace_arrival(stream, submission, predecessors);
}

SubmitResult Pipeline::issue(Stream& stream, Submission& submission,
                             std::span<const Predecessor> predecessors, bool own_stream,
                             bool may_prepare) {
  note_arrival(stream, submission, predecessors);
  ++stream.timeline.issued;
  const SubmitResult result =
      submission.kind == OperationKind::kGraph
          ? launch_graph_now(stream, submission, predecessors, own_stream, may_prepare)
          : submit_now(stream, submission, predecessors, own_stream);
  if (result.blocked != Blocked::kNo || result.status != hal::kNativeOk) {
    --stream.timeline.issued;  // it never was
    return result;
  }
  ordering_.default_streams().issue(stream);
  if (submission.event != nullptr && submission.kind != OperationKind::kWait)
    recorded(stream, submission);
  return result;
}

SubmitResult Pipeline::submit_now(Stream& stream, Submission& submission,
                                  std::span<const Predecessor> predecessors, bool own_stream) {
  const OperationKind kind = submission.kind;
  if (kind == OperationKind::kLaunch || kind == OperationKind::kCompute)
    return launch_now(stream, submission, predecessors, own_stream);
  if (kind == OperationKind::kGraph)
    return launch_graph_now(stream, submission, predecessors, own_stream, false);
  if (!completion_.room(stream, predecessors, false, completion_.places_of(kind)))
    return {Blocked::kTooMuchOutstanding};
  const bool others_wait_for_host =
      submission.may_wait_for_host ||
      ordering_.others_wait_for_host(predecessors, submission.marker, submission.host_wait);
  const bool host_waits = is_bridged_host_wait(kind) || others_wait_for_host;
  if (host_waits) completion_.close_before_host_wait(stream);
  PhysicalQueue& queue =
      own_stream ? stream.app_stream : Ordering::follow_queue(stream, kind, others_wait_for_host);
  unsigned waits = 0;
  NativeStatus status = ordering_.order(stream, *queue.queue, &queue, predecessors, waits);
  // On a real blocking stream the wait itself comes behind the legacy stream, and what follows
  // relies on that, also when the marker was seen to fire.
  const bool waits_for_marker =
      submission.marker && (!submission.marker->fired || stream.kind != StreamKind::kNonBlocking);
  if (status == hal::kNativeOk && waits_for_marker)
    status = completion_.wait_for(stream, *queue.queue, submission.marker->event);
  // Also for one that has ended: the driver answers what the application would have got natively.
  if (status == hal::kNativeOk && submission.native)
    status = completion_.wait_for(stream, *queue.queue, submission.native);
  if (status == hal::kNativeOk && submission.operation != nullptr)
    status = submission.operation->submit(*queue.queue);
  if (status != hal::kNativeOk) return {Blocked::kNo, status};
  if (is_bridge(kind)) core_.page.other.calls_bridged.add();
  completion_.submitted(stream, queue, kind);
  if (host_waits) completion_.note_host_wait(stream);
  return {};
}

// --- deferring ---------------------------------------------------------------------------------

// It cannot be submitted now.
NativeStatus Pipeline::defer_or_flush(Lock& lock, Stream& stream, Submission& submission) {
  bool may_wait = !submission.must_not_defer;
  if (submission.kernel.get() != nullptr) {
    const NativeStatus invalid =
        core_.inspector.validate(submission.operation->as_launch()->launch());
    if (invalid == hal::kRefusedInAnyPlace)
      return submission.operation->submit(*stream.app_stream.queue);
    if (invalid == hal::kOnlyTheCallTells)
      may_wait = false;
    else if (invalid != hal::kNativeOk)
      return invalid;
  }
  if (may_wait && submission.operation != nullptr) submission.kept = submission.operation->keep();
  // A wait is kept without an operation: what the event stood for when it was called says it all.
  const bool kept = submission.kept != nullptr || submission.kind == OperationKind::kWait;
  if (may_wait && kept) {
    wait_until(lock, [&] {
      return completion_.may_defer(stream, submission.kernel.get(), submission.kind);
    });
    defer(stream, submission);
    return hal::kNativeOk;
  }
  // It cannot be copied: everything ahead of it is flushed, and it goes behind that.
  SubmitResult result;
  wait_until(lock, [&] {
    if (!clear_way(stream, submission)) return false;
    result = issue(stream, submission, ordering_.predecessors(stream, submission), true);
    return result.blocked == Blocked::kNo;
  });
  return result.status;
}

void Pipeline::defer(Stream& stream, Submission& submission) {
  const std::span<const Predecessor> predecessors = ordering_.predecessors(stream, submission);
  note_arrival(stream, submission, predecessors);
  submission.predecessors.assign(predecessors.begin(), predecessors.end());
  submission.operation = submission.kept.get();
  submission.serial = ++stream.timeline.issued;
  if (submission.kind == OperationKind::kRecord) {
    EventState& event = *submission.event;
    drop(event);
    event.recorded_in = owner_;
    event.pending = std::make_shared<EventVersion>();
    event.pending->stream = &stream;
    event.pending->serial = submission.serial;
    event.exact = submission.exact;
    submission.version = event.pending;
  }
  submission.event = nullptr;
  submission.waits_for = nullptr;
  ordering_.default_streams().issue(stream);
  deferred_.push(stream, std::move(submission));
  // NOLINTNEXTLINE(bugprone-use-after-move): the stream owns the operation now
  submission.operation = nullptr;
}

void Pipeline::recorded(Stream& stream, const Submission& submission) {
  EventState& event = *submission.event;
  drop(event);
  event.exact = submission.exact;
  event.recorded_in = owner_;
  event.stream = &stream;
  event.made = {stream.timeline, stream.timeline.submitted};
  if (Audit* audit = core_.audit(); audit != nullptr && event.native) [[unlikely]]
    audit->recorded(stream, event.native);
  event.may_wait_for_host = completion_.may_wait_for_host(stream);
  if (event.native && !completion_.marks_at_once()) return;
  event.point = completion_.tail_marker(stream);
  completion_.close_batch(stream);  // there is a marker, and work ahead is seen to end sooner
  if (completion_.waits_for_host(stream)) event.host_wait = stream.submitted.host_wait;
}

// Whether a wait that no marker stands for means the same when its event has been recorded again:
// there is nothing to wait for, or a marker is recorded now in the place of the record. Natively
// one on a blocking stream comes behind what the legacy stream got since. Else the wait is made
// now.
bool Pipeline::keeps_meaning(const Stream& stream, Submission& wait) {
  completion_.note_deferral();
  EventState& event = *wait.event;
  Stream& in = *event.stream;
  if (&in != &stream && !wait.made.completed() && completion_.waits_for(wait.native)) {
    const bool same_place =
        in.timeline.submitted == wait.made.serial() && in.submitted.tail != nullptr &&
        (in.submitted.tail_marker || ordering_.default_streams().adds_nothing(in));
    if (same_place) event.point = completion_.tail_marker(in);
    if (!event.point) return false;
    if (event.may_wait_for_host) event.host_wait = event.point;
    wait.marker = event.point;
    wait.host_wait = event.host_wait;
  }
  wait.native = {};
  wait.may_wait_for_host = false;
  return true;
}

void Pipeline::drop(EventState& event) {
  event.supersede();
  event.exact = false;
  if (event.pending != nullptr) event.pending->superseded = true;
  event.pending.reset();
  event.stream = nullptr;
  event.point.reset();
  event.host_wait.reset();
  event.may_wait_for_host = false;
  event.foreign = false;
}

// Flushes what is deferred of the stream, and of what the operation comes behind; false when the
// driver's queues have no room for all of it, and for the operation.
bool Pipeline::clear_way(Stream& stream, const Submission& submission) {
  const std::span<const Predecessor> predecessors = ordering_.predecessors(stream, submission);
  bool done = true;
  if (Ordering::any_deferred(stream, predecessors)) {
    done = deferred_.flush(stream);
    for (const Predecessor& p : predecessors)
      done = deferred_.flush(*p.stream, p.token.serial()) && done;
  }
  return done && completion_.takes(stream, predecessors, submission.kernel.get(), submission.kind);
}

void Pipeline::make_way(Lock& lock, Stream& stream, const Submission& submission) {
  wait_until(lock, [&] { return clear_way(stream, submission); });
}

// --- calls that may block ----------------------------------------------------------------------

// A call that waits for the stream anyway lets the work that is there now be bound first. But what
// that waits for may need the host, which may be this very thread: then it stops waiting.
void Pipeline::let_through(Lock& lock, Stream& stream, const Submission& submission) {
  const std::span<const Predecessor> predecessors = ordering_.predecessors(stream, submission);
  std::vector<Token> targets{stream.timeline.newest()};
  for (const Predecessor& p : predecessors) targets.push_back(p.token);
  unsigned idle_rounds = 0;
  wait_until(
      lock,
      [&] {
        // Even what goes on by itself may turn out to wait for the host: a kernel can.
        idle_rounds += deferred_.waits_for_host() ? kIdleRounds / kRoundsForHost : 1;
        return idle_rounds > kIdleRounds ||
               std::all_of(targets.begin(), targets.end(),
                           [](const Token& target) { return target.submitted(); });
      },
      [&] { idle_rounds = 0; });
  make_way(lock, stream, submission);
}

// The vendor's call may block the host, so it is made without the lock. It is committed behind the
// call: a marker that was recorded before it would not cover it. What another thread submitted to
// this stream meanwhile raced with the call natively, too; the stream's tail covers both.
NativeStatus Pipeline::submit_blocking(Lock& lock, Stream& stream, Submission& submission,
                                       bool per_thread) {
  std::span<const Predecessor> predecessors = ordering_.predecessors(stream, submission);
  if (Ordering::any_deferred(stream, predecessors) ||
      !completion_.takes(stream, predecessors, nullptr, submission.kind)) {
    let_through(lock, stream, submission);
    predecessors = ordering_.predecessors(stream, submission);
  }
  PhysicalQueue* const physical =
      per_thread ? nullptr
                 : &Ordering::follow_queue(stream, submission.kind,
                                           ordering_.others_wait_for_host(predecessors, {}, {}));
  hal::Queue& queue = per_thread ? *stream.thread_queue : *physical->queue;
  if (!per_thread) note_arrival(stream, submission, predecessors);
  unsigned waits = 0;
  const NativeStatus ordered = ordering_.order(stream, queue, physical, predecessors, waits);
  if (ordered != hal::kNativeOk) return ordered;
  const bool waits_for_host = ordering_.any_waits_for_host(stream, predecessors);
  if (waits_for_host) completion_.close_before_host_wait(stream);
  ordering_.default_streams().issue(stream);
  if (is_bridge(submission.kind)) core_.page.other.calls_bridged.add();
  if (physical != nullptr) ++physical->pins;  // no other stream moves in before the call is made
  lock.unlock();
  hal::LockRule::waits("a call that may block");
  const NativeStatus answer = submission.operation->submit(queue);
  lock.lock();
  if (physical != nullptr) --physical->pins;
  ordering_.default_streams().end_late(stream);
  if (!stream.deferral.operations.empty()) {
    // Another thread's launch was deferred meanwhile; it and all that follows come behind the call.
    ordering_.come_after(stream, queue);
    return answer;
  }
  if (per_thread) {
    MarkerRef marker = completion_.mark(stream, queue);
    if (!marker) return answer;
    ++stream.timeline.issued;
    completion_.submitted_elsewhere(stream, marker);
    if (waits_for_host) completion_.note_host_wait(stream, std::move(marker));
    return answer;
  }
  ordering_.order(stream, queue, physical, {}, waits);
  ++stream.timeline.issued;
  completion_.submitted(stream, *physical, submission.kind);
  if (waits_for_host) completion_.note_host_wait(stream);
  return answer;
}

// --- waiting -----------------------------------------------------------------------------------

bool Pipeline::pump() {
  const MarkerPool::Round round(core_.markers);
  serve_arbiter();
  if (!core_.options.thread && core_.profiler.awaits()) core_.profiler.collect();
  return deferred_.retry();
}

void Pipeline::pump(Stream& stream) {
  const MarkerPool::Round round(core_.markers);
  serve_arbiter();
  deferred_.retry(stream);
}

std::vector<Predecessor> Pipeline::all_deferred() const {
  std::vector<Predecessor> targets;
  for (Stream* stream : deferred_.streams()) targets.push_back({stream, stream->timeline.newest()});
  return targets;
}

void Pipeline::wait_submitted(Lock& lock, std::span<const Predecessor> targets, Deferred how) {
  wait_until(lock, [&] {
    if (how == Deferred::kFlush)
      for (const Predecessor& p : targets) deferred_.flush(*p.stream, p.token.serial());
    return std::all_of(targets.begin(), targets.end(),
                       [](const Predecessor& p) { return p.token.submitted(); });
  });
}

// --- the trace ---------------------------------------------------------------------------------

void Pipeline::trace_arrival(const Stream& stream, const Submission& submission,
                             std::span<const Predecessor> predecessors) {
  Kernel* const kernel = submission.kernel.get();
  trace::Recorder& recorder = *core_.options.trace;
  if (kernel != nullptr && kernel->traced == 0) {
    kernel->traced = ++traced_kernels_;
    recorder.name(kernel->traced, kernel->name);
  }
  trace::TraceEntry record;
  record.time = trace::Recorder::ticks();
  record.kind = trace::TraceKind::kArrived;
  record.stream = stream.id;
  record.serial = stream.timeline.issued + 1;
  record.flags = static_cast<std::uint32_t>(submission.kind);
  record.a = kernel != nullptr ? kernel->traced : 0;
  record.b = reinterpret_cast<std::uintptr_t>(submission.event);
  recorder.add(record);
  for (const Predecessor& p : predecessors) {
    if (p.token.completed()) continue;  // nothing is waited for
    record.kind = trace::TraceKind::kPredecessor;
    record.a = p.stream->id;
    record.b = p.token.serial();
    recorder.add(record);
  }
}

}  // namespace vitamin::runtime
