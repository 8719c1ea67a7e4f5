// SPDX-License-Identifier: Apache-2.0
//
// What programs do with graphs. Each prints what it computed, which must not depend on where the
// launches of its graphs ran; graphs_test.py runs each bare and under the preloaded library, and
// asks the statistics page whether they ran anywhere else at all.
//
//   graph_scenarios NAME
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "graphs.h"

namespace {

// As PyTorch does it: captured on a side stream in thread-local or relaxed mode, with a fork, a
// copy and a fill; the graph is destroyed at once; replayed very often, with eager work between.
void replays(bool of_library, int times) {
  Session s;
  const Kernels kernels(s, of_library);
  const CUstream a = s.stream(), b = s.stream();
  const CUevent fork = s.event(), join = s.event();
  for (const CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    const CUdeviceptr x = s.words(6);
    const CUgraph graph = captured(a, mode, [&] {
      add_slowly(kernels, a, x, x + 4, 3);
      check(drv.cuEventRecord(fork, a));
      check(drv.cuStreamWaitEvent(b, fork, 0));
      kernels.launch("slow_add", b, x + 8, Word{5}, kShort);
      check(drv.cuMemcpyDtoDAsync(x + 12, x, 4, a));
      check(drv.cuMemsetD32Async(x + 16, 7, 1, a));
      check(drv.cuEventRecord(join, b));
      check(drv.cuStreamWaitEvent(a, join, 0));
      kernels.launch("slow_add", a, x + 16, Word{1}, kShort);
    });
    const CUgraphExec run = executable(graph);
    check(drv.cuGraphDestroy(graph));
    for (int i = 0; i < times; ++i) {
      check(drv.cuGraphLaunch(run, a));
      kernels.launch("slow_add", a, x + 20, Word{1}, kShort);
      if (i % 50 == 49) check(drv.cuStreamSynchronize(a));
      if (i % 50 < 4) wait_a_little();
    }
    check(drv.cuStreamSynchronize(a));
    print("words", s.read(x, 6));
    check(drv.cuGraphExecDestroy(run));
  }
}
void replays_of_functions() { replays(false, 400); }
void replays_of_kernels() { replays(true, 400); }
void thousands_of_replays() { replays(true, 3000); }

// Natively one executable never runs beside itself, whatever streams it is launched into.
void one_graph_in_many_streams() {
  Session s;
  const Kernels kernels(s, true);
  const CUstream capture = s.stream();
  const CUstream streams[] = {s.stream(), s.stream(), s.stream(CU_STREAM_DEFAULT),
                              CU_STREAM_PER_THREAD, nullptr};
  const CUdeviceptr x = s.words(2);
  const CUgraph graph = captured(capture, CU_STREAM_CAPTURE_MODE_RELAXED,
                                 [&] { add_slowly(kernels, capture, x, x + 4, 1, 20'000); });
  const CUgraphExec run = executable(graph);
  for (int i = 0; i < 200; ++i) {
    check(drv.cuGraphLaunch(run, streams[i % 5]));
    if (i % 20 < 3) wait_a_little();
  }
  check(drv.cuCtxSynchronize());
  print("words", s.read(x, 1));
}

// Updated as a whole and node by node between launches, which mean what they meant when they were
// made.
void updates() {
  Session s;
  const Kernels kernels(s, true);
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(8);
  const auto made_with = [&](Word value) {
    return captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
      add_slowly(kernels, a, x, x + 4, value);
      check(drv.cuMemsetD32Async(x + 8, value, 1, a));
      check(drv.cuMemcpyDtoDAsync(x + 12, x + 8, 4, a));
      kernels.launch("slow_add", a, x + 12, value, kShort);
    });
  };
  const CUgraph graph = made_with(1);
  const CUgraphExec run = executable(graph);
  const auto launch = [&](int times) {
    for (int i = 0; i < times; ++i) {
      check(drv.cuGraphLaunch(run, a));
      wait_a_little();
    }
  };
  launch(8);
  for (Word value = 2; value < 6; ++value) {
    const CUgraph other = made_with(value);
    CUgraphExecUpdateResultInfo info;
    print("update", drv.cuGraphExecUpdate(run, other, &info));
    launch(6);
    check(drv.cuStreamSynchronize(a));
    print("updated", s.read(x, 4));
    check(drv.cuGraphDestroy(other));
  }
  const CUgraph larger = captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
    for (int i = 0; i < 9; ++i) kernels.launch("slow_add", a, x, Word{1}, kShort);
  });
  CUgraphExecUpdateResultInfo info;
  print("another shape", drv.cuGraphExecUpdate(run, larger, &info));
  launch(4);
  check(drv.cuStreamSynchronize(a));
  print("as before", s.read(x, 4));
}

void node_updates() {
  Session s;
  const Kernels kernels(s, true);
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(8);
  const CUgraph graph = captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
    kernels.launch("slow_add", a, x, Word{1}, kShort);
    check(drv.cuMemsetD32Async(x + 8, 1, 1, a));
    check(drv.cuMemcpyDtoDAsync(x + 12, x + 8, 4, a));
    kernels.launch("slow_add", a, x + 12, Word{1}, kShort);
  });
  const CUgraphExec run = executable(graph);
  const auto launch = [&](const char* what) {
    for (int i = 0; i < 6; ++i) {
      check(drv.cuGraphLaunch(run, a));
      wait_a_little();
    }
    check(drv.cuStreamSynchronize(a));
    print(what, s.read(x, 6));
  };
  launch("at first");
  const std::vector<CUgraphNode> kernel_nodes = nodes_of(graph, CU_GRAPH_NODE_TYPE_KERNEL);
  CUDA_KERNEL_NODE_PARAMS parameters{};
  check(drv.cuGraphKernelNodeGetParams(kernel_nodes[0], &parameters));
  CUdeviceptr target = x;
  Word value = 10;
  std::uint64_t ns = kShort;
  void* arguments[] = {&target, &value, &ns};
  parameters.kernelParams = arguments;
  print("a kernel", drv.cuGraphExecKernelNodeSetParams(run, kernel_nodes[0], &parameters));
  launch("kernel");
  CUDA_MEMSET_NODE_PARAMS fill{x + 8, 0, 20, 4, 1, 1};
  print("a fill", drv.cuGraphExecMemsetNodeSetParams(
                      run, nodes_of(graph, CU_GRAPH_NODE_TYPE_MEMSET)[0], &fill, s.context));
  launch("fill");
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = x;
  box.dstDevice = x + 16;
  box.WidthInBytes = 4;
  box.Height = box.Depth = 1;
  print("a copy", drv.cuGraphExecMemcpyNodeSetParams(
                      run, nodes_of(graph, CU_GRAPH_NODE_TYPE_MEMCPY)[0], &box, s.context));
  launch("copy");
  print("disabled", drv.cuGraphNodeSetEnabled(run, kernel_nodes[0], 0));
  launch("without a kernel");
  print("enabled", drv.cuGraphNodeSetEnabled(run, kernel_nodes[0], 1));
  launch("with it");
  print("no such node", drv.cuGraphNodeSetEnabled(run, nullptr, 0));
  launch("as before");
}

// What the application does to an executable concerns later launches only, wherever the earlier
// ones still wait.
void changes_behind_a_gate() {
  Session s;
  const Kernels kernels(s, true);
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(4);
  std::atomic<bool> open{false};
  const auto hold = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
  };
  for (int round = 0; round < 3; ++round) {
    const auto adding = [&](Word value) {
      return captured(a, CU_STREAM_CAPTURE_MODE_RELAXED,
                      [&] { add_slowly(kernels, a, x, x + 4, value); });
    };
    const CUgraph one = adding(1), hundred = adding(100);
    const CUgraphExec run = executable(one);
    for (int i = 0; i < 6; ++i) {
      check(drv.cuGraphLaunch(run, a));
      wait_a_little();
    }
    open = false;
    check(drv.cuLaunchHostFunc(a, hold, &open));
    check(drv.cuGraphLaunch(run, a));
    if (round == 1) {
      CUgraphExecUpdateResultInfo info;
      check(drv.cuGraphExecUpdate(run, hundred, &info));
      check(drv.cuGraphLaunch(run, a));
    }
    if (round != 2) check(drv.cuGraphUpload(run, a));
    check(drv.cuGraphLaunch(run, a));
    check(drv.cuGraphExecDestroy(run));
    open = true;
    check(drv.cuStreamSynchronize(a));
    print("words", s.read(x, 1));
    check(drv.cuGraphDestroy(one));
    check(drv.cuGraphDestroy(hundred));
  }
}

void destroyed_in_flight() {
  Session s;
  const Kernels kernels(s, true);
  const CUstream a = s.stream(), b = s.stream();
  const CUdeviceptr x = s.words(4);
  for (int round = 0; round < 12; ++round) {
    const CUgraph graph = captured(a, CU_STREAM_CAPTURE_MODE_RELAXED,
                                   [&] { add_slowly(kernels, a, x, x + 4, 1, 100'000); });
    const CUgraphExec run = executable(graph);
    for (int i = 0; i < 5; ++i) {
      check(drv.cuGraphLaunch(run, round % 2 ? a : b));
      if (i < 4) wait_a_little();
    }
    check(drv.cuGraphExecDestroy(run));
    check(drv.cuGraphDestroy(graph));
    kernels.launch("slow_add", round % 2 ? a : b, x, Word{1000}, kShort);
    check(drv.cuStreamSynchronize(round % 2 ? a : b));
  }
  print("words", s.read(x, 1));
}

// Built by hand: a graph inside a graph, empty nodes, functions and kernels, packed arguments.
void built_by_hand() {
  Session s;
  const Kernels library(s, true), module(s, false);
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(4);
  CUgraph inner = nullptr, outer = nullptr;
  check(drv.cuGraphCreate(&inner, 0));
  check(drv.cuGraphCreate(&outer, 0));
  const auto add = [&](CUgraph graph, const Kernels& kernels, std::vector<CUgraphNode> behind,
                       Word value) {
    CUdeviceptr target = x;
    std::uint64_t ns = kShort;
    void* arguments[] = {&target, &value, &ns};
    CUDA_KERNEL_NODE_PARAMS parameters{};
    parameters.func = kernels("slow_add");
    parameters.gridDimX = parameters.gridDimY = parameters.gridDimZ = 1;
    parameters.blockDimX = 32;
    parameters.blockDimY = parameters.blockDimZ = 1;
    parameters.kernelParams = arguments;
    CUgraphNode node = nullptr;
    check(drv.cuGraphAddKernelNode(&node, graph, behind.data(), behind.size(), &parameters));
    return node;
  };
  const CUgraphNode first = add(inner, library, {}, 1);
  add(inner, module, {first}, 10);
  CUgraphNode child = nullptr, empty = nullptr;
  const CUgraphNode before = add(outer, module, {}, 100);
  check(drv.cuGraphAddChildGraphNode(&child, outer, &before, 1, inner));
  check(drv.cuGraphAddEmptyNode(&empty, outer, &child, 1));
  add(outer, library, {empty}, 1000);
  const CUgraphExec run = executable(outer);
  check(drv.cuGraphDestroy(outer));
  check(drv.cuGraphDestroy(inner));
  for (int i = 0; i < 40; ++i) {
    check(drv.cuGraphLaunch(run, a));
    wait_a_little();
  }
  check(drv.cuStreamSynchronize(a));
  print("words", s.read(x, 1));
}

void CUDA_CB count_up(void* data) { ++*static_cast<std::atomic<int>*>(data); }

// Host functions and events stay where they are.
void nodes_that_stay() {
  Session s;
  const Kernels kernels(s, true);
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(2);
  const CUevent e = s.event();
  std::atomic<int> calls{0};
  const CUgraph host = captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
    kernels.launch("slow_add", a, x, Word{1}, kShort);
    check(drv.cuLaunchHostFunc(a, &count_up, &calls));
  });
  CUgraph events = nullptr;
  CUgraphNode node = nullptr;
  check(drv.cuGraphCreate(&events, 0));
  check(drv.cuGraphAddEventRecordNode(&node, events, nullptr, 0, e));
  const CUgraphExec runs[] = {executable(host), executable(events)};
  for (int i = 0; i < 20; ++i) {
    for (const CUgraphExec run : runs) check(drv.cuGraphLaunch(run, a));
    kernels.launch("slow_add", a, x + 4, Word{1}, kShort);
  }
  check(drv.cuStreamSynchronize(a));
  print("words", s.read(x, 2));
  print("calls", static_cast<unsigned long long>(calls.load()));
  print("event", drv.cuEventQuery(e));
}

// A cooperative grid that fits a part, one that does not, and clusters.
void wide_nodes() {
  Session s;
  const Kernels kernels(s, false);
  const CUstream a = s.stream();
  for (const unsigned blocks : {8U, 1000U}) {
    const CUdeviceptr arrived = s.words(1), out = s.words(1024);
    CUdeviceptr addresses[] = {arrived, out};
    void* parameters[] = {&addresses[0], &addresses[1]};
    const CUgraph graph = captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
      check(drv.cuMemsetD32Async(arrived, 0, 1, a));
      check(drv.cuLaunchCooperativeKernel(kernels("grid_barrier"), blocks, 1, 1, 32, 1, 1, 0, a,
                                          parameters));
    });
    const CUgraphExec run = executable(graph);
    for (int i = 0; i < 12; ++i) {
      check(drv.cuGraphLaunch(run, a));
      wait_a_little();
    }
    check(drv.cuStreamSynchronize(a));
    Word sum = 0;
    for (const Word word : s.read(out, blocks)) sum += word;
    print("blocks", sum);
  }
  const CUdeviceptr ranks = s.words(64);
  CUlaunchAttribute cluster{};
  cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  cluster.value.clusterDim.x = 4;
  cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1;
  CUlaunchConfig config{};
  config.gridDimX = 32;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 32;
  config.hStream = a;
  config.attrs = &cluster;
  config.numAttrs = 1;
  CUdeviceptr target = ranks;
  void* parameters[] = {&target};
  const CUgraph graph = captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
    check(drv.cuLaunchKernelEx(&config, kernels("cluster_ranks"), parameters, nullptr));
  });
  const CUgraphExec run = executable(graph);
  for (int i = 0; i < 20; ++i) {
    check(drv.cuGraphLaunch(run, a));
    wait_a_little();
  }
  check(drv.cuStreamSynchronize(a));
  print("ranks", s.read(ranks, 32));
}

// Each thread captures and replays on its own default stream, while others capture and wait for the
// whole context.
void graphs_of_threads() {
  Session s;
  const CUdeviceptr cells = s.words(8);
  std::atomic<bool> done{false};
  std::thread waiter([&] {
    check(drv.cuCtxSetCurrent(s.context));
    // A wait for the context breaks captures that are open, so no thread may make one.
    const CUdeviceptr word = cells + 28;
    const CUstream own = s.stream();
    while (!done.load()) {
      s.launch("slow_add", own, word, Word{0}, kShort);
      check(drv.cuStreamSynchronize(own));
    }
  });
  std::vector<std::thread> threads;
  for (Word i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      check(drv.cuCtxSetCurrent(s.context));
      const Kernels kernels(s, i % 2 == 0);
      const CUdeviceptr mine = cells + 4 * i;
      const CUgraph graph =
          captured(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                   [&] { kernels.launch("slow_add", CU_STREAM_PER_THREAD, mine, i + 1, kShort); });
      const CUgraphExec run = executable(graph);
      for (int n = 0; n < 60; ++n) {
        check(drv.cuGraphLaunch(run, CU_STREAM_PER_THREAD));
        if (n % 10 < 3) wait_a_little();
      }
      check(drv.cuStreamSynchronize(CU_STREAM_PER_THREAD));
      check(drv.cuGraphExecDestroy(run));
    });
  for (std::thread& thread : threads) thread.join();
  done = true;
  waiter.join();
  print("cells", s.read(cells, 4));
}

// A wait for the context while executables are made of functions, which takes a capture of ours.
void waits_for_the_context() {
  Session s;
  const Kernels kernels(s, false);
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(2);
  std::vector<CUgraphExec> runs;
  for (int i = 0; i < 6; ++i)
    runs.push_back(executable(captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
      for (int n = 0; n < 40; ++n) kernels.launch("slow_add", a, x, Word{1}, std::uint64_t{100});
    })));
  unsigned refused = 0;
  for (int i = 0; i < 600; ++i) {
    check(drv.cuGraphLaunch(runs[static_cast<std::size_t>(i % 6)], a));
    if (drv.cuCtxSynchronize() != CUDA_SUCCESS) ++refused;
    if (i % 10 == 0) wait_a_little();  // executables are made while others have the processor
  }
  print("refused", refused);
  print("words", s.read(x, 1));
}

// The device is reset while executables of ours exist; what was made before is gone.
void reset_device() {
  for (int round = 0; round < 3; ++round) {
    Session s;
    const Kernels kernels(s, true);
    const CUstream a = s.stream();
    const CUdeviceptr x = s.words(2);
    const CUgraphExec run = executable(captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
      kernels.launch("slow_add", a, x, Word{1}, kShort);
    }));
    for (int i = 0; i < 30; ++i) {
      check(drv.cuGraphLaunch(run, a));
      wait_a_little();
    }
    print("words", s.read(x, 1));
    check(drv.cuDevicePrimaryCtxReset(s.device));
  }
}

// Nothing is waited for at the end: the process leaves while graphs run and executables are made.
void leaves_at_once() {
  Session s;
  const Kernels kernels(s, false);
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(2);
  const CUgraphExec run = executable(captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
    for (int n = 0; n < 200; ++n) kernels.launch("slow_add", a, x, Word{1}, std::uint64_t{10});
  }));
  for (int i = 0; i < 30; ++i) check(drv.cuGraphLaunch(run, a));
  print("launched", 30ULL);
}

// A child of before the first use of the device uses it itself; those of later leave it alone, as
// they must natively, and live on beside their parent for a while.
void forks_around_replays() {
  std::fflush(stdout);
  const pid_t first = ::fork();
  Session s;
  const Kernels kernels(s, true);
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(2);
  const CUgraph graph =
      captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] { add_slowly(kernels, a, x, x + 4, 3); });
  const CUgraphExec run = executable(graph);
  std::vector<pid_t> children;
  for (int i = 0; i < 400; ++i) {
    check(drv.cuGraphLaunch(run, a));
    if (i % 40 == 20 && first != 0) {
      children.push_back(::fork());
      if (children.back() == 0) {
        if (i % 80 == 20) ::usleep(50'000);
        ::_exit(i / 40);
      }
    }
    if (i % 40 < 4) wait_a_little();
  }
  unsigned long long sum = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    sum += static_cast<unsigned long long>(WEXITSTATUS(status));
  }
  check(drv.cuStreamSynchronize(a));
  if (first == 0) {  // alone in what it prints: the parent waits for it
    print("child's words", s.read(x, 1));
    std::fflush(stdout);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(first, &status, 0);
  print("child's code", static_cast<unsigned long long>(WEXITSTATUS(status)));
  print("children", sum);
  print("words", s.read(x, 1));
}

// Code goes as soon as natively nothing needs it: behind the last launch, before or after what was
// made of it is destroyed.
void code_that_goes() {
  Session s;
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(2);
  for (int i = 0; i < 120; ++i) {
    Kernels kernels(s, true);
    CUmodule module = nullptr;
    check(drv.cuModuleLoadData(&module, module_image("TEST_KERNELS").data()));
    CUfunction add = nullptr;
    check(drv.cuModuleGetFunction(&add, module, "slow_add"));
    const CUgraph graph = captured(a, CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
      for (int j = 0; j < 10; ++j) add_slowly(kernels, a, x, x + 4, 1, 100);
      CUdeviceptr to = x;
      Word value = 1;
      std::uint64_t ns = 100;
      void* arguments[] = {&to, &value, &ns, nullptr};
      check(drv.cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, a, arguments, nullptr));
    });
    const CUgraphExec run = executable(graph);
    check(drv.cuGraphDestroy(graph));
    for (int j = 0; j < 6; ++j) check(drv.cuGraphLaunch(run, a));
    check(drv.cuStreamSynchronize(a));
    if (i % 2 == 0) check(drv.cuGraphExecDestroy(run));
    check(drv.cuModuleUnload(module));
    check(drv.cuLibraryUnload(kernels.library));
    if (i % 2 == 1) check(drv.cuGraphExecDestroy(run));
  }
  print("words", s.read(x, 1));
}

const Scenarios kScenarios = {
#define SCENARIO(name) \
  {                    \
#name, &name       \
  }
    SCENARIO(replays_of_functions),
    SCENARIO(replays_of_kernels),
    SCENARIO(thousands_of_replays),
    SCENARIO(one_graph_in_many_streams),
    SCENARIO(updates),
    SCENARIO(node_updates),
    SCENARIO(changes_behind_a_gate),
    SCENARIO(destroyed_in_flight),
    SCENARIO(built_by_hand),
    SCENARIO(nodes_that_stay),
    SCENARIO(wide_nodes),
    SCENARIO(graphs_of_threads),
    SCENARIO(waits_for_the_context),
    SCENARIO(reset_device),
    SCENARIO(leaves_at_once),
    SCENARIO(forks_around_replays),
    SCENARIO(code_that_goes),
};

}  // namespace

int main(int count, char** words) { return run_scenario(kScenarios, count, words); }
