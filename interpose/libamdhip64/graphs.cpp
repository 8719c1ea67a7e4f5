// SPDX-License-Identifier: Apache-2.0
//
// What HIP's graph nodes are, and the calls that make graphs.
#include "interpose/graphs.h"

#include <vector>

#include "interpose/libamdhip64/handlers.h"

namespace vitamin::interpose {
namespace {

void look_at_node(hipGraphNode_t node, GraphRecord& record, int depth) {
  hipGraphNodeType type = hipGraphNodeTypeKernel;
  if (VITAMIN_REAL(hipGraphNodeGetType)(node, &type) != hipSuccess) {
    record = {};
    return;
  }
  // Numbers were given anew in 6.0 from "copy from symbol" on, which changes nothing here.
  switch (type) {
    case hipGraphNodeTypeKernel:
    case hipGraphNodeTypeMemcpy:
    case hipGraphNodeTypeMemset:
    case hipGraphNodeTypeEmpty:
    case hipGraphNodeTypeEventRecord:
    case hipGraphNodeTypeMemcpy1D:
    case hipGraphNodeTypeMemcpyFromSymbol:
    case hipGraphNodeTypeMemcpyToSymbol:
      break;
    case hipGraphNodeTypeGraph: {
      hipGraph_t child = nullptr;
      if (VITAMIN_REAL(hipGraphChildGraphNodeGetGraph)(node, &child) == hipSuccess && depth < 16)
        look_at(child, record, depth + 1);
      else
        record = {};
      break;
    }
    case hipGraphNodeTypeWaitEvent:
      record.waits_events = true;
      record.gate = true;
      break;
    default:  // host functions and what is newer
      record.gate = true;
      break;
  }
}

}  // namespace

void look_at(hipGraph_t graph, GraphRecord& record, int depth) {
  std::size_t count = 0;
  if (VITAMIN_REAL(hipGraphGetNodes)(graph, nullptr, &count) != hipSuccess) {
    record = {};
    return;
  }
  std::vector<hipGraphNode_t> nodes(count);
  if (count > 0) static_cast<void>(VITAMIN_REAL(hipGraphGetNodes)(graph, nodes.data(), &count));
  for (const hipGraphNode_t node : nodes) look_at_node(node, record, depth);
}

hipError_t begin_capture(Via<decltype(::hipStreamBeginCapture)> via, hipStream_t stream,
                         hipStreamCaptureMode mode) {
  return begin_capture_with(stream, via.per_thread,
                            [&](hipStream_t native) { return via.real(native, mode); });
}

hipError_t graph_instantiate(Via<decltype(::hipGraphInstantiate)> via, hipGraphExec_t* executable,
                             hipGraph_t graph, hipGraphNode_t* error_node, char* log,
                             std::size_t room) {
  return graph_instantiated(via.real(executable, graph, error_node, log, room), executable, graph);
}

hipError_t graph_instantiate_with_flags(Via<decltype(::hipGraphInstantiateWithFlags)> via,
                                        hipGraphExec_t* executable, hipGraph_t graph,
                                        unsigned long long flags) {
  return graph_instantiated(via.real(executable, graph, flags), executable, graph);
}

hipError_t graph_add_event_record(Via<decltype(::hipGraphAddEventRecordNode)> via,
                                  hipGraphNode_t* node, hipGraph_t graph,
                                  const hipGraphNode_t* dependencies, std::size_t count,
                                  hipEvent_t event) {
  note_recorded(event);
  return via.real(node, graph, dependencies, count, event);
}

hipError_t graph_set_event_record(Via<decltype(::hipGraphEventRecordNodeSetEvent)> via,
                                  hipGraphNode_t node, hipEvent_t event) {
  note_recorded(event);
  return via.real(node, event);
}

hipError_t graph_exec_set_event_record(Via<decltype(::hipGraphExecEventRecordNodeSetEvent)> via,
                                       hipGraphExec_t executable, hipGraphNode_t node,
                                       hipEvent_t event) {
  note_recorded(event);
  return via.real(executable, node, event);
}

}  // namespace vitamin::interpose
