// SPDX-License-Identifier: Apache-2.0
//
// Memory of graphs' allocation nodes. An address is given when its node is made; one that an
// earlier node freed on every way there is given again. Memory of the device comes behind the
// addresses when the executable is uploaded or launched: executables that leave nothing allocated
// and are launched into one stream share it. It stays until cuDeviceGraphMemTrim, which takes what
// nothing uses.
//
// Functions are called with the driver's mutex held.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "backends/soft/libcuda/graph.h"

namespace vitamin::soft::driver {

// Addresses of one allocation node, or of several whose lifetimes do not overlap.
struct GraphBlock {
  GraphBlock() = default;
  ~GraphBlock();
  GraphBlock(const GraphBlock&) = delete;
  GraphBlock& operator=(const GraphBlock&) = delete;
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  const GraphNode* freed_by = nullptr;  // null: not free behind any node
};

// Memory of the device that backs blocks.
struct GraphSlab {
  explicit GraphSlab(Device* owner);
  ~GraphSlab();
  GraphSlab(const GraphSlab&) = delete;
  GraphSlab& operator=(const GraphSlab&) = delete;
  Device* device;
  int fd;
  std::size_t bytes = 0;
  std::set<GraphExec*> executables;                         // whose blocks it backs now
  std::set<std::shared_ptr<GraphBlock>> live;               // allocated and not freed
  std::vector<std::shared_ptr<GraphBlock>> retired_blocks;  // of executables that are no more
  std::size_t freeing = 0;  // frees whose place in their stream has not been reached
};

// The command of an allocation node behind `dependencies`.
CUresult make_graph_block(Graph& graph, const std::vector<GraphNode*>& dependencies,
                          std::size_t bytes, Context& context, GraphAllocCommand* command);
// The command of the node that frees what begins at `base`.
CUresult free_in_graph(const Graph& graph, std::uintptr_t base, GraphFreeCommand* command);
// The node that frees the block is in the graph.
void note_graph_free(GraphNode& node);
bool allocates(const Graph& graph);

// Puts memory behind the blocks of an executable, in the order of `queue`.
CUresult back_graph(GraphExec& exec, const Stream& stream, Queue* queue);
// The launch was submitted: what the graph does not free stays allocated.
void note_graph_launch(GraphExec& exec);
// The executable goes away; its memory stays.
void leave_graph_memory(GraphExec& exec);
// Of an allocation that a graph left, in the order of a stream; null: at once.
CUresult free_graph_allocation(std::uintptr_t base, Stream* stream);

}  // namespace vitamin::soft::driver
