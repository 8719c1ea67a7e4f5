// SPDX-License-Identifier: Apache-2.0
//
// A graph whose kernel nodes run on a partition: made, read back, compared, and made executable.
// Kept beside the executable it takes the changes of single nodes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backends/cuda/graph.h"
#include "backends/cuda/green_context.h"

namespace vitamin::cuda {

// `made` takes the place of `old`, which is destroyed: its edges, but for those that begin at an
// event inside a kernel (kUnsupported).
hal::Status take_place(const Api& api, CUgraph graph, CUgraphNode old, CUgraphNode made);

class MovedGraph {
 public:
  MovedGraph(const Api& api, hal::KernelInspector& inspector, GreenContext& partition,
             const RememberOptions& options)
      : api_(api),
        inspector_(inspector),
        partition_(partition),
        captures_(options.captures),
        hash_(options.hash) {}
  ~MovedGraph();
  MovedGraph(const MovedGraph&) = delete;
  MovedGraph& operator=(const MovedGraph&) = delete;

  // `nodes`: all nodes of the source, in the order by which they are named here; none: node() and
  // renew() are not used. The source is not looked at any more afterwards.
  hal::Status clone(CUgraph source, std::span<const CUgraphNode> nodes);
  // Moves the kernels of the clone, whose nodes tell `attributes` at most. `waits`: for calls that
  // concern a whole context; else kBusy.
  hal::Status move(const GraphReader& reader, const AttributeSet& attributes,
                   hal::WaitsUntil waits) {
    waits_ = waits;
    return move_all({reader.kernels(), attributes}, graph_, 0);
  }
  // kInternal unless what was made, as the driver tells it, is that graph and runs on the
  // partition.
  hal::Status compare(const GraphReader& reader, const hal::GraphShape& wanted);
  // Node `at` becomes what that node of the source, `like`, is now, which was read as `wanted`: the
  // same kernel, kind of copy or fill, or another child graph. Never waits (kBusy). After an error
  // the graph is of no use any more.
  hal::Status renew(std::size_t at, CUgraphNode like, const hal::GraphDescription::Node& wanted);
  CUgraph graph() const { return graph_; }
  const hal::GraphShape& shape() const { return shape_; }
  // What node `at` of the source became; null: nothing that the driver would tell.
  CUgraphNode node(std::size_t at) const { return nodes_[at]; }

 private:
  // What is known of the kernels of the graph, and which attributes its nodes may tell.
  struct Known {
    KernelFacts& kernels;
    AttributeSet attributes;
  };
  hal::Status move_all(const Known& known, CUgraph graph, int depth);
  hal::Status move(const Known& known, CUgraph graph, CUgraphNode node, CUgraphNode like);
  hal::Status replace_child(const Known& known, std::size_t at, CUgraphNode like);
  hal::Status capture_again(const Known& known, CUgraph graph, CUgraphNode node,
                            const CUDA_KERNEL_NODE_PARAMS& parameters);
  hal::Status capture(CUgraph graph, CUlaunchConfig config,
                      const CUDA_KERNEL_NODE_PARAMS& parameters, CUgraphNode* made);

  const Api& api_;
  hal::KernelInspector& inspector_;
  GreenContext& partition_;
  CaptureGuard* captures_;
  hal::ArgumentHash hash_;
  hal::WaitsUntil waits_ = nullptr;
  CUgraph graph_ = nullptr;
  hal::GraphShape shape_;
  std::vector<CUgraphNode> nodes_;
};

}  // namespace vitamin::cuda
