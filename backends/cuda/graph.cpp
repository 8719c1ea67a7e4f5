// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/graph.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "backends/cuda/green_context.h"
#include "backends/cuda/moved_graph.h"
#include "backends/cuda/status.h"

namespace vitamin::cuda {
namespace {

class ExecutableGraph final : public hal::GraphExecutable {
 public:
  ExecutableGraph(const Api& api, CUgraphExec executable, bool updatable)
      : api_(api), executable_(executable), updatable_(updatable) {}
  ~ExecutableGraph() override { api_.cuGraphExecDestroy(executable_); }
  ExecutableGraph(const ExecutableGraph&) = delete;
  ExecutableGraph& operator=(const ExecutableGraph&) = delete;

  hal::NativeStatus launch(hal::Queue& queue) noexcept override {
    return api_.cuGraphLaunch(executable_, static_cast<CUstream>(queue.native()));
  }
  bool update(CUgraph graph) {
    CUgraphExecUpdateResultInfo result{};
    return updatable_ && api_.cuGraphExecUpdate_v2(executable_, graph, &result) == CUDA_SUCCESS;
  }

 private:
  const Api& api_;
  CUgraphExec executable_;
  bool updatable_;  // no node of it was disabled
};

}  // namespace

bool has_graphs(const Api& api) {
  return api.cuGraphClone && api.cuGraphDestroy && api.cuGraphDestroyNode && api.cuGraphGetNodes &&
         api.cuGraphGetEdges_v2 && api.cuGraphAddDependencies_v2 && api.cuGraphNodeGetType &&
         api.cuGraphNodeFindInClone && api.cuGraphNodeSetEnabled &&
         api.cuGraphChildGraphNodeGetGraph && api.cuGraphKernelNodeGetParams_v2 &&
         api.cuGraphKernelNodeSetParams_v2 && api.cuGraphKernelNodeGetAttribute &&
         api.cuGraphKernelNodeSetAttribute && api.cuGraphMemcpyNodeGetParams &&
         api.cuGraphMemcpyNodeSetParams && api.cuGraphMemsetNodeGetParams &&
         api.cuGraphMemsetNodeSetParams && api.cuGraphInstantiateWithFlags &&
         api.cuGraphExecUpdate_v2 && api.cuGraphExecDestroy && api.cuGraphLaunch &&
         api.cuStreamBeginCaptureToGraph && api.cuStreamEndCapture &&
         api.cuStreamGetCaptureInfo_v3 && api.cuKernelGetParamInfo && api.cuFuncGetParamInfo;
}

hal::Result<std::shared_ptr<RememberedGraph>> RememberedGraph::clone(
    const Api& api, CUgraph graph, const RememberOptions& options) {
  CUgraph copy = nullptr;
  if (const CUresult status = api.cuGraphClone(&copy, graph); status != CUDA_SUCCESS)
    return failed("a graph cannot be cloned", status);
  return std::shared_ptr<RememberedGraph>(new RememberedGraph(api, copy, options));
}

RememberedGraph::~RememberedGraph() { api_.cuGraphDestroy(graph_); }

hal::Result<GraphReading> RememberedGraph::read(hal::KernelInspector& kernels) {
  hal::Result<GraphReading> reading = GraphReader(api_, kernels, options_.hash).read(graph_);
  if (reading) shape_ = reading->description.shape();
  return reading;
}

hal::Result<hal::GraphContents> RememberedGraph::look(hal::KernelInspector& kernels) {
  const std::lock_guard lock(mutex_);
  hal::Result<GraphReading> reading = read(kernels);
  if (!reading) return tl::unexpected(reading.error());
  for (const CUcontext context : reading->contexts)
    if (context != options_.home)
      return hal::fail(hal::Errc::kInvalidArgument,
                       "a kernel of the graph belongs to another context");
  return hal::GraphContents{*shape_, std::move(reading->kernels)};
}

hal::Result<std::shared_ptr<hal::GraphExecutable>> RememberedGraph::make(
    hal::KernelInspector& kernels, hal::PhysicalContext& entry,
    std::shared_ptr<hal::GraphExecutable> older, bool may_wait) {
  auto& context = static_cast<GreenContext&>(entry);
  MovedGraph moved(api_, kernels, context, options_);
  std::vector<CUgraphNode> disabled;
  hal::GraphShape shape;
  {
    // The application's changes do not wait for what follows: that goes on with a copy.
    const std::lock_guard lock(mutex_);
    if (!shape_) {
      if (const auto reading = read(kernels); !reading) return tl::unexpected(reading.error());
    }
    shape = *shape_;
    disabled = disabled_;
    if (const hal::Status status = moved.clone(graph_, disabled); !status)
      return tl::unexpected(status.error());
  }
  if (const hal::Status status = moved.move(may_wait); !status)
    return tl::unexpected(status.error());
  if (const hal::Status same = moved.compare(shape); !same) return tl::unexpected(same.error());

  auto* const known = static_cast<ExecutableGraph*>(older.get());
  if (known != nullptr && disabled.empty() && known->update(moved.graph())) {
    known->shape = moved.shape();
    return older;
  }
  CUgraphExec made = nullptr;
  CUresult status = api_.cuGraphInstantiateWithFlags(&made, moved.graph(), options_.flags);
  if (status != CUDA_SUCCESS) return failed("a graph cannot be made executable", status);
  auto executable = std::make_shared<ExecutableGraph>(api_, made, disabled.empty());
  executable->shape = moved.shape();
  for (const CUgraphNode node : disabled) {
    const CUgraphNode there = moved.find(node);
    status =
        there != nullptr ? api_.cuGraphNodeSetEnabled(made, there, 0) : CUDA_ERROR_INVALID_VALUE;
    if (status != CUDA_SUCCESS) return failed("a node cannot be disabled", status);
  }
  return executable;
}

// --- changes -----------------------------------------------------------------------------------

CUgraphNode RememberedGraph::own_node(CUgraphNode node) {
  CUgraphNode own = nullptr;
  return api_.cuGraphNodeFindInClone(&own, node, graph_) == CUDA_SUCCESS ? own : nullptr;
}

bool RememberedGraph::changed(CUresult status) {
  shape_.reset();
  return status == CUDA_SUCCESS;
}

bool RememberedGraph::replace(CUgraph graph) {
  const std::lock_guard lock(mutex_);
  CUgraph copy = nullptr;
  // The driver does not say which of the new nodes is disabled.
  if (!disabled_.empty() || api_.cuGraphClone(&copy, graph) != CUDA_SUCCESS) return false;
  api_.cuGraphDestroy(std::exchange(graph_, copy));
  return changed(CUDA_SUCCESS);
}

bool RememberedGraph::set_kernel(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS parameters) {
  const std::lock_guard lock(mutex_);
  const CUgraphNode own = own_node(node);
  if (parameters.func == nullptr && parameters.ctx == nullptr) parameters.ctx = options_.home;
  return own != nullptr && changed(api_.cuGraphKernelNodeSetParams_v2(own, &parameters));
}

bool RememberedGraph::set_copy(CUgraphNode node, const CUDA_MEMCPY3D& box) {
  const std::lock_guard lock(mutex_);
  const CUgraphNode own = own_node(node);
  return own != nullptr && changed(api_.cuGraphMemcpyNodeSetParams(own, &box));
}

bool RememberedGraph::set_fill(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS& fill) {
  const std::lock_guard lock(mutex_);
  const CUgraphNode own = own_node(node);
  return own != nullptr && changed(api_.cuGraphMemsetNodeSetParams(own, &fill));
}

bool RememberedGraph::set_enabled(CUgraphNode node, bool enabled) {
  const std::lock_guard lock(mutex_);
  const CUgraphNode own = own_node(node);
  if (own == nullptr) return false;
  std::erase(disabled_, own);
  if (!enabled) disabled_.push_back(own);
  return true;
}

}  // namespace vitamin::cuda
