// SPDX-License-Identifier: Apache-2.0
//
// Graphs as the application builds and reads them. Executing them is graph_exec.cpp's.

#include "backends/soft/libcuda/graph.h"

#include <algorithm>
#include <set>

#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/graph_memory.h"
#include "backends/soft/libcuda/graph_params.h"

namespace vitamin::soft::driver {
namespace {

CUgraph handle_of(Graph* graph) { return reinterpret_cast<CUgraph>(graph); }
CUgraphNode handle_of(const GraphNode* node) {
  return reinterpret_cast<CUgraphNode>(const_cast<GraphNode*>(node));
}

// The node's handle and those inside its child graph.
void remember_handles(const GraphNode& node) {
  driver().remember(&node, Kind::kGraphNode);
  remember_child(node);
}

void forget_handles(const GraphNode& node) {
  driver().forget(&node);
  forget_child(node);
}

// Adds a node that has no handle.
GraphNode* link_node(Graph& graph, const std::vector<GraphNode*>& dependencies,
                     CUgraphNodeType type, Context* context, Command command) {
  auto made = std::make_unique<GraphNode>();
  GraphNode* node = made.get();
  node->graph = &graph;
  node->type = type;
  node->context = context;
  node->command = std::move(command);
  node->dependencies = dependencies;
  for (GraphNode* dependency : dependencies) dependency->dependents.push_back(node);
  graph.nodes.push_back(std::move(made));
  note_graph_free(*node);
  return node;
}

// The copies have no handles.
void copy_nodes(const Graph& from, Graph& to) {
  std::map<const GraphNode*, GraphNode*> copies;
  for (const GraphNode* node : topological_order(from)) {
    std::vector<GraphNode*> dependencies;
    for (const GraphNode* dependency : node->dependencies)
      dependencies.push_back(copies.at(dependency));
    Command command = node->command;
    if (auto* child = std::get_if<ChildGraphCommand>(&command))
      command = make_child(child->body->graph);
    GraphNode* copy = link_node(to, dependencies, node->type, node->context, std::move(command));
    copy->cloned_from = node;
    copies[node] = copy;
  }
}

void unlink(std::vector<GraphNode*>& nodes, const GraphNode* node) {
  nodes.erase(std::remove(nodes.begin(), nodes.end(), node), nodes.end());
}

// The dependencies that a call names, as nodes of one graph.
CUresult resolve_dependencies(const Graph& graph, const CUgraphNode* handles, std::size_t count,
                              std::vector<GraphNode*>* nodes) {
  if (count != 0 && handles == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    GraphNode* node = find_node(handles[i]);
    if (node == nullptr || node->graph != &graph ||
        std::find(nodes->begin(), nodes->end(), node) != nodes->end())
      return CUDA_ERROR_INVALID_VALUE;
    nodes->push_back(node);
  }
  return CUDA_SUCCESS;
}

// What every cuGraphAdd*Node shares; `make` fills in the command and the context.
template <class Make>
CUresult add(CUgraphNode* handle, CUgraph graph_handle, const CUgraphNode* dependencies,
             std::size_t count, CUgraphNodeType type, Make make) {
  const std::lock_guard lock(driver().mutex);
  Graph* graph = find_graph(graph_handle);
  if (handle == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<GraphNode*> behind;
  if (const CUresult error = resolve_dependencies(*graph, dependencies, count, &behind);
      error != CUDA_SUCCESS)
    return error;
  NodeContent content;
  if (const CUresult error = make(&content); error != CUDA_SUCCESS) return error;
  *handle = handle_of(add_node(*graph, behind, type, content.context, std::move(content.command)));
  return CUDA_SUCCESS;
}

CUresult add_generic(CUgraphNode* handle, CUgraph graph, const CUgraphNode* dependencies,
                     std::size_t count, const CUgraphNodeParams* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(handle, graph, dependencies, count, parameters->type,
             [&](NodeContent* content) { return content_of(*parameters, content); });
}

// Copies handles out: with a null array the number alone.
template <class Range>
CUresult list(const Range& found, CUgraphNode* handles, std::size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (handles != nullptr) {
    std::size_t i = 0;
    for (const auto& node : found) {
      if (i == *count) break;
      handles[i++] = handle_of(&*node);
    }
    // "If numNodes is higher than the actual number, the remaining entries are set to NULL."
    for (; i < *count; ++i) handles[i] = nullptr;
  }
  *count = found.size();
  return CUDA_SUCCESS;
}

CUresult list_edges(CUgraph graph_handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
                    std::size_t* count) {
  const std::lock_guard lock(driver().mutex);
  const Graph* graph = find_graph(graph_handle);
  if (graph == nullptr || count == nullptr || (from == nullptr) != (to == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  std::size_t edges = 0;
  for (const auto& node : graph->nodes) {
    for (const GraphNode* dependency : node->dependencies) {
      if (from != nullptr && edges < *count) {
        from[edges] = handle_of(dependency);
        to[edges] = handle_of(node.get());
        if (data != nullptr) data[edges] = CUgraphEdgeData{};
      }
      ++edges;
    }
  }
  *count = edges;
  return CUDA_SUCCESS;
}

CUresult list_neighbours(CUgraphNode handle, std::vector<GraphNode*> GraphNode::*side,
                         CUgraphNode* handles, CUgraphEdgeData* data, std::size_t* count) {
  const std::lock_guard lock(driver().mutex);
  const GraphNode* node = find_node(handle);
  if (node == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (data != nullptr && handles != nullptr)
    std::fill_n(data, std::min(*count, (node->*side).size()), CUgraphEdgeData{});
  return list(node->*side, handles, count);
}

CUresult change_edges(CUgraph graph_handle, const CUgraphNode* from, const CUgraphNode* to,
                      std::size_t count, bool remove) {
  const std::lock_guard lock(driver().mutex);
  Graph* graph = find_graph(graph_handle);
  if (graph == nullptr || (count != 0 && (from == nullptr || to == nullptr)))
    return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    GraphNode* before = find_node(from[i]);
    GraphNode* behind = find_node(to[i]);
    if (before == nullptr || behind == nullptr || before->graph != graph ||
        behind->graph != graph || before == behind)
      return CUDA_ERROR_INVALID_VALUE;
    const bool exists = std::find(behind->dependencies.begin(), behind->dependencies.end(),
                                  before) != behind->dependencies.end();
    if (exists != remove) return CUDA_ERROR_INVALID_VALUE;
    if (remove) {
      unlink(behind->dependencies, before);
      unlink(before->dependents, behind);
    } else {
      behind->dependencies.push_back(before);
      before->dependents.push_back(behind);
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

Graph* find_graph(CUgraph handle) { return driver().find<Graph>(handle, Kind::kGraph); }
GraphNode* find_node(CUgraphNode handle) {
  return driver().find<GraphNode>(handle, Kind::kGraphNode);
}

GraphNode* add_node(Graph& graph, const std::vector<GraphNode*>& dependencies, CUgraphNodeType type,
                    Context* context, Command command) {
  GraphNode* node = link_node(graph, dependencies, type, context, std::move(command));
  remember_handles(*node);
  return node;
}

void remember_child(const GraphNode& node) {
  const auto* child = std::get_if<ChildGraphCommand>(&node.command);
  if (child == nullptr) return;
  driver().remember(&child->body->graph, Kind::kGraph);
  for (const auto& inner : child->body->graph.nodes) remember_handles(*inner);
}

void forget_child(const GraphNode& node) {
  const auto* child = std::get_if<ChildGraphCommand>(&node.command);
  if (child == nullptr) return;
  driver().forget(&child->body->graph);
  for (const auto& inner : child->body->graph.nodes) forget_handles(*inner);
}

CUgraphNodeType type_of(const Command& command) {
  struct {
    CUgraphNodeType operator()(const KernelCommand&) { return CU_GRAPH_NODE_TYPE_KERNEL; }
    CUgraphNodeType operator()(const CopyCommand&) { return CU_GRAPH_NODE_TYPE_MEMCPY; }
    CUgraphNodeType operator()(const FillCommand&) { return CU_GRAPH_NODE_TYPE_MEMSET; }
    CUgraphNodeType operator()(const HostCommand&) { return CU_GRAPH_NODE_TYPE_HOST; }
    CUgraphNodeType operator()(const CallbackCommand&) { return CU_GRAPH_NODE_TYPE_HOST; }
    CUgraphNodeType operator()(const ValueWaitCommand&) { return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; }
    CUgraphNodeType operator()(const ValueWriteCommand&) { return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; }
    CUgraphNodeType operator()(const EventRecordCommand&) {
      return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    }
    CUgraphNodeType operator()(const EventWaitCommand&) { return CU_GRAPH_NODE_TYPE_WAIT_EVENT; }
    CUgraphNodeType operator()(const EmptyCommand&) { return CU_GRAPH_NODE_TYPE_EMPTY; }
    CUgraphNodeType operator()(const ChildGraphCommand&) { return CU_GRAPH_NODE_TYPE_GRAPH; }
    CUgraphNodeType operator()(const GraphAllocCommand&) { return CU_GRAPH_NODE_TYPE_MEM_ALLOC; }
    CUgraphNodeType operator()(const GraphFreeCommand&) { return CU_GRAPH_NODE_TYPE_MEM_FREE; }
  } type;
  return std::visit(type, command);
}

ChildGraphCommand make_child(const Graph& graph) {
  ChildGraphCommand child{std::make_shared<GraphBody>()};
  child.body->graph.owned_by_node = true;
  copy_nodes(graph, child.body->graph);
  return child;
}

std::unique_ptr<Graph> clone_graph(const Graph& graph) {
  auto clone = std::make_unique<Graph>();
  copy_nodes(graph, *clone);
  for (const auto& node : clone->nodes) remember_handles(*node);
  return clone;
}

void destroy_graph(Graph* graph) {
  for (const auto& node : graph->nodes) forget_handles(*node);
  driver().release(graph);
}

std::vector<GraphNode*> topological_order(const Graph& graph) {
  std::map<const GraphNode*, std::size_t> missing;
  std::vector<GraphNode*> order;
  order.reserve(graph.nodes.size());
  for (const auto& node : graph.nodes) {
    missing[node.get()] = node->dependencies.size();
    if (node->dependencies.empty()) order.push_back(node.get());
  }
  for (std::size_t i = 0; i < order.size(); ++i)
    for (GraphNode* dependent : order[i]->dependents)
      if (--missing[dependent] == 0) order.push_back(dependent);
  if (order.size() != graph.nodes.size()) order.clear();
  return order;
}

// ---------------------------------------------------------------------------------------- graphs

CUresult api::cuGraphCreate(CUgraph* handle, unsigned flags) {
  const std::lock_guard lock(driver().mutex);
  if (handle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *handle = handle_of(driver().own(std::make_unique<Graph>(), Kind::kGraph));
  return CUDA_SUCCESS;
}

CUresult api::cuGraphDestroy(CUgraph handle) {
  const std::lock_guard lock(driver().mutex);
  Graph* graph = find_graph(handle);
  if (graph == nullptr || graph->owned_by_node) return CUDA_ERROR_INVALID_VALUE;
  destroy_graph(graph);
  return CUDA_SUCCESS;
}

CUresult api::cuGraphClone(CUgraph* handle, CUgraph original) {
  const std::lock_guard lock(driver().mutex);
  const Graph* graph = find_graph(original);
  if (handle == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (allocates(*graph)) return CUDA_ERROR_NOT_SUPPORTED;
  *handle = handle_of(driver().own(clone_graph(*graph), Kind::kGraph));
  return CUDA_SUCCESS;
}

CUresult api::cuGraphNodeFindInClone(CUgraphNode* found, CUgraphNode original, CUgraph clone) {
  const std::lock_guard lock(driver().mutex);
  const Graph* graph = find_graph(clone);
  if (found == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& node : graph->nodes) {
    if (handle_of(node->cloned_from) != original) continue;
    *found = handle_of(node.get());
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult api::cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  const std::lock_guard lock(driver().mutex);
  const Graph* graph = find_graph(handle);
  return graph == nullptr ? CUDA_ERROR_INVALID_VALUE : list(graph->nodes, nodes, count);
}

CUresult api::cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  const std::lock_guard lock(driver().mutex);
  const Graph* graph = find_graph(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<GraphNode*> roots;
  for (const auto& node : graph->nodes)
    if (node->dependencies.empty()) roots.push_back(node.get());
  return list(roots, nodes, count);
}

CUresult api::cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return list_edges(graph, from, to, nullptr, count);
}
CUresult api::cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to,
                                 CUgraphEdgeData* data, size_t* count) {
  return list_edges(graph, from, to, data, count);
}
CUresult api::cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  return list_neighbours(node, &GraphNode::dependencies, nodes, nullptr, count);
}
CUresult api::cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* nodes,
                                            CUgraphEdgeData* data, size_t* count) {
  return list_neighbours(node, &GraphNode::dependencies, nodes, data, count);
}
CUresult api::cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  return list_neighbours(node, &GraphNode::dependents, nodes, nullptr, count);
}
CUresult api::cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* nodes,
                                              CUgraphEdgeData* data, size_t* count) {
  return list_neighbours(node, &GraphNode::dependents, nodes, data, count);
}
CUresult api::cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                     size_t count) {
  return change_edges(graph, from, to, count, false);
}
CUresult api::cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from,
                                        const CUgraphNode* to, const CUgraphEdgeData*,
                                        size_t count) {
  return change_edges(graph, from, to, count, false);
}
CUresult api::cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from,
                                        const CUgraphNode* to, size_t count) {
  return change_edges(graph, from, to, count, true);
}
CUresult api::cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from,
                                           const CUgraphNode* to, const CUgraphEdgeData*,
                                           size_t count) {
  return change_edges(graph, from, to, count, true);
}

// ----------------------------------------------------------------------------------------- nodes

CUresult api::cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                  size_t count) {
  return add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_EMPTY, [](NodeContent* content) {
    content->command = EmptyCommand{};
    return CUDA_SUCCESS;
  });
}

CUresult api::cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph,
                                   const CUgraphNode* dependencies, size_t count,
                                   const CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  return add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_KERNEL,
             [&](NodeContent* content) {
               return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE
                                            : kernel_content(widen(*parameters), content);
             });
}

CUresult api::cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph,
                                      const CUgraphNode* dependencies, size_t count,
                                      const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_KERNEL,
             [&](NodeContent* content) {
               return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE
                                            : kernel_content(*parameters, content);
             });
}

CUresult api::cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph,
                                   const CUgraphNode* dependencies, size_t count,
                                   const CUDA_MEMCPY3D* box, CUcontext context) {
  return add(
      node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEMCPY, [&](NodeContent* content) {
        return box == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_content(*box, context, content);
      });
}

CUresult api::cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph,
                                   const CUgraphNode* dependencies, size_t count,
                                   const CUDA_MEMSET_NODE_PARAMS* fill, CUcontext context) {
  return add(
      node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEMSET, [&](NodeContent* content) {
        return fill == nullptr ? CUDA_ERROR_INVALID_VALUE : fill_content(*fill, context, content);
      });
}

CUresult api::cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                 size_t count, const CUDA_HOST_NODE_PARAMS* host) {
  return add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_HOST, [&](NodeContent* content) {
    if (host == nullptr || host->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
    content->command = HostCommand{host->fn, host->userData};
    return CUDA_SUCCESS;
  });
}

CUresult api::cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph,
                                       const CUgraphNode* dependencies, size_t count,
                                       CUgraph child) {
  return add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_GRAPH, [&](NodeContent* content) {
    const Graph* body = find_graph(child);
    if (body == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (allocates(*body)) return CUDA_ERROR_NOT_SUPPORTED;
    content->command = make_child(*body);
    return CUDA_SUCCESS;
  });
}

CUresult api::cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph,
                                        const CUgraphNode* dependencies, size_t count,
                                        CUevent event) {
  return add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_EVENT_RECORD,
             [&](NodeContent* content) { return event_content(event, true, content); });
}

CUresult api::cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph,
                                      const CUgraphNode* dependencies, size_t count,
                                      CUevent event) {
  return add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
             [&](NodeContent* content) { return event_content(event, false, content); });
}

CUresult api::cuGraphAddMemAllocNode(CUgraphNode* handle, CUgraph graph_handle,
                                     const CUgraphNode* dependencies, size_t count,
                                     CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  const std::lock_guard lock(driver().mutex);
  Graph* graph = find_graph(graph_handle);
  if (handle == nullptr || graph == nullptr || parameters == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  std::vector<GraphNode*> behind;
  if (const CUresult error = resolve_dependencies(*graph, dependencies, count, &behind);
      error != CUDA_SUCCESS)
    return error;
  Device* device = driver().device(parameters->poolProps.location.id);
  if (device == nullptr || device->primary == nullptr ||
      parameters->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      parameters->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  GraphAllocCommand command;
  if (const CUresult error =
          make_graph_block(*graph, behind, parameters->bytesize, *device->primary, &command);
      error != CUDA_SUCCESS)
    return error;
  parameters->dptr = static_cast<CUdeviceptr>(command.block->base);
  *handle = handle_of(
      add_node(*graph, behind, CU_GRAPH_NODE_TYPE_MEM_ALLOC, device->primary, std::move(command)));
  return CUDA_SUCCESS;
}

CUresult api::cuGraphAddMemFreeNode(CUgraphNode* node, CUgraph graph,
                                    const CUgraphNode* dependencies, size_t count,
                                    CUdeviceptr pointer) {
  return add(
      node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEM_FREE, [&](NodeContent* content) {
        GraphFreeCommand command;
        const CUresult found =
            free_in_graph(*find_graph(graph), static_cast<std::uintptr_t>(pointer), &command);
        content->command = std::move(command);
        return found;
      });
}

CUresult api::cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                             size_t count, CUgraphNodeParams* parameters) {
  return add_generic(node, graph, dependencies, count, parameters);
}
CUresult api::cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                const CUgraphEdgeData*, size_t count,
                                CUgraphNodeParams* parameters) {
  return add_generic(node, graph, dependencies, count, parameters);
}

CUresult api::cuGraphDestroyNode(CUgraphNode handle) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = find_node(handle);
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (GraphNode* dependency : node->dependencies) unlink(dependency->dependents, node);
  for (GraphNode* dependent : node->dependents) unlink(dependent->dependencies, node);
  forget_handles(*node);
  auto& nodes = node->graph->nodes;
  nodes.erase(std::find_if(nodes.begin(), nodes.end(),
                           [&](const auto& owned) { return owned.get() == node; }));
  return CUDA_SUCCESS;
}

CUresult api::cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  const std::lock_guard lock(driver().mutex);
  const GraphNode* node = find_node(handle);
  if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = node->type;
  return CUDA_SUCCESS;
}

}  // namespace vitamin::soft::driver
