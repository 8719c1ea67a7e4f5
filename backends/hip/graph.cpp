// SPDX-License-Identifier: Apache-2.0
#include "backends/hip/graph.h"

#include <algorithm>
#include <utility>

#include "backends/hip/status.h"
#include "hal/content_hash.h"

namespace vitamin::hip {
namespace {

constexpr int kDepthMax = 16;  // of graphs inside graphs

hal::KernelLaunch launch_of(const hipKernelNodeParams& parameters, const Kernel& kernel) {
  hal::KernelLaunch launch;
  launch.kernel = &kernel;
  launch.grid = {parameters.gridDim.x, parameters.gridDim.y, parameters.gridDim.z};
  launch.block = {parameters.blockDim.x, parameters.blockDim.y, parameters.blockDim.z};
  launch.shared_bytes = parameters.sharedMemBytes;
  return launch;
}

class ChainReader {
 public:
  ChainReader(const Api& api, KernelOfStub kernel_of) : api_(api), kernel_of_(kernel_of) {}
  hal::Status read(hipGraph_t graph, int depth);
  std::vector<ChainNode> nodes;

 private:
  static tl::unexpected<hal::Error> branches() {
    return hal::fail(hal::Errc::kUnsupported, "the graph has branches");
  }
  hal::Status add(hipGraphNode_t node, int depth);
  const Api& api_;
  const KernelOfStub kernel_of_;
};

hal::Status ChainReader::read(hipGraph_t graph, int depth) {
  std::size_t count = 0;
  if (const hipError_t status = api_.hipGraphGetNodes(graph, nullptr, &count); status != hipSuccess)
    return failed("a graph does not tell its nodes", status);
  // 5.2.3 ends the process for an empty graph inside a graph.
  if (count == 0) return hal::fail(hal::Errc::kInvalidArgument, "a graph is empty");
  std::vector<hipGraphNode_t> all(count);
  static_cast<void>(api_.hipGraphGetNodes(graph, all.data(), &count));
  hipGraphNode_t node = nullptr;
  for (const hipGraphNode_t each : all) {
    std::size_t before = 0, behind = 0;
    if (api_.hipGraphNodeGetDependencies(each, nullptr, &before) != hipSuccess ||
        api_.hipGraphNodeGetDependentNodes(each, nullptr, &behind) != hipSuccess)
      return failed("a node does not tell its dependencies", hipErrorUnknown);
    if (before > 1 || behind > 1 || (before == 0 && node != nullptr)) return branches();
    if (before == 0) node = each;
  }
  for (std::size_t read = 0; node != nullptr; ++read) {
    if (read == count) return branches();
    if (const hal::Status status = add(node, depth); !status) return status;
    hipGraphNode_t next = nullptr;
    std::size_t one = 0;
    if (api_.hipGraphNodeGetDependentNodes(node, nullptr, &one) == hipSuccess && one == 1)
      static_cast<void>(api_.hipGraphNodeGetDependentNodes(node, &next, &one));
    if (next == nullptr && read + 1 < count) return branches();  // a circle besides
    node = next;
  }
  return {};
}

hal::Status ChainReader::add(hipGraphNode_t node, int depth) {
  ChainNode added;
  if (depth == 0) added.handle = node;
  hipGraphNodeType type{};
  if (const hipError_t status = api_.hipGraphNodeGetType(node, &type); status != hipSuccess)
    return failed("a node does not tell its type", status);
  added.kind = graph_node_kind(type, api_.version);
  switch (added.kind) {
    case GraphNodeKind::kFill:
    case GraphNodeKind::kEmpty:
      break;
    case GraphNodeKind::kKernel: {
      hipKernelNodeParams parameters{};
      if (const hipError_t status = api_.hipGraphKernelNodeGetParams(node, &parameters);
          status != hipSuccess)
        return failed("a node does not tell its kernel", status);
      const Kernel* const kernel = kernel_of_(parameters.func);
      if (kernel == nullptr)
        return hal::fail(hal::Errc::kInvalidArgument, "a kernel is no host stub");
      added.launch = launch_of(parameters, *kernel);
      break;
    }
    case GraphNodeKind::kGraph: {
      nodes.push_back(added);
      hipGraph_t child = nullptr;
      if (depth == kDepthMax || api_.hipGraphChildGraphNodeGetGraph(node, &child) != hipSuccess)
        return hal::fail(hal::Errc::kInvalidArgument, "a graph inside it cannot be read");
      return read(child, depth + 1);
    }
    default:
      return hal::fail(hal::Errc::kInvalidArgument, "a node stays where the application put it");
  }
  nodes.push_back(added);
  return {};
}

bool holds_graphs(const std::vector<ChainNode>& nodes) {
  return std::any_of(nodes.begin(), nodes.end(),
                     [](const ChainNode& node) { return node.kind == GraphNodeKind::kGraph; });
}

}  // namespace

hal::Result<std::vector<ChainNode>> read_chain(const Api& api, hipGraph_t graph,
                                               KernelOfStub kernel_of) {
  if (api.hipGraphGetNodes == nullptr || api.hipGraphNodeGetType == nullptr ||
      api.hipGraphNodeGetDependencies == nullptr || api.hipGraphNodeGetDependentNodes == nullptr ||
      api.hipGraphKernelNodeGetParams == nullptr || api.hipGraphChildGraphNodeGetGraph == nullptr)
    return hal::fail(hal::Errc::kUnavailable, "this runtime does not tell what a graph holds");
  ChainReader reader(api, kernel_of);
  if (const hal::Status status = reader.read(graph, 0); !status)
    return tl::unexpected(status.error());
  return std::move(reader.nodes);
}

hal::Result<hal::GraphContents> ChainGraph::look(hal::KernelInspector&) {
  hal::GraphContents contents{shape(), {}};
  const std::lock_guard lock(mutex_);
  for (const ChainNode& node : nodes_)
    if (node.kind == GraphNodeKind::kKernel) contents.kernels.push_back(node.launch);
  return contents;
}

hal::GraphShape ChainGraph::shape() const {
  hal::GraphDescription description;
  const std::lock_guard lock(mutex_);
  for (const ChainNode& node : nodes_) {
    hal::ContentHash hash;
    hash.add(static_cast<std::uint64_t>(node.kind));
    if (node.kind == GraphNodeKind::kKernel) {
      const std::string& name = static_cast<const Kernel*>(node.launch.kernel)->name;
      hash.bytes(name.data(), name.size());
      for (const hal::Dim3& size : {node.launch.grid, node.launch.block})
        for (const std::uint32_t part : {size.x, size.y, size.z}) hash.add(part);
      hash.add(node.launch.shared_bytes);
    }
    const auto at = static_cast<std::uint32_t>(description.nodes.size());
    description.nodes.push_back({hash.value(), hash.value(), hash.value()});
    if (at > 0) description.edges.push_back({at - 1, at, 0});
  }
  return description.shape();
}

hal::Followed ChainGraph::set_kernel(hipGraphNode_t node, const hipKernelNodeParams& parameters) {
  const Kernel* const kernel = kernel_of_(parameters.func);
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(nodes_.begin(), nodes_.end(), [&](const ChainNode& known) {
    return known.handle == node && known.kind == GraphNodeKind::kKernel;
  });
  if (kernel == nullptr || node == nullptr || found == nodes_.end()) return hal::Followed::kNot;
  found->launch = launch_of(parameters, *kernel);
  return hal::Followed::kNodes;
}

// Handles stay those of the graph that was instantiated. A graph inside it takes what the other one
// has as far as that goes: which nodes those are is not known.
hal::Followed ChainGraph::replace(const std::vector<ChainNode>& nodes) {
  const std::lock_guard lock(mutex_);
  const bool same =
      std::equal(nodes_.begin(), nodes_.end(), nodes.begin(), nodes.end(),
                 [](const ChainNode& a, const ChainNode& b) { return a.kind == b.kind; });
  if (!same || holds_graphs(nodes_)) return hal::Followed::kNot;
  for (std::size_t i = 0; i < nodes.size(); ++i) nodes_[i].launch = nodes[i].launch;
  return hal::Followed::kReplacedAlike;
}

}  // namespace vitamin::hip
