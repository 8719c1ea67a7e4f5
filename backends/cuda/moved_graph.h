// SPDX-License-Identifier: Apache-2.0
//
// A graph whose kernel nodes run on an entry: made, read back, compared, and gone again when it has
// been made executable.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "backends/cuda/graph.h"
#include "backends/cuda/green_context.h"

namespace vitamin::cuda {

class MovedGraph {
 public:
  MovedGraph(const Api& api, hal::KernelInspector& kernels, GreenContext& entry,
             const RememberOptions& options)
      : api_(api),
        kernels_(kernels),
        entry_(entry),
        captures_(options.captures),
        hash_(options.hash) {}
  ~MovedGraph();
  MovedGraph(const MovedGraph&) = delete;
  MovedGraph& operator=(const MovedGraph&) = delete;

  // `tracked`: nodes of the source that find() will be asked for. The source is not looked at any
  // more afterwards.
  hal::Status clone(CUgraph source, std::span<const CUgraphNode> tracked);
  // Moves the kernels of the clone. `may_wait`: for calls that concern a whole context, else kBusy.
  hal::Status move(bool may_wait) {
    may_wait_ = may_wait;
    return move_all(graph_, 0);
  }
  // kInternal unless what was made, as the driver tells it, is that graph and runs on the entry.
  hal::Status compare(const hal::GraphShape& wanted);
  CUgraph graph() const { return graph_; }
  const hal::GraphShape& shape() const { return shape_; }
  // What a tracked node of the source became; null: nothing that the driver would tell.
  CUgraphNode find(CUgraphNode node) const;

 private:
  hal::Status move_all(CUgraph graph, int depth);
  hal::Status move(CUgraph graph, CUgraphNode node);
  hal::Status capture_again(CUgraph graph, CUgraphNode node,
                            const CUDA_KERNEL_NODE_PARAMS& parameters);
  hal::Status capture(CUgraph graph, CUlaunchConfig config,
                      const CUDA_KERNEL_NODE_PARAMS& parameters, CUgraphNode* made);

  const Api& api_;
  hal::KernelInspector& kernels_;
  GreenContext& entry_;
  CaptureGuard* captures_;
  hal::ArgumentHash hash_;
  bool may_wait_ = false;
  CUgraph graph_ = nullptr;
  hal::GraphShape shape_;
  std::vector<std::pair<CUgraphNode, CUgraphNode>> tracked_;  // of the source, and of graph_
};

}  // namespace vitamin::cuda
