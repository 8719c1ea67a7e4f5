// SPDX-License-Identifier: Apache-2.0
//
// What HIP's graph nodes are, and which graphs follow the allocation (backends/hip/graph.h).
#include "interpose/graphs.h"

#include <utility>

#include "backends/hip/graph.h"
#include "interpose/libamdhip64/code.h"
#include "interpose/libamdhip64/manual_overrides.h"
#include "interpose/libamdhip64/version_rules.h"

namespace vitamin::interpose {
namespace {

using runtime::stats::GraphReason;

struct ChainOfApplication final : FollowedGraph {
  std::optional<hal::GraphShape> asked() const override {
    if (context->virtual_context->audit() == nullptr) return std::nullopt;
    return source->shape();
  }
  std::shared_ptr<hip::ChainGraph> source;
};
hip::ChainGraph& chain_of(FollowedGraph& followed) {
  return *static_cast<ChainOfApplication&>(followed).source;
}

}  // namespace

ApiStatus nodes_of(hipGraph_t graph, hipGraphNode_t* nodes, std::size_t& count) {
  return VITAMIN_REAL(hipGraphGetNodes)(graph, nodes, &count);
}

NodeKind kind_of(hipGraphNode_t node, hipGraph_t& child) {
  hipGraphNodeType type{};
  const hip::Api* const api = runtime_functions();
  if (api == nullptr || VITAMIN_REAL(hipGraphNodeGetType)(node, &type) != hipSuccess)
    return NodeKind::kUnreadable;
  switch (hip::graph_node_kind(type, api->version)) {
    case hip::GraphNodeKind::kKernel:
    case hip::GraphNodeKind::kFill:
    case hip::GraphNodeKind::kEmpty:
      return NodeKind::kWork;
    // What a copy copies is not told: it may block the host, or another engine makes it.
    case hip::GraphNodeKind::kCopy:
    case hip::GraphNodeKind::kRecordEvent:
      return NodeKind::kStays;
    case hip::GraphNodeKind::kGraph:
      return VITAMIN_REAL(hipGraphChildGraphNodeGetGraph)(node, &child) == hipSuccess
                 ? NodeKind::kGraph
                 : NodeKind::kUnreadable;
    case hip::GraphNodeKind::kWaitEvent:
      return NodeKind::kWaitsEvent;
    case hip::GraphNodeKind::kHost:
    case hip::GraphNodeKind::kOther:
      return NodeKind::kHostWait;
  }
  return NodeKind::kUnreadable;
}

std::shared_ptr<FollowedGraph> follow(hipGraph_t graph, std::uint64_t, GraphReason& stays) {
  const auto none = [&](GraphReason why) {
    stays = why;
    return nullptr;
  };
  const hip::Api* const api = runtime_functions();
  if (api == nullptr || !chains_run_on_launch_stream()) return none(GraphReason::kUnsupported);
  auto nodes = hip::read_chain(*api, graph, &kernel_of_registered_stub);
  if (!nodes) {
    switch (nodes.error().code) {
      case hal::Errc::kUnsupported:
        return none(GraphReason::kBranches);
      case hal::Errc::kInvalidArgument:
        return none(GraphReason::kNodes);
      default:
        return none(GraphReason::kUnsupported);
    }
  }
  auto followed = std::make_shared<ChainOfApplication>();
  // A kernel node is of the device that was current when it was added; nothing tells which. What is
  // launched on another device than the graph was instantiated on stays there.
  followed->context = current_context();
  if (followed->context == nullptr) return none(GraphReason::kContexts);
  if (!followed->context->virtual_context->binds_graphs()) return none(GraphReason::kUnsupported);
  followed->source =
      std::make_shared<hip::ChainGraph>(std::move(*nodes), &kernel_of_registered_stub);
  followed->graph = std::make_shared<runtime::Graph>(followed->source);
  return followed;
}

// --- changes -------------------------------------------------------------------------------------

// An update that the runtime refuses may have changed some nodes.
hal::Followed graph_updated(FollowedGraph& followed, hipError_t answer, hipGraph_t by,
                            hipGraphNode_t*, hipGraphExecUpdateResult*) {
  if (answer != hipSuccess) return hal::Followed::kNot;
  const auto nodes = hip::read_chain(*runtime_functions(), by, &kernel_of_registered_stub);
  return nodes ? chain_of(followed).replace(*nodes) : hal::Followed::kNot;
}

// What the runtime refused to set is as it was.
hal::Followed kernel_set(FollowedGraph& followed, hipError_t answer, hipGraphNode_t node,
                         const hipKernelNodeParams* parameters) {
  return answer != hipSuccess ? hal::Followed::kNodes
                              : chain_of(followed).set_kernel(node, *parameters);
}

// Where it runs does not depend on what it fills.
hal::Followed fill_set(FollowedGraph&, hipError_t, hipGraphNode_t, const hipMemsetParams*) {
  return hal::Followed::kNodes;
}

// 5.2.3 updates the whole executable by the child graph first, whatever it answers.
hal::Followed child_set(FollowedGraph&, hipError_t, hipGraphNode_t, hipGraph_t) {
  return hal::Followed::kNot;
}

}  // namespace vitamin::interpose
