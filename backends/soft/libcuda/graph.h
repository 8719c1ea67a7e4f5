// SPDX-License-Identifier: Apache-2.0
//
// Graphs: nodes and edges, and what they become when they are instantiated.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "backends/soft/libcuda/command.h"
#include "backends/soft/libcuda/driver.h"

namespace vitamin::soft::driver {

struct Graph;

struct GraphNode {
  Graph* graph = nullptr;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  Context* context = nullptr;  // whose SMs run it
  Command command;
  std::vector<GraphNode*> dependencies;
  std::vector<GraphNode*> dependents;
  const GraphNode* cloned_from = nullptr;
  // What a query hands out pointers to.
  std::vector<void*> parameter_pointers;
};

// Nodes in the order in which they were added.
struct Graph {
  std::vector<std::unique_ptr<GraphNode>> nodes;
  bool owned_by_node = false;  // the body of a child graph node: not the application's to destroy
};

// A graph inside a ChildGraphCommand.
struct GraphBody {
  Graph graph;
};

// An instantiated graph. Its queues and events are made once; a launch reuses them.
struct ExecNode {
  const GraphNode* source = nullptr;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  Context* context = nullptr;
  Command command;
  std::vector<std::size_t> dependencies;  // indices, all smaller than the node's own
  bool enabled = true;
  std::size_t inner =
      0;  // of a child graph: how many follow it that are its own, its exit the last
  std::size_t lane = 0;
  bool needs_event = false;  // a node outside its lane waits for it
  std::shared_ptr<vitamin::soft::Event> event;
};

struct ExecLane {
  Context* context = nullptr;
  QueueRef queue;
};

struct GraphExec {
  Device* device = nullptr;
  cuuint64_t flags = 0;
  std::vector<ExecNode> nodes;
  std::map<const GraphNode*, std::size_t> index;  // of the graph it was made from
  std::vector<ExecLane> lanes;
  std::shared_ptr<vitamin::soft::Event> begun, done;
  std::shared_ptr<struct GraphSlab> slab;  // behind its allocations (graph_memory.h)
};

Graph* find_graph(CUgraph handle);
GraphNode* find_node(CUgraphNode handle);

// Adds a node behind `dependencies`, which belong to the same graph.
GraphNode* add_node(Graph& graph, const std::vector<GraphNode*>& dependencies, CUgraphNodeType type,
                    Context* context, Command command);
CUgraphNodeType type_of(const Command& command);
// The handles of the child graph that the node's command holds, if any: what replaces the command
// of a node that has a handle forgets the old one's and remembers the new one's.
void remember_child(const GraphNode& node);
void forget_child(const GraphNode& node);

std::unique_ptr<Graph> clone_graph(const Graph& graph);
void destroy_graph(Graph* graph);  // forgets the handles of its nodes; frees an owned graph

// The graph's nodes so that each stands behind its dependencies; empty when there is a cycle.
std::vector<GraphNode*> topological_order(const Graph& graph);

CUresult instantiate(Graph& graph, cuuint64_t flags, GraphExec** exec);
CUresult launch_graph(GraphExec& exec, Stream& stream);

}  // namespace vitamin::soft::driver
