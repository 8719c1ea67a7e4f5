// SPDX-License-Identifier: Apache-2.0
//
// Scenarios of captures, errors, structure that no entry may change, contexts, devices, processes.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "scenarios.h"

namespace {

// --- captures -----------------------------------------------------------------------------------

void captures() {
  Session s;
  const CUstream busy = s.stream(), a = s.stream(), b = s.stream();
  const CUdeviceptr x = s.words(4);
  const CUevent fork = s.event(), join = s.event();
  for (const CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CU_STREAM_CAPTURE_MODE_RELAXED}) {
    for (int i = 0; i < 10; ++i) s.launch("slow_add", busy, x + 8, Word{1}, kMillisecond);
    s.launch("slow_add", a, x, Word{1}, kMillisecond);
    check(drv.cuStreamBeginCapture(a, mode));
    CUstreamCaptureStatus status;
    check(drv.cuStreamIsCapturing(a, &status));
    print("capturing", status);
    s.launch("slow_add", a, x, Word{10}, std::uint64_t{100'000});
    check(drv.cuEventRecord(fork, a));
    check(drv.cuStreamWaitEvent(b, fork, 0));
    s.launch("slow_copy", b, x + 4, x, Word{1}, std::uint64_t{1000});
    check(drv.cuEventRecord(join, b));
    // Others go on meanwhile.
    s.launch("slow_add", busy, x + 8, Word{1}, std::uint64_t{1000});
    check(drv.cuStreamWaitEvent(a, join, 0));
    s.launch("slow_add", a, x, Word{100}, std::uint64_t{1000});
    CUgraph graph = nullptr;
    check(drv.cuStreamEndCapture(a, &graph));
    print("after", drv.cuStreamIsCapturing(a, &status));
    print("capturing", status);
    CUgraphExec run = nullptr;
    check(drv.cuGraphInstantiate(&run, graph, 0));
    s.launch("slow_add", a, x, Word{1000}, kMillisecond);
    check(drv.cuGraphLaunch(run, a));
    check(drv.cuGraphLaunch(run, a));
    s.launch("slow_add", a, x, Word{10000}, std::uint64_t{1000});
    check(drv.cuStreamSynchronize(a));
    print("words", s.read(x, 3));
    check(drv.cuGraphExecDestroy(run));
    check(drv.cuGraphDestroy(graph));
  }
  // A capture that is broken ends, and its stream works again.
  check(drv.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
  print("synchronize", drv.cuStreamSynchronize(a));
  CUgraph graph = nullptr;
  print("end", drv.cuStreamEndCapture(a, &graph));
  s.launch("slow_add", a, x, Word{1}, std::uint64_t{1000});
  print("words", s.read(x, 1));
}

void capture_of_a_thread_stream() {
  Session s;
  const CUdeviceptr x = s.words(2);
  const CUstream a = CU_STREAM_PER_THREAD;
  s.launch("slow_add", a, x, Word{1}, kMillisecond);
  check(drv.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  s.launch("slow_add", a, x, Word{10}, std::uint64_t{1000});
  check(drv.cuMemcpyDtoDAsync(x + 4, x, 4, a));
  CUgraph graph = nullptr;
  check(drv.cuStreamEndCapture(a, &graph));
  CUgraphExec run = nullptr;
  check(drv.cuGraphInstantiate(&run, graph, 0));
  for (int i = 0; i < 3; ++i) {
    check(drv.cuGraphLaunch(run, a));
    s.launch("slow_add", a, x, Word{100}, std::uint64_t{100'000});
  }
  check(drv.cuStreamSynchronize(a));
  print("words", s.read(x, 2));
  // A call that waits for the default stream breaks the capture, whichever stream that is.
  check(drv.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
  Word seen = 0;
  print("copy", drv.cuMemcpyDtoH(&seen, x, 4));
  print("end", drv.cuStreamEndCapture(a, &graph));
  s.launch("slow_add", a, x, Word{1}, std::uint64_t{1000});
  print("words", s.read(x, 2));
}

// --- errors -------------------------------------------------------------------------------------

void launch_errors() {
  Session s;
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(1);
  Gate gate;
  for (const bool behind_gate : {false, true}) {
    if (behind_gate) gate.close(a);
    print("block", s.try_launch("add", a, 1, 4096, x, Word{1}, Word{1}));
    print("grid", s.try_launch("add", a, 0, 32, x, Word{1}, Word{1}));
    Word value = 1;
    CUdeviceptr address = x;
    void* parameters[] = {&address, &value, &value};
    print("null", drv.cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, a, parameters, nullptr));
    print("shared",
          drv.cuLaunchKernel(s.kernel("add"), 1, 1, 1, 32, 1, 1, 1 << 22, a, parameters, nullptr));
    s.launch("add", a, x, Word{1}, Word{1});
  }
  gate.open = true;
  print("after", drv.cuStreamSynchronize(a));
  print("words", s.read(x, 1));
}

void sticky_error() {
  Session s;
  const CUstream a = s.stream(), b = s.stream();
  const CUdeviceptr x = s.words(1);
  s.launch("slow_add", b, x, Word{1}, std::uint64_t{1000});
  check(drv.cuStreamSynchronize(b));
  s.launch("fault", a, x);
  print("stream", drv.cuStreamSynchronize(a));
  print("other", drv.cuStreamSynchronize(b));
  print("context", drv.cuCtxSynchronize());
  Word seen = 0;
  print("copy", drv.cuMemcpyDtoH(&seen, x, 4));
  print("context", drv.cuCtxSynchronize());
}

// --- structure that no entry may change ---------------------------------------------------------

CUresult launch_clusters(const Session& s, CUstream stream, unsigned cluster, unsigned blocks,
                         CUdeviceptr out) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {cluster, 1, 1};
  CUlaunchConfig config{};
  config.gridDimX = blocks;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 1;
  config.hStream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  void* parameters[] = {&out};
  return drv.cuLaunchKernelEx(&config, s.kernel("cluster_ranks"), parameters, nullptr);
}

void wide_launches() {
  Session s;
  const CUstream a = s.stream();
  for (const unsigned cluster : {1U, 2U, 8U}) {
    const CUdeviceptr out = s.words(64);
    print("cluster", launch_clusters(s, a, cluster, 32, out));
    print("ranks", s.read(out, 32));
  }
  for (const unsigned blocks : {8U, 100U}) {
    const CUdeviceptr arrived = s.words(1), out = s.words(128);
    CUdeviceptr addresses[] = {arrived, out};
    void* parameters[] = {&addresses[0], &addresses[1]};
    print("cooperative", drv.cuLaunchCooperativeKernel(s.kernel("grid_barrier"), blocks, 1, 1, 32,
                                                       1, 1, 0, a, parameters));
    check(drv.cuStreamSynchronize(a));
    Word sum = 0;
    for (const Word word : s.read(out, blocks)) sum += word;
    print("blocks", sum);
  }
  CUdeviceptr none[] = {s.words(1), s.words(1)};
  void* parameters[] = {&none[0], &none[1]};
  print("too many", drv.cuLaunchCooperativeKernel(s.kernel("grid_barrier"), 1 << 20, 1, 1, 32, 1, 1,
                                                  0, a, parameters));
}

// A kernel whose blocks wait for each other, launched as if they did not.
void hand_written_barrier() {
  Session s;
  const CUstream a = s.stream();
  const CUdeviceptr arrived = s.words(1), out = s.words(512);
  CUdeviceptr addresses[] = {arrived, out};
  void* parameters[] = {&addresses[0], &addresses[1]};
  check(
      drv.cuLaunchKernel(s.kernel("grid_barrier"), 500, 1, 1, 32, 1, 1, 0, a, parameters, nullptr));
  check(drv.cuStreamSynchronize(a));
  Word sum = 0;
  for (const Word word : s.read(out, 500)) sum += word;
  print("blocks", sum);
}

void programmatic_launches() {
  Session s;
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(1);
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 32;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = a;
  config.attrs = &attribute;
  config.numAttrs = 1;
  Word value = 1;
  std::uint64_t ns = 200'000;
  CUdeviceptr address = x;
  void* parameters[] = {&address, &value, &ns};
  for (int i = 0; i < 20; ++i) {
    check(drv.cuLaunchKernelEx(&config, s.kernel("slow_add"), parameters, nullptr));
    if (i % 3 == 0) check(drv.cuMemcpyDtoDAsync(x, x, 4, a));
  }
  check(drv.cuStreamSynchronize(a));
  print("sum", s.word(x));
}

void stream_settings() {
  Session s;
  const CUstream a = s.stream();
  CUstreamAttrValue value{}, back{};
  value.accessPolicyWindow.num_bytes = 0;
  value.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_NORMAL;
  value.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_NORMAL;
  print("set", drv.cuStreamSetAttribute(a, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
  value = {};
  value.syncPolicy = CU_SYNC_POLICY_BLOCKING_SYNC;
  print("set", drv.cuStreamSetAttribute(a, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  print("get", drv.cuStreamGetAttribute(a, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &back));
  print("policy", back.syncPolicy);
  const CUdeviceptr x = s.words(1);
  s.launch("slow_add", a, x, Word{1}, std::uint64_t{1000});
  std::size_t limit = 0;
  check(drv.cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
  print("limit", drv.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, limit * 2));
  std::size_t now = 0;
  check(drv.cuCtxGetLimit(&now, CU_LIMIT_STACK_SIZE));
  print("doubled", now == 2 * limit);
  print("attribute",
        drv.cuFuncSetAttribute(s.kernel("shared_sum"),
                               CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536));
  print("words", s.read(x, 1));
}

// --- contexts, devices, processes ---------------------------------------------------------------

void two_devices() {
  Session s;
  Session t(1);
  check(drv.cuCtxSetCurrent(s.context));
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(1);
  const CUevent done = s.event();
  check(drv.cuCtxSetCurrent(t.context));
  const CUstream b = t.stream();
  const CUdeviceptr y = t.words(1);
  check(drv.cuCtxSetCurrent(s.context));
  for (Word i = 0; i < 20; ++i) {
    check(drv.cuCtxSetCurrent(s.context));
    s.launch("slow_add", a, x, Word{1}, std::uint64_t{100'000});
    check(drv.cuEventRecord(done, a));
    check(drv.cuCtxSetCurrent(t.context));
    check(drv.cuStreamWaitEvent(b, done, 0));
    check(drv.cuMemcpyPeerAsync(y, t.context, x, s.context, 4, b));
    t.launch("slow_add", b, y, Word{1000}, std::uint64_t{1000});
    check(drv.cuStreamSynchronize(b));
    print("y", t.word(y));
  }
  check(drv.cuCtxSetCurrent(t.context));
  t.launch("slow_add", nullptr, y, Word{1}, kMillisecond);
  check(drv.cuCtxSetCurrent(s.context));
  s.launch("slow_add", nullptr, x, Word{1}, kMillisecond);
  print("x", s.word(x));
}

void foreign_context() {
  Session s;
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(2);
  const CUevent done = s.event();
  CUcontext foreign = nullptr;
#if CUDA_VERSION >= 13000
  check(drv.cuCtxCreate(&foreign, nullptr, 0, s.device));
#else
  check(drv.cuCtxCreate(&foreign, 0, s.device));
#endif
  const CUstream b = s.stream();  // of the foreign context, which is current now
  Session inside = s;
  inside.load();
  const CUdeviceptr y = inside.words(1);
  for (int i = 0; i < 10; ++i) {
    check(drv.cuCtxSetCurrent(s.context));
    s.launch("slow_add", a, x, Word{1}, std::uint64_t{100'000});
    check(drv.cuEventRecord(done, a));
    check(drv.cuCtxSetCurrent(foreign));
    check(drv.cuStreamWaitEvent(b, done, 0));
    inside.launch("slow_add", b, y, Word{1}, std::uint64_t{100'000});
    inside.launch("slow_add", nullptr, y, Word{1}, std::uint64_t{1000});
    check(drv.cuStreamSynchronize(b));
    print("y", inside.word(y));
  }
  check(drv.cuCtxDestroy(foreign));
  check(drv.cuCtxSetCurrent(s.context));
  print("x", s.word(x));
}

void reset_device() {
  for (int round = 0; round < 3; ++round) {
    Session s;
    const CUstream a = s.stream();
    const CUdeviceptr x = s.words(1);
    s.launch("slow_add", a, x, Word{1}, kMillisecond);
    print("x", s.word(x));
    if (round == 0) check(drv.cuDevicePrimaryCtxReset(s.device));
    check(drv.cuDevicePrimaryCtxRelease(s.device));
  }
}

int child_answer(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

void work_once(const char* name) {
  Session s;
  const CUdeviceptr x = s.words(1);
  s.launch("slow_add", nullptr, x, Word{1}, kMillisecond);
  print(name, s.word(x));
}

void forks() {
  std::fflush(stdout);
  pid_t child = fork();  // before the driver was used: the child is a program like any other
  if (child == 0) {
    work_once("child");
    std::fflush(stdout);
    std::_Exit(7);
  }
  print("child", child_answer(child));
  work_once("parent");
  std::fflush(stdout);
  child = fork();  // after: the driver is of no use in it, and the child must not hang
  if (child == 0) {
    CUcontext context = nullptr;
    drv.cuCtxGetCurrent(&context);
    std::_Exit(8);
  }
  print("child", child_answer(child));
  std::fflush(stdout);
  child = fork();
  if (child == 0) {
    execl("/bin/echo", "echo", "helper", nullptr);
    std::_Exit(9);
  }
  print("child", child_answer(child));
  work_once("parent");
}

// Calls the driver after main has returned.
struct AtExit {
  Session* session = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr x = 0;
  ~AtExit() {
    if (session == nullptr) return;
    session->launch("slow_add", stream, x, Word{1}, kMillisecond);
    print("at exit", drv.cuStreamSynchronize(stream));
    print("words", session->read(x, 1));
    std::fflush(stdout);
  }
} at_exit;

void static_destructor() {
  at_exit.session = new Session;
  at_exit.stream = at_exit.session->stream();
  at_exit.x = at_exit.session->words(1);
  at_exit.session->launch("slow_add", at_exit.stream, at_exit.x, Word{1}, kMillisecond);
}

void many_threads() {
  Session s;
  const CUdeviceptr cells = s.words(8);
  std::vector<std::thread> threads;
  for (Word i = 0; i < 6; ++i)
    threads.emplace_back([&, i] {
      check(drv.cuCtxSetCurrent(s.context));
      const CUstream a = s.stream(i % 2 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
      const CUevent e = s.event();
      for (Word n = 0; n < 30; ++n) {
        s.launch("slow_add", a, cells + i * 4, n, std::uint64_t{10'000});
        check(drv.cuEventRecord(e, a));
        if (n % 10 == 3) check(drv.cuEventSynchronize(e));
      }
      check(drv.cuStreamSynchronize(a));
      check(drv.cuStreamDestroy(a));
    });
  for (std::thread& thread : threads) thread.join();
  print("cells", s.read(cells, 6));
}

}  // namespace

const Scenarios kContextScenarios = {
    SCENARIO(captures),
    SCENARIO(capture_of_a_thread_stream),
    SCENARIO(launch_errors),
    SCENARIO(sticky_error),
    SCENARIO(wide_launches),
    SCENARIO(hand_written_barrier),
    SCENARIO(programmatic_launches),
    SCENARIO(stream_settings),
    SCENARIO(two_devices),
    SCENARIO(foreign_context),
    SCENARIO(reset_device),
    SCENARIO(forks),
    SCENARIO(static_destructor),
    SCENARIO(many_threads),
};
