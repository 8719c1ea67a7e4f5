// SPDX-License-Identifier: Apache-2.0
#include "runtime/submission/completion.h"

#include <algorithm>
#include <utility>

#include "runtime/audit/audit.h"
#include "runtime/capture_safe_scope.h"

namespace vitamin::runtime {

using hal::NativeStatus;

Completion::Completion(Core& core)
    : core_(core),
      depth_(core.device.info().queue_depth),
      depth_measured_(core.device.info().queue_depth_measured),
      markers_take_places_(core.device.info().markers_take_places),
      unobserved_(core.options.window.ahead_ns == kNever && core.options.audit == nullptr &&
                  core.options.trace == nullptr),
      batch_operations_(batch_operations(core.options.window.ahead_ns)) {}

// --- markers -----------------------------------------------------------------------------------

MarkerRef Completion::mark(Stream& stream, hal::Queue& queue) {
  MarkerRef marker = core_.markers.acquire();
  if (!marker) return marker;
  const CaptureSafeScope safe(core_.device);
  if (queue.record(marker->event) != hal::kNativeOk) return {};
  put_beside(stream, 1);
  return marker;
}

MarkerRef Completion::tail_marker(Stream& stream) {
  Stream::Submitted& work = stream.submitted;
  if (work.tail_marker || work.tail == nullptr) return work.tail_marker;
  work.tail_marker = mark(stream, *work.tail->queue);
  return work.tail_marker;
}

NativeStatus Completion::wait_for(Stream& stream, hal::Queue& queue, hal::Event event) {
  const CaptureSafeScope safe(core_.device);
  put_beside(stream, 1);
  return queue.wait(event);
}

bool Completion::waits_for(hal::Event event) const {
  const CaptureSafeScope safe(core_.device);
  return core_.errors.classify(core_.device.query(event)) == hal::Outcome::kNotReady;
}

// --- what was submitted ------------------------------------------------------------------------

void Completion::submitted(Stream& stream, PhysicalQueue& queue, const Load& load) {
  Stream::Submitted& work = stream.submitted;
  if (reporting_) [[unlikely]]
    note_unfinished(stream);
  if (work.tail != &queue) {
    leave_tail(stream);
    work.tail = &queue;
    if (!queue.whole()) queue.owner = &stream;
  }
  work.tail_marker.reset();
  stream.order.extra.clear();
  stream.order.allocated = false;
  ++stream.timeline.submitted;
  core_.arbiter->progressed();
  if (Audit* audit = core_.audit()) [[unlikely]]
    audit->submitted(stream, queue);
  if (core_.traced()) [[unlikely]]
    core_.trace(trace::TraceKind::kSubmitted, stream, stream.timeline.submitted, queue.partition);
  CompletionBatch& open = work.open;
  ++open.operations;
  if (load.work > 0) ++open.launches;
  open.work += load.work;
  take_places(stream, load.places);
  work.ahead_ns += load.predicted_ns;
  open.predicted_ns += load.predicted_ns;
  if (load.counts_outstanding) count_outstanding(stream);
  if (stream.kind == StreamKind::kLegacy && queue.whole() && blocking_streams_) tail_marker(stream);
  // A stream that may move soon must know its progress to the operation.
  const GrantTerms& grant = stream.placing.grant;
  const bool stays = queue.whole() || grant.launches == kUntilRevoked;
  const std::uint32_t often =
      grant.ahead_ns == kNever ? batch_operations_ : batch_operations(window(stream));
  if (!stays || open.operations >= often) {
    tail_marker(stream);
    close_batch(stream);
  }
  work.batch_room = batch_operations_;
}

void Completion::submitted_on_fast_path(Stream& stream, const Kernel& kernel) {
  Stream::Submitted& work = stream.submitted;
  if (reporting_) [[unlikely]]
    note_unfinished(stream);
  work.tail_marker.reset();
  ++stream.timeline.issued;
  ++stream.timeline.submitted;
  ++work.open.operations;
  take_places(stream, kernel.places);
  ++work.open.launches;
  work.open.work += kernel.work;
  core_.arbiter->progressed();
  if (stream.placing.grant.counts_outstanding) count_outstanding(stream);
}

// The operation that is the stream's tail now.
inline void Completion::count_outstanding(Stream& stream) {
  Stream::Submitted& work = stream.submitted;
  core_.arbiter->submitted(work.tail->partition, stream.id);
  ++work.open.counted;
  if (work.tail->whole() && !std::exchange(work.counted_whole, true)) [[unlikely]]
    counted_whole_.push_back(&stream);
}

void Completion::submitted_elsewhere(Stream& stream, MarkerRef marker) {
  if (Audit* audit = core_.audit()) audit->submitted_elsewhere(stream, marker);
  if (core_.traced()) [[unlikely]]
    core_.trace(trace::TraceKind::kSubmitted, stream, stream.timeline.submitted + 1, kWholeDevice);
  if (reporting_) [[unlikely]]
    note_unfinished(stream);
  detach_tail(stream, std::move(marker));
  ++stream.timeline.submitted;
  ++stream.submitted.open.operations;
  take_places(stream, 1);
  close_batch(stream);
}

void Completion::detach_tail(Stream& stream, MarkerRef marker) {
  Stream::Submitted& work = stream.submitted;
  leave_tail(stream);
  work.tail = nullptr;
  work.tail_marker = std::move(marker);
}

// However many batches there are: what follows is not on the partition of the tail.
void Completion::leave_tail(Stream& stream) {
  push_open_batch(stream);
  PhysicalQueue* const tail = stream.submitted.tail;
  if (tail != nullptr && !tail->whole()) leave(stream, *tail);
}

void Completion::leave(Stream& stream, PhysicalQueue& queue) {
  queue.owner = nullptr;
  queue.last_owner = &stream;
  queue.last = stream.submitted.tail_marker;
  if (!core_.streams_share) core_.arbiter->release(queue.partition, stream.id);
}

// --- what has ended ----------------------------------------------------------------------------

void Completion::close_batch(Stream& stream) {
  Stream::Submitted& work = stream.submitted;
  if (work.open.operations == 0) return;
  if (work.full()) poll(stream);
  if (!work.full()) push_open_batch(stream);
}

void Completion::push_open_batch(Stream& stream) {
  Stream::Submitted& work = stream.submitted;
  if (work.open.operations == 0) return;
  const MarkerRef marker = tail_marker(stream);
  // Without a marker the batch joins the next one, whose marker comes behind it.
  if (!marker) return;
  CompletionBatch closed = std::exchange(work.open, {});
  closed.serial = stream.timeline.submitted;
  closed.marker = marker;
  closed.partition = work.tail != nullptr ? work.tail->partition : kNoPartition;
  work.batches.push(std::move(closed));
  work.batch_room = 0;
}

// Asks for one marker that has not fired, in a round for every caller, and of those that have
// for as many as the logarithm of their number: work of a stream ends in its order, so one that has
// fired speaks for all before it.
void Completion::poll(Stream& stream) {
  Stream::Submitted& work = stream.submitted;
  if (waits_for_completion() && !work.full()) close_batch(stream);
  const std::uint64_t round = core_.markers.round();
  const std::size_t count = work.batches.size();
  const bool asked = round != 0 && work.asked_in == round;
  std::size_t ended = 0;
  for (std::size_t step = 1; !asked && ended < count; step *= 2) {
    const std::size_t probe = std::min(ended + step, count);
    if (!core_.markers.fired(work.batches[probe - 1].marker)) {
      work.asked_in = round;
      break;
    }
    ended = probe;
  }
  for (std::size_t i = 0; i < ended; ++i) end_batch(stream);
  // Operations that failed have a serial and no work that could end.
  if (work.batches.empty() && work.open.operations == 0)
    stream.timeline.completed = stream.timeline.submitted;
}

void Completion::end_batch(Stream& stream) {
  Stream::Submitted& work = stream.submitted;
  const CompletionBatch& oldest = work.batches[0];
  stream.timeline.completed = oldest.serial;
  work.ahead_ns -= oldest.predicted_ns;
  work.places -= oldest.places;
  places_ -= oldest.places;
  if (core_.traced()) [[unlikely]]
    core_.trace(trace::TraceKind::kCompleted, stream, oldest.serial, kNoPartition);
  if (oldest.partition != kNoPartition)
    core_.arbiter->ended(oldest.partition, stream.id, oldest.counted);
  if (reporting_)
    core_.arbiter->completed(oldest.partition, stream.id, oldest.launches, oldest.work);
  work.batches.pop();
}

bool Completion::ended(Stream& stream) {
  Stream::Submitted& work = stream.submitted;
  if (!stream.deferral.operations.empty() || stream.app_stream.pins > 0) return false;
  poll(stream);
  if (work.tail != nullptr || !work.batches.empty()) return false;
  if (!core_.markers.fired(work.tail_marker) || !core_.markers.fired(work.host_wait)) return false;
  if (work.tail_marker) all_complete(stream, stream.timeline.submitted);
  if (stream.timeline.completed != stream.timeline.issued) return false;
  if (work.counted_whole) std::erase(counted_whole_, &stream);
  return true;
}

void Completion::all_complete(Stream& stream, std::uint64_t submitted) {
  Stream::Submitted& work = stream.submitted;
  if (Audit* audit = core_.audit()) audit->reached(stream, submitted);
  if (core_.traced() && stream.timeline.completed < submitted) [[unlikely]]
    core_.trace(trace::TraceKind::kCompleted, stream, submitted, kNoPartition);
  while (!work.batches.empty() && work.batches[0].serial <= submitted) end_batch(stream);
  stream.timeline.completed = std::max(stream.timeline.completed, submitted);
  if (stream.timeline.submitted != submitted) return;
  // Nothing is outstanding: the next operation needs no edge, the queue is free for any stream.
  if (reporting_ && work.open.launches > 0)
    core_.arbiter->completed(work.tail != nullptr ? work.tail->partition : kNoPartition, stream.id,
                             work.open.launches, work.open.work);
  if (work.tail != nullptr && work.open.counted > 0)
    core_.arbiter->ended(work.tail->partition, stream.id, work.open.counted);
  if (work.tail != nullptr && !work.tail->whole()) {
    work.tail_marker.reset();
    leave(stream, *work.tail);
  }
  work.open = {};
  places_ -= work.places;
  work.ahead_ns = work.places = 0;
  work.batch_room = 0;
  work.host_waits.clear();
  work.unmarked_host_wait = 0;
  work.tail = nullptr;
  work.tail_marker.reset();
  work.host_wait.reset();
}

void Completion::look_at_parts() {
  for (const Partition& partition : core_.layout.partitions()) {
    if (partition.whole()) continue;
    for (const auto& queue : core_.pool.queues(partition.id)) {
      Stream* holder = queue->owner != nullptr ? queue->owner : queue->last_owner;
      if (holder == nullptr) continue;
      close_batch(*holder);
      poll(*holder);
      if (holder->timeline.submitted != holder->timeline.completed) continue;
      all_complete(*holder, holder->timeline.submitted);
      core_.arbiter->release(partition.id, holder->id);
    }
  }
}

void Completion::look_at_whole() {
  std::erase_if(counted_whole_, [&](Stream* stream) {
    close_batch(*stream);
    poll(*stream);
    if (stream->timeline.submitted != stream->timeline.completed) return false;
    stream->submitted.counted_whole = false;
    return true;
  });
}

// --- host waits ------------------------------------------------------------------------------

bool Completion::idle(const Stream& stream) const {
  if (stream.submitted.tail == nullptr) return false;
  const CaptureSafeScope safe(core_.device);
  return core_.errors.classify(stream.submitted.tail->queue->query()) == hal::Outcome::kOk;
}

bool Completion::waits_for_host(Stream& stream) {
  MarkerRef& host_wait = stream.submitted.host_wait;
  if (std::uint64_t& unmarked = stream.submitted.unmarked_host_wait; unmarked != 0) {
    // A marker that is recorded now has not fired an instant later, however long it all has ended.
    if (stream.timeline.completed < unmarked && (stream.submitted.tail_marker || !idle(stream))) {
      host_wait = tail_marker(stream);
      if (!host_wait) return true;
      stream.submitted.host_waits.push_back({unmarked, host_wait});
    }
    unmarked = 0;
  }
  if (!host_wait) return false;
  if (!core_.markers.fired(host_wait)) return true;
  host_wait.reset();
  return false;
}

// Drops host waits that were seen to end.
const HostWait* Completion::oldest_host_wait(Stream& stream) {
  std::deque<HostWait>& host_waits = stream.submitted.host_waits;
  while (!host_waits.empty() && host_waits.front().serial <= stream.timeline.completed)
    host_waits.pop_front();
  return host_waits.empty() ? nullptr : &host_waits.front();
}

// What takes no place and counts under no grant holds nothing that its end would give back.
void Completion::close_before_host_wait(Stream& stream) {
  const CompletionBatch& open = stream.submitted.open;
  if (marks_ > 0 || open.places > 0 || open.counted > 0 || open.launches > 0) close_batch(stream);
}

void Completion::note_host_wait(Stream& stream, MarkerRef marker) {
  static_cast<void>(oldest_host_wait(stream));
  stream.submitted.unmarked_host_wait = marker ? 0 : stream.timeline.submitted;
  if (marker) stream.submitted.host_waits.push_back({stream.timeline.submitted, marker});
  stream.submitted.host_wait = std::move(marker);
}

// --- how much fits -----------------------------------------------------------------------------

// Progress must be seen several times within the window, and within the driver's own depth.
std::uint32_t Completion::batch_operations(std::uint64_t ahead_ns) const {
  const std::uint64_t ahead = ahead_ns / core_.options.predicted_kernel_ns;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(std::min(ahead, depth_) / 8, 1, 100));
}

bool Completion::room(Stream& stream, std::span<const Predecessor> predecessors, bool launch,
                      std::uint64_t places, std::uint64_t predicted_ns) {
  if (launch && waits_for_completion()) {
    poll(stream);
    if (stream.timeline.outstanding() > 0) return false;
    for (const Predecessor& p : predecessors) {
      poll(*p.stream);
      if (!p.token.completed()) return false;
    }
    return true;
  }
  // Only launches are held back by the window; what follows them is bound by the queue's depth,
  // beyond which a driver would block the caller. One launch is admitted however long it lasts.
  auto fits = [&] {
    return fits_queue(stream, predecessors, places, launch ? spare_places_ : 0) &&
           (!launch || !has_window(stream) || stream.timeline.outstanding() == 0 ||
            stream.submitted.ahead_ns + predicted_ns <= window(stream));
  };
  if (!fits()) {
    if (stream.submitted.batches.empty()) close_batch(stream);
    poll(stream);
    if (!fits()) return false;
  }
  // Of each its tail, and its allocations.
  return core_.markers.can_acquire(2 * predecessors.size() + kBesideALaunch);
}

// What one operation puts on queues at most: itself, and where markers take places a wait for each
// thing that it comes behind and that has not ended, and what else goes with a launch.
bool Completion::fits_queue(Stream& stream, std::span<const Predecessor> predecessors,
                            std::uint64_t places, std::uint64_t spare_places) {
  const std::uint64_t ahead = stream.submitted.places + places + spare_places;
  if (!markers_take_places_) return places == 0 || ahead <= depth_;
  const std::uint64_t taken = ahead + stream.order.extra.size() + kBesideALaunch;
  if (taken + predecessors.size() <= depth_) return true;
  std::uint64_t waits = 0;
  for (const Predecessor& p : predecessors) {
    poll(*p.stream);
    if (!p.token.completed()) ++waits;
  }
  return taken + waits <= depth_;
}

bool Completion::may_defer(Stream& stream, const Kernel* kernel, OperationKind kind) {
  if (stream.deferral.operations.size() >= core_.options.deferred_max) return false;
  const std::uint64_t places = places_of(kernel, kind);
  if (!depth_measured_ || places == 0) return true;
  Stream::Submitted& work = stream.submitted;
  // Of the oldest batch all operations but one may have ended, unless a host wait at its beginning
  // is closed.
  const auto fits = [&] {
    const HostWait* host_wait = oldest_host_wait(stream);
    const bool none_ended = host_wait != nullptr &&
                            host_wait->serial == stream.timeline.completed + 1 &&
                            !core_.markers.fired(host_wait->marker);
    const std::uint64_t oldest = work.batches.empty() ? work.places : work.batches[0].places;
    const std::uint64_t taken = work.places - (none_ended || oldest == 0 ? 0 : oldest - 1);
    return taken + stream.deferral.places + places <= depth_;
  };
  if (fits()) return true;
  if (work.batches.empty()) close_batch(stream);  // else its end is never looked for
  poll(stream);
  return fits();
}

// --- reports to the arbiter --------------------------------------------------------------------

void Completion::report_if(bool wanted) {
  if (reporting_ && !wanted) {
    for (Stream* stream : unfinished_) stream->submitted.reported = false;
    unfinished_.clear();
    core_.arbiter->set_busy(false);
  }
  reporting_ = wanted;
}

void Completion::note_unfinished(Stream& stream) {
  if (stream.submitted.reported) return;
  stream.submitted.reported = true;
  if (unfinished_.empty()) {
    busy_since_ = std::chrono::steady_clock::now();
    core_.arbiter->set_busy(true);
    core_.wake.notify_one();
  }
  unfinished_.push_back(&stream);
}

void Completion::report() {
  const MarkerPool::Round round(core_.markers);
  std::erase_if(unfinished_, [&](Stream* stream) {
    close_batch(*stream);
    poll(*stream);
    if (stream->timeline.submitted != stream->timeline.completed) return false;
    stream->submitted.reported = false;
    return true;
  });
  const auto now = std::chrono::steady_clock::now();
  core_.arbiter->busy(
      static_cast<std::uint64_t>(std::chrono::nanoseconds(now - busy_since_).count()));
  busy_since_ = now;
  if (unfinished_.empty()) core_.arbiter->set_busy(false);
}

}  // namespace vitamin::runtime
