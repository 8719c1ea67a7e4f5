// SPDX-License-Identifier: Apache-2.0
//
// Small programs that each do what is easy to get wrong when launches move between queues. Each
// prints what it computed and every answer that a program could see; programs_test.py runs each
// bare and under the preloaded library and compares.
//
//   scenarios NAME
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "scenarios.h"

namespace {

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

const Scenarios kScenarios = {
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
};

}  // namespace

int main(int count, char** words) {
  Scenarios all = kScenarios;
  all.insert(kContextScenarios.begin(), kContextScenarios.end());
  return run_scenario(all, count, words);
}
