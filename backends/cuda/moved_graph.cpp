// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/moved_graph.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "backends/cuda/copied_arguments.h"
#include "backends/cuda/status.h"

namespace vitamin::cuda {
namespace {

// A plain edge, or that of programmatic stream serialisation, which can be added to functions that
// are captured again (graph_functions_captured_again_with_a_programmatic_edge.trace).
bool can_be_added(const CUgraphEdgeData& edge) {
  const bool serialises = edge.from_port == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC &&
                          edge.type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  return edge.to_port == 0 && (serialises || (edge.from_port == 0 && edge.type == 0));
}

// The attributes of a node that say anything, as a launch takes them.
std::vector<CUlaunchAttribute> attributes_of(const Api& api, const AttributeSet& asked,
                                             CUgraphNode node) {
  std::vector<CUlaunchAttribute> attributes;
  for (int id = 1; id < kAttributes; ++id) {
    if (!asked.test(static_cast<std::size_t>(id))) continue;
    CUlaunchAttribute attribute{};
    attribute.id = static_cast<CUlaunchAttributeID>(id);
    if (api.cuGraphKernelNodeGetAttribute(node, attribute.id, &attribute.value) != CUDA_SUCCESS)
      continue;
    const auto* bytes = reinterpret_cast<const unsigned char*>(&attribute.value);
    if (std::all_of(bytes, bytes + sizeof attribute.value, [](auto b) { return b == 0; })) continue;
    attributes.push_back(attribute);
  }
  return attributes;
}

// A captured node may tell other values than the launch was given, such as the preference of its
// stream in scheduling clusters (graph_attributes_of_captured_nodes.trace). What the driver does
// not let be set again compare() finds.
void give_attributes(const Api& api, const AttributeSet& asked, CUgraphNode from, CUgraphNode to) {
  for (int id = 1; id < kAttributes; ++id) {
    if (!asked.test(static_cast<std::size_t>(id))) continue;
    const auto attribute = static_cast<CUlaunchAttributeID>(id);
    CUlaunchAttributeValue wanted{}, given{};
    if (api.cuGraphKernelNodeGetAttribute(from, attribute, &wanted) == CUDA_SUCCESS &&
        api.cuGraphKernelNodeGetAttribute(to, attribute, &given) == CUDA_SUCCESS &&
        // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): a false difference costs a call
        std::memcmp(&wanted, &given, sizeof wanted) != 0)
      static_cast<void>(api.cuGraphKernelNodeSetAttribute(to, attribute, &wanted));
  }
}

}  // namespace

hal::Status take_place(const Api& api, CUgraph graph, CUgraphNode old, CUgraphNode made) {
  std::size_t count = 0;
  if (api.cuGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &count) != CUDA_SUCCESS)
    return hal::fail(hal::Errc::kUnsupported, "a graph does not tell its edges");
  std::vector<CUgraphNode> from(count), to(count);
  std::vector<CUgraphEdgeData> data(count);
  if (count > 0) api.cuGraphGetEdges_v2(graph, from.data(), to.data(), data.data(), &count);
  for (std::size_t i = 0; i < count; ++i) {
    if (from[i] != old && to[i] != old) continue;
    // How an edge of a programmatic event is bound to its kernel is not documented.
    if (!can_be_added(data[i]))
      return hal::fail(hal::Errc::kUnsupported, "an edge begins at an event inside a function");
    const CUgraphNode before = from[i] == old ? made : from[i];
    const CUgraphNode behind = to[i] == old ? made : to[i];
    const CUresult status = api.cuGraphAddDependencies_v2(graph, &before, &behind, &data[i], 1);
    if (status != CUDA_SUCCESS) return failed("an edge of a graph cannot be added", status);
  }
  const CUresult status = api.cuGraphDestroyNode(old);
  return status == CUDA_SUCCESS ? hal::Status()
                                : failed("a node of a graph cannot be destroyed", status);
}

MovedGraph::~MovedGraph() {
  if (graph_ != nullptr) api_.cuGraphDestroy(graph_);
}

hal::Status MovedGraph::clone(CUgraph source, std::span<const CUgraphNode> nodes) {
  if (const CUresult status = api_.cuGraphClone(&graph_, source); status != CUDA_SUCCESS)
    return failed("a graph cannot be cloned", status);
  nodes_.reserve(nodes.size());
  for (const CUgraphNode node : nodes) {
    CUgraphNode copy = nullptr;
    if (api_.cuGraphNodeFindInClone(&copy, node, graph_) != CUDA_SUCCESS) copy = nullptr;
    nodes_.push_back(copy);
  }
  return {};
}

hal::Status MovedGraph::move_all(const Known& known, CUgraph graph, int depth) {
  std::size_t count = 0;
  if (depth > kGraphDepthMax || api_.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS)
    return hal::fail(hal::Errc::kUnsupported, "a graph does not tell its nodes");
  std::vector<CUgraphNode> nodes(count);
  if (count > 0) api_.cuGraphGetNodes(graph, nodes.data(), &count);
  for (const CUgraphNode node : nodes) {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    CUgraph inner = nullptr;
    hal::Status moved;
    if (api_.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
      moved = hal::fail(hal::Errc::kUnsupported, "a node does not tell its type");
    else if (type == CU_GRAPH_NODE_TYPE_KERNEL)
      moved = move(known, graph, node, node);
    else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
             api_.cuGraphChildGraphNodeGetGraph(node, &inner) == CUDA_SUCCESS)
      moved = move_all(known, inner, depth + 1);
    if (!moved) return moved;
  }
  return {};
}

// The node gets the parameters of `like`, which may be itself, on the partition.
hal::Status MovedGraph::move(const Known& known, CUgraph graph, CUgraphNode node,
                             CUgraphNode like) {
  CUDA_KERNEL_NODE_PARAMS parameters{};
  CUresult status = api_.cuGraphKernelNodeGetParams_v2(like, &parameters);
  if (status != CUDA_SUCCESS) return failed("a kernel node does not tell its parameters", status);
  // What the driver calls a function may be a kernel (cudart launches those by that name).
  if (parameters.kern == nullptr && known.kernels.is_kernel(api_, parameters.func))
    parameters.kern = reinterpret_cast<CUkernel>(parameters.func);
  CopiedArguments arguments;
  const bool packed = parameters.kernelParams == nullptr && parameters.extra != nullptr;
  if (!packed) {
    if (const hal::Status copied =
            arguments.copy(known.kernels.layout(handle_of(parameters)), parameters.kernelParams);
        !copied)
      return copied;
    parameters.kernelParams = arguments.pointers();
  }
  // Given parameters, the node of a module's function returns to the function's own context
  // (tests/differential, graph_function_on_a_green_stream_given_parameters).
  if (parameters.kern == nullptr) return capture_again(known, graph, node, parameters);
  parameters.func = nullptr;
  parameters.ctx = partition_.context();
  status = api_.cuGraphKernelNodeSetParams_v2(node, &parameters);
  return status == CUDA_SUCCESS ? hal::Status()
                                : failed("a kernel node cannot be moved to a partition", status);
}

hal::Status MovedGraph::renew(std::size_t at, CUgraphNode like,
                              const hal::GraphDescription::Node& wanted) {
  waits_ = nullptr;
  const CUgraphNode node = nodes_[at];
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  if (node == nullptr || api_.cuGraphNodeGetType(like, &type) != CUDA_SUCCESS)
    return hal::fail(hal::Errc::kUnsupported, "a node does not tell its type");
  const GraphReader reader(api_, inspector_, hash_);
  Known known{reader.kernels(), {}};
  known.attributes.set();
  CUresult status = CUDA_ERROR_NOT_SUPPORTED;
  if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
    if (const hal::Status moved = move(known, graph_, node, like); !moved) return moved;
    CUDA_KERNEL_NODE_PARAMS given{};
    // Its attributes were compared when it was made, and are no parameters.
    if (nodes_[at] == node && api_.cuGraphKernelNodeGetParams_v2(node, &given) == CUDA_SUCCESS &&
        given.ctx == partition_.context()) {
      const auto read = reader.kernel(given, wanted.attributes);
      if (read && *read == wanted) return {};
    }
    status = CUDA_SUCCESS;
  } else if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    CUDA_MEMCPY3D box{};
    status = api_.cuGraphMemcpyNodeGetParams(like, &box);
    if (status == CUDA_SUCCESS) status = api_.cuGraphMemcpyNodeSetParams(node, &box);
  } else if (type == CU_GRAPH_NODE_TYPE_MEMSET) {
    CUDA_MEMSET_NODE_PARAMS fill{};
    status = api_.cuGraphMemsetNodeGetParams(like, &fill);
    if (status == CUDA_SUCCESS) status = api_.cuGraphMemsetNodeSetParams(node, &fill);
  } else if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
    if (const hal::Status replaced = replace_child(known, at, like); !replaced) return replaced;
    status = CUDA_SUCCESS;
  }
  if (status != CUDA_SUCCESS) return failed("a node of a graph cannot be changed", status);
  const hal::Result<GraphReading> read = reader.read_node(nodes_[at]);
  if (!read) return tl::unexpected(read.error());
  const bool there =
      std::all_of(read->contexts.begin(), read->contexts.end(),
                  [&](CUcontext context) { return context == partition_.context(); });
  if (there && read->description.nodes[0] == wanted) return {};
  return hal::fail(hal::Errc::kInternal, "a node that was changed for a partition is not the same");
}

hal::Status MovedGraph::replace_child(const Known& known, std::size_t at, CUgraphNode like) {
  CUgraph source = nullptr, inner = nullptr;
  CUgraphNode made = nullptr;
  CUresult status = api_.cuGraphChildGraphNodeGetGraph(like, &source);
  if (status == CUDA_SUCCESS)
    status = api_.cuGraphAddChildGraphNode(&made, graph_, nullptr, 0, source);
  if (status == CUDA_SUCCESS) status = api_.cuGraphChildGraphNodeGetGraph(made, &inner);
  if (status != CUDA_SUCCESS) return failed("a child graph cannot be replaced", status);
  if (const hal::Status placed = take_place(api_, graph_, nodes_[at], made); !placed) return placed;
  nodes_[at] = made;
  return move_all(known, inner, 1);
}

// A function of a module has one context, which parameters cannot change; a launch of it on a
// stream of the partition has that of the stream. The new node takes the old one's place.
hal::Status MovedGraph::capture_again(const Known& known, CUgraph graph, CUgraphNode node,
                                      const CUDA_KERNEL_NODE_PARAMS& parameters) {
  std::vector<CUlaunchAttribute> attributes = attributes_of(api_, known.attributes, node);
  CUlaunchConfig config{};
  config.gridDimX = parameters.gridDimX;
  config.gridDimY = parameters.gridDimY;
  config.gridDimZ = parameters.gridDimZ;
  config.blockDimX = parameters.blockDimX;
  config.blockDimY = parameters.blockDimY;
  config.blockDimZ = parameters.blockDimZ;
  config.sharedMemBytes = parameters.sharedMemBytes;
  config.attrs = attributes.data();
  config.numAttrs = static_cast<unsigned>(attributes.size());
  CUgraphNode made = nullptr;
  if (const hal::Status captured = capture(graph, config, parameters, &made); !captured)
    return captured;
  give_attributes(api_, known.attributes, node, made);

  if (const hal::Status placed = take_place(api_, graph, node, made); !placed) return placed;
  std::replace(nodes_.begin(), nodes_.end(), node, made);
  return {};
}

hal::Status MovedGraph::capture(CUgraph graph, CUlaunchConfig config,
                                const CUDA_KERNEL_NODE_PARAMS& parameters, CUgraphNode* made) {
  if (waits_ != nullptr) hal::LockRule::waits("a capture of ours");
  if (captures_ != nullptr) {
    const CaptureGuard::Locked locked = captures_->lock(waits_);
    if (locked == CaptureGuard::Locked::kBusy)
      return hal::fail(hal::Errc::kBusy, "a call that concerns the whole context is made");
    if (locked == CaptureGuard::Locked::kNoMore)
      return hal::fail(hal::Errc::kBusy, "the process ends");
  }
  const hal::Result<CUstream> own = partition_.capture_stream();  // made by one thread at a time
  CUstream const stream = own ? *own : nullptr;
  config.hStream = stream;
  CUresult status = own ? api_.cuStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0,
                                                           CU_STREAM_CAPTURE_MODE_RELAXED)
                        : static_cast<CUresult>(own.error().native);
  if (status == CUDA_SUCCESS) {
    status =
        api_.cuLaunchKernelEx(&config, parameters.func, parameters.kernelParams, parameters.extra);
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUgraphNode* tail = nullptr;
    std::size_t count = 0;
    if (status == CUDA_SUCCESS)
      status = api_.cuStreamGetCaptureInfo_v3(stream, &capturing, nullptr, nullptr, &tail, nullptr,
                                              &count);
    if (status == CUDA_SUCCESS && count == 1) *made = tail[0];
    CUgraph ended = nullptr;
    const CUresult end = api_.cuStreamEndCapture(stream, &ended);
    if (status == CUDA_SUCCESS) status = end;
  }
  if (captures_ != nullptr) captures_->unlock();
  if (status != CUDA_SUCCESS) return failed("a function cannot be captured on a partition", status);
  if (*made == nullptr)
    return hal::fail(hal::Errc::kUnsupported, "a captured function does not tell its node");
  return {};
}

hal::Status MovedGraph::compare(const GraphReader& reader, const hal::GraphShape& wanted) {
  const hal::Result<GraphReading> reading = reader.read(graph_);
  if (!reading) return tl::unexpected(reading.error());
  shape_ = reading->description.shape();
  if (shape_ != wanted)
    return hal::fail(hal::Errc::kInternal, "a graph that was made for a partition is not the same");
  for (const CUcontext context : reading->contexts)
    if (context != partition_.context())
      return hal::fail(hal::Errc::kInternal, "a kernel of a graph does not run on its partition");
  return {};
}

}  // namespace vitamin::cuda
