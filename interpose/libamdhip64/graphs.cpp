// SPDX-License-Identifier: Apache-2.0
//
// What HIP's graph nodes are.
#include "interpose/graphs.h"

#include "interpose/libamdhip64/manual_overrides.h"

namespace vitamin::interpose {

ApiStatus nodes_of(hipGraph_t graph, hipGraphNode_t* nodes, std::size_t& count) {
  return VITAMIN_REAL(hipGraphGetNodes)(graph, nodes, &count);
}

NodeKind kind_of(hipGraphNode_t node, hipGraph_t& child) {
  hipGraphNodeType type = hipGraphNodeTypeKernel;
  if (VITAMIN_REAL(hipGraphNodeGetType)(node, &type) != hipSuccess) return NodeKind::kUnreadable;
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
      return NodeKind::kWork;
    case hipGraphNodeTypeGraph:
      return VITAMIN_REAL(hipGraphChildGraphNodeGetGraph)(node, &child) == hipSuccess
                 ? NodeKind::kGraph
                 : NodeKind::kUnreadable;
    case hipGraphNodeTypeWaitEvent:
      return NodeKind::kWaitsEvent;
    default:  // host functions and what is newer
      return NodeKind::kHostWait;
  }
}

// A node has no context of its own that could be another.
std::shared_ptr<FollowedGraph> follow(hipGraph_t, std::uint64_t,
                                      runtime::stats::GraphReason& stays) {
  stays = runtime::stats::GraphReason::kUnsupported;
  return nullptr;
}

}  // namespace vitamin::interpose
