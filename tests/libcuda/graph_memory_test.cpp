// SPDX-License-Identifier: Apache-2.0
//
// Allocation nodes of graphs: "CUDA C++ Programming Guide", Graph Memory Nodes.
#include "fixture.h"

namespace vitamin::libcuda_tests {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct MemoryFixture {
  Primary primary;
  Kernels kernels;
  Stream stream{CU_STREAM_NON_BLOCKING}, other{CU_STREAM_NON_BLOCKING};
  CUdeviceptr address = 0;
  CUgraphNode last = nullptr;

  MemoryFixture() { REQUIRE_OK(cuDeviceGraphMemTrim(0)); }

  CUgraphNode allocate(CUgraph graph, std::size_t bytes) {
    CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
    parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    parameters.bytesize = bytes;
    CUgraphNode node = nullptr;
    REQUIRE_OK(cuGraphAddMemAllocNode(&node, graph, &last, last != nullptr ? 1 : 0, &parameters));
    address = parameters.dptr;
    return last = node;
  }
  void fill(CUgraph graph, std::uint32_t value) {
    CUDA_MEMSET_NODE_PARAMS fill{};
    fill.dst = address;
    fill.value = value;
    fill.elementSize = 4;
    fill.width = 16;
    fill.height = 1;
    CUgraphNode node = nullptr;
    REQUIRE_OK(cuGraphAddMemsetNode(&node, graph, &last, 1, &fill, primary.get()));
    last = node;
  }
  void free(CUgraph graph) {
    CUgraphNode node = nullptr;
    REQUIRE_OK(cuGraphAddMemFreeNode(&node, graph, &last, 1, address));
    last = node;
  }
  // One allocation, used, and freed if asked to.
  CUgraphExec make(std::size_t bytes, bool frees, unsigned long long flags = 0) {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    last = nullptr;
    REQUIRE_OK(cuGraphCreate(&graph, 0));
    allocate(graph, bytes);
    fill(graph, 7);
    if (frees) free(graph);
    REQUIRE_OK(cuGraphInstantiate(&exec, graph, flags));
    REQUIRE_OK(cuGraphDestroy(graph));
    return exec;
  }
};

std::size_t reserved() {
  cuuint64_t bytes = 0;
  REQUIRE_OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes));
  return bytes;
}
std::size_t used() {
  cuuint64_t bytes = 0;
  REQUIRE_OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &bytes));
  return bytes;
}
std::size_t free_memory() {
  std::size_t free = 0, total = 0;
  REQUIRE_OK(cuMemGetInfo(&free, &total));
  return free;
}

TEST_CASE("a graph's memory is taken when it is launched and stays until it is trimmed") {
  MemoryFixture f;
  const std::size_t before = free_memory();
  const CUgraphExec exec = f.make(3 * kMiB, true);
  CHECK_EQ(reserved(), 0);
  for (int i = 0; i < 2; ++i) REQUIRE_OK(cuGraphLaunch(exec, f.stream));
  REQUIRE_OK(cuStreamSynchronize(f.stream));
  CHECK_EQ(reserved(), 4 * kMiB);
  CHECK_EQ(free_memory(), before - 4 * kMiB);
  REQUIRE_OK(cuGraphExecDestroy(exec));
  CHECK_EQ(reserved(), 4 * kMiB);
  CHECK_EQ(used(), 0);
  REQUIRE_OK(cuDeviceGraphMemTrim(0));
  CHECK_EQ(reserved(), 0);
  CHECK_EQ(free_memory(), before);
}

TEST_CASE("an executable works again after its memory was trimmed") {
  MemoryFixture f;
  const CUgraphExec exec = f.make(2 * kMiB, false, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  for (int i = 0; i < 2; ++i) {
    REQUIRE_OK(cuGraphLaunch(exec, f.stream));
    std::uint32_t word = 0;
    REQUIRE_OK(cuMemcpyDtoHAsync(&word, f.address, 4, f.stream));
    REQUIRE_OK(cuStreamSynchronize(f.stream));
    CHECK_EQ(word, 7);
    // What is allocated stays.
    REQUIRE_OK(cuDeviceGraphMemTrim(0));
    CHECK_EQ(reserved(), 2 * kMiB);
    if (i == 0) REQUIRE_OK(cuMemFreeAsync(f.address, f.stream));
    REQUIRE_OK(cuStreamSynchronize(f.stream));
    if (i == 0) REQUIRE_OK(cuDeviceGraphMemTrim(0));
    if (i == 0) CHECK_EQ(reserved(), 0);
  }
  REQUIRE_OK(cuMemFree(f.address));
  CHECK_RESULT(cuMemFree(f.address), CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuGraphExecDestroy(exec));
  REQUIRE_OK(cuDeviceGraphMemTrim(0));
}

TEST_CASE("what is allocated still cannot be allocated by a launch again") {
  MemoryFixture f;
  const CUgraphExec exec = f.make(2 * kMiB, false);
  REQUIRE_OK(cuGraphLaunch(exec, f.stream));
  CHECK_RESULT(cuGraphLaunch(exec, f.stream), CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuMemFreeAsync(f.address, f.stream));
  REQUIRE_OK(cuGraphLaunch(exec, f.stream));
  REQUIRE_OK(cuMemFreeAsync(f.address, f.stream));
  REQUIRE_OK(cuStreamSynchronize(f.stream));
  REQUIRE_OK(cuGraphExecDestroy(exec));
}

TEST_CASE("executables of one stream share memory and those of two streams do not") {
  MemoryFixture f;
  const CUgraphExec first = f.make(4 * kMiB, true), second = f.make(2 * kMiB, true);
  REQUIRE_OK(cuGraphLaunch(first, f.stream));
  REQUIRE_OK(cuGraphLaunch(second, f.stream));
  CHECK_EQ(reserved(), 4 * kMiB);
  REQUIRE_OK(cuGraphLaunch(second, f.other));
  CHECK_EQ(reserved(), 6 * kMiB);
  REQUIRE_OK(cuCtxSynchronize());
  REQUIRE_OK(cuGraphExecDestroy(first));
  REQUIRE_OK(cuGraphExecDestroy(second));
}

TEST_CASE("an address that was freed on every way to a node is given to it again") {
  MemoryFixture f;
  CUgraph graph = nullptr;
  REQUIRE_OK(cuGraphCreate(&graph, 0));
  f.allocate(graph, 2 * kMiB);
  const CUdeviceptr first = f.address;
  f.free(graph);
  const CUgraphNode reusing = f.allocate(graph, kMiB);
  CHECK_EQ(f.address, first);
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  REQUIRE_OK(cuGraphMemAllocNodeGetParams(reusing, &parameters));
  CHECK_EQ(parameters.bytesize, kMiB);
  CHECK_EQ(parameters.dptr, first);
  f.last = nullptr;  // behind nothing: it may run beside the others
  f.allocate(graph, kMiB);
  CHECK_NE(f.address, first);
  CUgraph clone = nullptr;
  CHECK_RESULT(cuGraphClone(&clone, graph), CUDA_ERROR_NOT_SUPPORTED);
  REQUIRE_OK(cuGraphDestroy(graph));
}

TEST_CASE("an upload or launch for which the device has no memory is refused") {
  MemoryFixture f;
  const CUgraphExec exec = f.make(2 * free_memory(), true);
  CHECK_RESULT(cuGraphUpload(exec, f.stream), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_RESULT(cuGraphLaunch(exec, f.stream), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQ(reserved(), 0);
  REQUIRE_OK(cuGraphExecDestroy(exec));
  const CUgraphExec smaller = f.make(2 * kMiB, true);
  REQUIRE_OK(cuGraphUpload(smaller, f.stream));
  CHECK_EQ(reserved(), 2 * kMiB);
  REQUIRE_OK(cuGraphLaunch(smaller, f.stream));
  REQUIRE_OK(cuStreamSynchronize(f.stream));
  REQUIRE_OK(cuGraphExecDestroy(smaller));
}

}  // namespace
}  // namespace vitamin::libcuda_tests
