// SPDX-License-Identifier: Apache-2.0
//
// Node parameters, between cuda.h's structures and commands.
#pragma once

#include "backends/soft/libcuda/graph.h"

namespace vitamin::soft::driver {

// What a node's parameters say: what to do and whose SMs do it.
struct NodeContent {
  Command command;
  Context* context = nullptr;
};

CUDA_KERNEL_NODE_PARAMS widen(const CUDA_KERNEL_NODE_PARAMS_v1& parameters);

// `content` holds the old command when parameters of an existing node are replaced: attributes and,
// for a kernel named by a CUfunction, the context stay.
CUresult kernel_content(const CUDA_KERNEL_NODE_PARAMS& parameters, NodeContent* content);
CUresult copy_content(const CUDA_MEMCPY3D& box, CUcontext context, NodeContent* content);
CUresult fill_content(const CUDA_MEMSET_NODE_PARAMS& fill, CUcontext context, NodeContent* content);
CUresult event_content(CUevent event, bool record, NodeContent* content);
CUresult content_of(const CUgraphNodeParams& parameters, NodeContent* content);

// A copy of the graph, whose nodes have no handles until a node of a graph holds it.
ChildGraphCommand make_child(const Graph& graph);

}  // namespace vitamin::soft::driver
