// SPDX-License-Identifier: Apache-2.0
//
// Where work that is not submitted yet meets what is not virtualised: events that graphs record,
// captures of foreign streams, launches and other calls that the driver refuses at once, children
// of a fork; in context_boundaries.cpp contexts that end, copies between contexts. Each scenario
// prints what natively is certain, whatever runs where and however fast.
//
// Linked to the driver, so that it can use all of it by name.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <thread>

#include "boundaries.h"

namespace {

CUgraphExec graph_that_records(CUevent event) {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec executable = nullptr;
  check(cuGraphCreate(&graph, 0));
  check(cuGraphAddEventRecordNode(&node, graph, nullptr, 0, event));
  check(cuGraphInstantiate(&executable, graph, 0));
  return executable;
}

CUgreenCtx green_context(CUdevice device) {
  CUdevResource all{}, part{}, rest{};
  unsigned count = 1;
  check(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
  check(cuDevSmResourceSplitByCount(&part, &count, &all, &rest, 0, 64));
  CUdevResourceDesc description = nullptr;
  check(cuDevResourceGenerateDesc(&description, &part, 1));
  CUgreenCtx context = nullptr;
  check(cuGreenCtxCreate(&context, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
  return context;
}

// --- events -------------------------------------------------------------------------------------

// A graph recorded the event once; now a call records it behind a gate, and again a graph.
void event_of_a_graph() {
  Session s;
  const CUstream a = s.stream(), held = s.stream(), waiting = s.stream();
  const CUevent event = s.event();
  const CUdeviceptr x = s.words(2);
  const CUgraphExec graph = graph_that_records(event);
  check(cuGraphLaunch(graph, a));
  check(cuStreamSynchronize(a));
  Gate gate;
  gate.close(held);
  s.launch("slow_add", held, x, Word{7}, kMillisecond);
  check(cuEventRecord(event, held));
  print("behind a gate", cuEventQuery(event));
  check(cuStreamWaitEvent(waiting, event, 0));
  s.launch("slow_copy", waiting, x + 4, x, Word{1}, std::uint64_t{1000});
  sleep_ms(20);
  print("the waiting stream", cuStreamQuery(waiting));
  check(cuGraphLaunch(graph, a));
  check(cuStreamSynchronize(a));
  print("recorded by the graph", cuEventQuery(event));
  print("the waiting stream", cuStreamQuery(waiting));
  gate.open = true;
  check(cuCtxSynchronize());
  print("copied", s.word(x + 4));
}

// The event becomes a graph's while a call's record of it is still held back.
void event_given_to_a_graph() {
  Session s;
  const CUstream a = s.stream(), held = s.stream(), waiting = s.stream();
  const CUevent event = s.event();
  const CUdeviceptr x = s.words(2);
  Gate gate;
  gate.close(held);
  s.launch("slow_add", held, x, Word{7}, kMillisecond);
  check(cuEventRecord(event, held));
  const CUgraphExec graph = graph_that_records(event);
  print("behind a gate", cuEventQuery(event));
  check(cuStreamWaitEvent(waiting, event, 0));
  s.launch("slow_copy", waiting, x + 4, x, Word{1}, std::uint64_t{1000});
  check(cuGraphLaunch(graph, a));
  check(cuStreamSynchronize(a));
  print("recorded by the graph", cuEventQuery(event));
  print("the waiting stream", cuStreamQuery(waiting));
  gate.open = true;
  check(cuCtxSynchronize());
  print("copied", s.word(x + 4));
}

// What the event meant in a capture is over when a foreign stream records it.
void event_of_a_capture_recorded_elsewhere() {
  Session s;
  const CUstream a = s.stream(), b = s.stream();
  const CUevent event = s.event();
  const CUdeviceptr x = s.words(3);
  CUstream green = nullptr;
  check(cuGreenCtxStreamCreate(&green, green_context(s.device), CU_STREAM_NON_BLOCKING, 0));
  for (Word round = 1; round <= 8; ++round) {
    check(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    check(cuEventRecord(event, a));
    CUgraph graph = nullptr;
    check(cuStreamEndCapture(a, &graph));
    s.launch("slow_add", green, x, Word{1}, 3 * kMillisecond);
    check(cuEventRecord(event, green));
    s.launch("add", b, x + 8, Word{1}, Word{1});
    check(cuStreamWaitEvent(b, event, 0));
    s.launch("slow_copy", b, x + 4, x, Word{1}, std::uint64_t{1000});
    check(cuStreamSynchronize(b));
    print("copied", s.word(x + 4));
    check(cuGraphDestroy(graph));
  }
}

// --- captures -----------------------------------------------------------------------------------

// A capture begins on `origin`, which is foreign, and forks to a managed stream that has work
// outstanding.
void capture_joined(const Session& s, CUstream origin, CUstream joined) {
  const CUstream busy = s.stream();
  const CUevent fork = s.event(), join = s.event();
  const CUdeviceptr x = s.words(3);
  s.launch("add", joined, x, Word{1}, Word{1});
  s.launch("slow_add", busy, x + 4, Word{1}, std::uint64_t{1000});
  check(cuCtxSynchronize());
  s.launch("slow_add", joined, x + 4, Word{100}, 30 * kMillisecond);
  check(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  print("record", cuEventRecord(fork, origin));
  print("wait", cuStreamWaitEvent(joined, fork, 0));
  CUstreamCaptureStatus status{};
  check(cuStreamIsCapturing(joined, &status));
  print("capturing", status);
  print("launch", s.try_launch("add", joined, 1, 32, x, Word{10}, Word{1}));
  print("record", cuEventRecord(join, joined));
  print("wait", cuStreamWaitEvent(origin, join, 0));
  CUgraph graph = nullptr;
  print("end", cuStreamEndCapture(origin, &graph));
  // Work behind what was outstanding when the stream joined.
  s.launch("slow_copy", joined, x + 8, x + 4, Word{1}, std::uint64_t{1000});
  check(cuCtxSynchronize());
  print("copied", s.word(x + 8));
  CUgraphExec executable = nullptr;
  check(cuGraphInstantiate(&executable, graph, 0));
  check(cuGraphLaunch(executable, busy));
  print("added", s.word(x));
}

void capture_of_a_green_stream() {
  Session s;
  CUstream green = nullptr;
  check(cuGreenCtxStreamCreate(&green, green_context(s.device), CU_STREAM_NON_BLOCKING, 0));
  capture_joined(s, green, s.stream());
  capture_joined(s, green, s.stream(CU_STREAM_DEFAULT));
}

// A foreign stream that captures is destroyed: no capture is open any more.
void capturing_stream_destroyed() {
  Session s;
  CUstream green = nullptr;
  check(cuGreenCtxStreamCreate(&green, green_context(s.device), CU_STREAM_NON_BLOCKING, 0));
  check(cuStreamBeginCapture(green, CU_STREAM_CAPTURE_MODE_RELAXED));
  check(cuStreamDestroy(green));
  const CUdeviceptr x = s.words(1);
  // With a capture open these stay where they are; with none they are bound.
  for (int i = 0; i < 10; ++i) s.launch("slow_add", nullptr, x, Word{1}, std::uint64_t{1000});
  print("added", s.word(x));
}

// The legacy stream's work was issued before the capture begins, and stays before it.
void capture_behind_held_legacy_work() {
  Session s;
  const CUstream b = s.stream(CU_STREAM_DEFAULT), helper = s.stream(CU_STREAM_DEFAULT);
  const CUevent event = s.event(), join = s.event();
  const CUdeviceptr x = s.words(3);
  Gate gate;
  s.launch("add", nullptr, x, Word{1}, Word{1});
  gate.close(nullptr);
  s.launch("add", nullptr, x, Word{1}, Word{1});
  s.launch("slow_copy", helper, x + 8, x, Word{1}, std::uint64_t{1000});
  check(cuEventRecord(event, nullptr));
  check(cuStreamBeginCapture(b, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  s.launch("add", b, x + 4, Word{1}, Word{10});
  print("fork", cuEventRecord(event, b));  // once more, with a record outstanding
  print("fork", cuStreamWaitEvent(helper, event, 0));
  print("launch", s.try_launch("add", helper, 1, 32, x + 4, Word{1}, Word{10}));
  print("join", cuEventRecord(join, helper));
  print("join", cuStreamWaitEvent(b, join, 0));
  CUgraph graph = nullptr;
  print("end", cuStreamEndCapture(b, &graph));
  gate.open = true;
  CUgraphExec executable = nullptr;
  check(cuGraphInstantiate(&executable, graph, 0));
  check(cuGraphLaunch(executable, b));
  print("added", s.word(x));
  print("captured", s.word(x + 4));
  print("copied", s.word(x + 8));
}

// A capture begins, in the mode that forbids most, while a free and a record from before it are
// held back; recording the event into the capture makes both now. Neither breaks the capture.
void capture_behind_a_held_free() {
  Session s;
  const CUstream held = s.stream(), origin = s.stream(), gone = s.stream();
  const CUevent event = s.event();
  const CUdeviceptr x = s.words(1);
  CUdeviceptr memory = 0;
  check(cuMemAllocAsync(&memory, 4096, held));
  Gate gate;
  gate.close(held);
  s.launch("add", held, memory, Word{1}, Word{1});
  print("free", cuMemFreeAsync(memory, held));
  print("record", cuEventRecord(event, held));
  print("wait", cuStreamWaitEvent(gone, event, 0));
  s.launch("add", gone, x, Word{1}, Word{1});
  check(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
  print("captured record", cuEventRecord(event, origin));
  print("launch", s.try_launch("add", origin, 1, 32, x, Word{1}, Word{10}));
  CUgraph graph = nullptr;
  print("end", cuStreamEndCapture(origin, &graph));
  gate.open = true;
  check(cuCtxSynchronize());
  CUgraphExec executable = nullptr;
  check(cuGraphInstantiate(&executable, graph, 0));
  check(cuGraphLaunch(executable, origin));
  print("added", s.word(x));
}

// --- foreign streams beside deferred work -------------------------------------------------------

// A foreign stream waits for an event that a deep stream has not reached: the call waits for
// nothing.
void foreign_wait_for_a_deep_stream() {
  Session s;
  const CUdeviceptr x = s.words(2);
  CUstream green = nullptr;
  check(cuGreenCtxStreamCreate(&green, green_context(s.device), CU_STREAM_NON_BLOCKING, 0));
  const CUstream held = s.stream();
  const CUevent event = s.event();
  Gate gate;
  gate.close(held);
  for (int i = 0; i < 900; ++i) {
    s.launch("add", held, x, Word{1}, Word{1});
    check(cuEventRecord(event, held));
  }
  check(cuStreamWaitEvent(green, event, 0));
  s.launch("slow_copy", green, x + 4, x, Word{1}, std::uint64_t{1000});
  print("held", cuEventQuery(event));
  gate.open = true;
  check(cuStreamSynchronize(green));
  print("copied", s.word(x + 4));
}

// Memory that deferred work frees is there for an allocation of a foreign stream.
void foreign_allocation_behind_a_deferred_free() {
  Session s;
  CUstream green = nullptr;
  check(cuGreenCtxStreamCreate(&green, green_context(s.device), CU_STREAM_NON_BLOCKING, 0));
  const CUstream held = s.stream();
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = s.device;
  constexpr std::size_t kPool = std::size_t{32} << 20;
  properties.maxSize = kPool;
  CUmemoryPool pool = nullptr;
  check(cuMemPoolCreate(&pool, &properties));
  CUdeviceptr first = 0, second = 0;
  check(cuMemAllocFromPoolAsync(&first, kPool, pool, held));
  Gate gate;
  gate.close(held);
  s.launch("add", held, first, Word{1}, Word{1});
  check(cuMemFreeAsync(first, held));
  print("allocation", cuMemAllocFromPoolAsync(&second, kPool, pool, green));
  s.launch("add", green, second, Word{1}, Word{1});
  print("free", cuMemFreeAsync(second, green));
  gate.open = true;
  print("end", cuStreamSynchronize(green));
  check(cuCtxSynchronize());
  check(cuMemPoolDestroy(pool));
}

// --- refusals -----------------------------------------------------------------------------------

CUlaunchAttribute cluster_of(unsigned blocks) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim.x = blocks;
  attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1;
  return attribute;
}

CUlaunchAttribute of_the_kind(CUlaunchAttributeID id) {
  CUlaunchAttribute attribute{};
  attribute.id = id;
  return attribute;
}

CUresult launch_with(const Session& s, CUstream stream, CUdeviceptr x, unsigned grid,
                     CUlaunchAttribute attribute) {
  CUlaunchConfig config{};
  config.gridDimX = grid;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 32;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  Word one = 1;
  void* arguments[] = {&x, &one, &one, nullptr};
  return cuLaunchKernelEx(&config, s.kernel("add"), arguments, nullptr);
}

void refused_launches() {
  Session s;
  const CUdeviceptr x = s.words(4096);
  const CUstream a = s.stream();
  CUdeviceptr first = x, second = x + 8192;
  void* arguments[] = {&first, &second, nullptr};
  Word one = 1;
  void* packed[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &first, CU_LAUNCH_PARAM_BUFFER_SIZE, nullptr,
                    CU_LAUNCH_PARAM_END};
  std::size_t too_much = 4096;
  Gate gate;
  for (const bool held : {false, true}) {
    if (held) gate.close(a);
    const CUfunction barrier = s.kernel("grid_barrier"), add = s.kernel("add");
    print("cooperative grid",
          cuLaunchCooperativeKernel(barrier, 100000, 1, 1, 256, 1, 1, 0, a, arguments));
    print("cooperative block",
          cuLaunchCooperativeKernel(barrier, 1, 1, 1, 2048, 1, 1, 0, a, arguments));
    for (const unsigned blocks : {3u, 16u, 64u, 0u})
      print("cluster", launch_with(s, a, x, 128, cluster_of(blocks)));
    print("cluster", launch_with(s, a, x, 128, cluster_of(8)));
    print("an attribute of streams",
          launch_with(s, a, x, 1, of_the_kind(CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY)));
    print("no arguments", cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, a, nullptr, nullptr));
    packed[3] = nullptr;
    print("packed, no size", cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, a, nullptr, packed));
    packed[3] = &too_much;
    print("packed, too much", cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, a, nullptr, packed));
    void* of_add[] = {&first, &one, &one, nullptr};
    print("grid", cuLaunchKernel(add, 1, 1 << 16, 1, 32, 1, 1, 0, a, of_add, nullptr));
    print("possible", cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, a, of_add, nullptr));
  }
  gate.open = true;
  print("synchronize", cuStreamSynchronize(a));
}

// The same of calls that stand behind a launch which waits.
void refused_calls() {
  Session s;
  const CUdeviceptr x = s.words(4096), y = s.words(4096);
  constexpr CUdeviceptr kNowhere = 0x1000;
  const CUstream a = s.stream();
  const Pinned pinned(16);
  CUDA_MEMCPY2D box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = x;
  box.dstDevice = y;
  box.srcPitch = box.dstPitch = 32;
  box.WidthInBytes = 64;
  box.Height = 4;
  const CUcontext second = second_context(s.device);
  const CUevent foreign = s.event();
  check(cuCtxSetCurrent(s.context));
  Gate gate;
  for (const bool held : {false, true}) {
    if (held) gate.close(a);
    s.launch("add", a, x, Word{1}, Word{1});
    print("copy from nowhere", cuMemcpyDtoDAsync(x, kNowhere, 64, a));
    print("copy of too much", cuMemcpyDtoDAsync(x, y, std::size_t{1} << 40, a));
    print("copy to nowhere", cuMemcpyHtoDAsync(kNowhere, pinned.host(), 64, a));
    print("copy", cuMemcpyDtoDAsync(x, y, 64, a));
    print("box", cuMemcpy2DAsync(&box, a));
    print("fill of nowhere", cuMemsetD8Async(kNowhere, 1, 64, a));
    print("fill of too much", cuMemsetD8Async(x, 1, std::size_t{1} << 40, a));
    print("fill of an odd address", cuMemsetD32Async(x + 1, 1, 4, a));
    print("fill", cuMemsetD32Async(x, 1, 4, a));
    print("free", cuMemFreeAsync(kNowhere, a));
    print("host function", cuLaunchHostFunc(a, nullptr, nullptr));
    print("wait for an odd address", cuStreamWaitValue32(a, x + 1, 0, CU_STREAM_WAIT_VALUE_GEQ));
    print("write to nowhere", cuStreamWriteValue32(a, kNowhere, 1, 0));
    print("record", cuEventRecord(foreign, a));
    print("wait", cuStreamWaitEvent(a, foreign, 64));
  }
  gate.open = true;
  print("synchronize", cuStreamSynchronize(a));
  check(cuCtxDestroy(second));
}

// --- forks --------------------------------------------------------------------------------------

// Children that end as programs do, and threads of theirs, while threads of the parent launch.
void children_that_exit() {
  Session s;
  const CUdeviceptr x = s.words(1);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      check(cuCtxSetCurrent(s.context));
      const CUstream stream = s.stream();
      while (!stop) {
        for (int j = 0; j < 64; ++j) s.launch("add", stream, x, Word{1}, Word{1});
        s.launch("add", CU_STREAM_PER_THREAD, x, Word{1}, Word{1});
        check(cuStreamSynchronize(stream));
      }
    });
  s.launch("add", CU_STREAM_PER_THREAD, x, Word{1}, Word{1});
  std::fflush(stdout);
  int ended = 0;
  // With ThreadSanitizer a child takes seconds to exit.
#if defined(__SANITIZE_THREAD__)
  constexpr int kChildren = 6;
#else
  constexpr int kChildren = 30;
#endif
  for (int i = 0; i < kChildren; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      if (i % 3 == 0) pthread_exit(nullptr);
      int count = -1;
      if (i % 3 == 1) std::exit(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 9);
      std::exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ended += WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  print("children that ended", ended);
}

// --- threads ------------------------------------------------------------------------------------

// A thread's default stream has no attributes that another thread set on its own.
void attributes_of_ended_threads() {
  Session s;
  const CUdeviceptr x = s.words(1);
  for (int i = 0; i < 4; ++i)
    std::thread([&] {
      check(cuCtxSetCurrent(s.context));
      CUstreamAttrValue value{};
      check(
          cuStreamGetAttribute(CU_STREAM_PER_THREAD, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &value));
      print("domain", static_cast<unsigned>(value.memSyncDomain));
      s.launch("slow_add", CU_STREAM_PER_THREAD, x, Word{1}, std::uint64_t{1000});
      value = {};
      value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
      check(
          cuStreamSetAttribute(CU_STREAM_PER_THREAD, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &value));
      s.launch("slow_add", CU_STREAM_PER_THREAD, x, Word{1}, std::uint64_t{1000});
      check(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    }).join();
  print("added", s.word(x));
}

// How often threads of this process other than the calling one went to sleep.
unsigned long long sleeps_of_other_threads() {
  unsigned long long all = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const pid_t thread = std::stoi(task.path().filename().string());
    if (thread != gettid()) all += sleeps_of(thread);
  }
  return all;
}

// No thread of the library wakes where there is nothing to do: it would take locks that launches
// take.
void threads_that_sleep() {
  Session s;
  const CUstream stream = s.stream();
  const CUdeviceptr x = s.words(1);
  for (int i = 0; i < 300; ++i) s.launch("add", stream, x, Word{1}, Word{1});
  check(cuStreamSynchronize(stream));
#if defined(__SANITIZE_THREAD__)  // which has a thread of its own that wakes
  constexpr bool kOursAlone = false;
#else
  constexpr bool kOursAlone = true;
#endif
  const auto in = [](int ms) {
    const unsigned long long before = sleeps_of_other_threads();
    sleep_ms(ms);
    return sleeps_of_other_threads() - before;
  };
  for (int i = 0; kOursAlone && i < 100 && in(200) != 0; ++i) {
  }
  // Again: a thread that gets no CPU time may have gone to sleep late.
  unsigned long long wakes = kOursAlone ? in(2500) : 0;
  for (int i = 0; i < 4 && wakes != 0; ++i) wakes = in(2500);
  print("wakes", wakes);
  print("added", s.word(x));
}

}  // namespace

int main(int count, char** words) {
  Scenarios all = {
      {"event_of_a_graph", &event_of_a_graph},
      {"event_given_to_a_graph", &event_given_to_a_graph},
      {"event_of_a_capture_recorded_elsewhere", &event_of_a_capture_recorded_elsewhere},
      {"capture_of_a_green_stream", &capture_of_a_green_stream},
      {"capturing_stream_destroyed", &capturing_stream_destroyed},
      {"capture_behind_held_legacy_work", &capture_behind_held_legacy_work},
      {"capture_behind_a_held_free", &capture_behind_a_held_free},
      {"foreign_wait_for_a_deep_stream", &foreign_wait_for_a_deep_stream},
      {"foreign_allocation_behind_a_deferred_free", &foreign_allocation_behind_a_deferred_free},
      {"refused_launches", &refused_launches},
      {"refused_calls", &refused_calls},
      {"children_that_exit", &children_that_exit},
      {"attributes_of_ended_threads", &attributes_of_ended_threads},
      {"threads_that_sleep", &threads_that_sleep},
  };
  all.insert(kContextBoundaries.begin(), kContextBoundaries.end());
  return run_scenario(all, count, words);
}
