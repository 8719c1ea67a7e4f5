// SPDX-License-Identifier: Apache-2.0
//
// What CUDA's graph nodes are.
#include "interpose/graphs.h"

#include "interpose/libcudart/handlers.h"

namespace vitamin::interpose {

Answer nodes_of(CUgraph graph, CUgraphNode* nodes, std::size_t& count) {
  return VITAMIN_REAL(cuGraphGetNodes)(graph, nodes, &count);
}

NodeKind kind_of(CUgraphNode node, CUgraph& child) {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_KERNEL;
  if (VITAMIN_REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS) return NodeKind::kUnreadable;
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return NodeKind::kWork;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return VITAMIN_REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS
                 ? NodeKind::kGraph
                 : NodeKind::kUnreadable;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return NodeKind::kWaitsEvent;
    default:  // host functions, value waits, semaphores, conditional bodies
      return NodeKind::kGate;
  }
}

}  // namespace vitamin::interpose
