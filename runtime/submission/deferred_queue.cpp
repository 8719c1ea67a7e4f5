// SPDX-License-Identifier: Apache-2.0
#include "runtime/submission/deferred_queue.h"

#include <algorithm>

#include "runtime/audit/audit.h"
#include "runtime/capture_safe_scope.h"

namespace vitamin::runtime {

void DeferredQueue::push(Stream& stream, Submission submission) {
  Stream::Deferral& deferral = stream.deferral;
  completion_.note_deferral();
  submission.places = completion_.places_of(submission.kernel.get(), submission.kind);
  deferral.places += submission.places;
  deferral.freed_bytes += submission.frees.bytes;
  if (deferral.operations.empty()) streams_.push_back(&stream);
  if (core_.traced()) [[unlikely]]
    core_.trace(trace::TraceKind::kDeferred, stream, submission.serial, kNoPartition);
  deferral.operations.push_back(std::move(submission));
  core_.wake.notify_one();
}

void DeferredQueue::pop_front(Stream& stream) {
  Stream::Deferral& deferral = stream.deferral;
  deferral.freed_bytes -= deferral.operations.front().frees.bytes;
  deferral.places -= deferral.operations.front().places;
  deferral.operations.pop_front();
  if (deferral.operations.empty()) std::erase(streams_, &stream);
}

SubmitResult DeferredQueue::submit_front(Stream& stream, bool own_stream) {
  // The application had its answer before a capture began that forbids such calls.
  const CaptureSafeScope safe(core_.device);
  Submission& front = stream.deferral.operations.front();
  if (front.kind == OperationKind::kDestroy) {
    // The real stream is about to go: from now on a marker says where its last work is.
    completion_.detach_tail(stream, completion_.tail_marker(stream));
    if (Audit* audit = core_.audit()) audit->retired(stream);
    front.operation->submit(*stream.app_stream.queue);
    pop_front(stream);
    return {};
  }
  for (const Predecessor& p : front.predecessors)
    if (!p.token.submitted()) return {Blocked::kPredecessor};
  if (front.kind == OperationKind::kWait && front.version) {
    if (!front.version->submitted) return {Blocked::kPredecessor};
    front.marker = front.version->marker;
    front.host_wait = front.version->host_wait;
  }
  // The event was recorded again since: its real record must not be overwritten by an older one.
  if (front.kind == OperationKind::kRecord && front.version->superseded) front.operation = nullptr;

  const SubmitResult result = submits_.submit_now(stream, front, front.predecessors, own_stream);
  if (result.blocked != Blocked::kNo) return result;
  if (result.status != hal::kNativeOk) {
    if (error_ == hal::kNativeOk) error_ = result.status;
    if (Audit* audit = core_.audit()) audit->refused(stream, front.serial);
  } else if (front.kind == OperationKind::kLaunch) {
    core_.page.launches.deferred.add();  // not before it is seen: a process may be killed meanwhile
  } else if (front.kind == OperationKind::kGraph) {
    core_.page.graphs.deferred.add();
  }
  stream.timeline.submitted = front.serial;  // also of an operation that failed: it is over
  if (front.kind == OperationKind::kRecord) {
    EventVersion& version = *front.version;
    version.marker = completion_.tail_marker(stream);
    if (result.status != hal::kNativeOk && version.marker) version.marker->superseded = true;
    completion_.close_batch(stream);
    if (completion_.waits_for_host(stream)) version.host_wait = stream.submitted.host_wait;
    version.submitted = true;
    version.stream = nullptr;
  }
  pop_front(stream);
  return result;
}

bool DeferredQueue::retry() {
  bool moved = false;
  waits_for_host_ = false;
  for (std::size_t i = 0; i < streams_.size();) {
    Stream& stream = *streams_[i];
    SubmitResult result;
    while (!stream.deferral.operations.empty() &&
           (result = submit_front(stream, false)).blocked == Blocked::kNo)
      moved = true;
    waits_for_host_ = waits_for_host_ || result.blocked == Blocked::kHostWait;
    // A stream that ended took itself out of the list: the same index is the next one.
    if (!stream.deferral.operations.empty()) ++i;
  }
  return moved;
}

// The recursion follows happens-before, as that of flush() does, and passes by each stream once.
void DeferredQueue::retry(Stream& stream) {
  const std::uint64_t round = core_.markers.round();
  if (std::exchange(stream.deferral.pumped_in, round) == round) return;
  while (!stream.deferral.operations.empty()) {
    const Submission& front = stream.deferral.operations.front();
    for (const Predecessor& p : front.predecessors)
      if (!p.token.submitted()) retry(*p.stream);
    if (front.kind == OperationKind::kWait && front.version && !front.version->submitted)
      retry(*front.version->stream);
    if (submit_front(stream, false).blocked != Blocked::kNo) return;
  }
}

// Predecessors are flushed no further than needed: the recursion follows happens-before, which has
// no cycle, so it cannot come back to an operation of this stream that is still deferred.
bool DeferredQueue::flush(Stream& stream, std::uint64_t up_to_serial) {
  while (!stream.deferral.operations.empty() &&
         stream.deferral.operations.front().serial <= up_to_serial) {
    const Submission& front = stream.deferral.operations.front();
    for (const Predecessor& p : front.predecessors)
      if (!p.token.submitted() && !flush(*p.stream, p.token.serial())) return false;
    if (front.kind == OperationKind::kWait && front.version && !front.version->submitted &&
        !flush(*front.version->stream, front.version->serial))
      return false;
    // Where it would go anyway, unless it has to wait for that; else on its stream's own queue.
    stream.deferral.operations.front().flushing = true;
    if (submit_front(stream, false).blocked != Blocked::kNo &&
        submit_front(stream, true).blocked != Blocked::kNo)
      return false;
  }
  return true;
}

}  // namespace vitamin::runtime
