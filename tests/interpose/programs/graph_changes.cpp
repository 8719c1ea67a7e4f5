// SPDX-License-Identifier: Apache-2.0
//
// Graphs that change before every launch, as XLA's command buffers do, and graphs that are captured
// between launches of others, as CuPy's programs do. graphs_test.py runs each bare and under the
// preloaded library.
//
//   graph_changes NAME
#include "graphs.h"

namespace {

// One of each node whose parameters can be set in an executable, in a chain.
struct Chain {
  Chain(const Session& of, const Kernels& by, CUdeviceptr words) : s(of), kernels(by), x(words) {
    check(drv.cuGraphCreate(&graph, 0));
    CUDA_KERNEL_NODE_PARAMS added = kernel(x, 1);
    check(drv.cuGraphAddKernelNode(&first, graph, nullptr, 0, &added));
    const CUDA_MEMSET_NODE_PARAMS filled = fill(1);
    check(drv.cuGraphAddMemsetNode(&fills, graph, &first, 1, &filled, s.context));
    const CUgraph body = inner(1);
    check(drv.cuGraphAddChildGraphNode(&child, graph, &fills, 1, body));
    check(drv.cuGraphDestroy(body));
    const CUDA_MEMCPY3D copied = copy(0);
    check(drv.cuGraphAddMemcpyNode(&copies, graph, &child, 1, &copied, s.context));
    CUgraphNode end = nullptr;
    added = kernel(x + 12, 1);
    check(drv.cuGraphAddKernelNode(&end, graph, &copies, 1, &added));
    run = executable(graph);
  }
  CUDA_KERNEL_NODE_PARAMS kernel(CUdeviceptr to, Word by) {
    target = to;
    value = by;
    CUDA_KERNEL_NODE_PARAMS parameters{};
    parameters.func = kernels("slow_add");
    parameters.gridDimX = parameters.gridDimY = parameters.gridDimZ = 1;
    parameters.blockDimX = 32;
    parameters.blockDimY = parameters.blockDimZ = 1;
    parameters.kernelParams = arguments;
    return parameters;
  }
  CUDA_MEMSET_NODE_PARAMS fill(Word by) const { return {x + 4, 0, by, 4, 1, 1}; }
  CUDA_MEMCPY3D copy(Word from) const {
    CUDA_MEMCPY3D box{};
    box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box.srcDevice = x + 4 * from;
    box.dstDevice = x + 16;
    box.WidthInBytes = 4;
    box.Height = box.Depth = 1;
    return box;
  }
  CUgraph inner(Word by) {
    CUgraph made = nullptr;
    CUgraphNode nodes[2] = {};
    check(drv.cuGraphCreate(&made, 0));
    for (int i = 0; i < 2; ++i) {
      const CUDA_KERNEL_NODE_PARAMS parameters = kernel(x + 8, by + static_cast<Word>(i));
      check(drv.cuGraphAddKernelNode(&nodes[i], made, nodes, i == 0 ? 0 : 1, &parameters));
    }
    return made;
  }
  void change(Word by) {
    const CUDA_KERNEL_NODE_PARAMS parameters = kernel(x + 4 * (by % 3), by);
    check(drv.cuGraphExecKernelNodeSetParams(run, first, &parameters));
    if (by % 2 == 0) {
      const CUDA_MEMSET_NODE_PARAMS filled = fill(by);
      check(drv.cuGraphExecMemsetNodeSetParams(run, fills, &filled, s.context));
    }
    if (by % 3 == 0) {
      const CUDA_MEMCPY3D copied = copy(by % 4);
      check(drv.cuGraphExecMemcpyNodeSetParams(run, copies, &copied, s.context));
    }
    if (by % 4 == 0) {
      const CUgraph body = inner(by);
      check(drv.cuGraphExecChildGraphNodeSetParams(run, child, body));
      check(drv.cuGraphDestroy(body));
    }
  }
  ~Chain() {
    check(drv.cuGraphExecDestroy(run));
    check(drv.cuGraphDestroy(graph));
  }

  const Session& s;
  const Kernels& kernels;
  CUdeviceptr x, target = 0;
  Word value = 0;
  std::uint64_t ns = kShort;
  void* arguments[4] = {&target, &value, &ns, nullptr};
  CUgraph graph = nullptr;
  CUgraphExec run = nullptr;
  CUgraphNode first = nullptr, fills = nullptr, child = nullptr, copies = nullptr;
};

void changed_before_every_launch() {
  Session s;
  for (const bool of_library : {false, true}) {
    const Kernels kernels(s, of_library);
    const CUstream a = s.stream();
    Chain chain(s, kernels, s.words(8));
    for (Word i = 1; i <= 200; ++i) {
      chain.change(i);
      check(drv.cuGraphLaunch(chain.run, a));
      if (i % 40 == 0) {
        check(drv.cuStreamSynchronize(a));
        print("words", s.read(chain.x, 5));
      }
    }
    // A child graph of another shape is refused, and changes nothing.
    const CUgraph larger = captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
      for (int i = 0; i < 5; ++i) kernels.launch("slow_add", a, chain.x, Word{1}, kShort);
    });
    print("a larger child", drv.cuGraphExecChildGraphNodeSetParams(chain.run, chain.child, larger));
    for (int i = 0; i < 4; ++i) check(drv.cuGraphLaunch(chain.run, a));
    check(drv.cuStreamSynchronize(a));
    print("as before", s.read(chain.x, 5));
  }
}

// One launched often, and ones that are captured, in the stream that has launches outstanding, and
// launched once.
void captured_between_launches() {
  Session s;
  for (const bool of_library : {false, true}) {
    const Kernels kernels(s, of_library);
    const CUstream a = s.stream();
    const CUdeviceptr x = s.words(4);
    const auto graph_of = [&](Word value) {
      const CUgraph graph = captured(a, CU_STREAM_CAPTURE_MODE_RELAXED,
                                     [&] { add_slowly(kernels, a, x, x + 4, value, 20'000); });
      const CUgraphExec run = executable(graph);
      check(drv.cuGraphDestroy(graph));
      return run;
    };
    const CUgraphExec often = graph_of(1);
    for (int step = 0; step < 12; ++step) {
      for (int i = 0; i < 20; ++i) check(drv.cuGraphLaunch(often, a));
      const CUgraphExec once = graph_of(1000);
      check(drv.cuGraphLaunch(once, a));
      check(drv.cuStreamSynchronize(a));
      check(drv.cuGraphExecDestroy(once));
    }
    print("words", s.read(x, 1));
    check(drv.cuGraphExecDestroy(often));
  }
}

const Scenarios kScenarios = {
    {"changed_before_every_launch", &changed_before_every_launch},
    {"captured_between_launches", &captured_between_launches},
};

}  // namespace

int main(int count, char** words) { return run_scenario(kScenarios, count, words); }
