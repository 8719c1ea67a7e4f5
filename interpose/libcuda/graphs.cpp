// SPDX-License-Identifier: Apache-2.0
//
// What CUDA's graph nodes are, and how launches of graphs follow the allocation (backends/cuda).
#include "interpose/graphs.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "backends/cuda/graph.h"
#include "interpose/libcuda/backend.h"
#include "interpose/libcuda/manual_overrides.h"
#include "runtime/audit/argument_hash.h"

namespace vitamin::interpose {
namespace {

using runtime::stats::GraphReason;

// Nodes that graphs may be remembered with, all together: each costs about a kilobyte of the host's
// memory.
constexpr std::size_t kNodesRemembered = 1 << 18;
constinit std::atomic<std::size_t> nodes_remembered{0};
bool take_room(std::size_t nodes) {
  if (nodes_remembered.fetch_add(nodes) + nodes <= kNodesRemembered) return true;
  nodes_remembered.fetch_sub(nodes);
  return false;
}

class Captures final : public cuda::CaptureGuard {
 public:
  Locked lock(hal::WaitsUntil waits) override {
    if (ContextCall::keep_away(waits)) return Locked::kYes;
    return ContextCall::ending() ? Locked::kNoMore : Locked::kBusy;
  }
  void unlock() override { ContextCall::admit(); }
};
cuda::CaptureGuard* capture_guard() {
  static auto* const guard = new Captures;  // never destroyed: a thread may be in there at exit
  return guard;
}

struct CudaGraph final : FollowedGraph {
  ~CudaGraph() override { nodes_remembered.fetch_sub(nodes); }
  std::optional<hal::GraphShape> asked() const override { return shape; }
  void catch_up() override { source->catch_up(); }

  // The application's own words for a node, as the audit wants them. False: it does not know which
  // node that is.
  template <class Describe>
  bool describe(CUgraphNode node, Describe describe) {
    if (!shape) return true;
    const auto at = std::find(reading.handles.begin(), reading.handles.end(), node);
    if (at == reading.handles.end()) return false;
    auto& described =
        reading.description.nodes[static_cast<std::size_t>(at - reading.handles.begin())];
    if (auto changed = describe(described)) described = *changed;
    shape = reading.description.shape();
    return true;
  }
  // The nodes of the graph that was instantiated keep naming those of the executable.
  bool read(CUgraph from) {
    auto read = reader().read(from);
    auto now = cuda::GraphOutline::of(*driver_functions(), from, false);
    if (!read || !now) return false;
    reading = std::move(*read);
    shape = reading.description.shape();
    if (!outline)
      outline = std::move(*now);
    else if (outline->same_nodes(*now))
      reading.handles = outline->nodes;
    else
      reading.handles.clear();
    return true;
  }

  cuda::GraphReader reader() const {
    return {*driver_functions(), context->virtual_context->device().inspector(),
            &runtime::argument_hash};
  }

  std::shared_ptr<cuda::RememberedGraph> source;
  std::size_t nodes = 0;  // that it is remembered with
  bool twice = false;     // also as it was instantiated
  // Of the application's graph, while it is audited.
  cuda::GraphReading reading;
  std::optional<cuda::GraphOutline> outline;  // when it was instantiated
  std::optional<hal::GraphShape> shape;
};

// The managed context of a kernel node; null: it is none, or there is no such node.
Context* context_of_kernels(CUgraph graph, int depth = 0) {
  const cuda::Api& api = *driver_functions();
  std::size_t count = 0;
  if (depth > 16 || nodes_of(graph, nullptr, count) != CUDA_SUCCESS) return nullptr;
  std::vector<CUgraphNode> nodes(count);
  if (count > 0) nodes_of(graph, nodes.data(), count);
  for (const CUgraphNode node : nodes) {
    CUgraph child = nullptr;
    CUDA_KERNEL_NODE_PARAMS parameters{};
    if (kind_of(node, child) == NodeKind::kGraph) {
      if (Context* found = context_of_kernels(child, depth + 1)) return found;
    } else if (api.cuGraphKernelNodeGetParams_v2(node, &parameters) == CUDA_SUCCESS) {
      Context* const current = current_context();
      if (current != nullptr && current->handle == parameters.ctx) return current;
      Context* found = nullptr;
      for_each_context([&](Context& context) {
        if (context.handle == parameters.ctx) found = &context;
      });
      return found;
    }
  }
  return nullptr;
}

// Parameters of the first form lack the kernel and the context at the end.
CUDA_KERNEL_NODE_PARAMS widened(const CUDA_KERNEL_NODE_PARAMS_v1& parameters) {
  CUDA_KERNEL_NODE_PARAMS wide{};
  static_assert(sizeof parameters <= sizeof wide);
  std::memcpy(&wide, &parameters, sizeof parameters);
  return wide;
}

CudaGraph& cuda_graph(FollowedGraph& followed) { return static_cast<CudaGraph&>(followed); }

hal::Followed set_kernel(FollowedGraph& followed, CUgraphNode node,
                         const CUDA_KERNEL_NODE_PARAMS& parameters) {
  CudaGraph& graph = cuda_graph(followed);
  const bool described = graph.describe(node, [&](const auto& before) {
    return graph.reader().kernel(parameters, before.attributes);
  });
  return described ? graph.source->set_kernel(graph.context->virtual_context->device().inspector(),
                                              node, parameters)
                   : hal::Followed::kNot;
}

hal::Followed set_copy(FollowedGraph& followed, CUgraphNode node, const CUDA_MEMCPY3D& box) {
  CudaGraph& graph = cuda_graph(followed);
  const bool described =
      graph.describe(node, [&](const auto&) { return std::optional(graph.reader().copy(box)); });
  return described ? graph.source->set_copy(node, box) : hal::Followed::kNot;
}

hal::Followed set_fill(FollowedGraph& followed, CUgraphNode node,
                       const CUDA_MEMSET_NODE_PARAMS& fill) {
  CudaGraph& graph = cuda_graph(followed);
  const bool described =
      graph.describe(node, [&](const auto&) { return std::optional(graph.reader().fill(fill)); });
  return described ? graph.source->set_fill(node, fill) : hal::Followed::kNot;
}

hal::Followed set_child(FollowedGraph& followed, CUgraphNode node, CUgraph child) {
  CudaGraph& graph = cuda_graph(followed);
  const bool described =
      graph.describe(node, [&](const auto&) -> std::optional<hal::GraphDescription::Node> {
        const auto read = graph.reader().read_child(child);
        return read ? std::optional(*read) : std::nullopt;
      });
  return described ? graph.source->set_child(node, child) : hal::Followed::kNot;
}

// After an update that the driver refused it is unknown what the executable holds, until one that
// it accepts.
hal::Followed replaced(FollowedGraph& followed, CUresult answer, CUgraph by) {
  if (answer != CUDA_SUCCESS) return hal::Followed::kNot;
  CudaGraph& graph = cuda_graph(followed);
  if (graph.shape && !graph.read(by)) return hal::Followed::kNot;
  if (!graph.twice && take_room(graph.nodes)) {
    graph.nodes *= 2;
    graph.twice = true;
  }
  return graph.source->replace(by, graph.twice);
}

}  // namespace

ApiStatus nodes_of(CUgraph graph, CUgraphNode* nodes, std::size_t& count) {
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
      return NodeKind::kWork;
    // An allocation belongs to one executable; an event of the application's is recorded where it
    // said.
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return NodeKind::kStays;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return VITAMIN_REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS
                 ? NodeKind::kGraph
                 : NodeKind::kUnreadable;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return NodeKind::kWaitsEvent;
    default:  // host functions, value waits, semaphores, conditional bodies
      return NodeKind::kHostWait;
  }
}

std::shared_ptr<FollowedGraph> follow(CUgraph graph, std::uint64_t flags, GraphReason& stays) {
  constexpr std::uint64_t kFollowed = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                      CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                      CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  const auto none = [&](GraphReason why) {
    stays = why;
    return nullptr;
  };
  const cuda::Api* const api = driver_functions();
  if (api == nullptr || !cuda::has_graphs(*api)) return none(GraphReason::kUnsupported);
  if ((flags & ~kFollowed) != 0) return none(GraphReason::kDevice);
  auto followed = std::make_shared<CudaGraph>();
  followed->context = context_of_kernels(graph);
  if (followed->context == nullptr) return none(GraphReason::kContexts);
  if (!followed->context->virtual_context->binds_graphs()) return none(GraphReason::kUnsupported);
  if (nodes_of(graph, nullptr, followed->nodes) != CUDA_SUCCESS) followed->nodes = 0;
  if (nodes_remembered.fetch_add(followed->nodes) + followed->nodes > kNodesRemembered)
    return none(GraphReason::kMemory);
  if (followed->context->virtual_context->audit() != nullptr && !followed->read(graph))
    return none(GraphReason::kNodes);
  cuda::RememberOptions options;
  options.flags = flags & ~std::uint64_t{CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
  options.context = followed->context->handle;
  options.captures = capture_guard();
  options.hash = &runtime::argument_hash;
  options.destroyed = &GraphsQuiesced::count();
  auto source = cuda::RememberedGraph::clone(*api, graph, options);
  if (!source) return none(GraphReason::kRefused);
  followed->source = std::move(*source);
  followed->graph = std::make_shared<runtime::Graph>(followed->source);
  return followed;
}

// --- changes -------------------------------------------------------------------------------------

hal::Followed graph_updated(FollowedGraph& followed, CUresult answer, CUgraph by, CUgraphNode*,
                            CUgraphExecUpdateResult*) {
  return replaced(followed, answer, by);
}
hal::Followed graph_updated_v2(FollowedGraph& followed, CUresult answer, CUgraph by,
                               CUgraphExecUpdateResultInfo*) {
  return replaced(followed, answer, by);
}
// What the driver refused to set is as it was.
constexpr hal::Followed kUnchanged = hal::Followed::kNodes;
hal::Followed kernel_set_v1(FollowedGraph& followed, CUresult answer, CUgraphNode node,
                            const CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  return answer != CUDA_SUCCESS ? kUnchanged : set_kernel(followed, node, widened(*parameters));
}
hal::Followed kernel_set(FollowedGraph& followed, CUresult answer, CUgraphNode node,
                         const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return answer != CUDA_SUCCESS ? kUnchanged : set_kernel(followed, node, *parameters);
}
hal::Followed copy_set(FollowedGraph& followed, CUresult answer, CUgraphNode node,
                       const CUDA_MEMCPY3D* box, CUcontext) {
  return answer != CUDA_SUCCESS ? kUnchanged : set_copy(followed, node, *box);
}
hal::Followed fill_set(FollowedGraph& followed, CUresult answer, CUgraphNode node,
                       const CUDA_MEMSET_NODE_PARAMS* fill, CUcontext) {
  return answer != CUDA_SUCCESS ? kUnchanged : set_fill(followed, node, *fill);
}
hal::Followed child_set(FollowedGraph& followed, CUresult answer, CUgraphNode node, CUgraph child) {
  return answer != CUDA_SUCCESS ? kUnchanged : set_child(followed, node, child);
}
hal::Followed node_set(FollowedGraph& followed, CUresult answer, CUgraphNode node,
                       CUgraphNodeParams* parameters) {
  if (answer != CUDA_SUCCESS) return kUnchanged;
  switch (parameters->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      CUDA_KERNEL_NODE_PARAMS kernel{};
      static_assert(sizeof kernel == sizeof parameters->kernel);
      std::memcpy(&kernel, &parameters->kernel, sizeof kernel);
      return set_kernel(followed, node, kernel);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return set_copy(followed, node, parameters->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return set_fill(
          followed, node,
          {parameters->memset.dst, parameters->memset.pitch, parameters->memset.value,
           parameters->memset.elementSize, parameters->memset.width, parameters->memset.height});
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return set_child(followed, node, parameters->graph.graph);
    default:
      return hal::Followed::kNot;
  }
}
hal::Followed node_enabled(FollowedGraph& followed, CUresult answer, CUgraphNode node,
                           unsigned enabled) {
  return answer != CUDA_SUCCESS ? kUnchanged
                                : cuda_graph(followed).source->set_enabled(node, enabled != 0);
}

}  // namespace vitamin::interpose
