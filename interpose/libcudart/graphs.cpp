// SPDX-License-Identifier: Apache-2.0
//
// Captures and graphs. What is captured belongs to the graph and never comes to the runtime; a
// graph's launch is work of the whole device on the application's own stream.
#include <vector>

#include "interpose/graphs.h"
#include "interpose/libcudart/handlers.h"

namespace vitamin::interpose {
namespace {

void look_at(CUgraphNode node, GraphRecord& record, int depth) {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_KERNEL;
  if (VITAMIN_REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS) {
    record = {};
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
        record = {};
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

}  // namespace

void look_at(CUgraph graph, GraphRecord& record, int depth) {
  std::size_t count = 0;
  if (VITAMIN_REAL(cuGraphGetNodes)(graph, nullptr, &count) != CUDA_SUCCESS) {
    record = {};
    return;
  }
  std::vector<CUgraphNode> nodes(count);
  if (count > 0) VITAMIN_REAL(cuGraphGetNodes)(graph, nodes.data(), &count);
  for (const CUgraphNode node : nodes) look_at(node, record, depth);
}

namespace {

void note_node(const CUgraphNodeParams* parameters) {
  if (parameters != nullptr && parameters->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
    note_recorded(parameters->eventRecord.event);
}

}  // namespace

CUresult begin_capture_v1(Via<decltype(::cuStreamBeginCapture)> via, CUstream stream) {
  return begin_capture_with(stream, via.per_thread,
                            [&](CUstream native) { return via.real(native); });
}

CUresult begin_capture(Via<decltype(::cuStreamBeginCapture_v2)> via, CUstream stream,
                       CUstreamCaptureMode mode) {
  return begin_capture_with(stream, via.per_thread,
                            [&](CUstream native) { return via.real(native, mode); });
}

CUresult begin_capture_to_graph(Via<decltype(::cuStreamBeginCaptureToGraph)> via, CUstream stream,
                                CUgraph graph, const CUgraphNode* dependencies,
                                const CUgraphEdgeData* edges, std::size_t count,
                                CUstreamCaptureMode mode) {
  return begin_capture_with(stream, via.per_thread, [&](CUstream native) {
    return via.real(native, graph, dependencies, edges, count, mode);
  });
}

CUresult graph_instantiate(Via<decltype(::cuGraphInstantiate)> via, CUgraphExec* executable,
                           CUgraph graph, CUgraphNode* error_node, char* log, std::size_t room) {
  return graph_instantiated(via.real(executable, graph, error_node, log, room), executable, graph);
}

CUresult graph_instantiate_with_flags(Via<decltype(::cuGraphInstantiateWithFlags)> via,
                                      CUgraphExec* executable, CUgraph graph,
                                      unsigned long long flags) {
  return graph_instantiated(via.real(executable, graph, flags), executable, graph);
}

CUresult graph_instantiate_with_params(Via<decltype(::cuGraphInstantiateWithParams)> via,
                                       CUgraphExec* executable, CUgraph graph,
                                       CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  return graph_instantiated(via.real(executable, graph, parameters), executable, graph);
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
  note_node(parameters);
  return via.real(node, graph, dependencies, count, parameters);
}

CUresult graph_add_node_v2(Via<decltype(::cuGraphAddNode_v2)> via, CUgraphNode* node, CUgraph graph,
                           const CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                           std::size_t count, CUgraphNodeParams* parameters) {
  note_node(parameters);
  return via.real(node, graph, dependencies, edges, count, parameters);
}

CUresult graph_node_set_params(Via<decltype(::cuGraphNodeSetParams)> via, CUgraphNode node,
                               CUgraphNodeParams* parameters) {
  note_node(parameters);
  return via.real(node, parameters);
}

CUresult graph_exec_node_set_params(Via<decltype(::cuGraphExecNodeSetParams)> via,
                                    CUgraphExec executable, CUgraphNode node,
                                    CUgraphNodeParams* parameters) {
  note_node(parameters);
  return via.real(executable, node, parameters);
}

}  // namespace vitamin::interpose
