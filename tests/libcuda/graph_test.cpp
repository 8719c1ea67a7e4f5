// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>

#include "fixture.h"

namespace vitamin::libcuda_tests {
namespace {

CUDA_KERNEL_NODE_PARAMS kernel_params(CUfunction function, void** arguments) {
  CUDA_KERNEL_NODE_PARAMS parameters{};
  parameters.func = function;
  parameters.gridDimX = parameters.gridDimY = parameters.gridDimZ = 1;
  parameters.blockDimX = parameters.blockDimY = parameters.blockDimZ = 1;
  parameters.kernelParams = arguments;
  return parameters;
}

struct GraphFixture {
  Primary primary;
  Kernels kernels;
  DeviceWords words{600};
  Stream stream{CU_STREAM_NON_BLOCKING};
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;

  GraphFixture() { REQUIRE_OK(cuGraphCreate(&graph, 0)); }
  ~GraphFixture() {
    if (exec != nullptr) cuGraphExecDestroy(exec);
    cuGraphDestroy(graph);
  }
  CUgraphNode append(std::uint32_t value, std::vector<CUgraphNode> behind = {}) {
    CUdeviceptr log = words.get();
    void* arguments[] = {&log, &value};
    const CUDA_KERNEL_NODE_PARAMS parameters = kernel_params(kernels["append"], arguments);
    CUgraphNode node;
    REQUIRE_OK(cuGraphAddKernelNode(&node, graph, behind.data(), behind.size(), &parameters));
    return node;
  }
  void run(int times = 1) {
    if (exec == nullptr) REQUIRE_OK(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < times; ++i) REQUIRE_OK(cuGraphLaunch(exec, stream));
    REQUIRE_OK(cuStreamSynchronize(stream));
  }
  std::vector<std::uint32_t> values() const {
    const std::vector<std::uint32_t> all = words.all();
    return {all.begin() + 1, all.begin() + 1 + all[0]};
  }
};

TEST_CASE("a graph's edges order its nodes") {
  GraphFixture f;
  const CUgraphNode first = f.append(1);
  const CUgraphNode left = f.append(2, {first});
  const CUgraphNode right = f.append(3, {first, left});
  f.append(4, {left, right});
  f.run(2);
  CHECK_EQ(f.values(), std::vector<std::uint32_t>{1, 2, 3, 4, 1, 2, 3, 4});
}

TEST_CASE("a cycle cannot be instantiated") {
  GraphFixture f;
  const CUgraphNode first = f.append(1);
  const CUgraphNode second = f.append(2, {first});
#if CUDA_VERSION >= 13000
  REQUIRE_OK(cuGraphAddDependencies(f.graph, &second, &first, nullptr, 1));
#else
  REQUIRE_OK(cuGraphAddDependencies(f.graph, &second, &first, 1));
#endif
  CHECK_RESULT(cuGraphInstantiate(&f.exec, f.graph, 0), CUDA_ERROR_INVALID_VALUE);
}

std::atomic<int> host_calls{0};
void CUDA_CB count_call(void*) { ++host_calls; }

TEST_CASE("copy, fill, host, empty, event and child nodes do what they say") {
  GraphFixture f;
  const PinnedWords pinned(4);
  const Event event(CU_EVENT_DEFAULT);
  CUcontext context = f.primary.get();
  CUgraphNode fill, copy, host, empty, record, child;
  const CUDA_MEMSET_NODE_PARAMS filling{f.words.get() + 400, 0, 7, 4, 4, 1};
  REQUIRE_OK(cuGraphAddMemsetNode(&fill, f.graph, nullptr, 0, &filling, context));
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = f.words.get() + 400;
  box.dstMemoryType = CU_MEMORYTYPE_HOST;
  box.dstHost = pinned.get();
  box.WidthInBytes = 16;
  box.Height = box.Depth = 1;
  REQUIRE_OK(cuGraphAddMemcpyNode(&copy, f.graph, &fill, 1, &box, context));
  const CUDA_HOST_NODE_PARAMS calling{count_call, nullptr};
  REQUIRE_OK(cuGraphAddHostNode(&host, f.graph, &copy, 1, &calling));
  REQUIRE_OK(cuGraphAddEmptyNode(&empty, f.graph, &host, 1));
  REQUIRE_OK(cuGraphAddEventRecordNode(&record, f.graph, &empty, 1, event));
  CUgraph body;
  REQUIRE_OK(cuGraphCreate(&body, 0));
  {
    CUdeviceptr log = f.words.get();
    std::uint32_t value = 9;
    void* arguments[] = {&log, &value};
    const CUDA_KERNEL_NODE_PARAMS parameters = kernel_params(f.kernels["append"], arguments);
    CUgraphNode inner;
    REQUIRE_OK(cuGraphAddKernelNode(&inner, body, nullptr, 0, &parameters));
  }
  REQUIRE_OK(cuGraphAddChildGraphNode(&child, f.graph, &record, 1, body));
  REQUIRE_OK(cuGraphDestroy(body));
  f.append(10, {child});
  host_calls = 0;
  f.run();
  CHECK_EQ(pinned[3], 7);
  CHECK_EQ(host_calls, 1);
  CHECK_EQ(f.values(), std::vector<std::uint32_t>{9, 10});
  CHECK_RESULT(cuEventQuery(event), CUDA_SUCCESS);
}

TEST_CASE("the handles inside a child graph end with its node") {
  GraphFixture f;
  CUgraph body, inner_graph;
  REQUIRE_OK(cuGraphCreate(&body, 0));
  CUgraphNode empty;
  REQUIRE_OK(cuGraphAddEmptyNode(&empty, body, nullptr, 0));
  // Objects of other kinds come to the addresses: the driver stops where it still knows them.
  for (int round = 0; round < 50; ++round) {
    CUgraphNode child, inner;
    REQUIRE_OK(cuGraphAddChildGraphNode(&child, f.graph, nullptr, 0, body));
    REQUIRE_OK(cuGraphChildGraphNodeGetGraph(child, &inner_graph));
    std::size_t count = 1;
    REQUIRE_OK(cuGraphGetNodes(inner_graph, &inner, &count));
    REQUIRE_EQ(count, 1);
    CUgraphNodeType type;
    CHECK_RESULT(cuGraphNodeGetType(inner, &type), CUDA_SUCCESS);
    REQUIRE_OK(cuGraphDestroyNode(child));
    CHECK_RESULT(cuGraphNodeGetType(inner, &type), CUDA_ERROR_INVALID_VALUE);
    CHECK_RESULT(cuGraphGetNodes(inner_graph, nullptr, &count), CUDA_ERROR_INVALID_VALUE);
  }
  CUgraphNode child;
  REQUIRE_OK(cuGraphAddChildGraphNode(&child, f.graph, nullptr, 0, body));
  f.run();
  for (int round = 0; round < 50; ++round) {
    REQUIRE_OK(cuGraphExecChildGraphNodeSetParams(f.exec, child, body));
    CUgraph other;
    REQUIRE_OK(cuGraphClone(&other, f.graph));
    REQUIRE_OK(cuGraphDestroy(other));
  }
  REQUIRE_OK(cuGraphDestroy(body));
}

TEST_CASE("kernel node parameters can be read and replaced, before and after instantiation") {
  GraphFixture f;
  const CUgraphNode node = f.append(1);
  CUDA_KERNEL_NODE_PARAMS parameters;
  REQUIRE_OK(cuGraphKernelNodeGetParams(node, &parameters));
  CHECK_EQ(parameters.func, f.kernels["append"]);
  CHECK_EQ(parameters.ctx, f.primary.get());
  CHECK_EQ(*static_cast<std::uint32_t*>(parameters.kernelParams[1]), 1);
  CUdeviceptr log = f.words.get();
  std::uint32_t value = 2;
  void* arguments[] = {&log, &value};
  parameters.kernelParams = arguments;
  REQUIRE_OK(cuGraphKernelNodeSetParams(node, &parameters));
  f.run();
  value = 3;
  REQUIRE_OK(cuGraphExecKernelNodeSetParams(f.exec, node, &parameters));
  f.run();
  CHECK_EQ(f.values(), std::vector<std::uint32_t>{2, 3});
}

TEST_CASE("a disabled node does nothing") {
  GraphFixture f;
  const CUgraphNode first = f.append(1);
  f.append(2, {first});
  REQUIRE_OK(cuGraphInstantiate(&f.exec, f.graph, 0));
  REQUIRE_OK(cuGraphNodeSetEnabled(f.exec, first, 0));
  f.run();
  REQUIRE_OK(cuGraphNodeSetEnabled(f.exec, first, 1));
  f.run();
  CHECK_EQ(f.values(), std::vector<std::uint32_t>{2, 1, 2});
}

TEST_CASE("a launch waits for its stream, and the stream for the graph") {
  GraphFixture f;
  f.append(1);
  REQUIRE_OK(cuGraphInstantiate(&f.exec, f.graph, 0));
  Gate gate(f.stream);
  REQUIRE_OK(cuGraphLaunch(f.exec, f.stream));
  REQUIRE_OK(launch(f.kernels["append"], f.stream, {}, f.words.get(), 2u));
  CHECK_EQ(f.values(), std::vector<std::uint32_t>{});
  gate.open();
  REQUIRE_OK(cuStreamSynchronize(f.stream));
  CHECK_EQ(f.values(), std::vector<std::uint32_t>{1, 2});
}

TEST_CASE("an executable graph is updated from a graph of the same shape only") {
  GraphFixture f;
  const CUgraphNode first = f.append(1);
  f.append(2, {first});
  REQUIRE_OK(cuGraphInstantiate(&f.exec, f.graph, 0));
  GraphFixture same, more;
  same.append(5, {same.append(4)});
  CUgraphExecUpdateResultInfo info;
  REQUIRE_OK(cuGraphExecUpdate(f.exec, same.graph, &info));
  REQUIRE_OK(cuGraphLaunch(f.exec, f.stream));
  REQUIRE_OK(cuStreamSynchronize(f.stream));
  CHECK_EQ(same.values(), std::vector<std::uint32_t>{4, 5});
  more.append(1);
  more.append(2);
  CHECK_RESULT(cuGraphExecUpdate(f.exec, more.graph, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
}

TEST_CASE("a clone is a graph of its own") {
  GraphFixture f;
  const CUgraphNode node = f.append(1);
  CUgraph clone;
  CUgraphNode copy;
  REQUIRE_OK(cuGraphClone(&clone, f.graph));
  REQUIRE_OK(cuGraphNodeFindInClone(&copy, node, clone));
  CHECK_NE(copy, node);
  REQUIRE_OK(cuGraphDestroyNode(node));
  std::size_t count = 0;
  REQUIRE_OK(cuGraphGetNodes(clone, nullptr, &count));
  CHECK_EQ(count, 1);
  REQUIRE_OK(cuGraphGetNodes(f.graph, nullptr, &count));
  CHECK_EQ(count, 0);
  CHECK_RESULT(cuGraphDestroyNode(node), CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuGraphDestroy(clone));
}

// ------------------------------------------------------------------- graphs and green contexts

struct PlacedGraph : GraphFixture {
  Split split;
  Green green{{split.groups[4]}};
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  static constexpr unsigned kBlocks = 528;

  PlacedGraph() {
    REQUIRE_OK(cuLibraryLoadData(&library, kernel_image().data(), nullptr, nullptr, 0, nullptr,
                                 nullptr, 0));
    REQUIRE_OK(cuLibraryGetKernel(&kernel, library, "where"));
  }
  ~PlacedGraph() { cuLibraryUnload(library); }

  void capture(CUstream from, CUfunction function) {
    REQUIRE_OK(cuGraphDestroy(graph));
    REQUIRE_OK(cuStreamBeginCapture(from, CU_STREAM_CAPTURE_MODE_RELAXED));
    REQUIRE_OK(launch(function, from, {kBlocks, 1024, 0}, words.get()));
    REQUIRE_OK(cuStreamEndCapture(from, &graph));
  }
  CUgraphNode only_node() const {
    CUgraphNode node;
    std::size_t count = 1;
    REQUIRE_OK(cuGraphGetNodes(graph, &node, &count));
    return node;
  }
  unsigned sms_used() {
    run();
    std::vector<std::uint32_t> seen = words.all();
    seen.resize(kBlocks);
    std::sort(seen.begin(), seen.end());
    return static_cast<unsigned>(std::unique(seen.begin(), seen.end()) - seen.begin());
  }
};

TEST_CASE("a replay uses the SMs of the context in which the node was captured") {
  PlacedGraph f;
  f.capture(f.green.stream(), f.kernels["where"]);
  CHECK_EQ(f.sms_used(), 8);
}

TEST_CASE("a captured node given a kernel and a green context runs there") {
  PlacedGraph f;
  f.capture(f.stream, reinterpret_cast<CUfunction>(f.kernel));
  CUDA_KERNEL_NODE_PARAMS parameters;
  REQUIRE_OK(cuGraphKernelNodeGetParams(f.only_node(), &parameters));
  parameters.func = nullptr;
  parameters.kern = f.kernel;
  parameters.ctx = f.green.context();
  REQUIRE_OK(cuGraphKernelNodeSetParams(f.only_node(), &parameters));
  CHECK_EQ(f.sms_used(), 8);
}

TEST_CASE("with a function the context of a node's parameters is ignored") {
  PlacedGraph f;
  f.capture(f.stream, f.kernels["where"]);
  CUDA_KERNEL_NODE_PARAMS parameters;
  REQUIRE_OK(cuGraphKernelNodeGetParams(f.only_node(), &parameters));
  parameters.ctx = f.green.context();
  REQUIRE_OK(cuGraphKernelNodeSetParams(f.only_node(), &parameters));
  CHECK_EQ(f.sms_used(), 132);
}

TEST_CASE("the context of an instantiated node cannot change, by parameters or by update") {
  PlacedGraph f, other;
  f.capture(f.stream, reinterpret_cast<CUfunction>(f.kernel));
  REQUIRE_OK(cuGraphInstantiate(&f.exec, f.graph, 0));
  CUDA_KERNEL_NODE_PARAMS parameters;
  REQUIRE_OK(cuGraphKernelNodeGetParams(f.only_node(), &parameters));
  parameters.func = nullptr;
  parameters.kern = f.kernel;
  parameters.ctx = f.green.context();
  CHECK_RESULT(cuGraphExecKernelNodeSetParams(f.exec, f.only_node(), &parameters),
               CUDA_ERROR_INVALID_VALUE);
  other.capture(other.green.stream(), reinterpret_cast<CUfunction>(f.kernel));
  CUgraphExecUpdateResultInfo info;
  CHECK_RESULT(cuGraphExecUpdate(f.exec, other.graph, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
}

}  // namespace
}  // namespace vitamin::libcuda_tests
