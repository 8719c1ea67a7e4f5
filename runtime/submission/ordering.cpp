// SPDX-License-Identifier: Apache-2.0
#include "runtime/submission/ordering.h"

#include <algorithm>

#include "runtime/graph.h"

namespace vitamin::runtime {

using hal::NativeStatus;
using hal::Outcome;

std::span<const Predecessor> Ordering::predecessors(const Stream& stream,
                                                    const Submission& submission) {
  predecessors_.clear();
  default_streams_.list(stream, *legacy_, predecessors_);
  GraphOperation* const launch =
      submission.operation != nullptr ? submission.operation->as_graph() : nullptr;
  if (launch == nullptr) return predecessors_;
  // Natively the launches of one executable run in the order in which they are made. One that is
  // deferred holds back the next, which has no edge to it that the program asked for.
  const Predecessor& newest = launch->graph()->newest;
  if (newest.stream != nullptr && newest.stream != &stream && !newest.token.submitted())
    predecessors_.push_back({newest.stream, newest.token, true});
  return predecessors_;
}

bool Ordering::any_deferred(const Stream& stream, std::span<const Predecessor> predecessors) {
  return !stream.deferral.operations.empty() ||
         std::any_of(predecessors.begin(), predecessors.end(),
                     [](const Predecessor& p) { return !p.token.submitted(); });
}

bool Ordering::others_wait_for_host(std::span<const Predecessor> predecessors,
                                    const MarkerRef& marker, const MarkerRef& host_wait) {
  if (host_wait && !core_.markers.fired(host_wait)) return true;
  // With a window of 0 the host waits for every predecessor, so no device-side wait for another
  // stream goes onto a queue of a part.
  if (completion_.waits_for_completion() && marker && !core_.markers.fired(marker)) return true;
  return std::any_of(predecessors.begin(), predecessors.end(), [&](const Predecessor& p) {
    if (p.submission_only || p.token.completed() || !completion_.waits_for_host(*p.stream))
      return false;
    completion_.poll(
        *p.stream);  // the host wait may be behind it, and no other call looks for its end
    return !p.token.completed();
  });
}

bool Ordering::any_waits_for_host(Stream& stream, std::span<const Predecessor> predecessors) {
  return completion_.waits_for_host(stream) ||
         std::any_of(predecessors.begin(), predecessors.end(), [&](const Predecessor& p) {
           return !p.token.completed() && completion_.waits_for_host(*p.stream);
         });
}

PhysicalQueue& Ordering::follow_queue(Stream& stream, OperationKind kind,
                                      bool others_wait_for_host) {
  if (is_bridge(kind) || others_wait_for_host) return stream.app_stream;
  return stream.submitted.tail != nullptr ? *stream.submitted.tail : stream.app_stream;
}

bool Ordering::come_after(Stream& stream, hal::Queue& queue) {
  MarkerRef marker = completion_.mark(stream, queue);
  if (!marker) return false;
  stream.order.extra.put(queue, std::move(marker));
  return true;
}

NativeStatus Ordering::order(Stream& stream, hal::Queue& queue, const PhysicalQueue* physical,
                             std::span<const Predecessor> predecessors, unsigned& waits) {
  NativeStatus status = hal::kNativeOk;
  auto wait_for = [&](const MarkerRef& marker) {
    if (!marker || marker->fired || status != hal::kNativeOk) return;
    status = completion_.wait_for(stream, queue, marker->event);
    ++waits;
    core_.page.other.edges.add();
  };
  // Behind a predecessor's tail, unless the queue itself keeps that order.
  auto come_behind = [&](Stream& before, bool native_order) {
    PhysicalQueue* const tail = before.submitted.tail;
    if (tail == nullptr) return wait_for(before.submitted.tail_marker);
    if (tail == physical || native_order) return;
    const MarkerRef marker = completion_.tail_marker(before);
    // There are markers enough (takes()), so the driver refused the record: the queue is broken.
    if (!marker && status == hal::kNativeOk) status = tail->queue->query();
    if (!marker && core_.errors.classify(status) == Outcome::kNotReady)
      status = core_.errors.out_of_memory();
    wait_for(marker);
  };
  come_behind(stream, false);
  for (const Predecessor& p : predecessors) {
    if (p.submission_only) continue;
    Stream::Order& before = p.stream->order;
    // The driver itself orders real legacy and real blocking streams against each other.
    const PhysicalQueue* const tail = p.stream->submitted.tail;
    const bool native = core_.driver_orders_legacy_stream && physical != nullptr &&
                        physical->whole() && tail != nullptr && tail->whole();
    if (!p.token.completed()) come_behind(*p.stream, native);
    // Allocations of it, unless its state stands for another stream by now.
    const bool is_it = p.token.serial() >= p.stream->serials_from;
    if (native || !is_it || p.stream->kind == StreamKind::kLegacy) continue;
    if (before.allocated) before.allocated = !come_after(*p.stream, *p.stream->app_stream.queue);
    for (const MarkerRef& marker : before.extra) wait_for(marker);
  }
  if (stream.order.allocated && physical != &stream.app_stream)
    stream.order.allocated = !come_after(stream, *stream.app_stream.queue);
  for (const MarkerRef& marker : stream.order.extra) wait_for(marker);
  return status;
}

}  // namespace vitamin::runtime
