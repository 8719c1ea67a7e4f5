// SPDX-License-Identifier: Apache-2.0
//
// Captures and graphs. What is captured belongs to the graph and never comes to the runtime; a
// graph's launch is work of the whole device on the application's own stream.
#pragma once

#include "interpose/treatments.h"

namespace vitamin::interpose {

// What an executable graph needs besides the device. Unknown graphs are taken for the worst.
struct GraphRecord {
  bool gate = true;          // somebody outside must act before it ends
  bool waits_events = true;  // events of the application, when it is launched
};
// By the vendor: adds what the nodes of a graph need.
void look_at(Graph graph, GraphRecord& record, int depth);

// After the vendor's instantiation answered.
Answer graph_instantiated(Answer answer, const GraphExec* executable, Graph graph);
// A graph that records an event does so whenever it is launched.
void note_recorded(NativeEvent event);

template <class Call>
Answer begin_capture_with(NativeStream stream, bool per_thread, Call call) {
  const Way way = way_of(stream, per_thread);
  // The legacy stream cannot be captured, and a stream that is captured already not again.
  if (way.route == Route::kForeign || way.record->legacy) {
    const Answer answer = call(stream);
    if (answer == kSuccess) capture_began(stream);
    return answer;
  }
  if (way.route == Route::kCaptured) return call(way.native());
  auto operation = runtime::call(
      [&](void* native) { return hal::NativeStatus(call(static_cast<NativeStream>(native))); },
      Keep::kNo);
  const NativeStream native = way.native();
  const Inside ours;
  // Counted before it is open, so that none of our own calls can be late in taking notice.
  capture_began(native);
  const Answer answer = result(way.context().begin_capture(way.stream(), operation));
  if (answer != kSuccess) capture_may_have_ended(native, false);
  return answer;
}

}  // namespace vitamin::interpose
