// SPDX-License-Identifier: Apache-2.0
//
// What an update of an executable leaves as it is: how many nodes of which types it has, and their
// edges; and the kernels, which it mostly leaves. By it nodes of a graph are matched with those of
// the graph that the executable is updated from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "backends/cuda/api.h"

namespace vitamin::cuda {

// What a kernel node launches: a kernel, or a function of a module.
inline const void* handle_of(const CUDA_KERNEL_NODE_PARAMS& parameters) {
  return parameters.kern != nullptr ? static_cast<const void*>(parameters.kern)
                                    : static_cast<const void*>(parameters.func);
}

struct GraphOutline {
  struct Edge {
    std::size_t from = 0, to = 0;
    std::uint64_t data = 0;
    friend bool operator==(const Edge&, const Edge&) = default;
  };
  // Of the graph's own nodes, not of those of graphs inside it. `order`: all of them, in the order
  // wanted; empty: in the driver's. `kernels`: these too, none of which may have been unloaded
  // (bench/results/engines/unloaded_code.txt). Nothing: the driver does not tell.
  static std::optional<GraphOutline> of(const Api& api, CUgraph graph, bool kernels,
                                        std::vector<CUgraphNode> order = {});

  // Node by node, in the order of both.
  bool same_nodes(const GraphOutline& other) const {
    return types == other.types && edges == other.edges;
  }
  // Of each node, whether types and edges alone tell which node of an equal graph it is, in
  // whatever order that lists its nodes. What they do not tell apart the driver may match either
  // way.
  std::vector<bool> distinct() const;

  std::vector<CUgraphNode> nodes;
  std::vector<CUgraphNodeType> types;
  std::vector<const void*> kernels;  // what kernel nodes launch; null for others; empty: not asked
  std::vector<Edge> edges;           // sorted
};

// The nodes of a graph, in the driver's order; nothing: it does not tell.
std::optional<std::vector<CUgraphNode>> nodes_of(const Api& api, CUgraph graph);

}  // namespace vitamin::cuda
