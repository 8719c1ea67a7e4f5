// SPDX-License-Identifier: Apache-2.0
#include "interpose/graphs.h"

#include <vector>

#include "interpose/handle_map.h"
#include "interpose/handlers.h"

namespace vitamin::interpose {
namespace {

constinit HandleMap<GraphRecord> graphs;

// Adds what the nodes of a graph need.
void look_at(Graph graph, GraphRecord& record, int depth) {
  constexpr int kDeepest = 16;
  std::size_t count = 0;
  if (depth > kDeepest || nodes_of(graph, nullptr, count) != kSuccess) {
    record = {};
    return;
  }
  std::vector<GraphNode> nodes(count);
  if (count > 0) static_cast<void>(nodes_of(graph, nodes.data(), count));
  for (const GraphNode node : nodes) {
    Graph child{};
    switch (kind_of(node, child)) {
      case NodeKind::kWork:
        break;
      case NodeKind::kGraph:
        look_at(child, record, depth + 1);
        break;
      case NodeKind::kWaitsEvent:
        record.waits_events = record.gate = true;
        break;
      case NodeKind::kGate:
        record.gate = true;
        break;
      case NodeKind::kUnreadable:
        record = {};
        break;
    }
  }
}

}  // namespace

Answer graph_instantiated(Answer answer, const GraphExec* executable, Graph graph) {
  if (answer != kSuccess) return answer;
  auto* record = new GraphRecord{false, false};
  look_at(graph, *record, 0);
  delete graphs.insert(*executable, record);
  return answer;
}

void note_recorded(NativeEvent event) {
  if (event != nullptr) find_event(event).in_graph.store(true, std::memory_order_relaxed);
}
Answer end_capture(Via<Answer(NativeStream, Graph*)> via, NativeStream stream, Graph* graph) {
  const StreamRecord* record = known_stream(stream, via.per_thread);
  const NativeStream native =
      record == nullptr || record->legacy ? stream : record->context->native(*record);
  const Answer answer = via.real(native, graph);
  // Also a capture that was broken has ended now, with an error.
  capture_may_have_ended(native, false);
  return answer;
}

Answer graph_launch(Via<Answer(GraphExec, NativeStream)> via, GraphExec graph,
                    NativeStream stream) {
  const Way way = way_of(stream, via.per_thread);
  const GraphRecord* known = graphs.find(graph);
  const GraphRecord record = known != nullptr ? *known : GraphRecord{};
  // Events that the graph waits for must have been recorded for real.
  if (record.waits_events) static_cast<void>(drained(Drain::kFlush, [] { return hal::kNativeOk; }));
  if (way.route == Route::kForeign) return via.real(graph, stream);
  if (way.route == Route::kCaptured) return via.real(graph, way.native());
  auto operation = runtime::call(
      [&](void* native) {
        way.page().other.graph_launches.add();
        return hal::NativeStatus(via.real(graph, static_cast<NativeStream>(native)));
      },
      Keep::kNo);
  const Inside ours;
  return result(
      way.context().replay(way.stream(), operation, record.gate ? Behind::kGate : Behind::kWork));
}

Answer graph_exec_destroy(Via<Answer(GraphExec)> via, GraphExec executable) {
  delete graphs.erase(executable);
  return via.real(executable);
}

}  // namespace vitamin::interpose
