// SPDX-License-Identifier: Apache-2.0
//
// Captures and graphs. What is captured belongs to the graph and never comes to the runtime; a
// graph's launch is work of the whole device on the application's own stream.
#include <vector>

#include "interpose/handle_map.h"
#include "interpose/libcudart/handlers.h"
#include "interpose/libcudart/treatments.h"

namespace vitamin::interpose {
namespace {

// What an executable graph needs besides the device. Unknown graphs are taken for the worst.
struct GraphRecord {
  bool gate = true;          // somebody outside must act before it ends
  bool waits_events = true;  // events of the application, when it is launched
};
constinit HandleMap<GraphRecord> graphs;

void look_at(CUgraph graph, GraphRecord& record, int depth);

void look_at(CUgraphNode node, GraphRecord& record, int depth) {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_KERNEL;
  if (VITAMIN_REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS) {
    record = GraphRecord{};
    return;
  }
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      break;
    case CU_GRAPH_NODE_TYPE_GRAPH: {
      CUgraph child = nullptr;
      if (VITAMIN_REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS && depth < 16)
        look_at(child, record, depth + 1);
      else
        record = GraphRecord{};
      break;
    }
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      record.waits_events = true;
      record.gate = true;
      break;
    default:  // host functions, value waits, semaphores, conditional bodies
      record.gate = true;
      break;
  }
}

void look_at(CUgraph graph, GraphRecord& record, int depth) {
  std::size_t count = 0;
  if (VITAMIN_REAL(cuGraphGetNodes)(graph, nullptr, &count) != CUDA_SUCCESS) {
    record = GraphRecord{};
    return;
  }
  std::vector<CUgraphNode> nodes(count);
  if (count > 0) VITAMIN_REAL(cuGraphGetNodes)(graph, nodes.data(), &count);
  for (const CUgraphNode node : nodes) look_at(node, record, depth);
}

CUresult instantiated(CUresult answer, const CUgraphExec* executable, CUgraph graph) {
  if (answer != CUDA_SUCCESS) return answer;
  auto* record = new GraphRecord{false, false};
  look_at(graph, *record, 0);
  delete graphs.insert(*executable, record);
  return answer;
}

// A graph that records an event does so whenever it is launched.
void note_recorded(CUevent event) {
  if (event != nullptr) find_event(event).in_graph.store(true, std::memory_order_relaxed);
}
void note_recorded(const CUgraphNodeParams* parameters) {
  if (parameters != nullptr && parameters->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
    note_recorded(parameters->eventRecord.event);
}

template <class Call>
CUresult begin(CUstream stream, bool per_thread, Call call) {
  const Way way = way_of(stream, per_thread);
  // The legacy stream cannot be captured, and a stream that is captured already not again.
  if (way.route == Route::kForeign || way.record->legacy) {
    const CUresult answer = call(stream);
    if (answer == CUDA_SUCCESS) capture_began(stream);
    return answer;
  }
  if (way.route == Route::kCaptured) return call(way.native());
  auto operation = runtime::call(
      [&](void* native) { return hal::NativeStatus(call(static_cast<CUstream>(native))); },
      Keep::kNo);
  const CUstream native = way.native();
  const Inside ours;
  // Counted before it is open, so that none of our own calls can be late in taking notice.
  capture_began(native);
  const CUresult answer = result(way.context().begin_capture(way.stream(), operation));
  if (answer != CUDA_SUCCESS) capture_may_have_ended(native, false);
  return answer;
}

}  // namespace

CUresult begin_capture_v1(Via<decltype(::cuStreamBeginCapture)> via, CUstream stream) {
  return begin(stream, via.per_thread, [&](CUstream native) { return via.real(native); });
}

CUresult begin_capture(Via<decltype(::cuStreamBeginCapture_v2)> via, CUstream stream,
                       CUstreamCaptureMode mode) {
  return begin(stream, via.per_thread, [&](CUstream native) { return via.real(native, mode); });
}

CUresult begin_capture_to_graph(Via<decltype(::cuStreamBeginCaptureToGraph)> via, CUstream stream,
                                CUgraph graph, const CUgraphNode* dependencies,
                                const CUgraphEdgeData* edges, std::size_t count,
                                CUstreamCaptureMode mode) {
  return begin(stream, via.per_thread, [&](CUstream native) {
    return via.real(native, graph, dependencies, edges, count, mode);
  });
}

CUresult end_capture(Via<decltype(::cuStreamEndCapture)> via, CUstream stream, CUgraph* graph) {
  const StreamRecord* record = known_stream(stream, via.per_thread);
  const CUstream native =
      record == nullptr || record->legacy ? stream : record->context->native(*record);
  const CUresult answer = via.real(native, graph);
  // Also a capture that was broken has ended now, with an error.
  capture_may_have_ended(native, false);
  return answer;
}

CUresult graph_launch(Via<decltype(::cuGraphLaunch)> via, CUgraphExec graph, CUstream stream) {
  const Way way = way_of(stream, via.per_thread);
  const GraphRecord* known = graphs.find(graph);
  const GraphRecord record = known != nullptr ? *known : GraphRecord{};
  // Events that the graph waits for must have been recorded for real.
  if (record.waits_events) drained(Drain::kFlush, [] { return hal::kNativeOk; });
  if (way.route == Route::kForeign) return via.real(graph, stream);
  if (way.route == Route::kCaptured) return via.real(graph, way.native());
  auto operation = runtime::call(
      [&](void* native) {
        way.page().other.graph_launches.add();
        return hal::NativeStatus(via.real(graph, static_cast<CUstream>(native)));
      },
      Keep::kNo);
  const Inside ours;
  return result(
      way.context().bridge(way.stream(), operation, record.gate ? Behind::kGate : Behind::kWork));
}

CUresult graph_instantiate(Via<decltype(::cuGraphInstantiate)> via, CUgraphExec* executable,
                           CUgraph graph, CUgraphNode* error_node, char* log, std::size_t room) {
  return instantiated(via.real(executable, graph, error_node, log, room), executable, graph);
}

CUresult graph_instantiate_with_flags(Via<decltype(::cuGraphInstantiateWithFlags)> via,
                                      CUgraphExec* executable, CUgraph graph,
                                      unsigned long long flags) {
  return instantiated(via.real(executable, graph, flags), executable, graph);
}

CUresult graph_instantiate_with_params(Via<decltype(::cuGraphInstantiateWithParams)> via,
                                       CUgraphExec* executable, CUgraph graph,
                                       CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  return instantiated(via.real(executable, graph, parameters), executable, graph);
}

CUresult graph_exec_destroy(Via<decltype(::cuGraphExecDestroy)> via, CUgraphExec executable) {
  delete graphs.erase(executable);
  return via.real(executable);
}

CUresult graph_add_event_record(Via<decltype(::cuGraphAddEventRecordNode)> via, CUgraphNode* node,
                                CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                                CUevent event) {
  note_recorded(event);
  return via.real(node, graph, dependencies, count, event);
}

CUresult graph_set_event_record(Via<decltype(::cuGraphEventRecordNodeSetEvent)> via,
                                CUgraphNode node, CUevent event) {
  note_recorded(event);
  return via.real(node, event);
}

CUresult graph_exec_set_event_record(Via<decltype(::cuGraphExecEventRecordNodeSetEvent)> via,
                                     CUgraphExec executable, CUgraphNode node, CUevent event) {
  note_recorded(event);
  return via.real(executable, node, event);
}

CUresult graph_add_node(Via<decltype(::cuGraphAddNode)> via, CUgraphNode* node, CUgraph graph,
                        const CUgraphNode* dependencies, std::size_t count,
                        CUgraphNodeParams* parameters) {
  note_recorded(parameters);
  return via.real(node, graph, dependencies, count, parameters);
}

CUresult graph_add_node_v2(Via<decltype(::cuGraphAddNode_v2)> via, CUgraphNode* node, CUgraph graph,
                           const CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                           std::size_t count, CUgraphNodeParams* parameters) {
  note_recorded(parameters);
  return via.real(node, graph, dependencies, edges, count, parameters);
}

CUresult graph_node_set_params(Via<decltype(::cuGraphNodeSetParams)> via, CUgraphNode node,
                               CUgraphNodeParams* parameters) {
  note_recorded(parameters);
  return via.real(node, parameters);
}

CUresult graph_exec_node_set_params(Via<decltype(::cuGraphExecNodeSetParams)> via,
                                    CUgraphExec executable, CUgraphNode node,
                                    CUgraphNodeParams* parameters) {
  note_recorded(parameters);
  return via.real(executable, node, parameters);
}

}  // namespace vitamin::interpose
