// SPDX-License-Identifier: Apache-2.0
//
// Executable graphs. A graph becomes lanes: in-order queues, one for each chain of nodes that share
// a context, with events where a dependency crosses from one lane to another. So a node runs on the
// SMs of its own context whatever stream the graph is launched into (measured on an H200).

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "backends/soft/libcuda/capture.h"
#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/graph.h"
#include "backends/soft/libcuda/graph_memory.h"
#include "backends/soft/libcuda/graph_params.h"
#include "backends/soft/libcuda/launches.h"
#include "backends/soft/libcuda/modules.h"

namespace vitamin::soft::driver {
namespace {

constexpr std::size_t kNoLane = static_cast<std::size_t>(-1);

GraphExec* find_exec(CUgraphExec handle) {
  return driver().find<GraphExec>(handle, Kind::kGraphExec);
}

std::shared_ptr<vitamin::soft::Event> make_event(Engine& engine) {
  vitamin::soft::Event* event = nullptr;
  if (engine.create_event(&event) != kOk) return nullptr;
  return {event, EventDeleter{&engine}};
}

// Lists the nodes of a graph, those of child graphs between an entry and an exit of their own.
// Answers false when there is a cycle.
bool flatten(const Graph& graph, const std::vector<std::size_t>& before, GraphExec& exec,
             std::vector<std::size_t>* leaves) {
  const std::vector<GraphNode*> order = topological_order(graph);
  if (order.empty() && !graph.nodes.empty()) return false;
  std::map<const GraphNode*, std::size_t> ends;
  for (const GraphNode* node : order) {
    ExecNode made;
    made.source = node;
    made.type = node->type;
    made.context = node->context;
    made.command = node->command;
    made.dependencies = node->dependencies.empty() ? before : std::vector<std::size_t>{};
    for (const GraphNode* dependency : node->dependencies)
      made.dependencies.push_back(ends.at(dependency));
    const auto* child = std::get_if<ChildGraphCommand>(&node->command);
    const std::shared_ptr<GraphBody> body = child != nullptr ? child->body : nullptr;
    if (body != nullptr) made.command = EmptyCommand{};
    exec.nodes.push_back(std::move(made));
    std::size_t end = exec.nodes.size() - 1;
    exec.index[node] = end;
    if (body != nullptr) {
      std::vector<std::size_t> inner;
      if (!flatten(body->graph, {end}, exec, &inner)) return false;
      ExecNode exit;
      exit.dependencies = inner.empty() ? std::vector<std::size_t>{end} : inner;
      exit.command = EmptyCommand{};
      exec.nodes.push_back(std::move(exit));
      exec.nodes[end].inner = exec.nodes.size() - 1 - end;
      end = exec.nodes.size() - 1;
    }
    ends[node] = end;
  }
  for (const GraphNode* node : order)
    if (node->dependents.empty()) leaves->push_back(ends.at(node));
  return true;
}

// NVIDIA's driver ends with SIGSEGV where it looks at a kernel whose code was unloaded
// (bench/results/engines/README.md).
void expect_loaded(const KernelCommand& kernel, const char* what) {
  bool is_kernel = false;
  const Function* const found = find_function(kernel.function, &is_kernel);
  if (found != nullptr && found->image == kernel.image) return;
  std::fprintf(stderr, "software driver: a graph with a kernel whose code was unloaded is %s\n",
               what);
  std::abort();
}

// A node without a context (host functions, empty nodes) runs where its neighbour does.
CUresult place_nodes(GraphExec& exec, Context& fallback) {
  for (ExecNode& node : exec.nodes) {
    if (node.context == nullptr)
      node.context =
          node.dependencies.empty() ? &fallback : exec.nodes[node.dependencies.front()].context;
    if (!node.context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (node.context->device != fallback.device) return CUDA_ERROR_NOT_SUPPORTED;
    if (const auto* kernel = std::get_if<KernelCommand>(&node.command)) {
      expect_loaded(*kernel, "made executable");
      if (const CUresult error = check_placement(*kernel, *node.context); error != CUDA_SUCCESS)
        return error;
    }
  }
  return CUDA_SUCCESS;
}

CUresult make_lane(GraphExec& exec, Context& context) {
  Engine& engine = *exec.device->engine;
  QueueOptions options;
  options.sms = context.resource.sms;
  options.clusters = context.clusters;
  options.sync_group = context.sync_group;
  Queue* queue = nullptr;
  if (const int status = engine.create_queue(options, &queue); status != kOk)
    return result_of(status);
  exec.lanes.push_back(ExecLane{&context, QueueRef(queue, QueueDeleter{&engine})});
  return CUDA_SUCCESS;
}

// A node continues the lane of a dependency that no node continued yet; otherwise it opens one.
CUresult assign_lanes(GraphExec& exec) {
  std::vector<std::size_t> last_of_lane;
  for (std::size_t i = 0; i < exec.nodes.size(); ++i) {
    ExecNode& node = exec.nodes[i];
    node.lane = kNoLane;
    for (const std::size_t dependency : node.dependencies) {
      const std::size_t lane = exec.nodes[dependency].lane;
      if (last_of_lane[lane] != dependency || exec.lanes[lane].context != node.context) continue;
      node.lane = lane;
      break;
    }
    if (node.lane == kNoLane) {
      if (const CUresult error = make_lane(exec, *node.context); error != CUDA_SUCCESS)
        return error;
      node.lane = exec.lanes.size() - 1;
      last_of_lane.push_back(i);
    }
    last_of_lane[node.lane] = i;
    for (const std::size_t dependency : node.dependencies)
      if (exec.nodes[dependency].lane != node.lane) exec.nodes[dependency].needs_event = true;
  }
  // The launching stream goes on behind the last node of every lane.
  for (const std::size_t last : last_of_lane) exec.nodes[last].needs_event = true;
  for (ExecNode& node : exec.nodes) {
    if (!node.needs_event) continue;
    node.event = make_event(*exec.device->engine);
    if (node.event == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

CUresult submit_node(GraphExec& exec, ExecNode& node) {
  Engine& engine = *exec.device->engine;
  Queue* queue = exec.lanes[node.lane].queue.get();
  for (const std::size_t dependency : node.dependencies) {
    const ExecNode& before = exec.nodes[dependency];
    if (before.lane == node.lane) continue;
    if (const int status = engine.wait(queue, before.event.get()); status != kOk)
      return result_of(status);
  }
  if (const auto* kernel = std::get_if<KernelCommand>(&node.command); kernel && node.enabled)
    expect_loaded(*kernel, "launched");
  const CUresult submitted =
      node.enabled ? submit(*node.context, queue, node.command) : result_of(engine.marker(queue));
  if (submitted != CUDA_SUCCESS || node.event == nullptr) return submitted;
  return result_of(engine.record(queue, node.event.get()));
}

// Compares what an update may not change. Null: nothing; otherwise the offending new node.
const ExecNode* first_difference(const GraphExec& exec, const GraphExec& other,
                                 CUgraphExecUpdateResult* why) {
  *why = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  for (std::size_t i = 0; i < other.nodes.size(); ++i) {
    const ExecNode& now = other.nodes[i];
    if (i >= exec.nodes.size() || exec.nodes[i].dependencies != now.dependencies) {
      *why = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    } else if (exec.nodes[i].type != now.type) {
      *why = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    } else if (exec.nodes[i].context != now.context) {
      *why = CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
    }
    if (*why != CU_GRAPH_EXEC_UPDATE_SUCCESS) return &now;
  }
  if (exec.nodes.size() != other.nodes.size()) *why = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  return nullptr;
}

CUresult update_exec(GraphExec& exec, const Graph& graph, CUgraphExecUpdateResult* why,
                     CUgraphNode* offender) {
  GraphExec other;
  other.device = exec.device;
  std::vector<std::size_t> leaves;
  Context* current = nullptr;
  if (const CUresult error = current_context(&current); error != CUDA_SUCCESS) return error;
  if (!flatten(graph, {}, other, &leaves)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = place_nodes(other, *current); error != CUDA_SUCCESS) return error;
  const ExecNode* difference = first_difference(exec, other, why);
  if (difference != nullptr)
    *offender = reinterpret_cast<CUgraphNode>(const_cast<GraphNode*>(difference->source));
  if (*why != CU_GRAPH_EXEC_UPDATE_SUCCESS) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  // It keeps being named by the nodes of the graph that it was made from.
  for (std::size_t i = 0; i < exec.nodes.size(); ++i)
    exec.nodes[i].command = std::move(other.nodes[i].command);
  return CUDA_SUCCESS;
}

CUresult instantiate_handle(CUgraph graph_handle, cuuint64_t flags, CUgraphExec* handle) {
  Graph* graph = find_graph(graph_handle);
  if (graph == nullptr || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GraphExec* exec = nullptr;
  const CUresult made = instantiate(*graph, flags, &exec);
  if (made == CUDA_SUCCESS) *handle = reinterpret_cast<CUgraphExec>(exec);
  return made;
}

// Finds the executable node that was made from a node of the graph.
ExecNode* exec_node(CUgraphExec exec_handle, CUgraphNode node_handle) {
  GraphExec* exec = find_exec(exec_handle);
  const GraphNode* node = find_node(node_handle);
  if (exec == nullptr || node == nullptr) return nullptr;
  const auto found = exec->index.find(node);
  return found == exec->index.end() ? nullptr : &exec->nodes[found->second];
}

// Replaces what a node does; where it runs cannot change any more.
template <class Make>
CUresult set_exec_params(CUgraphExec exec, CUgraphNode handle, CUgraphNodeType type, Make make) {
  const std::lock_guard lock(driver().mutex);
  ExecNode* node = exec_node(exec, handle);
  if (node == nullptr || node->type != type) return CUDA_ERROR_INVALID_VALUE;
  NodeContent content{node->command, node->context};
  if (const CUresult error = make(&content); error != CUDA_SUCCESS) return error;
  if (content.context != node->context) return CUDA_ERROR_INVALID_VALUE;
  node->command = std::move(content.command);
  return CUDA_SUCCESS;
}

CUresult set_exec_kernel(CUgraphExec exec, CUgraphNode node,
                         const CUDA_KERNEL_NODE_PARAMS& parameters) {
  return set_exec_params(exec, node, CU_GRAPH_NODE_TYPE_KERNEL, [&](NodeContent* content) {
    CUDA_KERNEL_NODE_PARAMS asked = parameters;
    // No context given: the node keeps its own.
    if (asked.ctx == nullptr) asked.ctx = reinterpret_cast<CUcontext>(content->context);
    if (asked.ctx != reinterpret_cast<CUcontext>(content->context)) return CUDA_ERROR_INVALID_VALUE;
    return kernel_content(asked, content);
  });
}

// The nodes of a child graph do what those of another graph of the same shape do.
CUresult set_exec_child(CUgraphExec exec_handle, CUgraphNode node_handle, CUgraph child_handle) {
  const std::lock_guard lock(driver().mutex);
  GraphExec* exec = find_exec(exec_handle);
  const ExecNode* node = exec_node(exec_handle, node_handle);
  const Graph* child = find_graph(child_handle);
  if (node == nullptr || node->type != CU_GRAPH_NODE_TYPE_GRAPH || child == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  GraphExec other;
  other.device = exec->device;
  ExecNode entry;
  entry.context = node->context;
  entry.command = EmptyCommand{};
  other.nodes.push_back(std::move(entry));
  std::vector<std::size_t> leaves;
  if (!flatten(*child, {0}, other, &leaves)) return CUDA_ERROR_INVALID_VALUE;
  if (other.nodes.size() != node->inner) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  if (const CUresult error = place_nodes(other, *node->context); error != CUDA_SUCCESS)
    return error;
  const auto begin = static_cast<std::size_t>(node - exec->nodes.data());
  for (std::size_t i = 1; i < other.nodes.size(); ++i) {
    for (std::size_t& dependency : other.nodes[i].dependencies) dependency += begin;
    const ExecNode& old = exec->nodes[begin + i];
    if (old.type != other.nodes[i].type || old.context != other.nodes[i].context ||
        old.dependencies != other.nodes[i].dependencies)
      return CUDA_ERROR_INVALID_VALUE;
  }
  for (std::size_t i = 1; i < other.nodes.size(); ++i)
    exec->nodes[begin + i].command = std::move(other.nodes[i].command);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult instantiate(Graph& graph, cuuint64_t flags, GraphExec** result) {
  constexpr cuuint64_t kFlags = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if ((flags & ~kFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  Context* current = nullptr;
  if (const CUresult error = current_context(&current); error != CUDA_SUCCESS) return error;
  auto exec = std::make_unique<GraphExec>();
  exec->flags = flags;
  std::vector<std::size_t> leaves;
  if (!flatten(graph, {}, *exec, &leaves)) return CUDA_ERROR_INVALID_VALUE;
  // A graph runs on the device of its nodes; one without any, on the current one.
  for (const ExecNode& node : exec->nodes) {
    if (node.context == nullptr) continue;
    if (node.context->device != current->device) current = node.context;
    break;
  }
  exec->device = current->device;
  if (const CUresult error = place_nodes(*exec, *current); error != CUDA_SUCCESS) return error;
  if (const CUresult error = assign_lanes(*exec); error != CUDA_SUCCESS) return error;
  exec->begun = make_event(*exec->device->engine);
  exec->done = make_event(*exec->device->engine);
  if (exec->begun == nullptr || exec->done == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *result = driver().own(std::move(exec), Kind::kGraphExec);
  return CUDA_SUCCESS;
}

CUresult launch_graph(GraphExec& exec, Stream& stream) {
  if (stream.context->device != exec.device) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = admit_to_stream(stream); error != CUDA_SUCCESS) return error;
  Engine& engine = *exec.device->engine;
  Queue* queue = stream.queue.get();
  // One executable graph never overlaps itself: a launch is behind the one before.
  int status = engine.wait(queue, exec.done.get());
  if (status != kOk) return result_of(status);
  if (const CUresult error = back_graph(exec, stream, queue); error != CUDA_SUCCESS) return error;
  status = engine.record(queue, exec.begun.get());
  for (ExecLane& lane : exec.lanes)
    if (status == kOk) status = engine.wait(lane.queue.get(), exec.begun.get());
  if (status != kOk) return result_of(status);
  for (ExecNode& node : exec.nodes) {
    if (const CUresult error = submit_node(exec, node); error != CUDA_SUCCESS) return error;
  }
  for (const ExecNode& node : exec.nodes) {
    if (node.event == nullptr) continue;
    if (status = engine.wait(queue, node.event.get()); status != kOk) return result_of(status);
  }
  note_graph_launch(exec);
  status = engine.record(queue, exec.done.get());
  stream.work_ticket = engine.last_ticket(queue);
  return result_of(status);
}

// --------------------------------------------------------------------------------- instantiation

CUresult api::cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* offender, char*,
                                 size_t) {
  const std::lock_guard lock(driver().mutex);
  if (offender != nullptr) *offender = nullptr;
  return instantiate_handle(graph, 0, exec);
}
CUresult api::cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* offender, char*,
                                    size_t) {
  const std::lock_guard lock(driver().mutex);
  if (offender != nullptr) *offender = nullptr;
  return instantiate_handle(graph, 0, exec);
}
CUresult api::cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph,
                                          unsigned long long flags) {
  const std::lock_guard lock(driver().mutex);
  return instantiate_handle(graph, flags, exec);
}
CUresult api::cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  const std::lock_guard lock(driver().mutex);
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  parameters->hErrNode_out = nullptr;
  const CUresult made = instantiate_handle(graph, parameters->flags, exec);
  parameters->result_out =
      made == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return made;
}

CUresult api::cuGraphExecDestroy(CUgraphExec handle) {
  const std::lock_guard lock(driver().mutex);
  GraphExec* exec = find_exec(handle);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  leave_graph_memory(*exec);
  driver().release(exec);
  return CUDA_SUCCESS;
}

CUresult api::cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  const std::lock_guard lock(driver().mutex);
  const GraphExec* exec = find_exec(handle);
  if (exec == nullptr || flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags;
  return CUDA_SUCCESS;
}

CUresult api::cuGraphUpload(CUgraphExec handle, CUstream stream_handle) {
  std::unique_lock lock(driver().mutex);
  Stream* stream = nullptr;
  GraphExec* const exec = find_exec(handle);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = resolve_stream(stream_handle, &stream); error != CUDA_SUCCESS)
    return error;
  if (stream->capture != nullptr) return refuse_in_capture(*stream);
  Engine& engine = stream->engine();
  Queue* const queue = stream->queue.get();
  if (const int status = engine.wait(queue, exec->done.get()); status != kOk)
    return result_of(status);
  if (const CUresult error = back_graph(*exec, *stream, queue); error != CUDA_SUCCESS) return error;
  if (const int status = engine.record(queue, exec->done.get()); status != kOk)
    return result_of(status);
  return enqueue(lock, *stream, EmptyCommand{});
}

CUresult api::cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
  std::unique_lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (find_exec(handle) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = resolve_stream(stream_handle, &stream); error != CUDA_SUCCESS)
    return error;
  if (stream->capture != nullptr) return refuse_in_capture(*stream);
  if (const CUresult error = wait_for_place(lock, *stream, 0); error != CUDA_SUCCESS) return error;
  GraphExec* exec = find_exec(handle);  // it may have been destroyed meanwhile
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult launched = launch_graph(*exec, *stream);
  if (launched == CUDA_SUCCESS) take_place(*stream, 0);
  return launched;
}

// ---------------------------------------------------------------------------------------- updates

CUresult api::cuGraphExecUpdate(CUgraphExec exec_handle, CUgraph graph_handle,
                                CUgraphNode* offender, CUgraphExecUpdateResult* result) {
  const std::lock_guard lock(driver().mutex);
  GraphExec* exec = find_exec(exec_handle);
  const Graph* graph = find_graph(graph_handle);
  if (exec == nullptr || graph == nullptr || offender == nullptr || result == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  *offender = nullptr;
  return update_exec(*exec, *graph, result, offender);
}

CUresult api::cuGraphExecUpdate_v2(CUgraphExec exec_handle, CUgraph graph_handle,
                                   CUgraphExecUpdateResultInfo* info) {
  const std::lock_guard lock(driver().mutex);
  GraphExec* exec = find_exec(exec_handle);
  const Graph* graph = find_graph(graph_handle);
  if (exec == nullptr || graph == nullptr || info == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *info = CUgraphExecUpdateResultInfo{};
  return update_exec(*exec, *graph, &info->result, &info->errorNode);
}

CUresult api::cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                             const CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE
                               : set_exec_kernel(exec, node, widen(*parameters));
}
CUresult api::cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE
                               : set_exec_kernel(exec, node, *parameters);
}

CUresult api::cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                             const CUDA_MEMCPY3D* box, CUcontext context) {
  if (box == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_exec_params(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY, [&](NodeContent* content) {
    return copy_content(*box, context, content);
  });
}

CUresult api::cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                             const CUDA_MEMSET_NODE_PARAMS* fill,
                                             CUcontext context) {
  if (fill == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_exec_params(exec, node, CU_GRAPH_NODE_TYPE_MEMSET, [&](NodeContent* content) {
    return fill_content(*fill, context, content);
  });
}

CUresult api::cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_HOST_NODE_PARAMS* host) {
  if (host == nullptr || host->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_exec_params(exec, node, CU_GRAPH_NODE_TYPE_HOST, [&](NodeContent* content) {
    content->command = HostCommand{host->fn, host->userData};
    return CUDA_SUCCESS;
  });
}

CUresult api::cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node,
                                                 CUevent event) {
  return set_exec_params(exec, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, [&](NodeContent* content) {
    Context* const before = content->context;
    const CUresult made = event_content(event, true, content);
    content->context = before;
    return made;
  });
}
CUresult api::cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return set_exec_params(exec, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, [&](NodeContent* content) {
    Context* const before = content->context;
    const CUresult made = event_content(event, false, content);
    content->context = before;
    return made;
  });
}

CUresult api::cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                 CUgraph child) {
  return set_exec_child(exec, node, child);
}

CUresult api::cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                       CUgraphNodeParams* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (parameters->type == CU_GRAPH_NODE_TYPE_GRAPH)
    return set_exec_child(exec, node, parameters->graph.graph);
  return set_exec_params(exec, node, parameters->type, [&](NodeContent* content) {
    Context* const before = content->context;
    const CUresult made = content_of(*parameters, content);
    const bool is_event = parameters->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ||
                          parameters->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    if (is_event) content->context = before;
    return made;
  });
}

CUresult api::cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode handle, unsigned enabled) {
  const std::lock_guard lock(driver().mutex);
  ExecNode* node = exec_node(exec, handle);
  const bool possible = node != nullptr && (node->type == CU_GRAPH_NODE_TYPE_KERNEL ||
                                            node->type == CU_GRAPH_NODE_TYPE_MEMCPY ||
                                            node->type == CU_GRAPH_NODE_TYPE_MEMSET);
  if (!possible) return CUDA_ERROR_INVALID_VALUE;
  node->enabled = enabled != 0;
  return CUDA_SUCCESS;
}

CUresult api::cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode handle, unsigned* enabled) {
  const std::lock_guard lock(driver().mutex);
  const ExecNode* node = exec_node(exec, handle);
  if (node == nullptr || enabled == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *enabled = node->enabled ? 1 : 0;
  return CUDA_SUCCESS;
}

}  // namespace vitamin::soft::driver
