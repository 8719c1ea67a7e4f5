// SPDX-License-Identifier: Apache-2.0
//
// A HIP graph of the application whose nodes form one chain.
//
// The runtime runs the first branch of a graph on the stream that the graph is launched to, every
// other one on a stream of its own, which has no CU mask. So a graph without branches runs on the
// CUs of its stream, whatever stream that is: the application's own executable serves every
// partition. Which branches there are is settled when the graph is instantiated; updates change
// single nodes. Each launch makes its commands anew, and orders itself behind its stream only: two
// launches of one executable may run at once, and what is changed is seen by later launches alone.
// Read in ROCm 5.2.3 (hipamd, src/hip_graph_internal.cpp) and seen in the software GPU's trace.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "backends/hip/api.h"
#include "backends/hip/graph_node.h"
#include "backends/hip/kernel.h"
#include "hal/graph.h"

namespace vitamin::hip {

// A node, or one of a graph inside the graph, in the order in which they run.
struct ChainNode {
  hipGraphNode_t handle = nullptr;  // null: of a graph inside it, which the application cannot name
  GraphNodeKind kind = GraphNodeKind::kEmpty;
  hal::KernelLaunch launch;  // of a kernel node; without arguments
};

// The record of a host stub; null: the program registered none at this address.
using KernelOfStub = const Kernel* (*)(const void* stub);

// kUnsupported: it has branches. kInvalidArgument: it has nodes other than kernels, fills, empty
// ones and graphs of these: copies may block the host or go to an engine of their own, host
// functions need the host, and events are recorded where the application says; or a kernel that is
// no host stub, whose module may be unloaded.
hal::Result<std::vector<ChainNode>> read_chain(const Api& api, hipGraph_t graph,
                                               KernelOfStub kernel_of);

class ChainGraph final : public hal::GraphSource {
 public:
  ChainGraph(std::vector<ChainNode> nodes, KernelOfStub kernel_of)
      : kernel_of_(kernel_of), nodes_(std::move(nodes)) {}

  hal::Result<hal::GraphContents> look(hal::KernelInspector& inspector) override;
  hal::Result<std::shared_ptr<hal::GraphExecutable>> make(hal::KernelInspector&,
                                                          hal::PhysicalContext&,
                                                          std::shared_ptr<hal::GraphExecutable>,
                                                          hal::WaitsUntil) override {
    return hal::fail(hal::Errc::kInternal, "a graph that runs anywhere needs no executable");
  }
  bool runs_anywhere() const override { return true; }

  // Nodes, kernels and geometry. Arguments are the executable's own, which is launched itself.
  hal::GraphShape shape() const;

  // What the application did to its executable.
  hal::Followed set_kernel(hipGraphNode_t node, const hipKernelNodeParams& parameters);
  // It took the parameters of each node of another graph, which are those of `nodes`.
  hal::Followed replace(const std::vector<ChainNode>& nodes);

 private:
  const KernelOfStub kernel_of_;
  mutable std::mutex mutex_;
  std::vector<ChainNode> nodes_;
};

}  // namespace vitamin::hip
