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

// The value of its second kernel, by the node of the graph that was instantiated.
CUresult set_value(CUgraphExec run, CUgraphNode node, CUdeviceptr through, Word value) {
  CUDA_KERNEL_NODE_PARAMS parameters{};
  check(drv.cuGraphKernelNodeGetParams(node, &parameters));
  std::uint64_t ns = kShort;
  void* arguments[] = {&through, &value, &ns};
  parameters.kernelParams = arguments;
  return drv.cuGraphExecKernelNodeSetParams(run, node, &parameters);
}

// From another graph, which is of no use afterwards.
CUresult update_from(CUgraphExec run, CUgraph other) {
  CUgraphExecUpdateResultInfo info;
  const CUresult answer = drv.cuGraphExecUpdate(run, other, &info);
  check(drv.cuGraphDestroy(other));
  return answer;
}

void launch_often(const Session& s, CUgraphExec run, CUstream stream, CUdeviceptr x, int times) {
  for (int i = 0; i < times; ++i) {
    check(drv.cuGraphLaunch(run, stream));
    if (i < 4) wait_a_little();
  }
  check(drv.cuStreamSynchronize(stream));
  print("words", s.read(x, 4));
}

// Nodes of the graph that was instantiated name those of the executable after it was updated from
// another one; where two nodes cannot be told apart, too.
void update_then_set() {
  Session s;
  for (const bool of_library : {false, true}) {
    const Kernels kernels(s, of_library);
    const CUstream a = s.stream(), b = s.stream();
    const CUdeviceptr x = s.words(4);
    const CUevent fork = s.event(), join = s.event();
    const auto chain = [&](Word value) {
      return captured(a, CU_STREAM_CAPTURE_MODE_RELAXED,
                      [&] { add_slowly(kernels, a, x, x + 4, value); });
    };
    const auto fan = [&](Word value) {
      return captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
        check(drv.cuEventRecord(fork, a));
        check(drv.cuStreamWaitEvent(b, fork, 0));
        kernels.launch("slow_add", a, x + 8, value, kShort);
        kernels.launch("slow_add", b, x + 12, value + 1, kShort);
        check(drv.cuEventRecord(join, b));
        check(drv.cuStreamWaitEvent(a, join, 0));
      });
    };
    for (const bool branches : {false, true}) {
      const CUgraph first = branches ? fan(1) : chain(1);
      const CUgraphExec run = executable(first);
      const std::vector<CUgraphNode> nodes = nodes_of(first, CU_GRAPH_NODE_TYPE_KERNEL);
      launch_often(s, run, a, x, 10);
      for (Word round = 1; round < 4; ++round) {
        const CUgraph other = branches ? fan(10 * round) : chain(10 * round);
        print("update", update_from(run, other));
        launch_often(s, run, a, x, 10);
        print("set", set_value(run, nodes[1], branches ? x + 12 : x + 4, round));
        launch_often(s, run, a, x, 10);
      }
      check(drv.cuGraphExecDestroy(run));
      check(drv.cuGraphDestroy(first));
    }
  }
}

// Executables go on with code that was loaded anew, by an update or node by node, and what they
// named before is unloaded. Handles may be given out again.
void code_loaded_anew() {
  Session s;
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(4);
  CUgraph first = nullptr;
  CUgraphExec updated = nullptr, set = nullptr;
  std::vector<CUgraphNode> nodes;
  CUlibrary before = nullptr;
  for (int round = 0; round < 12; ++round) {
    const Kernels kernels(s, true);
    const CUgraph inner = captured(a, CU_STREAM_CAPTURE_MODE_RELAXED,
                                   [&] { kernels.launch("slow_add", a, x + 8, Word{1}, kShort); });
    const CUgraph graph =
        captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] { add_slowly(kernels, a, x, x + 4, 1); });
    CUgraphNode child = nullptr;
    check(drv.cuGraphAddChildGraphNode(&child, graph, nullptr, 0, inner));
    check(drv.cuGraphDestroy(inner));
    if (updated == nullptr) {
      updated = executable(graph);
      first = captured(a, CU_STREAM_CAPTURE_MODE_RELAXED,
                       [&] { kernels.launch("slow_add", a, x + 12, Word{1}, kShort); });
      set = executable(first);
      nodes = nodes_of(first, CU_GRAPH_NODE_TYPE_KERNEL);
    } else {
      CUgraphExecUpdateResultInfo info;
      print("update", drv.cuGraphExecUpdate(updated, graph, &info));
      CUdeviceptr to = x + 12;
      Word by = 1;
      std::uint64_t ns = kShort;
      void* arguments[] = {&to, &by, &ns, nullptr};
      CUDA_KERNEL_NODE_PARAMS parameters{};
      parameters.func = kernels("slow_add");
      parameters.gridDimX = parameters.gridDimY = parameters.gridDimZ = 1;
      parameters.blockDimX = 32;
      parameters.blockDimY = parameters.blockDimZ = 1;
      parameters.kernelParams = arguments;
      print("set", drv.cuGraphExecKernelNodeSetParams(set, nodes[0], &parameters));
      check(drv.cuLibraryUnload(before));
    }
    check(drv.cuGraphDestroy(graph));
    before = kernels.library;
    launch_often(s, updated, a, x, 6);
    launch_often(s, set, a, x, 6);
  }
}

// As a program does that captures each step anew: values change, and with `kernels_change` kernels,
// too.
void updated_before_every_launch(bool kernels_change) {
  Session s;
  for (const bool of_library : {false, true}) {
    const Kernels kernels(s, of_library);
    const CUstream a = s.stream(), b = s.stream();
    const CUdeviceptr x = s.words(8);
    const CUevent fork = s.event(), join = s.event();
    const auto step = [&](Word value) {
      return captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
        add_slowly(kernels, a, x, x + 4, value);
        check(drv.cuEventRecord(fork, a));
        check(drv.cuStreamWaitEvent(b, fork, 0));
        kernels.launch("slow_add", b, x + 8, Word{2}, kShort);
        check(drv.cuMemsetD32Async(x + 12, value, 1, a));
        check(drv.cuMemcpyDtoDAsync(x + 16, x + 12, 4, a));
        check(drv.cuEventRecord(join, b));
        check(drv.cuStreamWaitEvent(a, join, 0));
        if (kernels_change && value % 2 == 0)
          kernels.launch("slow_copy", a, x + 20, x + 16, Word{1}, kShort);
        else
          kernels.launch("slow_add", a, x + 20, Word{1}, kShort);
      });
    };
    const CUgraph first = step(0);
    const CUgraphExec run = executable(first);
    for (Word i = 1; i <= 100; ++i) {
      const CUgraph next = step(i);
      check(update_from(run, next));
      check(drv.cuGraphLaunch(run, a));
      if (i % 20 != 0) continue;
      check(drv.cuStreamSynchronize(a));
      print("words", s.read(x, 6));
    }
    check(drv.cuGraphExecDestroy(run));
    check(drv.cuGraphDestroy(first));
  }
}
void updated_each() { updated_before_every_launch(false); }
void updated_to_other_kernels() { updated_before_every_launch(true); }

// What is disabled stays so when the executable is updated, also where its node cannot be found.
void disabled_then_updated() {
  Session s;
  const Kernels kernels(s, true);
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(4);
  const auto made_with = [&](Word value) {
    return captured(a, CU_STREAM_CAPTURE_MODE_RELAXED,
                    [&] { add_slowly(kernels, a, x, x + 4, value); });
  };
  const CUgraph first = made_with(1);
  const CUgraphExec run = executable(first);
  const CUgraphNode node = nodes_of(first, CU_GRAPH_NODE_TYPE_KERNEL)[1];
  const auto update = [&](Word value) {
    const CUgraph other = made_with(value);
    print("update", update_from(run, other));
    launch_often(s, run, a, x, 10);
  };
  launch_often(s, run, a, x, 10);
  update(2);
  print("disable", drv.cuGraphNodeSetEnabled(run, node, 0));
  launch_often(s, run, a, x, 10);
  update(3);
  print("enable", drv.cuGraphNodeSetEnabled(run, node, 1));
  launch_often(s, run, a, x, 10);
  update(4);
}

// What the driver refused is not followed, until it accepts another graph.
void refused_then_updated() {
  Session s;
  const Kernels kernels(s, true);
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(4);
  const auto made_with = [&](Word value) {
    return captured(a, CU_STREAM_CAPTURE_MODE_RELAXED,
                    [&] { add_slowly(kernels, a, x, x + 4, value); });
  };
  const CUgraph larger = captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
    for (int i = 0; i < 9; ++i) kernels.launch("slow_add", a, x, Word{1}, kShort);
  });
  const CUgraph first = made_with(1);
  const CUgraphExec run = executable(first);
  launch_often(s, run, a, x, 10);
  CUgraphExecUpdateResultInfo info;
  for (Word round = 2; round < 5; ++round) {
    print("another shape", drv.cuGraphExecUpdate(run, larger, &info));
    print("update", drv.cuGraphExecUpdate(run, made_with(round), &info));
    launch_often(s, run, a, x, 100);
    print("set", set_value(run, nodes_of(first, CU_GRAPH_NODE_TYPE_KERNEL)[1], x + 4, 7));
    launch_often(s, run, a, x, 100);
  }
}

// --- programs that go wrong, or nearly -------------------------------------------------------

void ends_within_a_capture() {
  Session s;
  const Kernels kernels(s, true);
  const CUstream a = s.stream(), b = s.stream();
  const CUdeviceptr x = s.words(4);
  const CUgraphExec run = executable(
      captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] { add_slowly(kernels, a, x, x + 4, 1); }));
  launch_often(s, run, a, x, 20);
  check(drv.cuStreamBeginCapture(b, CU_STREAM_CAPTURE_MODE_GLOBAL));
  kernels.launch("slow_add", b, x, Word{1}, kShort);
  for (int i = 0; i < 20; ++i) check(drv.cuGraphLaunch(run, a));
  print("it ends", 7ULL);
  std::fflush(stdout);
  std::exit(7);
}

// Launches keep what the executable held when they were made, however long they run.
void edited_while_it_runs() {
  constexpr std::uint64_t kLong = 200'000;
  Session s;
  for (const bool of_library : {false, true}) {
    const Kernels kernels(s, of_library);
    const CUstream a = s.stream();
    const CUdeviceptr x = s.words(4);
    const auto adding = [&](Word value) {
      return captured(a, CU_STREAM_CAPTURE_MODE_RELAXED,
                      [&] { add_slowly(kernels, a, x, x + 4, value, kLong); });
    };
    const CUgraph first = adding(1);
    const CUgraphExec run = executable(first);
    const CUgraphNode node = nodes_of(first, CU_GRAPH_NODE_TYPE_KERNEL)[1];
    for (Word i = 1; i <= 40; ++i) {
      check(drv.cuGraphLaunch(run, a));
      check(set_value(run, node, x + 4, i));
      check(drv.cuGraphLaunch(run, a));
      const CUgraph other = adding(1000 * i);
      check(update_from(run, other));
    }
    check(drv.cuGraphExecDestroy(run));
    check(drv.cuGraphDestroy(first));
    check(drv.cuStreamSynchronize(a));
    print("words", s.read(x, 1));
  }
}

// One thread launches and another one updates, each when the other is done.
void updated_by_another_thread() {
  constexpr Word kRounds = 100;
  Session s;
  const Kernels kernels(s, true);
  const CUstream a = s.stream(), b = s.stream();
  const CUdeviceptr x = s.words(4);
  const auto adding = [&](CUstream stream, Word value) {
    return captured(stream, CU_STREAM_CAPTURE_MODE_RELAXED,
                    [&] { add_slowly(kernels, stream, x, x + 4, value); });
  };
  const CUgraph first = adding(a, 1);
  const CUgraphExec run = executable(first);
  std::atomic<Word> updated{0}, launched{0};
  std::thread updater([&] {
    check(drv.cuCtxSetCurrent(s.context));
    for (Word i = 1; i <= kRounds; ++i) {
      while (launched != i - 1) std::this_thread::yield();
      if (i % 3 == 0) {
        check(set_value(run, nodes_of(first, CU_GRAPH_NODE_TYPE_KERNEL)[1], x + 4, 10'000 * i));
      } else {
        const CUgraph other = adding(b, i);
        check(update_from(run, other));
      }
      updated = i;
    }
  });
  for (Word i = 1; i <= kRounds; ++i) {
    while (updated != i) std::this_thread::yield();
    check(drv.cuGraphLaunch(run, a));
    launched = i;
  }
  updater.join();
  check(drv.cuStreamSynchronize(a));
  print("words", s.read(x, 1));
}

void thousands_of_graphs() {
  constexpr int kGraphs = 1200;
  Session s;
  const Kernels kernels(s, true);
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(4);
  std::vector<CUgraphExec> runs;
  for (int i = 0; i < kGraphs; ++i) {
    const CUgraph graph = captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
      add_slowly(kernels, a, x, x + 4, static_cast<Word>(i % 7));
    });
    runs.push_back(executable(graph));
    check(drv.cuGraphDestroy(graph));
  }
  for (int round = 0; round < 2; ++round)
    for (const CUgraphExec run : runs) check(drv.cuGraphLaunch(run, a));
  for (const CUgraphExec run : runs) check(drv.cuGraphExecDestroy(run));
  check(drv.cuStreamSynchronize(a));
  print("words", s.read(x, 1));
}

const Scenarios kScenarios = {
    {"ends_within_a_capture", &ends_within_a_capture},
    {"edited_while_it_runs", &edited_while_it_runs},
    {"updated_by_another_thread", &updated_by_another_thread},
    {"thousands_of_graphs", &thousands_of_graphs},
    {"update_then_set", &update_then_set},
    {"code_loaded_anew", &code_loaded_anew},
    {"updated_each", &updated_each},
    {"updated_to_other_kernels", &updated_to_other_kernels},
    {"disabled_then_updated", &disabled_then_updated},
    {"refused_then_updated", &refused_then_updated},
    {"changed_before_every_launch", &changed_before_every_launch},
    {"captured_between_launches", &captured_between_launches},
};

}  // namespace

int main(int count, char** words) { return run_scenario(kScenarios, count, words); }
