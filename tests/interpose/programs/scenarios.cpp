// SPDX-License-Identifier: Apache-2.0
//
// Small programs that each do what is easy to get wrong when launches move between queues. Each
// prints what it computed and every answer that a program could see; programs_test.py runs each
// bare and under the preloaded library and compares.
//
//   scenarios NAME
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "session.h"

namespace {

void print(const char* what, unsigned long long value) { std::printf("%s %llu\n", what, value); }
void print(const char* what, CUresult status) {
  std::printf("%s answers %d\n", what, static_cast<int>(status));
}
void print(const char* what, const std::vector<Word>& words) {
  std::printf("%s", what);
  for (const Word word : words) std::printf(" %u", word);
  std::printf("\n");
}
void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Holds a stream until the host says so.
struct Gate {
  std::atomic<bool> open{false};
  static void CUDA_CB wait(void* gate) {
    while (!static_cast<Gate*>(gate)->open.load()) sleep_ms(0);
  }
  void close(CUstream stream) { check(drv.cuLaunchHostFunc(stream, &wait, this)); }
};

// --- streams and events -------------------------------------------------------------------------

// A chain through every kind of stream that the legacy stream orders itself with.
void default_streams() {
  Session s;
  const CUstream legacy = CU_STREAM_LEGACY, thread = CU_STREAM_PER_THREAD;
  const CUstream b1 = s.stream(CU_STREAM_DEFAULT), b2 = s.stream(CU_STREAM_DEFAULT);
  const CUdeviceptr cells = s.words(16);
  const CUstream chain[] = {b1,     legacy, thread, legacy, b2,     legacy, nullptr,
                            legacy, b1,     legacy, thread, legacy, b2};
  s.launch("slow_add", b2, cells, Word{7}, kMillisecond);
  s.launch("slow_add", legacy, cells, Word{1}, kMillisecond);
  Word step = 0;
  for (const CUstream stream : chain) {
    const CUdeviceptr from = cells + step * sizeof(Word), to = from + sizeof(Word);
    s.launch("slow_copy", stream, to, from, Word{1}, kMillisecond / 2);
    s.launch("add", stream, to, ++step, Word{1});
  }
  print("cells", s.read(cells, 14));
  // Copies and fills without a stream are part of the same order.
  // Where they run on the thread's own stream, an operation of the legacy stream stands between
  // them and the others.
  s.launch("slow_add", b1, cells, Word{100}, kMillisecond);
  s.launch("nothing", legacy);
  check(drv.cuMemcpyDtoD(cells + 4, cells, 4));
  s.launch("nothing", legacy);
  s.launch("add", b2, cells + 4, Word{1}, Word{1});
  s.launch("nothing", legacy);
  check(drv.cuMemsetD32(cells + 8, 9, 1));
  s.launch("slow_copy", thread, cells + 12, cells + 8, Word{1}, std::uint64_t{1000});
  s.launch("nothing", legacy);
  Word seen = 0;
  check(drv.cuMemcpyDtoH(&seen, cells + 4, 4));
  print("seen", seen);
  print("cells", s.read(cells, 4));
}

void default_streams_of_threads() {
  Session s;
  const CUdeviceptr cells = s.words(8);
  std::vector<std::thread> threads;
  for (Word i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      check(drv.cuCtxSetCurrent(s.context));
      for (Word n = 0; n < 20; ++n) {
        s.launch("slow_add", CU_STREAM_PER_THREAD, cells + i * 4, Word{1}, std::uint64_t{20'000});
        s.launch("slow_copy", CU_STREAM_PER_THREAD, cells + 16 + i * 4, cells + i * 4, Word{1},
                 std::uint64_t{1000});
      }
      check(drv.cuStreamSynchronize(CU_STREAM_PER_THREAD));
    });
  for (std::thread& thread : threads) thread.join();
  // Threads that come later may inherit what the first ones left behind.
  std::thread later([&] {
    check(drv.cuCtxSetCurrent(s.context));
    s.launch("slow_add", CU_STREAM_PER_THREAD, cells, Word{100}, kMillisecond);
  });
  later.join();
  s.launch("slow_copy", CU_STREAM_LEGACY, cells + 4, cells, Word{1}, std::uint64_t{1000});
  print("cells", s.read(cells, 8));
}

void event_generations() {
  Session s;
  const CUstream a = s.stream(), b = s.stream(), c = s.stream();
  const CUdeviceptr x = s.words(4), y = x + 4, z = x + 8, w = x + 12;
  const CUevent e = s.event(), back = s.event(), never = s.event();
  s.launch("slow_add", a, x, Word{1}, 5 * kMillisecond);
  check(drv.cuEventRecord(e, a));
  check(drv.cuStreamWaitEvent(b, e, 0));
  s.launch("slow_copy", b, y, x, Word{1}, std::uint64_t{1000});
  check(drv.cuEventRecord(back, b));
  // A later record must not move what b waits for: it would wait for itself.
  check(drv.cuStreamWaitEvent(a, back, 0));
  s.launch("slow_add", a, x, Word{10}, kMillisecond);
  check(drv.cuEventRecord(e, a));
  check(drv.cuStreamWaitEvent(c, e, 0));
  check(drv.cuStreamWaitEvent(c, never, 0));
  s.launch("slow_copy", c, z, x, Word{1}, std::uint64_t{1000});
  check(drv.cuEventRecord(e, c));
  check(drv.cuStreamWaitEvent(b, e, 0));
  // Its waiters are still pending.
  check(drv.cuEventDestroy(e));
  s.launch("slow_copy", b, w, z, Word{1}, std::uint64_t{1000});
  print("never", drv.cuEventQuery(never));
  print("never", drv.cuEventSynchronize(never));
  print("words", s.read(x, 4));
}

void event_storm() {
  Session s;
  const CUstream a = s.stream(), b = s.stream(CU_STREAM_DEFAULT);
  const CUdeviceptr x = s.words(1);
  const CUevent e = s.event();
  for (Word i = 0; i < 150; ++i) {
    const CUstream from = i % 2 ? a : b, to = i % 2 ? b : a;
    s.launch("slow_add", from, x, i, std::uint64_t{i % 7 * 1000});
    check(drv.cuEventRecord(e, from));
    check(drv.cuStreamWaitEvent(to, e, 0));
  }
  check(drv.cuEventRecord(e, b));
  check(drv.cuEventSynchronize(e));
  print("sum", s.word(x));
  // Another thread asks until it is done.
  Gate gate;
  gate.close(a);
  s.launch("slow_add", a, x, Word{1}, std::uint64_t{1000});
  check(drv.cuEventRecord(e, a));
  std::thread asking([&] {
    check(drv.cuCtxSetCurrent(s.context));
    print("first", drv.cuEventQuery(e));
    gate.open = true;
    CUresult answer;
    while ((answer = drv.cuEventQuery(e)) == CUDA_ERROR_NOT_READY) sleep_ms(0);
    print("last", answer);
  });
  asking.join();
  print("sum", s.word(x));
}

void event_times() {
  Session s;
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(1);
  const CUevent start = s.event(CU_EVENT_DEFAULT), end = s.event(CU_EVENT_DEFAULT),
                untimed = s.event();
  float ms = -1;
  print("never", drv.cuEventElapsedTime(&ms, start, end));
  check(drv.cuEventRecord(start, a));
  for (int i = 0; i < 4; ++i) s.launch("slow_add", a, x, Word{1}, 2 * kMillisecond);
  check(drv.cuEventRecord(end, a));
  check(drv.cuEventRecord(untimed, a));
  check(drv.cuEventSynchronize(end));
  print("both", drv.cuEventElapsedTime(&ms, start, end));
  print("at least 8 ms", ms >= 8.0f);
  print("untimed", drv.cuEventElapsedTime(&ms, start, untimed));
}

void destroyed_stream() {
  Session s;
  const CUdeviceptr x = s.words(2);
  for (int round = 0; round < 10; ++round) {
    const CUstream a = s.stream(round % 2 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
    s.launch("slow_add", a, x, Word{1}, kMillisecond);
    s.launch("slow_add", a, x, Word{2}, std::uint64_t{1000});
    check(drv.cuStreamDestroy(a));
  }
  print("words", s.read(x, 1));
  print("null", drv.cuStreamDestroy(nullptr));
}

void one_stream_of_two_threads() {
  Session s;
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(1);
  auto work = [&] {
    check(drv.cuCtxSetCurrent(s.context));
    for (int i = 0; i < 200; ++i) s.launch("add", a, x, Word{1}, Word{1});
  };
  std::thread first(work), second(work);
  first.join();
  second.join();
  check(drv.cuStreamSynchronize(a));
  print("sum", s.word(x));
}

// --- what calls point to ------------------------------------------------------------------------

void argument_lifetimes() {
  Session s;
  const CUstream a = s.stream();
  const CUdeviceptr out = s.words(16), grid = s.words(16);
  Gate gate;
  gate.close(a);  // what follows cannot start yet
  struct Odd {
    char a;
    double b;
    short c;
  };
  auto* small = new char(5);
  auto* wide = new double(6.0);
  auto* odd = new Odd{7, 8.0, 9};
  auto* last = new std::uint8_t(10);
  auto* address = new CUdeviceptr(out);
  auto** parameters = new void* [5] { address, small, wide, odd, last };
  check(drv.cuLaunchKernel(s.kernel("parameters"), 1, 1, 1, 1, 1, 1, 0, a, parameters, nullptr));
  // The same as one buffer, with the size in a variable of the caller.
  struct Packed {
    CUdeviceptr data;
    Word value, count;
  } packed{grid, 3, 16};
  std::size_t size = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  check(drv.cuLaunchKernel(s.kernel("fill"), 1, 1, 1, 32, 1, 1, 0, a, nullptr, extra));
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {2, 1, 1};
  CUlaunchConfig config{};
  config.gridDimX = 4;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 1;
  config.hStream = a;
  config.attrs = &attribute;
  config.numAttrs = 1;
  CUdeviceptr ranks = grid + 16;
  void* rank_parameters[] = {&ranks};
  check(drv.cuLaunchKernelEx(&config, s.kernel("cluster_ranks"), rank_parameters, nullptr));
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = grid;
  copy.dstDevice = grid + 40;
  copy.srcPitch = copy.dstPitch = 8;
  copy.WidthInBytes = 4;
  copy.Height = 3;
  check(drv.cuMemcpy2DAsync(&copy, a));
  // Now nothing is what it was.
  *small = 0, *wide = 0, *odd = {0, 0, 0}, *last = 0, *address = 0;
  std::memset(parameters, 0, 5 * sizeof(void*));
  delete small, delete wide, delete odd, delete last, delete address, delete[] parameters;
  packed = {0, 99, 99};
  size = 0;
  std::memset(extra, 0, sizeof extra);
  std::memset(&attribute, 0xff, sizeof attribute);
  std::memset(&config, 0xff, sizeof config);
  std::memset(&copy, 0xff, sizeof copy);
  ranks = 0;
  gate.open = true;
  check(drv.cuStreamSynchronize(a));
  print("parameters", s.read(out, 12));
  print("grid", s.read(grid, 16));
}

void pageable_source() {
  Session s;
  const CUstream a = s.stream();
  constexpr std::size_t kCount = 4096;
  const CUdeviceptr x = s.words(kCount), y = s.words(kCount);
  std::vector<Word> source(kCount, 1);
  for (Word round = 1; round <= 5; ++round) {
    source.assign(kCount, round);
    s.launch("slow_copy", a, y, x, Word{kCount}, kMillisecond);
    s.launch("slow_copy", a, y, x, Word{kCount}, kMillisecond);
    check(drv.cuMemcpyHtoDAsync(x, source.data(), kCount * sizeof(Word), a));
    source.assign(kCount, 77);  // the call has returned
    s.launch("slow_copy", a, y, x, Word{kCount}, std::uint64_t{1000});
    check(drv.cuStreamSynchronize(a));
    const std::vector<Word> seen = s.read(y, kCount);
    print("first", seen.front());
    print("last", seen.back());
  }
  std::vector<Word> target(kCount, 0);
  s.launch("slow_add", a, x, Word{5}, kMillisecond);
  check(drv.cuMemcpyDtoHAsync(target.data(), x, kCount * sizeof(Word), a));
  check(drv.cuStreamSynchronize(a));
  print("target", target[0]);
  check(drv.cuMemcpyAsync(y, x, kCount * sizeof(Word), a));
  print("unified", s.word(y));
}

void copies() {
  Session s;
  constexpr std::size_t kCount = 1024;
  const CUdeviceptr x = s.words(kCount), y = s.words(kCount);
  const Pinned in(kCount), out(kCount);
  for (std::size_t i = 0; i < kCount; ++i) in.words[i] = static_cast<Word>(i);
  for (const CUstream a : {s.stream(), s.stream(CU_STREAM_DEFAULT), CUstream{nullptr},
                           CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    check(drv.cuMemsetD32Async(y, 0, kCount, a));
    check(drv.cuMemcpyHtoDAsync(x, in.host(), kCount * sizeof(Word), a));
    s.launch("slow_add", a, x, Word{3}, kMillisecond);
    check(drv.cuMemcpyDtoDAsync(y, x, kCount * sizeof(Word), a));
    check(drv.cuMemcpyAsync(y + 4, x, 4, a));
    s.launch("slow_add", a, y, Word{4}, kMillisecond);
    check(drv.cuMemsetD2D32Async(y + 16, 8, 5, 1, 2, a));
    check(drv.cuMemcpyDtoHAsync(out.host(), y, kCount * sizeof(Word), a));
    check(drv.cuStreamSynchronize(a));
    print("out", {out.words[0], out.words[1], out.words[4], out.words[5], out.words[6],
                  out.words[kCount - 1]});
    print("query", drv.cuStreamQuery(a));
  }
}

// --- memory that goes away ----------------------------------------------------------------------

void early_free() {
  Session s;
  const CUstream a = s.stream(), b = s.stream();
  constexpr std::size_t kCount = 4096, kBytes = kCount * sizeof(Word);
  const CUdeviceptr source = s.words(kCount, 5), out = s.words(kCount);
  for (int round = 0; round < 6; ++round) {
    CUdeviceptr scratch = 0, other = 0;
    check(drv.cuMemAllocAsync(&scratch, kBytes, a));
    s.launch("slow_copy", a, scratch, source, Word{kCount}, std::uint64_t{1000});
    s.launch("slow_copy", a, out, scratch, Word{kCount}, 3 * kMillisecond);
    check(drv.cuMemFreeAsync(scratch, a));
    // Natively this memory is another one, or comes behind the free.
    check(drv.cuMemAllocAsync(&other, kBytes, b));
    check(drv.cuMemsetD32Async(other, 1000, kCount, b));
    check(drv.cuMemFreeAsync(other, b));
    check(drv.cuStreamSynchronize(a));
    check(drv.cuStreamSynchronize(b));
    const std::vector<Word> seen = s.read(out, kCount);
    print("first", seen.front());
    print("last", seen.back());
  }
  for (int round = 0; round < 3; ++round) {
    const CUdeviceptr scratch = s.words(kCount, 6);
    s.launch("slow_copy", a, out, scratch, Word{kCount}, 3 * kMillisecond);
    check(drv.cuMemFree(scratch));
    const CUdeviceptr other = s.words(kCount, 1000);
    print("free", s.read(out, kCount).back());
    check(drv.cuMemFree(other));
  }
}

void unloaded_module() {
  Session s;
  const CUstream a = s.stream();
  const CUdeviceptr x = s.words(1);
  for (int round = 0; round < 5; ++round) {
    s.launch("slow_add", a, x, Word{1}, 2 * kMillisecond);
    s.launch("slow_add", a, x, Word{2}, std::uint64_t{1000});
    check(drv.cuModuleUnload(s.module));
    s.load();
  }
  print("sum", s.word(x));
}

void library_kernels() {
  Session s;
  const std::string image = module_image("TEST_KERNELS");
  const CUdeviceptr x = s.words(1);
  for (int round = 0; round < 3; ++round) {
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    check(drv.cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    check(drv.cuLibraryGetKernel(&kernel, library, "slow_add"));
    Word value = 3;
    std::uint64_t ns = kMillisecond;
    CUdeviceptr address = x;
    void* parameters[] = {&address, &value, &ns};
    check(drv.cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 32, 1, 1, 0, nullptr,
                             parameters, nullptr));
    check(drv.cuLibraryUnload(library));
  }
  print("sum", s.word(x));
}

// --- work that needs the host -------------------------------------------------------------------

struct Log {
  const Pinned& pinned;
  Word value;
};
void CUDA_CB append(void* data) {
  const auto* log = static_cast<Log*>(data);
  const Word at = log->pinned.words[0] + 1;
  log->pinned.words[0] = at;
  log->pinned.words[at] = log->value;
}

void host_functions() {
  Session s;
  for (const CUstream a : {s.stream(), CUstream{nullptr}, CU_STREAM_PER_THREAD}) {
    const Pinned log(64);
    Log host{log, 1000};
    for (Word i = 1; i <= 10; ++i) {
      s.launch("slow_add", a, log.device + 240, Word{1}, std::uint64_t{100'000});
      s.launch("append", a, log.device, i);
      check(drv.cuLaunchHostFunc(a, &append, &host));
    }
    check(drv.cuStreamSynchronize(a));
    std::vector<Word> words(log.words, log.words + 22);
    print("log", words);
  }
}

void slow_host_function() {
  Session s;
  const CUstream a = s.stream(), b = s.stream();
  const CUdeviceptr x = s.words(4);
  Gate gate;
  gate.close(a);
  s.launch("slow_add", a, x, Word{1}, std::uint64_t{1000});
  // Nothing of another stream waits for it.
  for (int i = 0; i < 20; ++i) s.launch("slow_add", b, x + 4, Word{1}, std::uint64_t{1000});
  check(drv.cuStreamSynchronize(b));
  print("held", drv.cuStreamQuery(a));
  gate.open = true;
  check(drv.cuStreamSynchronize(a));
  print("words", s.read(x, 2));
}

struct Seen {
  CUstream stream;
  CUresult status;
};
void callbacks() {
  Session s;
  for (const CUstream a : {s.stream(), CU_STREAM_PER_THREAD}) {
    Seen seen{nullptr, CUDA_ERROR_UNKNOWN};
    const CUdeviceptr x = s.words(1);
    s.launch("slow_add", a, x, Word{1}, kMillisecond);
    check(drv.cuStreamAddCallback(
        a,
        [](CUstream stream, CUresult status, void* data) {
          *static_cast<Seen*>(data) = {stream, status};
        },
        &seen, 0));
    check(drv.cuStreamSynchronize(a));
    print("same stream", seen.stream == a);
    print("status", seen.status);
  }
  print("none", drv.cuStreamAddCallback(nullptr, nullptr, nullptr, 0));
}

void value_waits() {
  Session s;
  const CUstream a = s.stream(), b = s.stream(), c = s.stream(CU_STREAM_DEFAULT);
  const Pinned flags(8);
  const CUdeviceptr x = s.words(4);
  check(drv.cuStreamWaitValue32(a, flags.device, 1, CU_STREAM_WAIT_VALUE_EQ));
  for (int i = 0; i < 50; ++i) s.launch("slow_add", a, x, Word{1}, std::uint64_t{1000});
  check(drv.cuStreamWaitValue32(b, flags.device + 4, 2, CU_STREAM_WAIT_VALUE_GEQ));
  s.launch("slow_copy", b, x + 4, x, Word{1}, std::uint64_t{1000});
  // c is innocent, and lets b go when a is done.
  s.launch("slow_add", c, x + 8, Word{1}, std::uint64_t{1000});
  check(drv.cuStreamSynchronize(c));
  print("held", drv.cuStreamQuery(a));
  check(drv.cuStreamWriteValue32(a, flags.device + 4, 2, CU_STREAM_WRITE_VALUE_DEFAULT));
  flags.words[0] = 1;
  check(drv.cuStreamSynchronize(b));
  print("words", s.read(x, 3));
}

// More behind a gate than a queue of the driver holds.
void many_behind_a_gate() {
  Session s;
  const CUstream a = s.stream(), b = s.stream();
  const CUdeviceptr x = s.words(2);
  Gate gate;
  gate.close(a);
  for (int i = 0; i < 900; ++i) s.launch("add", a, x, Word{1}, Word{1});
  s.launch("add", b, x + 4, Word{1}, Word{1});
  check(drv.cuStreamSynchronize(b));
  gate.open = true;
  check(drv.cuStreamSynchronize(a));
  print("words", s.read(x, 2));
}

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

const Scenarios kScenarios = {
#define SCENARIO(name) \
  { #name, &name }
    SCENARIO(default_streams),
    SCENARIO(default_streams_of_threads),
    SCENARIO(event_generations),
    SCENARIO(event_storm),
    SCENARIO(event_times),
    SCENARIO(destroyed_stream),
    SCENARIO(one_stream_of_two_threads),
    SCENARIO(argument_lifetimes),
    SCENARIO(pageable_source),
    SCENARIO(copies),
    SCENARIO(early_free),
    SCENARIO(unloaded_module),
    SCENARIO(library_kernels),
    SCENARIO(host_functions),
    SCENARIO(slow_host_function),
    SCENARIO(callbacks),
    SCENARIO(value_waits),
    SCENARIO(many_behind_a_gate),
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

}  // namespace

int main(int count, char** words) { return run_scenario(kScenarios, count, words); }
