// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "fixture.h"

namespace vitamin::libcuda_tests {
namespace {

CUstreamCaptureStatus status_of(CUstream stream) {
  CUstreamCaptureStatus status{};
  REQUIRE_OK(cuStreamIsCapturing(stream, &status));
  return status;
}

std::size_t nodes_of(CUgraph graph) {
  std::size_t count = 0;
  REQUIRE_OK(cuGraphGetNodes(graph, nullptr, &count));
  return count;
}

std::size_t edges_of(CUgraph graph) {
  std::size_t count = 0;
#if CUDA_VERSION >= 13000
  REQUIRE_OK(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
#else
  REQUIRE_OK(cuGraphGetEdges(graph, nullptr, nullptr, &count));
#endif
  return count;
}

struct CaptureFixture {
  Primary primary;
  Kernels kernels;
  DeviceWords words{8};
  Stream stream{CU_STREAM_NON_BLOCKING}, other{CU_STREAM_NON_BLOCKING};
  CUgraph graph = nullptr;

  void begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    REQUIRE_OK(cuStreamBeginCapture(stream, mode));
  }
  CUresult end() { return cuStreamEndCapture(stream, &graph); }
  CUresult add(CUstream where, std::uint32_t value = 1) {
    return launch(kernels["add"], where, {}, words.get(), value, 1u);
  }
  ~CaptureFixture() {
    if (graph != nullptr) cuGraphDestroy(graph);
  }
};

TEST_CASE("captured work is not done, and is done each time the graph is launched") {
  CaptureFixture f;
  f.begin();
  CHECK_EQ(status_of(f.stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  for (int i = 0; i < 5; ++i) REQUIRE_OK(f.add(f.stream));
  REQUIRE_OK(f.end());
  CHECK_EQ(status_of(f.stream), CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK_EQ(nodes_of(f.graph), 5);
  CHECK_EQ(edges_of(f.graph), 4);
  REQUIRE_OK(cuCtxSynchronize());
  CHECK_EQ(f.words.now(), 0);
  CUgraphExec exec;
  REQUIRE_OK(cuGraphInstantiate(&exec, f.graph, 0));
  for (int i = 0; i < 3; ++i) REQUIRE_OK(cuGraphLaunch(exec, f.stream));
  REQUIRE_OK(cuStreamSynchronize(f.stream));
  CHECK_EQ(f.words.now(), 15);
  REQUIRE_OK(cuGraphExecDestroy(exec));
}

TEST_CASE("a stream joins a capture by an event and must be joined back") {
  CaptureFixture f;
  const Event fork, join;
  f.begin();
  REQUIRE_OK(f.add(f.stream));
  REQUIRE_OK(cuEventRecord(fork, f.stream));
  REQUIRE_OK(cuStreamWaitEvent(f.other, fork, 0));
  CHECK_EQ(status_of(f.other), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  REQUIRE_OK(f.add(f.other));
  SUBCASE("joined") {
    REQUIRE_OK(cuEventRecord(join, f.other));
    REQUIRE_OK(cuStreamWaitEvent(f.stream, join, 0));
    REQUIRE_OK(f.add(f.stream));
    REQUIRE_OK(f.end());
    CHECK_EQ(nodes_of(f.graph), 3);
    CHECK_EQ(edges_of(f.graph), 3);
  }
  SUBCASE("not joined") {
    CHECK_RESULT(f.end(), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    CHECK_EQ(f.graph, nullptr);
  }
  CHECK_EQ(status_of(f.other), CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_CASE("an event from outside cannot be waited for inside") {
  CaptureFixture f;
  const Event event;
  REQUIRE_OK(cuEventRecord(event, f.other));
  f.begin();
  CHECK_RESULT(cuStreamWaitEvent(f.stream, event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  CHECK_EQ(status_of(f.stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CHECK_RESULT(f.add(f.stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK_RESULT(f.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("an event that was last recorded in a capture cannot be asked") {
  CaptureFixture f;
  const Event event;
  f.begin();
  REQUIRE_OK(cuEventRecord(event, f.stream));
  CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
  CHECK_RESULT(f.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuEventRecord(event, f.stream));
  REQUIRE_OK(cuEventSynchronize(event));
}

TEST_CASE("a capturing stream cannot be queried or synchronised") {
  CaptureFixture f;
  f.begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  SUBCASE("query") { CHECK_RESULT(cuStreamQuery(f.stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }
  SUBCASE("synchronise") {
    CHECK_RESULT(cuStreamSynchronize(f.stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  CHECK_RESULT(f.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

// An unsafe call made on another thread in the given mode while a capture is open.
CUresult query_elsewhere(const CaptureFixture& f, CUstreamCaptureMode thread_mode) {
  CUresult answer = CUDA_ERROR_UNKNOWN;
  const Event event;
  std::thread([&] {
    REQUIRE_OK(cuCtxSetCurrent(f.primary.get()));
    REQUIRE_OK(cuThreadExchangeStreamCaptureMode(&thread_mode));
    answer = cuEventQuery(event);
  }).join();
  return answer;
}

TEST_CASE(
    "a global capture is spoiled by an unsafe call of another thread unless that one is relaxed") {
  CaptureFixture f;
  f.begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  SUBCASE("global") {
    CHECK_RESULT(query_elsewhere(f, CU_STREAM_CAPTURE_MODE_GLOBAL),
                 CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_RESULT(f.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  SUBCASE("thread-local") {
    CHECK_RESULT(query_elsewhere(f, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    CHECK_RESULT(f.end(), CUDA_SUCCESS);
  }
  SUBCASE("relaxed") {
    CHECK_RESULT(query_elsewhere(f, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    CHECK_RESULT(f.end(), CUDA_SUCCESS);
  }
}

TEST_CASE("a thread-local capture is spoiled only by its own thread") {
  CaptureFixture f;
  f.begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  CHECK_RESULT(query_elsewhere(f, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  CUdeviceptr memory;
  CHECK_RESULT(cuMemAlloc(&memory, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_RESULT(f.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("a relaxed capture is not spoiled by an unsafe call") {
  CaptureFixture f;
  f.begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUdeviceptr memory;
  REQUIRE_OK(cuMemAlloc(&memory, 64));
  REQUIRE_OK(cuMemFree(memory));
  CHECK_RESULT(f.end(), CUDA_SUCCESS);
}

TEST_CASE("the legacy stream cannot be used while a blocking stream of its context captures") {
  CaptureFixture f;
  const Stream blocking;
  REQUIRE_OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUstreamCaptureStatus status;
  CHECK_RESULT(cuStreamIsCapturing(nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CHECK_EQ(status_of(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK_RESULT(f.add(nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CHECK_RESULT(cuStreamEndCapture(blocking, &f.graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK_RESULT(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED),
               CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST_CASE("a non-blocking capture leaves the legacy stream alone") {
  CaptureFixture f;
  f.begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  REQUIRE_OK(f.add(nullptr, 3));
  REQUIRE_OK(f.add(f.stream));
  CHECK_RESULT(f.end(), CUDA_SUCCESS);
  CHECK_EQ(nodes_of(f.graph), 1);
  REQUIRE_OK(cuCtxSynchronize());
  CHECK_EQ(f.words.now(), 3);
}

TEST_CASE("a capture ends where it began") {
  CaptureFixture f;
  const Event fork;
  CHECK_RESULT(f.end(), CUDA_ERROR_ILLEGAL_STATE);
  f.begin();
  REQUIRE_OK(cuEventRecord(fork, f.stream));
  REQUIRE_OK(cuStreamWaitEvent(f.other, fork, 0));
  SUBCASE("in its stream") {
    CHECK_RESULT(cuStreamEndCapture(f.other, &f.graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    CHECK_RESULT(f.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  SUBCASE("in its thread") {
    std::thread([&] {
      REQUIRE_OK(cuCtxSetCurrent(f.primary.get()));
      CHECK_RESULT(f.end(), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }).join();
    CHECK_RESULT(f.end(), CUDA_ERROR_ILLEGAL_STATE);
  }
}

TEST_CASE("two captures cannot be joined") {
  CaptureFixture f;
  const Event event;
  f.begin();
  REQUIRE_OK(cuStreamBeginCapture(f.other, CU_STREAM_CAPTURE_MODE_GLOBAL));
  REQUIRE_OK(cuEventRecord(event, f.other));
  CHECK_RESULT(cuStreamWaitEvent(f.stream, event, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
  CHECK_RESULT(f.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK_RESULT(cuStreamEndCapture(f.other, &f.graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("copies, fills, host functions and value operations become nodes of their kind") {
  CaptureFixture f;
  const PinnedWords pinned(4);
  f.begin();
  REQUIRE_OK(cuMemcpyHtoDAsync(f.words.get(), pinned.get(), 16, f.stream));
  REQUIRE_OK(cuMemsetD32Async(f.words.get(), 1, 4, f.stream));
  REQUIRE_OK(cuLaunchHostFunc(
      f.stream, [](void*) {}, nullptr));
  REQUIRE_OK(f.add(f.stream));
  REQUIRE_OK(f.end());
  std::vector<CUgraphNode> nodes(4);
  std::size_t count = nodes.size();
  REQUIRE_OK(cuGraphGetNodes(f.graph, nodes.data(), &count));
  const CUgraphNodeType expected[] = {CU_GRAPH_NODE_TYPE_MEMCPY, CU_GRAPH_NODE_TYPE_MEMSET,
                                      CU_GRAPH_NODE_TYPE_HOST, CU_GRAPH_NODE_TYPE_KERNEL};
  for (std::size_t i = 0; i < 4; ++i) {
    CUgraphNodeType type;
    REQUIRE_OK(cuGraphNodeGetType(nodes[i], &type));
    CHECK_EQ(type, expected[i]);
  }
}

TEST_CASE("a callback and an impossible launch end a capture badly") {
  CaptureFixture f;
  f.begin();
  SUBCASE("callback") {
    CHECK_RESULT(cuStreamAddCallback(
                     f.stream, [](CUstream, CUresult, void*) {}, nullptr, 0),
                 CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  SUBCASE("launch") {
    CHECK_RESULT(launch(f.kernels["nothing"], f.stream, {1, 2048, 0}), CUDA_ERROR_INVALID_VALUE);
  }
  CHECK_RESULT(f.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("waiting for a context ends every capture in it badly, whatever the modes") {
  CaptureFixture f;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  f.begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  REQUIRE_OK(cuThreadExchangeStreamCaptureMode(&mode));
  CHECK_RESULT(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  REQUIRE_OK(cuThreadExchangeStreamCaptureMode(&mode));
  CHECK_RESULT(f.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("a global capture allows synchronous copies, fills and loading, and forbids allocating") {
  CaptureFixture f;
  std::uint32_t word = 1;
  f.begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  REQUIRE_OK(cuMemcpyHtoD(f.words.get(), &word, 4));
  REQUIRE_OK(cuMemsetD32(f.words.get(), 0, 1));
  const Kernels more;
  CHECK_EQ(status_of(f.stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUdeviceptr memory;
  CHECK_RESULT(cuMemAllocAsync(&memory, 64, f.other), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_RESULT(f.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("memory allocated in a capture is there when the graph runs") {
  CaptureFixture f;
  CUdeviceptr memory;
  f.begin();
  REQUIRE_OK(cuMemAllocAsync(&memory, 64, f.stream));
  REQUIRE_OK(launch(f.kernels["fill"], f.stream, {}, memory, 5u, 1u));
  REQUIRE_OK(launch(f.kernels["copy"], f.stream, {}, f.words.get(), memory, 1u));
  REQUIRE_OK(cuMemFreeAsync(memory, f.stream));
  REQUIRE_OK(f.end());
  CHECK_EQ(nodes_of(f.graph), 4);
  CUgraphExec exec;
  REQUIRE_OK(cuGraphInstantiate(&exec, f.graph, 0));
  REQUIRE_OK(cuGraphLaunch(exec, f.stream));
  REQUIRE_OK(cuStreamSynchronize(f.stream));
  CHECK_EQ(f.words.now(), 5);
  REQUIRE_OK(cuGraphExecDestroy(exec));
}

TEST_CASE("the capture's graph and its open ends can be read and changed") {
  CaptureFixture f;
  f.begin();
  REQUIRE_OK(f.add(f.stream));
  CUstreamCaptureStatus status;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* tail = nullptr;
  std::size_t count = 0;
#if CUDA_VERSION >= 13000
  REQUIRE_OK(cuStreamGetCaptureInfo(f.stream, &status, &id, &graph, &tail, nullptr, &count));
#else
  REQUIRE_OK(cuStreamGetCaptureInfo(f.stream, &status, &id, &graph, &tail, &count));
#endif
  CHECK_NE(id, 0);
  REQUIRE_EQ(count, 1);
  CUgraphNode node;
  REQUIRE_OK(cuGraphAddEmptyNode(&node, graph, tail, 1));
#if CUDA_VERSION >= 13000
  REQUIRE_OK(cuStreamUpdateCaptureDependencies(f.stream, &node, nullptr, 1,
                                               CU_STREAM_SET_CAPTURE_DEPENDENCIES));
#else
  REQUIRE_OK(
      cuStreamUpdateCaptureDependencies(f.stream, &node, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
#endif
  REQUIRE_OK(f.add(f.stream));
  REQUIRE_OK(f.end());
  CHECK_EQ(f.graph, graph);
  CHECK_EQ(nodes_of(f.graph), 3);
  CHECK_EQ(edges_of(f.graph), 2);
}

TEST_CASE("the thread's own stream can be captured") {
  CaptureFixture f;
  REQUIRE_OK(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED));
  REQUIRE_OK(f.add(CU_STREAM_PER_THREAD));
  REQUIRE_OK(cuStreamEndCapture(CU_STREAM_PER_THREAD, &f.graph));
  CHECK_EQ(nodes_of(f.graph), 1);
}

}  // namespace
}  // namespace vitamin::libcuda_tests
