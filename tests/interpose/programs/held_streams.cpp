// SPDX-License-Identifier: Apache-2.0
//
// Calls that are made while a stream is held and work behind it is deferred: what natively is
// refused, or returns, does so at once and with the same answer. A program in which such a call
// waits for the gate hangs, because the caller opens it.
//
// Linked to the driver, so that it can use all of it by name.
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "boundaries.h"

namespace {

// A stream with deferred work behind a gate.
struct Held {
  explicit Held(const Session& session)
      : s(session), stream(session.stream()), x(session.words(16)) {
    gate.close(stream);
    launch();
  }
  void launch() const { s.launch("add", stream, x, Word{1}, Word{1}); }
  void finish() {
    gate.open = true;
    check(cuCtxSynchronize());
    print("added", s.word(x));
  }
  const Session& s;
  CUstream stream;
  CUdeviceptr x;
  Gate gate;
};

void* registered() {
  void* memory = std::aligned_alloc(4096, 8192);
  check(cuMemHostRegister(memory, 8192, 0));
  return memory;
}

CUdeviceptr ordered_memory(const Session& s, std::size_t bytes = 1 << 16) {
  CUdeviceptr memory = 0;
  check(cuMemAllocAsync(&memory, bytes, s.stream()));
  check(cuCtxSynchronize());
  return memory;
}

CUdeviceptr address_of(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }
void* pointer_to(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
void* inner(void* memory, std::size_t offset) { return static_cast<char*>(memory) + offset; }

// --- frees --------------------------------------------------------------------------------------

void refused_frees() {
  Session s;
  const CUdeviceptr device = s.words(1024), freed = s.words(4), pool = ordered_memory(s);
  void *pinned = nullptr, *pinned_and_freed = nullptr;
  check(cuMemAllocHost(&pinned, 4096));
  check(cuMemAllocHost(&pinned_and_freed, 4096));
  void *paged = registered(), *unregistered = registered();
  check(cuMemFree(freed));
  check(cuMemFreeHost(pinned_and_freed));
  check(cuMemHostUnregister(unregistered));
  Held held(s);
  print("an inner address", cuMemFree(device + 4));
  print("an inner address of a pool", cuMemFree(pool + 16));
  print("freed before", cuMemFree(freed));
  print("page-locked memory", cuMemFree(address_of(pinned)));
  print("registered memory", cuMemFree(address_of(paged)));
  print("host: device memory", cuMemFreeHost(pointer_to(device)));
  print("host: memory of a pool", cuMemFreeHost(pointer_to(pool)));
  print("host: an inner address", cuMemFreeHost(inner(pinned, 8)));
  print("host: freed before", cuMemFreeHost(pinned_and_freed));
  print("host: registered memory", cuMemFreeHost(paged));
  print("host: NULL", cuMemFreeHost(nullptr));
  print("unregister: page-locked memory", cuMemHostUnregister(pinned));
  print("unregister: an inner address", cuMemHostUnregister(inner(paged, 4096)));
  print("unregister: unregistered before", cuMemHostUnregister(unregistered));
  print("unregister: device memory", cuMemHostUnregister(pointer_to(device)));
  print("unregister: NULL", cuMemHostUnregister(nullptr));
  print("in stream order: device memory", cuMemFreeAsync(device, held.stream));
  print("in stream order: an inner address", cuMemFreeAsync(pool + 16, held.stream));
  print("in stream order: freed before", cuMemFreeAsync(freed, held.stream));
  print("in stream order: NULL", cuMemFreeAsync(0, held.stream));
  print("module NULL", cuModuleUnload(nullptr));
  print("array NULL", cuArrayDestroy(nullptr));
  held.finish();
  check(cuMemHostUnregister(paged));
  std::free(paged);
  std::free(unregistered);
}

// Natively the first free takes the memory from the application, whenever it is made.
void frees_made_twice() {
  Session s;
  const CUdeviceptr memory = ordered_memory(s), other = ordered_memory(s, 1 << 20);
  const CUstream stream = s.stream();
  Held held(s);
  print("free", cuMemFreeAsync(memory, held.stream));
  print("again", cuMemFreeAsync(memory, held.stream));
  held.launch();
  print("free", cuMemFreeAsync(other, held.stream));
  print("on another stream", cuMemFreeAsync(other, stream));
  print("without a stream", cuMemFree(other));
  held.launch();
  // The memory comes back by an allocation, and is the application's to free once more.
  CUdeviceptr back = 0;
  check(cuMemAllocAsync(&back, 1 << 16, held.stream));
  print("free", cuMemFreeAsync(back, held.stream));
  held.launch();
  check(cuMemAllocAsync(&back, 1 << 16, held.stream));
  print("free", cuMemFreeAsync(back, held.stream));
  print("again", cuMemFreeAsync(back, held.stream));
  held.finish();
  print("again", cuMemFreeAsync(memory, held.stream));
}

void attributes_of_a_pool() {
  Session s;
  CUmemoryPool pool = nullptr;
  check(cuDeviceGetMemPool(&pool, s.device));
  const auto show = [&](const char* what) {
    std::printf("%s:", what);
    for (const CUmemPool_attribute attribute :
         {CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH,
          CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH}) {
      cuuint64_t bytes = 0;
      check(cuMemPoolGetAttribute(pool, attribute, &bytes));
      std::printf(" %llu", static_cast<unsigned long long>(bytes));
    }
    std::printf("\n");
  };
  CUdeviceptr memory[5];
  for (CUdeviceptr& one : memory) one = ordered_memory(s, 1 << 20);
  Held held(s);
  check(cuMemFreeAsync(memory[0], held.stream));
  show("one freed");
  check(cuMemAllocAsync(&memory[0], 1 << 20, held.stream));
  show("allocated again");
  held.launch();
  check(cuMemFreeAsync(memory[0], held.stream));
  check(cuMemFreeAsync(memory[1], held.stream));
  cuuint64_t zero = 0;
  check(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
  show("two freed, the most forgotten");
  held.finish();
  show("in the end");
}

// --- events -------------------------------------------------------------------------------------

// Until the thread, which had slept `before` times when `stage` became 1, has slept again: it is in
// the call then. At most 10 s, for a driver that does not sleep.
void wait_until_asleep(pid_t thread, unsigned long long before, const std::atomic<int>& stage) {
  for (int i = 0; i < 10'000 && stage == 1 && sleeps_of(thread) == before; ++i) sleep_ms(1);
}

// Who waits for an event waits for the record that was its newest then.
void event_recorded_again_while_waited_for() {
  Session s;
  const CUstream first = s.stream(), second = s.stream(), idle = s.stream();
  const CUdeviceptr x = s.words(4);
  for (int round = 0; round < 3; ++round) {
    CUevent event = s.event();
    Gate gate, later;
    gate.close(first);
    s.launch("slow_add", first, x, Word{1}, 20 * kMillisecond);
    check(cuEventRecord(event, first));
    std::atomic<int> stage{0};
    pid_t waiting = 0;
    unsigned long long sleeps = 0;
    std::thread waiter([&] {
      check(cuCtxSetCurrent(s.context));
      waiting = gettid();
      sleeps = sleeps_of(waiting);
      stage = 1;
      check(cuEventSynchronize(event));
      print("what it stood for has ended", cuStreamQuery(first));
      stage = 2;
    });
    while (stage == 0) sleep_ms(1);
    wait_until_asleep(waiting, sleeps, stage);
    sleep_ms(30);  // it may have slept for a lock before it looked at the event
    if (round == 0) {
      later.close(second);
      s.launch("add", second, x + 4, Word{1}, Word{1});
    }
    if (round == 2)
      check(cuEventDestroy(event));
    else
      check(cuEventRecord(event, round == 0 ? second : idle));
    sleep_ms(20);
    print("it still waits", stage == 1);
    gate.open = true;
    waiter.join();
    if (round != 2) print("the event", cuEventQuery(event));
    later.open = true;
    check(cuCtxSynchronize());
    print("added", s.word(x));
  }
}

void elapsed_times() {
  Session s;
  const CUstream stream = s.stream();
  const CUevent timed = s.event(0), timed_too = s.event(0), untimed = s.event(), never = s.event(0),
                fired = s.event(0);
  check(cuEventRecord(fired, stream));
  check(cuEventSynchronize(fired));
  Held held(s);
  check(cuEventRecord(timed, held.stream));
  held.launch();
  check(cuEventRecord(timed_too, held.stream));
  check(cuEventRecord(untimed, held.stream));
  float ms = 0;
  const auto elapsed = [&](const char* what, CUevent a, CUevent b) {
    print(what, cuEventElapsedTime(&ms, a, b));
    print(what, cuEventElapsedTime(&ms, b, a));
  };
  elapsed("both pending", timed, timed_too);
  elapsed("one pending", fired, timed);
  elapsed("without times", timed, untimed);
  elapsed("without times", fired, untimed);
  elapsed("never recorded", timed, never);
  print("of itself", cuEventElapsedTime(&ms, timed, timed));
  print("into NULL", cuEventElapsedTime(nullptr, timed, timed_too));
  print("of NULL", cuEventElapsedTime(&ms, nullptr, timed));
  print("query of NULL", cuEventQuery(nullptr));
  print("synchronize NULL", cuEventSynchronize(nullptr));
  print("external", cuEventRecordWithFlags(timed, held.stream, CU_EVENT_RECORD_EXTERNAL));
  print("wrong flags", cuEventRecordWithFlags(timed, held.stream, 77));
  check(cuEventRecordWithFlags(timed, held.stream, 0));
  elapsed("recorded again", timed, timed_too);
  held.finish();
  elapsed("in the end", timed, timed_too);
}

// None of these takes a place in a queue of the driver, so no number of them blocks the caller.
void many_markers() {
  Session s;
  const CUevent event = s.event();
  constexpr int kMany = 12000;
  Held held(s);
  for (int i = 0; i < kMany; ++i) check(cuEventRecord(event, held.stream));
  for (int i = 0; i < kMany; ++i) check(cuStreamWaitEvent(held.stream, event, 0));
  int called = 0;
  const CUhostFn count = [](void* counter) { ++*static_cast<int*>(counter); };
  for (int i = 0; i < kMany; ++i) check(cuLaunchHostFunc(held.stream, count, &called));
  held.launch();
  print("made", kMany);
  held.finish();
  print("called", static_cast<unsigned>(called));
}

void batches() {
  Session s;
  const Pinned words(16);
  std::vector<CUstreamBatchMemOpParams> batch(300);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    batch[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    batch[i].writeValue.address = words.device + i % 8 * sizeof(Word);
    batch[i].writeValue.value = static_cast<Word>(i);
  }
  Held held(s);
  const auto make = [&](unsigned count, unsigned flags = 0) {
    return cuStreamBatchMemOp(held.stream, count, batch.data(), flags);
  };
  print("none", make(0));
  print("too many", make(256));
  print("far too many", make(~0U));
  print("flags", make(4, 7));
  batch[3].writeValue.operation = CU_STREAM_MEM_OP_BARRIER;
  print("of another kind", make(4));
  batch[3] = batch[4];
  batch[3].writeValue.address = 0x1000;
  print("to nowhere", make(4));
  print("nothing written", words.words[1].load());
  batch[3] = batch[4];
  print("as many as can be", make(255));
  held.launch();
  held.finish();
  for (int i = 0; i < 8; ++i) print("word", words.words[i].load());
}

// --- streams ------------------------------------------------------------------------------------

// Streams and events are destroyed while deferred work of theirs goes on, by several threads, and
// their handles come back.
void destroyed_streams() {
  Session s;
  const CUdeviceptr x = s.words(4);
  for (int round = 0; round < 20; ++round) {
    const CUstream a = s.stream(), b = s.stream(), c = s.stream(), d = s.stream();
    const CUevent first = s.event(), second = s.event();
    Gate gate;
    gate.close(a);
    s.launch("add", a, x, Word{1}, Word{1});
    check(cuEventRecord(first, a));
    check(cuStreamWaitEvent(b, first, 0));
    s.launch("add", b, x, Word{1}, Word{1});
    check(cuEventRecord(second, b));
    check(cuStreamDestroy(a));
    check(cuStreamDestroy(b));
    check(cuStreamWaitEvent(c, second, 0));
    check(cuEventDestroy(first));
    s.launch("add", c, x, Word{1}, Word{1});
    check(cuEventRecord(second, d));
    std::thread other([&] {
      check(cuCtxSetCurrent(s.context));
      check(cuStreamDestroy(d));
      for (int i = 0; i < 5; ++i) {
        const CUstream again = s.stream();
        s.launch("add", again, x, Word{1}, Word{1});
        check(cuStreamDestroy(again));
      }
    });
    sleep_ms(round % 4);
    gate.open = true;
    other.join();
    check(cuCtxSynchronize());
    if (cuStreamQuery(c) != CUDA_SUCCESS) print("pending", static_cast<unsigned>(round));
    check(cuStreamDestroy(c));
    check(cuEventDestroy(second));
  }
  print("added", s.word(x));
}

// --- the default stream -------------------------------------------------------------------------

// Fills and copies of device memory return at once, and are made in the order of the default
// stream.
void fills_and_copies_of_device_memory() {
  Session s;
  const CUstream blocking = s.stream(CU_STREAM_DEFAULT), later = s.stream(CU_STREAM_DEFAULT);
  const CUdeviceptr x = s.words(64), y = s.words(64), z = s.words(64);
  Gate gate;
  gate.close(blocking);
  s.launch("add", blocking, x, Word{7}, Word{1});
  for (Word round = 1; round <= 100; ++round) {
    check(cuMemsetD32(y, round, 8));
    check(cuMemcpyDtoD(y + 32, x, 16));
    check(cuMemcpy(y + 64, x, 16));
    check(cuMemsetD8(y + 96, static_cast<unsigned char>(round), 16));
    check(cuMemsetD2D32(y + 128, 16, round, 2, 4));
  }
  s.launch("slow_copy", later, z, y + 32, Word{1}, std::uint64_t{1000});
  print("held", cuStreamQuery(later));
  print("the default stream", cuStreamQuery(nullptr));
  print("refused", cuMemsetD32(y + 1, 1, 4));
  print("refused", cuMemcpyDtoD(y, 0x1000, 16));
  gate.open = true;
  check(cuCtxSynchronize());
  for (const Word word : s.read(y, 64)) print("word", word);
  print("read behind it", s.word(z));
}

// --- captures -----------------------------------------------------------------------------------

struct Objects {
  explicit Objects(const Session& s) : device(s.words(4)), pool(ordered_memory(s)) {
    check(cuMemAllocHost(&pinned, 4096));
    paged = registered();
    check(cuModuleLoadData(&module, module_image("TEST_KERNELS").data()));
    fired = s.event(0);
    pending = s.event(0);
    check(cuEventRecord(fired, s.stream()));
    check(cuCtxSynchronize());
  }
  CUdeviceptr device, pool;
  void *pinned = nullptr, *paged = nullptr;
  CUmodule module = nullptr;
  CUevent fired, pending;
};

using InCapture = std::function<CUresult(const Held&, const Objects&)>;

// Those that a capture forbids, which they break, and that natively would wait or ask. All but
// the last ones are allowed when the capture is a relaxed one, and those that wait do so.
const std::vector<std::pair<std::string, InCapture>>& in_captures() {
  static const std::vector<std::pair<std::string, InCapture>> calls{
      {"context", [](const Held&, const Objects&) { return cuCtxSynchronize(); }},
      {"free of an inner address",
       [](const Held&, const Objects& o) { return cuMemFree(o.device + 4); }},
      {"free of device memory as the host's",
       [](const Held&, const Objects& o) { return cuMemFreeHost(pointer_to(o.device)); }},
      {"query", [](const Held& h, const Objects&) { return cuStreamQuery(h.stream); }},
      {"query of the event", [](const Held&, const Objects& o) { return cuEventQuery(o.pending); }},
      {"elapsed time",
       [](const Held&, const Objects& o) {
         float ms = 0;
         return cuEventElapsedTime(&ms, o.fired, o.pending);
       }},
      {"free in stream order",
       [](const Held& h, const Objects& o) { return cuMemFreeAsync(o.pool, h.stream); }},
      {"allocation in stream order",
       [](const Held& h, const Objects&) {
         CUdeviceptr memory = 0;
         return cuMemAllocAsync(&memory, 1 << 16, h.stream);
       }},
      {"stream", [](const Held& h, const Objects&) { return cuStreamSynchronize(h.stream); }},
      {"event", [](const Held&, const Objects& o) { return cuEventSynchronize(o.pending); }},
      {"free", [](const Held&, const Objects& o) { return cuMemFree(o.device); }},
      {"free of the host's", [](const Held&, const Objects& o) { return cuMemFreeHost(o.pinned); }},
      {"unregister", [](const Held&, const Objects& o) { return cuMemHostUnregister(o.paged); }},
      {"unload", [](const Held&, const Objects& o) { return cuModuleUnload(o.module); }}};
  return calls;
}
constexpr std::size_t kThatReturnInARelaxedOne = 8;

void calls_in_captures() {
  Session s;
  for (const CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CU_STREAM_CAPTURE_MODE_RELAXED})
    for (std::size_t i = 0; i < in_captures().size(); ++i) {
      if (mode == CU_STREAM_CAPTURE_MODE_RELAXED && i == kThatReturnInARelaxedOne) break;
      const auto& [name, call] = in_captures()[i];
      const Objects objects(s);
      const CUstream capturing = s.stream();
      Held held(s);
      check(cuEventRecord(objects.pending, held.stream));
      check(cuStreamBeginCapture(capturing, mode));
      print(name.c_str(), call(held, objects));
      CUstreamCaptureStatus status{};
      check(cuStreamIsCapturing(capturing, &status));
      print("capture", static_cast<unsigned long long>(status));
      CUgraph graph = nullptr;
      print("end", cuStreamEndCapture(capturing, &graph));
      held.finish();
    }
}

}  // namespace

int main(int count, char** words) {
  return run_scenario(
      {{"refused_frees", &refused_frees},
       {"frees_made_twice", &frees_made_twice},
       {"attributes_of_a_pool", &attributes_of_a_pool},
       {"event_recorded_again_while_waited_for", &event_recorded_again_while_waited_for},
       {"elapsed_times", &elapsed_times},
       {"many_markers", &many_markers},
       {"batches", &batches},
       {"fills_and_copies_of_device_memory", &fills_and_copies_of_device_memory},
       {"destroyed_streams", &destroyed_streams},
       {"calls_in_captures", &calls_in_captures}},
      count, words);
}
