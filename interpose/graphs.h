// SPDX-License-Identifier: Apache-2.0
//
// Captures and graphs. What is captured belongs to the graph and never comes to the runtime; a
// graph's launch is work of the whole device on the application's own stream.
#pragma once

#include "interpose/hook.h"
#include "interpose/treatments.h"

namespace vitamin::interpose {

// What an executable graph needs besides the device. Unknown graphs are taken for the worst.
struct GraphRecord {
  bool gate = true;          // somebody outside must act before it ends
  bool waits_events = true;  // events of the application, when it is launched
};

enum class NodeKind : std::uint8_t {
  kWork,        // ends by itself
  kGraph,       // of nodes of its own
  kWaitsEvent,  // of the application's
  kGate,        // host functions, value waits, semaphores, and what is newer than this code
  kUnreadable,
};
// By the vendor. `child`: set for kGraph.
NodeKind kind_of(GraphNode node, Graph& child);
// By the vendor: how many nodes, and, with `nodes`, which; not kSuccess: it does not tell.
Answer nodes_of(Graph graph, GraphNode* nodes, std::size_t& count);

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

// --- treatments ----------------------------------------------------------------------------------

// (stream, ...)
struct BeginsCapture {
  template <class... Rest>
  static Answer run(Via<Answer(NativeStream, Rest...)> via, NativeStream stream, Rest... rest) {
    return begin_capture_with(stream, via.per_thread,
                              [&](NativeStream native) { return via.real(native, rest...); });
  }
};

// (executable, graph, ...)
struct Instantiates {
  template <class... Rest>
  static Answer run(Via<Answer(GraphExec*, Graph, Rest...)> via, GraphExec* executable, Graph graph,
                    Rest... rest) {
    return graph_instantiated(via.real(executable, graph, rest...), executable, graph);
  }
};

// The event that an argument makes a graph record: the vendor's words.h knows of more than these.
inline NativeEvent recorded_event(NativeEvent event) { return event; }
template <class T>
NativeEvent recorded_event(T) {
  return nullptr;
}

struct RecordsInGraph {
  template <class... Args>
  static Answer run(Via<Answer(Args...)> via, Args... args) {
    (note_recorded(recorded_event(args)), ...);
    return via.real(args...);
  }
};

}  // namespace vitamin::interpose
