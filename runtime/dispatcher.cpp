// SPDX-License-Identifier: Apache-2.0
#include "runtime/dispatcher.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>

#include "runtime/audit.h"
#include "runtime/internal.h"
#include "runtime/trace.h"

namespace vitamin::runtime {
namespace {

using hal::NativeStatus;
using hal::Outcome;
using stats::WholeReason;

// The watchdog's, and the profiler's.
constexpr std::chrono::milliseconds kBetweenLooks{100};
// A process that is killed has lost so much of what it learnt.
constexpr std::chrono::seconds kBetweenKeeps{5};
// Reports are at most this late: short beside a step of an engine, which takes 5 ms and more.
constexpr std::chrono::milliseconds kBetweenReports{1};

using trace::Kind;
constexpr std::uint16_t kind_of(Kind kind) { return static_cast<std::uint16_t>(kind); }

// Of waiting: about 0.1 ms of spinning, then 10 ms of short sleeps, or 20 ms between urgent looks.
constexpr unsigned kSpins = 64, kShortSleeps = 400, kUrgentLooks = 2000;
constexpr std::chrono::microseconds kShortSleep{20}, kLongSleep{200}, kBetweenUrgentLooks{10};

// What goes with an operation at most: a wait for its own stream's tail, one for what a wait waits
// for, one for allocations, the two records of a stopwatch, and the markers behind it and behind
// its predecessor.
constexpr std::uint64_t kBesideALaunch = 8;

// How soon a change of our share of the device's queues is noticed.
constexpr std::chrono::milliseconds kShareEvery{500};

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

void Backoff::pause(bool urgent) {
  ++rounds_;
  if (rounds_ <= kSpins) {
    for (int i = 0; i < 32; ++i) __builtin_ia32_pause();
    return;
  }
  if (urgent && rounds_ <= kSpins + kUrgentLooks) {
    const auto until = std::chrono::steady_clock::now() + kBetweenUrgentLooks;
    do std::this_thread::yield();
    while (std::chrono::steady_clock::now() < until);
    return;
  }
  // By default a timer is late by 50 us, so that the processor wakes less often.
  if (slack_ns_ < 0) {
    slack_ns_ = ::prctl(PR_GET_TIMERSLACK);
    ::prctl(PR_SET_TIMERSLACK, 1000UL);
  }
  std::this_thread::sleep_for(rounds_ <= kSpins + kShortSleeps ? kShortSleep : kLongSleep);
}

Backoff::~Backoff() {
  if (slack_ns_ >= 0) ::prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_ns_));
}

hal::Result<std::unique_ptr<Dispatcher>> Dispatcher::create(hal::Device& device,
                                                            const MakeArbiter& alone,
                                                            const DispatchOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const std::uint64_t free_before = device.free_bytes();
  const std::uint64_t resident_before = resident_bytes();
  PoolLimits limits = options.pool;
  std::unique_ptr<Arbiter> arbiter;
  if (options.make_arbiter) arbiter = options.make_arbiter(device.info(), limits);
  if (arbiter == nullptr) arbiter = alone(device.info(), limits);
  std::unique_ptr<Dispatcher> dispatcher(new Dispatcher(device, std::move(arbiter), options,
                                                        PoolLayout::build(device.info(), limits)));
  auto pool = PhysicalContextPool::realise(device, dispatcher->layout_);
  if (!pool) return tl::unexpected(pool.error());
  dispatcher->pool_ = std::move(*pool);

  for (const PoolEntry& entry : dispatcher->layout_.entries()) {
    dispatcher->widths_.push_back(&dispatcher->page_.width(entry.processors));
    if (entry.whole() || !dispatcher->pool_.has(entry.id)) continue;
    dispatcher->by_width_.push_back(entry.id);
    dispatcher->widest_ = std::max(dispatcher->widest_, entry.processors);
    if (entry.processors < dispatcher->layout_.at(kWholeDevice).processors)
      dispatcher->widest_narrow_ = std::max(dispatcher->widest_narrow_, entry.processors);
  }
  dispatcher->by_width_.push_back(kWholeDevice);
  dispatcher->scratch_.reserve(dispatcher->by_width_.size());

  stats::Pool& facts = dispatcher->page_.pool;
  facts.device_name.set(device.info().name.c_str());
  facts.device_uuid.set(device.info().uuid.c_str());
  facts.processors.set(device.info().processors);
  facts.units.set(device.info().units());
  facts.entries.set(dispatcher->pool_.realised() + 1);
  facts.queues.set(dispatcher->pool_.queue_count());
  facts.creation_ns.set(static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count()));
  // Upper bounds, each: others may have allocated meanwhile.
  const std::uint64_t free_after = device.free_bytes();
  facts.device_bytes.set(free_before - std::min(free_before, free_after));
  facts.host_bytes.set(std::max(resident_bytes(), resident_before) - resident_before);
  if (options.thread) {
    dispatcher->thread_ = std::thread([raw = dispatcher.get()] { raw->run_thread(); });
    dispatcher->worker_ = std::thread([raw = dispatcher.get()] { raw->run_worker(); });
  }
  return dispatcher;
}

Dispatcher::Dispatcher(hal::Device& device, std::unique_ptr<Arbiter> arbiter,
                       const DispatchOptions& options, PoolLayout layout)
    : device_(device),
      options_(options),
      page_(*options.page),
      layout_(std::move(layout)),
      depth_(device.info().queue_depth),
      depth_measured_(device.info().queue_depth_measured),
      markers_take_places_(device.info().markers_take_places),
      markers_(device, options.markers),
      profiler_(device, options.profiler),
      arbiter_(std::move(arbiter)),
      kernels_(device, *options.page, options.wide_only, options.collectives, options.cautious) {
  unobserved_ = options_.window.ahead_ns == Window::kUnbounded && options_.audit == nullptr &&
                options_.trace == nullptr;
  // What takes a place is bounded by the queue; what takes none blocks no caller natively.
  if (depth_measured_) options_.deferred_max = std::numeric_limits<std::size_t>::max();
  segment_operations_ = segment_operations(options_.window.ahead_ns);
  profiler_.on_sample([this](const TimedLaunches& timed) { arbiter_->timed(timed); });
  lanes_share_ = arbiter_->lanes_share();
  between_processes_ = arbiter_->between_processes();
  if (between_processes_) options_.slots_stay = options_.leased_slots_stay;
  watched_.reserve(kWatchedMax);
  arbiter_->on_change([this] {
    // Under the lock, so that the thread cannot miss it between looking and sleeping.
    const Lock lock(mutex_);
    wake_.notify_one();
  });
}

Dispatcher::~Dispatcher() { stop(); }

void Dispatcher::stop() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  work_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (worker_.joinable()) worker_.join();
  finish_timing();
  arbiter_->on_change(nullptr);
}

// --- submitting ------------------------------------------------------------------------------

Attempt Dispatcher::attempt(Stream& stream, Request& request) {
  if (request.intent == Intent::kLaunch || request.intent == Intent::kCompute)
    return attempt_launch(stream, request);
  if (request.intent == Intent::kGraph) return attempt_graph(stream, request);
  const std::uint64_t places = places_of(request.intent);
  if (!room(stream, request.after, false, places)) return {Blocked::kWindow};
  const bool gated_by_others = others_gated(request);
  const bool gates = is_bridge_gate(request.intent) || gated_by_others;
  if (gates) close_segment(stream);
  PhysicalQueue& queue =
      request.own_stream ? stream.own : follow_queue(stream, request.intent, gated_by_others);
  unsigned waits = 0;
  NativeStatus status = order(stream, *queue.queue, &queue, request.after, waits);
  if (status == hal::kNativeOk && request.marker) {
    // Also when it was seen to fire: on a real blocking stream the wait itself comes behind the
    // legacy stream, and what follows relies on that.
    status = wait_for(stream, *queue.queue, request.marker);
  }
  if (status == hal::kNativeOk && request.operation != nullptr)
    status = request.operation->submit(*queue.queue);
  if (status != hal::kNativeOk) return {Blocked::kNo, status};
  commit(stream, queue, request.intent);
  if (gates) note_gate(stream, tail_marker(stream));
  return {};
}

bool Dispatcher::launch_straight_on(Stream& stream, Kernel& kernel, const hal::KernelLaunch& launch,
                                    const Advice* advice, NativeStatus& status) {
  PhysicalQueue* const queue = stream.tail;
  const std::uint32_t needed = kernel.known_processors(launch);
  const bool nothing_open = queue != nullptr && stream.deferred.empty() && !stream.gate &&
                            !stream.allocated && stream.also_after.empty();
  if (!nothing_open || !unobserved_ || profiler_.next_is_due()) return false;
  // Where the last answer of the policy says, and where everything before it went.
  if (stream.grant.launches != kUntilChanged || queue->entry != stream.grant.entry ||
      stream.grant.ahead_ns != Window::kUnbounded)
    return false;
  if (needed == 0 || needed > queue->processors || needed > widest_narrow_ || kernel.collective ||
      kernel.refused.test(queue->entry) || !arbiter_->admits(queue->entry, stream.lane))
    return false;
  if (advice == nullptr && stream.advice) advice = &*stream.advice;
  if (advice != nullptr && std::min(advice->processors, widest_) > queue->processors) return false;
  // No marker falls due behind it, and the queue has room.
  if (stream.since_segment + 1 >= stream.segment_room ||
      stream.held + kernel.places + kBesideALaunch > depth_ ||
      (blocking_streams_ && stream.kind == StreamKind::kLegacy))
    return false;
  const bool narrow = !queue->whole();
  if (narrow && (!stream.attributes.empty() ||
                 (launch.grid.volume() > 1 && kernel.proven_processors > queue->processors)))
    return false;

  tell(stream, advice);
  status = queue->queue->launch(launch);
  if (status != hal::kNativeOk) [[unlikely]] {
    if (narrow && device_.classify(status) == Outcome::kEntryRefused) return false;
    page_.launches.failed.add();
    return true;
  }
  profiler_.turn();  // counts it
  count(stream, kernel, {.queue = queue, .narrow_eligible = true}, *queue);
  stream.tail_marker.reset();
  ++stream.timeline.issued;
  ++stream.timeline.submitted;
  ++stream.since_segment;
  take_places(stream, kernel.places);
  ++stream.launches_since_segment;
  stream.work_since_segment += kernel.work;
  arbiter_->progressed();
  if (narrow) {
    arbiter_->submitted(queue->entry, stream.lane);
    ++stream.leased_since_segment;
  }
  return true;
}

Attempt Dispatcher::attempt_launch(Stream& stream, Request& request) {
  // A computing call is an ordinary kernel of the vendor's: any entry takes it, nothing is counted.
  const bool computes = request.intent == Intent::kCompute;
  Kernel& kernel = computes ? vendor_kernel_ : *request.kernel;
  if (!stream.iteration_ends.empty()) [[unlikely]]
    pass_iteration_ends(stream);
  const auto* operation =
      computes ? nullptr : static_cast<const LaunchOperation*>(request.operation);
  const hal::KernelLaunch* launch = computes ? nullptr : &operation->launch();
  // Waits for its peers on other devices: never deferred for a lease, which its own peers' tenant
  // may be waiting to get elsewhere, and never in a queue that others share.
  const bool collective = kernel.collective || (options_.cooperative_collective &&
                                                launch != nullptr && launch->cooperative);
  const bool own = request.own_stream || collective;
  const bool gated_by_others = others_gated(request);
  if (!request.own_stream && (gated_by_others || (!own && gated(stream)))) return {Blocked::kGate};
  // By the window's clock a launch lasts as long as where it would go now.
  const std::uint32_t width = stream.grant.entry != kNoEntry && stream.grant.launches > 0
                                  ? layout_.at(stream.grant.entry).processors
                                  : layout_.at(kWholeDevice).processors;
  const std::uint64_t predicted = bounded(stream) ? predicted_ns(kernel, launch, width) : 0;
  if (!room(stream, request.after, !request.own_stream, kernel.places, predicted))
    return {Blocked::kWindow};

  std::uint32_t needed = computes ? 1 : kernel.processors_needed(device_, *launch);
  const bool fits_narrow = needed <= widest_narrow_;
  // Who wants more than the launch needs gets it, as far as there are such entries.
  if (const Advice* advice = advice_for(stream, operation); advice != nullptr && needed <= widest_)
    needed = std::max(needed, std::min(advice->processors, widest_));
  Binding binding;
  if (own) {
    binding.queue = &stream.own;
    binding.reason = collective ? WholeReason::kResident : request.own_reason;
  } else {
    if (!may_move(stream, kernel, needed)) return {Blocked::kWindow};
    binding = bind(stream, kernel, operation, needed);
    if (binding.queue == nullptr) return {Blocked::kLease};
  }
  binding.narrow_eligible = fits_narrow && !collective;
  // That no narrower entry could take it says more than that the policy chose no wider one.
  if (!binding.narrow_eligible && binding.reason == WholeReason::kPolicy && widest_narrow_ > 0)
    binding.reason = kernel.resident                            ? WholeReason::kResident
                     : launch != nullptr && launch->cooperative ? WholeReason::kCooperative
                     : kernel.doubted                           ? WholeReason::kResident
                                                                : WholeReason::kNoEligibleEntry;
  const bool gates = collective || gated_by_others;
  if (gates) close_segment(stream);
  NativeStatus status = launch_on(stream, request, *binding.queue);
  // The driver knows better than our arithmetic: a wider entry, at last the whole device, which
  // answers what the application would have got natively.
  while (!binding.queue->whole() && device_.classify(status) == Outcome::kEntryRefused) {
    page_.launches.retried.add();
    kernel.refused.set(binding.queue->entry);
    stream.prefers = std::max(stream.prefers, next_wider(kernel, binding.queue->entry));
    stream.grant = {kWholeDevice, 0};
    // It never was this stream's, unless its earlier work is there: then it still is.
    if (!lanes_share_ && binding.queue != stream.tail)
      arbiter_->release(binding.queue->entry, stream.lane);
    const Binding wider = bind(stream, kernel, operation, needed);
    binding.queue = wider.queue != nullptr ? wider.queue : &stream.own;
    binding.reason = WholeReason::kEntryRefused;
    status = launch_on(stream, request, *binding.queue);
  }
  if (status != hal::kNativeOk) {
    if (!computes) page_.launches.failed.add();
    return {Blocked::kNo, status};
  }
  if (!computes) count(stream, kernel, binding, *binding.queue);
  commit(stream, *binding.queue, kernel.places, !binding.queue->whole(), predicted, kernel.work);
  if (gates) note_gate(stream, tail_marker(stream));
  if (!computes && !binding.queue->whole()) watch(kernel, stream, *binding.queue, *launch);
  return {};
}

NativeStatus Dispatcher::launch_on(Stream& stream, Request& request, PhysicalQueue& queue) {
  unsigned waits = 0;
  NativeStatus status = order(stream, *queue.queue, &queue, request.after, waits);
  if (status == hal::kNativeOk) {
    const Profiler::Turn turn = profiler_.turn();
    status = turn == Profiler::Turn::kNo ? submit_launch(stream, request, queue, waits)
                                         : timed_launch(stream, request, queue, waits, turn);
  }
  if (status != hal::kNativeOk && waits > 0) [[unlikely]]
    leave_waits(stream, queue);
  return status;
}

void Dispatcher::leave_waits(Stream& stream, PhysicalQueue& queue) {
  if (queue.whole() || queue.owner == &stream) return;
  queue.last_owner = &stream;
  queue.last = mark(stream, *queue.queue);
}

// One of the launches that are timed; what may overlap its predecessor has no time of its own.
NativeStatus Dispatcher::timed_launch(Stream& stream, Request& request, PhysicalQueue& queue,
                                      unsigned waits, Profiler::Turn turn) {
  const hal::KernelLaunch* launch =
      request.intent == Intent::kLaunch
          ? &static_cast<LaunchOperation*>(request.operation)->launch()
          : nullptr;
  const bool searched = turn == Profiler::Turn::kSearch;
  bool wanted = launch != nullptr && !launch->programmatic;
  std::uint64_t key = 0;
  if (wanted) {
    key = launch_key(request.kernel->name_hash, *launch);
    wanted = !searched || profiler_.worth_timing(key, queue.processors);
  }
  Profiler::Stopwatch* stopwatch = wanted ? profiler_.start(*queue.queue) : nullptr;
  if (stopwatch != nullptr) put_beside(stream, 2);
  const NativeStatus status = submit_launch(stream, request, queue, waits);
  if (stopwatch == nullptr) return status;
  if (status != hal::kNativeOk) {
    profiler_.abandon(stopwatch);
    return status;
  }
  const Kernel& kernel = *request.kernel;
  if (!profiler_.awaits()) wake_.notify_one();  // the thread sleeps while nothing is awaited
  profiler_.stop(stopwatch, *queue.queue, key, kernel.name, *launch, queue.processors, searched);
  return status;
}

std::uint64_t Dispatcher::predicted_ns(const Kernel& kernel, const hal::KernelLaunch* launch,
                                       std::uint32_t processors) const {
  if (launch == nullptr || profiler_.profile().kernels().empty())
    return options_.predicted_kernel_ns;
  const Prediction prediction =
      profiler_.profile().predict(launch_key(kernel.name_hash, *launch), processors);
  return prediction.ns > 0 ? static_cast<std::uint64_t>(prediction.ns)
                           : options_.predicted_kernel_ns;
}

NativeStatus Dispatcher::submit_launch(Stream& stream, Request& request, PhysicalQueue& queue,
                                       unsigned waits) {
  if (request.intent == Intent::kCompute) return request.operation->submit(*queue.queue);
  // The logical descriptor stays as it is; a copy of its head carries the two differences that
  // the contract allows (DESIGN section 3): PDL only behind its very predecessor, and attributes
  // that the application set on its stream made explicit.
  const hal::KernelLaunch& asked = static_cast<LaunchOperation*>(request.operation)->launch();
  const bool programmatic = asked.programmatic && waits == 0 && stream.tail == &queue;
  const bool explicitly = !stream.attributes.empty() && !queue.whole();
  if (programmatic == asked.programmatic && !explicitly) return queue.queue->launch(asked);
  hal::KernelLaunch launch = asked;
  launch.programmatic = programmatic;
  if (explicitly) launch.attributes = with_stream_attributes(stream, asked.attributes);
  return queue.queue->launch(launch);
}

// The launch's own attributes behind those of the stream that it does not set itself.
hal::AttributeList Dispatcher::with_stream_attributes(const Stream& stream,
                                                      const hal::AttributeList& asked) {
  const auto* own = static_cast<const std::byte*>(asked.records);
  const std::size_t own_bytes = asked.count * kAttributeRecordBytes;
  auto sets = [&](const std::byte* record) {  // a record begins with the id of its attribute
    for (std::size_t at = 0; at < own_bytes; at += kAttributeRecordBytes)
      if (std::memcmp(own + at, record, sizeof(std::uint32_t)) == 0) return true;
    return false;
  };
  attributes_.clear();
  for (std::size_t at = 0; at < stream.attributes.size(); at += kAttributeRecordBytes) {
    const std::byte* record = stream.attributes.data() + at;
    if (sets(record)) continue;
    attributes_.insert(attributes_.end(), record, record + kAttributeRecordBytes);
  }
  attributes_.insert(attributes_.end(), own, own + own_bytes);
  const std::size_t count = attributes_.size() / kAttributeRecordBytes;
  return {attributes_.data(), static_cast<std::uint32_t>(count)};
}

PhysicalQueue& Dispatcher::follow_queue(Stream& stream, Intent intent, bool others_gated) {
  if (is_bridge(intent) || others_gated) return stream.own;
  return stream.tail != nullptr ? *stream.tail : stream.own;
}

PhysicalQueue& Dispatcher::queue_for(Stream& stream, Intent intent,
                                     std::span<const Predecessor> after) {
  Request request;
  request.after = after;
  return follow_queue(stream, intent, others_gated(request));
}

bool Dispatcher::others_gated(Request& request) {
  if (request.gate && !markers_.fired(request.gate)) return true;
  // The strict rule waits on the host for every predecessor, so a device-side wait for another
  // stream is never allowed onto a pool queue.
  if (strict() && request.marker && !markers_.fired(request.marker)) return true;
  return std::any_of(request.after.begin(), request.after.end(), [&](const Predecessor& p) {
    if (p.submission_only || p.token.completed() || !gated(*p.stream)) return false;
    poll(*p.stream);  // the gate may be behind it, and no other call looks for its end then
    return !p.token.completed();
  });
}

bool Dispatcher::gated(Stream& stream) {
  if (!stream.gate) return false;
  if (!markers_.fired(stream.gate)) return true;
  stream.gate.reset();
  return false;
}

const Gate* Dispatcher::oldest_gate(Stream& stream) {
  std::deque<Gate>& gates = stream.gates;
  while (!gates.empty() && gates.front().serial <= stream.timeline.completed) gates.pop_front();
  return gates.empty() ? nullptr : &gates.front();
}

void Dispatcher::note_gate(Stream& stream, MarkerRef marker) {
  static_cast<void>(oldest_gate(stream));  // drops what has ended
  stream.gates.push_back({stream.timeline.submitted, marker});
  stream.gate = std::move(marker);
}

MarkerRef Dispatcher::tail_marker(Stream& stream) {
  if (stream.tail_marker || stream.tail == nullptr) return stream.tail_marker;
  stream.tail_marker = mark(stream, *stream.tail->queue);
  return stream.tail_marker;
}

MarkerRef Dispatcher::mark(Stream& stream, hal::Queue& queue) {
  MarkerRef marker = markers_.acquire();
  if (!marker) return marker;
  const Internal internal(device_);
  if (queue.record(marker->event) != hal::kNativeOk) return {};
  put_beside(stream, 1);
  return marker;
}

NativeStatus Dispatcher::wait_for(Stream& stream, hal::Queue& queue, const MarkerRef& marker) {
  const Internal internal(device_);
  put_beside(stream, 1);
  return queue.wait(marker->event);
}

bool Dispatcher::come_after(Stream& stream, hal::Queue& queue) {
  MarkerRef marker = mark(stream, queue);
  if (!marker) return false;
  stream.also_after.put(queue, std::move(marker));
  return true;
}

void Dispatcher::detach_tail(Stream& stream, MarkerRef marker) {
  close_segment(stream);
  if (stream.tail != nullptr && !stream.tail->whole()) leave(stream, *stream.tail);
  stream.tail = nullptr;
  stream.tail_marker = std::move(marker);
}

void Dispatcher::commit_elsewhere(Stream& stream, MarkerRef marker) {
  if (options_.audit) options_.audit->submitted_elsewhere(stream, marker);
  if (options_.trace) [[unlikely]]
    trace(kind_of(Kind::kSubmitted), stream, stream.timeline.submitted + 1, kWholeDevice);
  if (reporting_) [[unlikely]]
    note_outstanding(stream);
  detach_tail(stream, std::move(marker));
  ++stream.timeline.submitted;
  ++stream.since_segment;
  take_places(stream, 1);
  close_segment(stream);
}

NativeStatus Dispatcher::order(Stream& stream, hal::Queue& queue, const PhysicalQueue* physical,
                               std::span<const Predecessor> after, unsigned& waits) {
  NativeStatus status = hal::kNativeOk;
  auto wait_for = [&](const MarkerRef& marker) {
    if (!marker || marker->fired || status != hal::kNativeOk) return;
    status = this->wait_for(stream, queue, marker);
    ++waits;
    page_.other.edges.add();
  };
  // Behind a predecessor's tail, unless the queue itself keeps that order.
  auto come_behind = [&](Stream& before, bool native_order) {
    if (before.tail == nullptr) return wait_for(before.tail_marker);
    if (before.tail == physical || native_order) return;
    const MarkerRef marker = tail_marker(before);
    // There are markers enough (takes()), so the driver refused the record: the queue is broken.
    if (!marker && status == hal::kNativeOk) status = before.tail->queue->query();
    if (!marker && device_.classify(status) == Outcome::kNotReady) status = device_.out_of_memory();
    wait_for(marker);
  };
  come_behind(stream, false);
  for (const Predecessor& p : after) {
    if (p.submission_only) continue;
    // The driver itself orders real legacy and real blocking streams against each other.
    const bool native = options_.native_legacy_order && physical != nullptr && physical->whole() &&
                        p.stream->tail != nullptr && p.stream->tail->whole();
    if (!p.token.completed()) come_behind(*p.stream, native);
    // Allocations of it, unless its state stands for another stream by now.
    const bool is_it = p.token.serial() >= p.stream->serials_from;
    if (native || !is_it || p.stream->kind == StreamKind::kLegacy) continue;
    if (p.stream->allocated) p.stream->allocated = !come_after(*p.stream, *p.stream->own.queue);
    for (const MarkerRef& marker : p.stream->also_after) wait_for(marker);
  }
  if (stream.allocated && physical != &stream.own)
    stream.allocated = !come_after(stream, *stream.own.queue);
  for (const MarkerRef& marker : stream.also_after) wait_for(marker);
  return status;
}

void Dispatcher::commit(Stream& stream, PhysicalQueue& queue, std::uint64_t places, bool leased,
                        std::uint64_t predicted_ns, std::uint32_t work) {
  if (reporting_) [[unlikely]]
    note_outstanding(stream);
  if (stream.tail != &queue) {
    close_segment(stream);
    if (stream.tail != nullptr && !stream.tail->whole()) leave(stream, *stream.tail);
    stream.tail = &queue;
    if (!queue.whole()) queue.owner = &stream;
  }
  stream.tail_marker.reset();
  stream.also_after.clear();
  stream.allocated = false;
  ++stream.timeline.submitted;
  arbiter_->progressed();
  if (options_.audit) [[unlikely]]
    options_.audit->submitted(stream, queue);
  if (options_.trace) [[unlikely]]
    trace(kind_of(Kind::kSubmitted), stream, stream.timeline.submitted, queue.entry);
  ++stream.since_segment;
  if (work > 0) ++stream.launches_since_segment;
  stream.work_since_segment += work;
  take_places(stream, places);
  stream.ahead_ns += predicted_ns;
  stream.since_segment_ns += predicted_ns;
  if (leased) {
    arbiter_->submitted(queue.entry, stream.lane);
    ++stream.leased_since_segment;
  }
  const bool legacy = stream.kind == StreamKind::kLegacy && queue.whole() && blocking_streams_;
  if (legacy) tail_marker(stream);
  // A stream that may move soon must know its progress to the operation.
  const bool stays = queue.whole() || stream.grant.launches == kUntilChanged;
  const std::uint32_t often = stream.grant.ahead_ns == Window::kUnbounded
                                  ? segment_operations_
                                  : segment_operations(window(stream));
  if (!stays || stream.since_segment >= often) {
    tail_marker(stream);
    close_segment(stream);
  }
  stream.segment_room = segment_operations_;
}

void Dispatcher::close_segment(Stream& stream) {
  if (stream.since_segment == 0) return;
  if (stream.segments.full()) poll(stream);
  const MarkerRef marker = tail_marker(stream);
  // Without a marker or room the run joins the next one, whose marker comes behind it.
  if (!marker || stream.segments.full()) return;
  stream.segments.push(
      {stream.timeline.submitted, marker, stream.tail != nullptr ? stream.tail->entry : kNoEntry,
       stream.leased_since_segment, stream.since_segment_ns, stream.held_since_segment,
       stream.launches_since_segment, stream.work_since_segment});
  stream.held_since_segment = 0;
  stream.segment_room = 0;
  stream.since_segment = 0;
  stream.since_segment_ns = 0;
  stream.leased_since_segment = 0;
  stream.launches_since_segment = 0;
  stream.work_since_segment = 0;
}

void Dispatcher::leave(Stream& stream, PhysicalQueue& queue) {
  queue.owner = nullptr;
  queue.last_owner = &stream;
  queue.last = stream.tail_marker;
  if (!lanes_share_) arbiter_->release(queue.entry, stream.lane);
}

// --- how far submission runs ahead -----------------------------------------------------------

// Progress must be seen several times within the window, and within the driver's own depth.
std::uint32_t Dispatcher::segment_operations(std::uint64_t ahead_ns) const {
  const std::uint64_t ahead = ahead_ns / options_.predicted_kernel_ns;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(std::min(ahead, depth_) / 8, 1, 100));
}

bool Dispatcher::room(Stream& stream, std::span<const Predecessor> after, bool launch,
                      std::uint64_t places, std::uint64_t predicted_ns) {
  if (launch && strict()) {
    poll(stream);
    if (stream.timeline.outstanding() > 0) return false;
    for (const Predecessor& p : after) {
      poll(*p.stream);
      if (!p.token.completed()) return false;
    }
    return true;
  }
  // Only launches are held back by the window; what follows them is bound by the queue's depth,
  // beyond which a driver would block the caller. One launch is admitted however long it lasts.
  auto fits = [&] {
    return fits_queue(stream, after, places) &&
           (!launch || !bounded(stream) || stream.timeline.outstanding() == 0 ||
            stream.ahead_ns + predicted_ns <= window(stream));
  };
  if (!fits()) {
    if (stream.segments.empty()) close_segment(stream);
    poll(stream);
    if (!fits()) return false;
  }
  // Of each its tail, and its allocations.
  return markers_.can_acquire(2 * after.size() + kBesideALaunch);
}

// What one operation puts on queues at most: itself, and where markers take places a wait for each
// thing that it comes behind and that has not ended, and what else goes with a launch.
bool Dispatcher::fits_queue(Stream& stream, std::span<const Predecessor> after,
                            std::uint64_t places) {
  if (!markers_take_places_) return places == 0 || stream.held + places <= depth_;
  const std::uint64_t held = stream.held + places + stream.also_after.size() + kBesideALaunch;
  if (held + after.size() <= depth_) return true;
  std::uint64_t waits = 0;
  for (const Predecessor& p : after) {
    poll(*p.stream);
    if (!p.token.completed()) ++waits;
  }
  return held + waits <= depth_;
}

bool Dispatcher::takes(Stream& stream, std::span<const Predecessor> after, const Kernel* kernel,
                       Intent intent) {
  return room(stream, after, false, places_of(kernel, intent));
}

// Asks for one marker that has not fired, in a round whoever wants to know, and of those that have
// for as many as the logarithm of their number: work of a stream ends in its order, so one that has
// fired speaks for all before it.
void Dispatcher::poll(Stream& stream) {
  if (strict() && !stream.segments.full()) close_segment(stream);
  const std::size_t count = stream.segments.size();
  const bool asked = markers_.round() != 0 && stream.asked_in == markers_.round();
  std::size_t ended = 0;
  for (std::size_t step = 1; !asked && ended < count; step *= 2) {
    const std::size_t probe = std::min(ended + step, count);
    if (!markers_.fired(stream.segments[probe - 1].marker)) {
      stream.asked_in = markers_.round();
      break;
    }
    ended = probe;
  }
  for (std::size_t i = 0; i < ended; ++i) end_segment(stream);
  // Operations that failed have a serial and no work that could end.
  if (stream.segments.empty() && stream.since_segment == 0)
    stream.timeline.completed = stream.timeline.submitted;
}

void Dispatcher::end_segment(Stream& stream) {
  const Segment& oldest = stream.segments[0];
  stream.timeline.completed = oldest.serial;
  stream.ahead_ns -= oldest.predicted_ns;
  stream.held -= oldest.held;
  if (options_.trace) [[unlikely]]
    trace(kind_of(Kind::kCompleted), stream, oldest.serial, kNoEntry);
  if (oldest.entry != kNoEntry) arbiter_->retired(oldest.entry, stream.lane, oldest.leased);
  if (reporting_) arbiter_->completed(oldest.entry, stream.lane, oldest.launches, oldest.work);
  stream.segments.pop();
}

bool Dispatcher::ended(Stream& stream) {
  if (!stream.deferred.empty() || stream.own.pins > 0) return false;
  poll(stream);
  if (stream.tail != nullptr || !stream.segments.empty()) return false;
  if (!markers_.fired(stream.tail_marker) || !markers_.fired(stream.gate)) return false;
  if (stream.tail_marker) all_complete(stream, stream.timeline.submitted);
  return stream.timeline.completed == stream.timeline.issued;
}

void Dispatcher::all_complete(Stream& stream, std::uint64_t submitted) {
  if (options_.audit) options_.audit->reached(stream, submitted);
  if (options_.trace && stream.timeline.completed < submitted) [[unlikely]]
    trace(kind_of(Kind::kCompleted), stream, submitted, kNoEntry);
  while (!stream.segments.empty() && stream.segments[0].serial <= submitted) end_segment(stream);
  stream.timeline.completed = std::max(stream.timeline.completed, submitted);
  if (stream.timeline.submitted != submitted) return;
  // Nothing is outstanding: the next operation needs no edge, the queue is free for anybody.
  if (reporting_ && stream.launches_since_segment > 0)
    arbiter_->completed(stream.tail != nullptr ? stream.tail->entry : kNoEntry, stream.lane,
                        stream.launches_since_segment, stream.work_since_segment);
  if (stream.tail != nullptr && !stream.tail->whole()) {
    arbiter_->retired(stream.tail->entry, stream.lane, stream.leased_since_segment);
    stream.tail_marker.reset();
    leave(stream, *stream.tail);
  }
  stream.since_segment = 0;
  stream.since_segment_ns = 0;
  stream.ahead_ns = 0;
  stream.leased_since_segment = 0;
  stream.launches_since_segment = 0;
  stream.work_since_segment = 0;
  stream.held = stream.held_since_segment = 0;
  stream.segment_room = 0;
  stream.gates.clear();
  stream.tail = nullptr;
  stream.tail_marker.reset();
  stream.gate.reset();
}

// --- binding ---------------------------------------------------------------------------------

Dispatcher::Binding Dispatcher::bind(Stream& stream, Kernel& kernel,
                                     const LaunchOperation* operation, std::uint32_t needed) {
  Binding binding;
  const std::uint32_t whole = layout_.at(kWholeDevice).processors;
  if (needed > widest_ || by_width_.size() == 1) {
    binding.queue = &stream.own;
    binding.reason = kernel.resident         ? WholeReason::kResident
                     : needed > whole        ? WholeReason::kCluster
                     : by_width_.size() == 1 ? WholeReason::kPoolMissing
                     : kernel.doubted        ? WholeReason::kResident
                                             : WholeReason::kNoEligibleEntry;
    return binding;
  }
  auto take = [&](PhysicalQueue& queue) {
    if (stream.grant.launches != kUntilChanged) --stream.grant.launches;
    // On the whole device it still wants: else every launch would wait anew for what never comes.
    if (!queue.whole()) stream.queue_wanted_since.reset();
    binding.queue = &queue;
    return binding;
  };
  if (grant_stands(stream, kernel, needed)) {
    tell(stream, advice_for(stream, operation));
    if (PhysicalQueue* queue = free_queue(stream, stream.grant.entry)) return take(*queue);
    if (awaits_queue(stream)) return {};
  }
  std::span<const EntryId> left = eligible(stream, kernel, needed);
  // An entry without a free queue drops out; the policy is asked again among the others.
  while (!left.empty()) {
    stream.grant = ask(stream, kernel, operation, needed, left);
    if (stream.grant.entry == kNoEntry) return {};  // deferred by the policy or for want of a lease
    if (PhysicalQueue* queue = free_queue(stream, stream.grant.entry)) {
      // What the policy did not choose first stands for one launch only.
      if (binding.reason == WholeReason::kNoQueue) stream.grant.launches = 1;
      return take(*queue);
    }
    if (awaits_queue(stream)) return {};
    if (!lanes_share_) arbiter_->release(stream.grant.entry, stream.lane);
    binding.reason = WholeReason::kNoQueue;
    if (left.data() != scratch_.data()) scratch_.assign(left.begin(), left.end());
    const EntryId given_up =
        stream.tail != nullptr && gives_up_slot(stream) ? stream.tail->entry : kNoEntry;
    std::erase_if(scratch_, [&](EntryId id) {
      return id == stream.grant.entry || !pool_.has_queue(id) ||
             (id == given_up && id != kWholeDevice);
    });
    left = scratch_;
  }
  stream.grant = {};
  stream.grant.launches = 0;
  if (lanes_share_) binding.queue = &stream.own;
  return binding;  // lanes kept apart and no room: deferred until somebody's lease ends
}

// The policy's last answer, as long as the entry is wide enough and its gate open.
bool Dispatcher::grant_stands(const Stream& stream, const Kernel& kernel,
                              std::uint32_t needed) const {
  return stream.grant.launches > 0 && layout_.at(stream.grant.entry).processors >= needed &&
         !kernel.refused.test(stream.grant.entry) &&
         arbiter_->admits(stream.grant.entry, stream.lane);
}

bool Dispatcher::may_move(Stream& stream, const Kernel& kernel, std::uint32_t needed) {
  auto just_in_time = [&] { return stream.timeline.outstanding() < options_.ahead_of_move; };
  if (just_in_time() || grant_stands(stream, kernel, needed)) return true;
  close_segment(stream);  // else its end would be seen too late, or never
  poll(stream);
  return just_in_time();
}

// Processors of the narrowest entry beyond this one that has not refused the kernel; 0: none that
// is at most twice as wide as the first that did. For a wider one others would pay more than its
// launches cost that go to the whole device.
std::uint32_t Dispatcher::next_wider(const Kernel& kernel, EntryId entry) const {
  std::uint32_t least = 0;
  for (const EntryId id : by_width_) {
    const std::uint32_t processors = layout_.at(id).processors;
    if (kernel.refused.test(id)) {
      least = least == 0 ? processors : least;
    } else if (least != 0 && id != kWholeDevice && processors > layout_.at(entry).processors) {
      return processors <= 2 * least ? processors : 0;
    }
  }
  return 0;
}

std::span<const EntryId> Dispatcher::eligible(Stream& stream, const Kernel& kernel,
                                              std::uint32_t needed) {
  const auto first = std::find_if(by_width_.begin(), by_width_.end(),
                                  [&](EntryId id) { return layout_.at(id).processors >= needed; });
  const std::span<const EntryId> wide(first, by_width_.end());
  if (lanes_share_ && kernel.refused.none()) return wide;
  hal::ComputeSet barred = arbiter_->barred(stream.lane);
  if (!barred.empty()) {
    release_idle();
    barred = arbiter_->barred(stream.lane);
  }
  scratch_.clear();
  for (const EntryId id : wide) {
    if (id == kWholeDevice ? !lanes_share_ : layout_.at(id).compute.overlaps(barred)) continue;
    if (!kernel.refused.test(id)) scratch_.push_back(id);
  }
  return scratch_;
}

Choice Dispatcher::ask(Stream& stream, const Kernel& kernel, const LaunchOperation* operation,
                       std::uint32_t needed, std::span<const EntryId> eligible) {
  ReadyOperation ready;
  ready.id = stream.timeline.submitted + 1;
  ready.lane = stream.lane;
  ready.processors = needed;
  const hal::KernelLaunch* launch = operation != nullptr ? &operation->launch() : nullptr;
  if (launch != nullptr) ready.kernel = launch_key(kernel.name_hash, *launch);
  ready.predicted_ns = predicted_ns(kernel, launch, layout_.at(kWholeDevice).processors);
  ready.last_entry = stream.last_entry;
  ready.iteration_end = std::exchange(stream.iteration_ended, false);
  const Advice* const advice = advice_for(stream, operation);
  if (advice != nullptr) {
    ready.kind = advice->kind;
    ready.ready_at_ns = advice->ready_at_ns;
    ready.deadline_ns = advice->deadline_ns;
    ready.queued_ns = advice->queued_ns;
  }
  const Choice choice = arbiter_->grant(ready, eligible);
  // Who decides elsewhere has not heard the question when a grant that stands has answered it.
  if (advice != nullptr && between_processes_ && choice.entry != kNoEntry)
    tell(stream, advice);
  else if (advice != nullptr)
    stream.told_deadline_ns = advice->deadline_ns;
  if (options_.trace) [[unlikely]]
    trace(kind_of(Kind::kDecision), stream, ready.id, choice.entry, choice.launches);
  if (arbiter_->wants_service()) wake_.notify_one();
  return choice;
}

const Advice* Dispatcher::advice_for(const Stream& stream, const LaunchOperation* operation) {
  if (operation != nullptr && operation->advice() != nullptr) return operation->advice();
  return stream.advice ? &*stream.advice : nullptr;
}

// Who has a grant does not ask again, so a step that begins meanwhile is told as what comes next.
// Deadlines are moments, so another deadline is another step; ranges without one may be nested in
// a step as deep as its layers, and say nothing of when it begins.
void Dispatcher::tell(Stream& stream, const Advice* advice) {
  if (advice == nullptr || advice->deadline_ns == 0 ||
      advice->deadline_ns == stream.told_deadline_ns)
    return;
  stream.told_deadline_ns = advice->deadline_ns;
  expect(stream, *advice, false);
}

// An answer for so many launches stands for one iteration at most; who answers until something
// changes does not ask for ends of iterations.
void Dispatcher::pass_iteration_ends(Stream& stream) {
  std::deque<std::uint64_t>& ends = stream.iteration_ends;
  for (; !ends.empty() && ends.front() <= stream.timeline.submitted; ends.pop_front()) {
    stream.iteration_ended = true;
    if (stream.grant.launches != kUntilChanged) stream.grant.launches = 0;
  }
}

void Dispatcher::expect(Stream& stream, const Advice& advice, bool cancelled) {
  Hint hint;
  hint.lane = stream.lane;
  hint.processors = std::max({1U, std::min(advice.processors, widest_), stream.prefers});
  hint.ready_at_ns = advice.ready_at_ns;
  hint.deadline_ns = advice.deadline_ns;
  hint.queued_ns = advice.queued_ns;
  hint.kind = advice.kind;
  hint.cancelled = cancelled;
  arbiter_->expect(hint);
  if (arbiter_->wants_service()) wake_.notify_one();
}

PhysicalQueue* Dispatcher::free_queue(Stream& stream, EntryId entry) {
  if (entry == kWholeDevice) return &stream.own;
  PhysicalQueue* strangers = nullptr;
  for (const auto& queue : pool_.queues(entry)) {
    if (!pool_.serves(*queue, stream.priority)) continue;
    if (queue->owner == &stream) return queue.get();
    if (queue->owner != nullptr || queue->pins > 0) continue;
    if (queue->last_owner == nullptr || queue->last_owner == &stream) return queue.get();
    strangers = queue.get();
  }
  if (strangers != nullptr && markers_.fired(strangers->last)) return strangers;
  if (wanted_queues_.size() < 64 && options_.thread && may_want()) {
    const std::pair<EntryId, int> want(entry, stream.priority);
    if (std::find(wanted_queues_.begin(), wanted_queues_.end(), want) == wanted_queues_.end()) {
      wanted_queues_.push_back(want);
      work_.notify_one();
    }
  }
  return nullptr;
}

// With as many streams as slots each would sit on its own for ever, whatever the policy draws. So
// where a policy decides launch by launch, and not for this entry, the stream gives its slot up.
bool Dispatcher::gives_up_slot(const Stream& stream) const {
  return pool_.slots() && lanes_share_ && stream.grant.launches != kUntilChanged &&
         pool_.all_owned();
}

// The launch is deferred meanwhile: its stream's work ends, so a slot comes free.
bool Dispatcher::awaits_queue(Stream& stream) const {
  if (!pool_.slots() || !between_processes_ || !options_.thread) return false;
  const auto now = std::chrono::steady_clock::now();
  if (!stream.queue_wanted_since) stream.queue_wanted_since = now;
  return now - *stream.queue_wanted_since < DispatchOptions::kWaitForSlot * options_.slots_stay;
}

// Making a queue stops every queue of some devices for a moment, so slots change one at a time: the
// wish that is being granted stands in the list meanwhile.
bool Dispatcher::may_want() const {
  if (!pool_.slots()) return true;
  return wanted_queues_.empty() &&
         (!pool_.full() || std::chrono::steady_clock::now() >= slots_stay_until_);
}

inline void Dispatcher::count(Stream& stream, Kernel& kernel, const Binding& binding,
                              const PhysicalQueue& queue) {
  stats::Launches& launches = page_.launches;
  stats::LibrarySlot& library = *kernel.library;
  ++kernel.launches;
  launches.seen.add();
  launches.bound.add();
  library.seen.add();
  library.bound.add();
  const EntryId entry = queue.entry;
  const std::uint32_t whole = layout_.at(kWholeDevice).processors;
  widths_[entry]->launches.add();
  if (queue.whole()) page_.whole[static_cast<unsigned>(binding.reason)].add();
  if (binding.narrow_eligible) launches.narrow_eligible.add();
  if (!queue.whole() && queue.processors < whole) {
    launches.narrow.add();
    library.narrow.add();
  }
  if (stream.last_entry != kNoEntry) {
    launches.successors.add();
    if (stream.last_entry != entry) {
      launches.moved.add();
      library.moved.add();
    }
  }
  stream.last_entry = entry;
}

void Dispatcher::watch(Kernel& kernel, Stream& stream, PhysicalQueue& queue,
                       const hal::KernelLaunch& launch) {
  // One block waits for nobody; a width at which the kernel ended before needs no watching.
  if (launch.grid.volume() <= 1 || kernel.proven_processors <= queue.processors) return;
  if (watched_.size() >= kWatchedMax) return;
  const MarkerRef marker = tail_marker(stream);
  if (!marker) return;
  if (watched_.empty()) wake_.notify_one();  // the thread sleeps while nothing is watched
  watched_.push_back({&kernel, queue.processors, predicted_ns(kernel, &launch, queue.processors),
                      marker, std::chrono::steady_clock::now(), false, nullptr,
                      KernelRef(&kernel)});
}

// --- the trace -------------------------------------------------------------------------------

void Dispatcher::trace(std::uint16_t kind, const Stream& stream, std::uint64_t serial,
                       EntryId entry, std::uint64_t a) {
  trace::Record record;
  record.time = trace::Recorder::ticks();
  record.kind = static_cast<Kind>(kind);
  record.entry = entry;
  record.lane = stream.lane;
  record.serial = serial;
  record.a = a;
  options_.trace->add(record);
}

void Dispatcher::trace_arrival(const Stream& stream, Intent intent, Kernel* kernel,
                               const EventState* event, std::span<const Predecessor> after) {
  if (kernel != nullptr && kernel->traced == 0) {
    kernel->traced = ++traced_kernels_;
    options_.trace->name(kernel->traced, kernel->name);
  }
  trace::Record record;
  record.time = trace::Recorder::ticks();
  record.kind = Kind::kArrived;
  record.lane = stream.lane;
  record.serial = stream.timeline.issued + 1;
  record.flags = static_cast<std::uint32_t>(intent);
  record.a = kernel != nullptr ? kernel->traced : 0;
  record.b = reinterpret_cast<std::uintptr_t>(event);
  options_.trace->add(record);
  for (const Predecessor& p : after) {
    if (p.token.completed()) continue;  // nothing is waited for
    record.kind = Kind::kBehind;
    record.a = p.stream->lane;
    record.b = p.token.serial();
    options_.trace->add(record);
  }
}

// --- deferral --------------------------------------------------------------------------------

bool Dispatcher::may_defer(Stream& stream, const Kernel* kernel, Intent intent) {
  if (stream.deferred.size() >= options_.deferred_max) return false;
  const std::uint64_t places = places_of(kernel, intent);
  if (!depth_measured_ || places == 0) return true;
  // Of the oldest run all operations but one may have ended, unless a gate at its beginning is
  // closed.
  const auto fits = [&] {
    const bool open = stream.segments.empty();
    const Gate* gate = oldest_gate(stream);
    const bool none_ended = gate != nullptr && gate->serial == stream.timeline.completed + 1 &&
                            !markers_.fired(gate->marker);
    const std::uint64_t oldest = open ? stream.held : stream.segments[0].held;
    const std::uint64_t held = stream.held - (none_ended || oldest == 0 ? 0 : oldest - 1);
    return held + stream.deferred_places + places <= depth_;
  };
  if (fits()) return true;
  if (stream.segments.empty()) close_segment(stream);  // else its end is never looked for
  poll(stream);
  return fits();
}

void Dispatcher::defer(Stream& stream, Deferred deferred) {
  deferred.places = places_of(deferred.kernel.get(), deferred.intent);
  stream.deferred_places += deferred.places;
  if (stream.deferred.empty()) deferring_.push_back(&stream);
  if (deferred.intent == Intent::kLaunch) page_.launches.deferred.add();
  if (deferred.intent == Intent::kGraph) page_.graphs.deferred.add();
  if (options_.trace) [[unlikely]]
    trace(kind_of(Kind::kDeferred), stream, deferred.serial, kNoEntry);
  stream.deferred.push_back(std::move(deferred));
  wake_.notify_one();
}

// The real stream is about to go: from now on a marker says where its last work is.
void Dispatcher::retire_front(Stream& stream) {
  detach_tail(stream, tail_marker(stream));
  if (options_.audit) options_.audit->retired(stream);
  stream.deferred.front().operation->submit(*stream.own.queue);
  stream.deferred_places -= stream.deferred.front().places;
  stream.deferred.pop_front();
  if (stream.deferred.empty()) std::erase(deferring_, &stream);
}

Attempt Dispatcher::submit_front(Stream& stream, bool own_stream) {
  Deferred& deferred = stream.deferred.front();
  if (deferred.intent == Intent::kDestroy) return retire_front(stream), Attempt{};
  for (const Predecessor& p : deferred.predecessors)
    if (!p.token.submitted()) return {Blocked::kPredecessor};
  Request request;
  request.operation = deferred.operation.get();
  request.intent = deferred.intent;
  request.kernel = deferred.kernel.get();
  request.after = deferred.predecessors;
  request.own_stream = own_stream;
  request.marker = deferred.marker;
  request.gate = deferred.gate;
  if (deferred.intent == Intent::kWait && deferred.generation) {
    if (!deferred.generation->submitted) return {Blocked::kPredecessor};
    request.marker = deferred.generation->marker;
    request.gate = deferred.generation->gate;
  }
  // The event was recorded again since: its real record must not be overwritten by an older one.
  const bool superseded = deferred.intent == Intent::kRecord && deferred.generation->superseded;
  if (superseded) request.operation = nullptr;

  const Attempt attempt = this->attempt(stream, request);
  if (attempt.blocked != Blocked::kNo) return attempt;
  if (attempt.status != hal::kNativeOk) {
    if (error_ == hal::kNativeOk) error_ = attempt.status;
    if (options_.audit) options_.audit->refused(stream, deferred.serial);
  }
  stream.timeline.submitted = deferred.serial;  // also of an operation that failed: it is over
  if (deferred.intent == Intent::kRecord) {
    deferred.generation->marker = tail_marker(stream);
    close_segment(stream);
    if (gated(stream)) deferred.generation->gate = stream.gate;
    deferred.generation->submitted = true;
    deferred.generation->stream = nullptr;
  }
  stream.freed_bytes -= deferred.freed.bytes;
  stream.deferred_places -= deferred.places;
  stream.deferred.pop_front();
  if (stream.deferred.empty()) std::erase(deferring_, &stream);
  return attempt;
}

void Dispatcher::serve_arbiter() {
  if (!arbiter_->wants_service()) return;
  // What drains is returned only when it was seen to have ended.
  if (arbiter_->draining()) release_idle();
  arbiter_->service();
  if (reporting_ && !arbiter_->reports()) {
    for (Stream* stream : outstanding_) stream->reported = false;
    outstanding_.clear();
  }
  reporting_ = arbiter_->reports();
}

void Dispatcher::note_outstanding(Stream& stream) {
  if (stream.reported) return;
  stream.reported = true;
  if (outstanding_.empty()) {
    busy_since_ = std::chrono::steady_clock::now();
    arbiter_->outstanding(true);
    wake_.notify_one();
  }
  outstanding_.push_back(&stream);
}

void Dispatcher::report() {
  const MarkerPool::Round round(markers_);
  std::erase_if(outstanding_, [&](Stream* stream) {
    close_segment(*stream);
    poll(*stream);
    if (stream->timeline.submitted != stream->timeline.completed) return false;
    stream->reported = false;
    return true;
  });
  const auto now = std::chrono::steady_clock::now();
  arbiter_->busy(static_cast<std::uint64_t>(std::chrono::nanoseconds(now - busy_since_).count()));
  busy_since_ = now;
  if (outstanding_.empty()) arbiter_->outstanding(false);
}

bool Dispatcher::pump() {
  const MarkerPool::Round round(markers_);
  serve_arbiter();
  if (!options_.thread && profiler_.awaits()) profiler_.collect();
  bool moved = false;
  waits_for_host_ = false;
  for (std::size_t i = 0; i < deferring_.size();) {
    Stream& stream = *deferring_[i];
    Attempt attempt;
    while (!stream.deferred.empty() &&
           (attempt = submit_front(stream, false)).blocked == Blocked::kNo)
      moved = true;
    waits_for_host_ = waits_for_host_ || attempt.blocked == Blocked::kGate;
    // A stream that ended took itself out of the list: the same index is the next one.
    if (!stream.deferred.empty()) ++i;
  }
  return moved;
}

void Dispatcher::pump(Stream& stream) {
  const MarkerPool::Round round(markers_);
  serve_arbiter();
  pump_only(stream);
}

// The recursion follows H, as that of flush() does, and passes by each stream once.
void Dispatcher::pump_only(Stream& stream) {
  if (std::exchange(stream.pumped_in, markers_.round()) == markers_.round()) return;
  while (!stream.deferred.empty()) {
    const Deferred& deferred = stream.deferred.front();
    for (const Predecessor& p : deferred.predecessors)
      if (!p.token.submitted()) pump_only(*p.stream);
    if (deferred.intent == Intent::kWait && deferred.generation && !deferred.generation->submitted)
      pump_only(*deferred.generation->stream);
    if (submit_front(stream, false).blocked != Blocked::kNo) return;
  }
}

bool Dispatcher::flush(Stream& stream, std::uint64_t up_to_serial) {
  // Predecessors are flushed no further than needed: the recursion follows H, which has no cycle,
  // so it cannot come back to an operation of this stream that is still deferred.
  while (!stream.deferred.empty() && stream.deferred.front().serial <= up_to_serial) {
    const Deferred& deferred = stream.deferred.front();
    for (const Predecessor& p : deferred.predecessors)
      if (!p.token.submitted() && !flush(*p.stream, p.token.serial())) return false;
    if (deferred.intent == Intent::kWait && deferred.generation &&
        !deferred.generation->submitted &&
        !flush(*deferred.generation->stream, deferred.generation->serial))
      return false;
    if (submit_front(stream, true).blocked != Blocked::kNo) return false;
  }
  return true;
}

// --- the thread ------------------------------------------------------------------------------

void Dispatcher::run_thread() {
  hal::LockRule::moves_deferred_work();
  device_.attach_thread();
  Lock lock(mutex_);
  Backoff backoff;
  auto next_look = std::chrono::steady_clock::now(), next_keep = next_look + kBetweenKeeps;
  auto next_report = next_look;
  while (!stopping_) {
    const auto now = std::chrono::steady_clock::now();
    if ((!watched_.empty() || profiler_.awaits()) && now >= next_look) {
      check_watched();
      profiler_.collect();
      next_look = now + kBetweenLooks;
    }
    if (!outstanding_.empty() && now >= next_report) {
      report();
      next_report = now + kBetweenReports;
    }
    if (now >= next_keep) {
      keep_due_ = true;
      work_.notify_one();
      next_keep = now + kBetweenKeeps;
    }
    if (!deferring_.empty() || arbiter_->wants_service()) {
      if (pump()) {
        backoff.reset();
      } else {
        const bool urgent = arbiter_->draining();
        lock.unlock();
        backoff.pause(urgent);
        lock.lock();
      }
      continue;
    }
    backoff.reset();
    if (!outstanding_.empty()) {
      wake_.wait_until(lock, next_report);
    } else if (!watched_.empty() || profiler_.awaits()) {
      wake_.wait_for(lock, kBetweenLooks);
    } else if (unkept()) {
      wake_.wait_until(lock, next_keep);
    } else {
      // The lock was dropped above: whatever came meanwhile has already rung.
      wake_.wait(lock, [&] {
        return stopping_ || !deferring_.empty() || !outstanding_.empty() || !watched_.empty() ||
               profiler_.awaits() || arbiter_->wants_service();
      });
    }
  }
}

void Dispatcher::run_worker() {
  device_.attach_thread();
  Lock lock(mutex_);
  auto next_share = std::chrono::steady_clock::now() + kShareEvery;
  while (!stopping_) {
    if (pool_.slots() && std::chrono::steady_clock::now() >= next_share) {
      keep_to_share(lock);
      next_share = std::chrono::steady_clock::now() + kShareEvery;
    }
    if (!wanted_queues_.empty()) grow_queues(lock);
    if (graphs_awaited()) make_graphs(lock);
    if (std::exchange(keep_due_, false)) {
      lock.unlock();
      finish_timing();
      lock.lock();
    }
    // Without a time limit where nothing changes by itself: a thread that wakes takes the lock, and
    // a launch that holds the lock meanwhile has to wake it again, by a system call.
    const auto rung = [&] { return stopping_ || work_awaited(); };
    if (pool_.slots())
      work_.wait_until(lock, next_share, rung);
    else
      work_.wait(lock, rung);
  }
}

void Dispatcher::finish_timing() {
  Profile learnt;
  {
    const Lock lock(mutex_);
    profiler_.collect();
    if (!unkept()) return;
    kept_version_ = profiler_.learnt().version();
    learnt = profiler_.learnt();
  }
  options_.keep_profile(learnt);
}

void Dispatcher::grow_queues(Lock& lock) {
  while (!wanted_queues_.empty() && !stopping_) {
    const auto [entry, priority] = wanted_queues_.back();
    std::unique_ptr<PhysicalQueue> replaced;
    if (pool_.full()) {
      release_idle();
      replaced = pool_.take_idle(markers_);
      // None is idle at this very moment: look again soon, but not at every launch.
      slots_stay_until_ = std::chrono::steady_clock::now() +
                          (replaced != nullptr ? options_.slots_stay : options_.slots_stay / 50);
      if (replaced == nullptr) return wanted_queues_.clear();
    }
    lock.unlock();
    replaced.reset();  // first, so that there are never more queues than slots
    hal::Result<std::unique_ptr<PhysicalQueue>> queue = [&, entry = entry, priority = priority] {
      const Internal internal(device_);
      return pool_.make_queue(entry, priority);
    }();
    lock.lock();
    std::erase(wanted_queues_, std::pair(entry, priority));
    if (queue)
      pool_.add(std::move(*queue));
    else if (queue.error().code == hal::Errc::kBusy)
      slots_stay_until_ = std::chrono::steady_clock::now() + options_.slots_stay;
    else if (pool_.slots())
      pool_.shrink();
    page_.pool.queues.set(pool_.queue_count());
  }
}

// Other processes on the device come and go, and their streams: what is beyond our share by now is
// given back, as it comes idle.
void Dispatcher::keep_to_share(Lock& lock) {
  lock.unlock();
  const std::uint32_t share = device_.pool_queues_now();
  lock.lock();
  pool_.limit(share);
  if (!pool_.over_limit()) return;
  release_idle();
  while (pool_.over_limit()) {
    std::unique_ptr<PhysicalQueue> beyond = pool_.take_idle(markers_);
    if (beyond == nullptr) return;
    lock.unlock();
    beyond.reset();
    lock.lock();
    page_.pool.queues.set(pool_.queue_count());
  }
}

void Dispatcher::check_watched() {
  const auto now = std::chrono::steady_clock::now();
  // In submission order: only the oldest that has not ended can be said to run; the others of its
  // stream may wait behind it. Its clock starts when the one ahead of it ended.
  bool anything_ended = false;
  for (Watched& watched : watched_) {
    if (!markers_.fired(watched.marker)) continue;
    watched.kernel->proven_processors =
        std::min(watched.kernel->proven_processors, watched.processors);
    anything_ended = true;
  }
  std::erase_if(watched_, [](const Watched& w) { return w.marker->fired; });
  if (watched_.empty()) return;
  Watched& oldest = watched_.front();
  if (anything_ended) oldest.since = now;
  const auto limit = std::max<std::chrono::nanoseconds>(
      options_.hang_after, std::chrono::nanoseconds(20 * oldest.predicted_ns));
  if (oldest.named || now - oldest.since < limit) return;
  oldest.named = true;
  kernels_.remember_wide_only(*oldest.kernel);
  if (options_.on_hang != nullptr)
    options_.on_hang(oldest.kernel->name.c_str(), oldest.processors,
                     std::chrono::duration<double>(now - oldest.since).count());
}

// Leases of lanes whose work has all ended are given back when somebody else wants the units; a
// lane that comes again asks again.
void Dispatcher::release_idle() {
  for (const EntryId id : by_width_) {
    if (id == kWholeDevice) continue;
    for (const auto& queue : pool_.queues(id)) {
      Stream* holder = queue->owner != nullptr ? queue->owner : queue->last_owner;
      if (holder == nullptr) continue;
      close_segment(*holder);
      poll(*holder);
      if (holder->timeline.submitted != holder->timeline.completed) continue;
      all_complete(*holder, holder->timeline.submitted);
      arbiter_->release(id, holder->lane);
    }
  }
}

}  // namespace vitamin::runtime
