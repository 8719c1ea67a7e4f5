// SPDX-License-Identifier: Apache-2.0
//
// Programs that fill streams as deep as the driver lets them, with more than launches, and programs
// where one thread or device waits while another one must get on. A program that hangs is ended by
// the test that started it.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "session.h"

namespace {

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Holds streams with a host function until it is opened.
class Gate {
 public:
  void close(CUstream stream) { check(drv.cuLaunchHostFunc(stream, &wait, this)); }
  void open() { open_ = true; }

 private:
  static void CUDA_CB wait(void* gate) {
    while (!static_cast<Gate*>(gate)->open_) sleep_ms(1);
  }
  std::atomic<bool> open_{false};
};

// Calls `work` on another thread and waits for it.
void elsewhere(const Session& s, const std::function<void()>& work) {
  std::thread([&] {
    check(drv.cuCtxSetCurrent(s.context));
    work();
  }).join();
}

// Fewer operations than a driver's queue takes, half of them records.
void launches_and_records() {
  constexpr int kPairs = 480;
  Session s;
  const Pinned flag(1);
  const CUdeviceptr x = s.words(2);
  const CUstream held = s.stream();
  const CUstream other = s.stream();
  std::vector<CUevent> events;
  for (int i = 0; i < kPairs; ++i) events.push_back(s.event());
  s.launch("spin_until_equal", held, flag.device, Word{1});
  for (const CUevent event : events) {
    s.launch("add", held, x, Word{1}, Word{1});
    check(drv.cuEventRecord(event, held));
  }
  elsewhere(s, [&] {
    s.launch("add", other, x + 4, Word{1}, Word{1});
    check(drv.cuStreamSynchronize(other));
  });
  std::printf("the other stream has ended, held %d\n", drv.cuEventQuery(events.back()));
  flag.words[0] = 1;
  check(drv.cuCtxSynchronize());
  std::printf("words %u %u\n", s.word(x), s.word(x + 4));
}

// The legacy stream beside a blocking one, whose order needs records of ours.
void legacy_launches() {
  Session s;
  const Pinned flag(1);
  const CUdeviceptr x = s.words(2);
  const CUstream blocking = s.stream(CU_STREAM_DEFAULT);
  const CUstream other = s.stream();
  s.launch("nothing", blocking);
  s.launch("spin_until_equal", CU_STREAM_LEGACY, flag.device, Word{1});
  for (int i = 0; i < 900; ++i) s.launch("add", CU_STREAM_LEGACY, x, Word{1}, Word{1});
  elsewhere(s, [&] {
    s.launch("add", other, x + 4, Word{1}, Word{1});
    check(drv.cuStreamSynchronize(other));
  });
  s.launch("add", blocking, x, Word{1}, Word{1});
  flag.words[0] = 1;
  check(drv.cuCtxSynchronize());
  std::printf("words %u %u\n", s.word(x), s.word(x + 4));
}

// More runs of work outstanding than a stream has room to note.
void many_records_behind_a_gate() {
  Session s;
  const CUdeviceptr x = s.words(1);
  const CUstream held = s.stream(), other = s.stream();
  const CUevent event = s.event();
  Gate gate;
  gate.close(held);
  for (int i = 0; i < 1500; ++i) {
    if (i % 10 == 0) s.launch("add", held, x, Word{1}, Word{1});
    check(drv.cuEventRecord(event, held));
    check(drv.cuStreamWaitEvent(held, event, 0));
  }
  check(drv.cuStreamWaitEvent(other, event, 0));
  s.launch("add", other, x, Word{1}, Word{1});
  gate.open();
  check(drv.cuStreamSynchronize(other));
  std::printf("%u\n", s.word(x));
}

// As much as every driver's queue takes behind a gate; then a call for which all of it must be in
// the real queue.
void full_behind_a_host_function() {
  Session s;
  const CUdeviceptr x = s.words(1);
  const CUstream held = s.stream();
  Gate gate;
  for (int i = 0; i < 50; ++i) s.launch("add", held, x, Word{1}, Word{1});
  gate.close(held);
  sleep_ms(100);  // what is ahead of the gate ends
  for (int i = 0; i < 1018; ++i) s.launch("add", held, x, Word{1}, Word{1});
  CUgraph graph = nullptr;
  check(drv.cuStreamBeginCapture(held, CU_STREAM_CAPTURE_MODE_RELAXED));
  check(drv.cuStreamEndCapture(held, &graph));
  gate.open();
  check(drv.cuStreamSynchronize(held));
  std::printf("word %u\n", s.word(x));
}

// A blocking stream whose work has all ended, unseen, behind a gate of the legacy stream.
void full_behind_the_legacy_stream() {
  Session s;
  const CUdeviceptr x = s.words(1);
  const CUstream blocking = s.stream(CU_STREAM_DEFAULT);
  Gate first, second;
  first.close(blocking);
  for (int i = 0; i < 60; ++i) check(drv.cuMemsetD32Async(x, 0, 1, blocking));
  first.open();
  sleep_ms(100);
  second.close(CU_STREAM_LEGACY);
  for (int i = 0; i < 1000; ++i) s.launch("add", blocking, x, Word{1}, Word{1});
  second.open();
  check(drv.cuCtxSynchronize());
  std::printf("word %u\n", s.word(x));
}

// The gate is open, and a kernel behind it waits for the host: what ran between takes no place.
void full_behind_a_kernel() {
  Session s;
  const Pinned flag(1);
  const CUdeviceptr x = s.words(1);
  const CUstream held = s.stream();
  Gate gate;
  gate.close(held);
  for (int i = 0; i < 50; ++i) s.launch("add", held, x, Word{1}, Word{1});
  gate.open();
  s.launch("spin_until_equal", held, flag.device, Word{1});
  sleep_ms(100);
  for (int i = 0; i < 1000; ++i) s.launch("add", held, x, Word{1}, Word{1});
  flag.words[0] = 1;
  check(drv.cuStreamSynchronize(held));
  std::printf("word %u\n", s.word(x));
}

// Work of a destroyed stream goes on; the call does not wait for it however much it is.
void deep_stream_destroyed() {
  Session s;
  const CUdeviceptr x = s.words(2);
  for (const bool records : {false, true}) {
    const CUstream held = s.stream();
    const CUevent event = s.event();
    Gate gate;
    gate.close(held);
    for (int i = 0; i < (records ? 450 : 950); ++i) {
      s.launch("add", held, x, Word{1}, Word{1});
      if (records) check(drv.cuEventRecord(event, held));
    }
    std::printf("destroyed %d\n", drv.cuStreamDestroy(held));
    std::printf("event %d\n", records ? drv.cuEventQuery(event) : 0);
    gate.open();
    check(drv.cuCtxSynchronize());
    std::printf("word %u\n", s.word(x));
  }
}

// A thread that makes more calls of a kind than a driver takes is blocked, and it alone.
using Make = std::function<void(CUstream)>;
void thread_runs_ahead(int calls, const std::function<Make(Session&)>& prepare) {
  Session s;
  const Make make = prepare(s);
  const Pinned flag(1);
  const CUdeviceptr x = s.words(1);
  const CUstream deep = s.stream();
  const CUstream other = s.stream();
  s.launch("spin_until_equal", deep, flag.device, Word{1});
  std::thread ahead([&] {
    check(drv.cuCtxSetCurrent(s.context));
    for (int i = 0; i < calls; ++i) make(deep);
  });
  sleep_ms(200);
  for (int i = 0; i < 300; ++i) s.launch("add", other, x, Word{1}, Word{1});
  check(drv.cuStreamSynchronize(other));
  std::printf("the other stream has ended\n");
  flag.words[0] = 1;
  ahead.join();
  check(drv.cuCtxSynchronize());
  std::printf("word %u\n", s.word(x));
}

void launches_run_ahead() {
  thread_runs_ahead(3000, [](Session& s) -> Make {
    return [&s, x = s.words(1), event = s.event()](CUstream stream) {
      s.launch("add", stream, x, Word{1}, Word{1});
      check(drv.cuEventRecord(event, stream));
    };
  });
}

// Gates that are open take a place all the same.
void value_waits_run_ahead() {
  thread_runs_ahead(1500, [](Session&) -> Make {
    return [zero = Pinned(1)](CUstream stream) {
      check(drv.cuStreamWaitValue32(stream, zero.device, 0, CU_STREAM_WAIT_VALUE_EQ));
    };
  });
}

// The first of two gates has opened. The driver still takes no more behind the second, and a call
// that takes no place and cannot be deferred returns.
void full_behind_a_second_gate() {
  Session s;
  const CUstream deep = s.stream();
  const CUdeviceptr x = s.words(1);
  CUevent shared = nullptr;
  check(drv.cuEventCreate(&shared, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  Gate first, second;
  first.close(deep);
  second.close(deep);
  first.open();
  std::thread ahead([&] {
    check(drv.cuCtxSetCurrent(s.context));
    for (int i = 0; i < 3000; ++i) s.launch("add", deep, x, Word{1}, Word{1});
  });
  sleep_ms(200);
  std::printf("record %d\n", drv.cuEventRecord(shared, deep));
  second.open();
  ahead.join();
  check(drv.cuCtxSynchronize());
  std::printf("event %d, word %u\n", drv.cuEventQuery(shared), s.word(x));
}

// Launches that the driver refuses on a held stream leave nothing behind that holds another stream.
void refused_on_a_held_stream() {
  Session s;
  const Pinned flag(1);
  const CUdeviceptr x = s.words(1);
  const CUstream held = s.stream();
  const CUstream other = s.stream();
  s.launch("spin_until_equal", held, flag.device, Word{1});
  CUfunction add = nullptr;
  check(drv.cuModuleGetFunction(&add, s.module, "add"));
  Word one = 1;
  CUdeviceptr word = x;
  void* arguments[] = {&word, &one, &one};
  for (int i = 0; i < 40; ++i) {
    const CUresult answer =
        drv.cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 1U << 22, held, arguments, nullptr);
    if (i == 0) std::printf("refused %d\n", answer);
  }
  for (int i = 0; i < 200; ++i) s.launch("add", other, x, Word{1}, Word{1});
  check(drv.cuStreamSynchronize(other));
  std::printf("the other stream has ended\n");
  flag.words[0] = 1;
  check(drv.cuCtxSynchronize());
  std::printf("word %u\n", s.word(x));
}

// A graph is launched behind its own launch on another stream, and not behind what came there
// since.
void graph_of_two_streams() {
  Session s;
  const Pinned flags(2);
  const CUdeviceptr x = s.words(1);
  const CUstream first = s.stream();
  const CUstream second = s.stream();
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  check(drv.cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_RELAXED));
  s.launch("add", first, x, Word{1}, Word{1});
  check(drv.cuStreamEndCapture(first, &graph));
  check(drv.cuGraphInstantiate(&executable, graph, 0));
  Gate gate;
  gate.close(first);
  s.launch("add", first, x, Word{1}, Word{1});
  check(drv.cuGraphLaunch(executable, first));
  check(drv.cuGraphLaunch(executable, second));
  s.launch("spin_until_equal", first, flags.device, Word{1});
  gate.open();
  check(drv.cuStreamSynchronize(second));
  std::printf("the second launch has ended\n");
  flags.words[0] = 1;
  check(drv.cuCtxSynchronize());
  std::printf("word %u\n", s.word(x));
}

// What one device frees or unloads does not wait for another's work, which needs the host.
void frees_beside_a_held_device() {
  Session first(0);
  const CUdeviceptr memory = first.words(16);
  void* host = nullptr;
  check(drv.cuMemAllocHost(&host, 4096));
  Session second(1);
  const CUstream held = second.stream();
  const CUdeviceptr x = second.words(1);
  Gate gate;
  gate.close(held);
  second.launch("slow_add", held, x, Word{7}, kMillisecond);
  check(drv.cuCtxSetCurrent(first.context));
  std::printf("free %d\n", drv.cuMemFree(memory));
  std::printf("free of page-locked memory %d\n", drv.cuMemFreeHost(host));
  std::printf("unload %d\n", drv.cuModuleUnload(first.module));
  gate.open();
  check(drv.cuCtxSetCurrent(second.context));
  check(drv.cuCtxSynchronize());
  std::printf("word %u\n", second.word(x));
}

// Nor does what one context frees wait for another context of the device.
void frees_beside_a_held_context() {
  Session held;
  const CUstream stream = held.stream();
  const CUdeviceptr x = held.words(1);
  CUcontext other = nullptr;
#if CUDA_VERSION >= 13000
  check(drv.cuCtxCreate(&other, nullptr, 0, held.device));
#else
  check(drv.cuCtxCreate(&other, 0, held.device));
#endif
  const CUdeviceptr memory = held.words(16);
  void* host = nullptr;
  check(drv.cuMemAllocHost(&host, 4096));
  check(drv.cuCtxSetCurrent(held.context));
  Gate gate;
  gate.close(stream);
  held.launch("slow_add", stream, x, Word{7}, kMillisecond);
  for (const CUcontext current : {held.context, other}) {
    check(drv.cuCtxSetCurrent(current));
    if (current == other) std::printf("free %d\n", drv.cuMemFree(memory));
    if (current != other) std::printf("free of page-locked memory %d\n", drv.cuMemFreeHost(host));
  }
  gate.open();
  check(drv.cuCtxSetCurrent(held.context));
  check(drv.cuCtxSynchronize());
  std::printf("word %u\n", held.word(x));
}

// A module belongs to the context that it was loaded into, whichever is current: what is deferred
// there comes before its end.
void unloaded_from_another_context() {
  Session first(0);
  const CUstream stream = first.stream();
  const CUdeviceptr x = first.words(1);
  Session second(1);
  check(drv.cuCtxSetCurrent(first.context));
  for (int i = 0; i < 50; ++i) first.launch("slow_add", stream, x, Word{1}, kMillisecond);
  check(drv.cuCtxSetCurrent(second.context));
  std::printf("unload %d\n", drv.cuModuleUnload(first.module));
  check(drv.cuCtxSetCurrent(first.context));
  check(drv.cuCtxSynchronize());
  std::printf("word %u\n", first.word(x));
}

// While a thread synchronises with the context, the executable of a graph cannot be made for a part
// of the device. Launches that wait their turn must go on all the same.
void graph_is_made_while_a_thread_waits() {
  Session s;
  const Pinned words(1);
  const CUstream held = s.stream();
  const CUstream replayed = s.stream();
  const CUstream deep = s.stream();
  const CUdeviceptr x = s.words(1);
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  check(drv.cuStreamBeginCapture(replayed, CU_STREAM_CAPTURE_MODE_RELAXED));
  s.launch("add", replayed, x, Word{1}, Word{1});
  check(drv.cuStreamEndCapture(replayed, &graph));
  check(drv.cuGraphInstantiate(&executable, graph, 0));
  s.launch("spin_until_equal", held, words.device, Word{1});
  std::thread waits([&] {
    check(drv.cuCtxSetCurrent(s.context));
    check(drv.cuCtxSynchronize());
  });
  sleep_ms(100);
  for (int i = 0; i < 4; ++i) {
    check(drv.cuGraphLaunch(executable, replayed));
    sleep_ms(20);
  }
  for (int i = 0; i < 60; ++i) s.launch("busy", deep, std::uint64_t{20'000});
  std::atomic<bool> ended{false};
  check(drv.cuLaunchHostFunc(
      deep, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &ended));
  while (!ended) sleep_ms(1);
  words.words[0] = 1;
  waits.join();
  check(drv.cuCtxSynchronize());
  std::printf("word %u\n", s.word(x));
}

const Scenarios kScenarios = {
#define SCENARIO(name) \
  {                    \
#name, &name       \
  }
    SCENARIO(launches_and_records),
    SCENARIO(legacy_launches),
    SCENARIO(many_records_behind_a_gate),
    SCENARIO(deep_stream_destroyed),
    SCENARIO(launches_run_ahead),
    SCENARIO(value_waits_run_ahead),
    SCENARIO(frees_beside_a_held_device),
    SCENARIO(frees_beside_a_held_context),
    SCENARIO(unloaded_from_another_context),
    SCENARIO(graph_is_made_while_a_thread_waits),
    SCENARIO(full_behind_a_host_function),
    SCENARIO(full_behind_the_legacy_stream),
    SCENARIO(full_behind_a_kernel),
    SCENARIO(full_behind_a_second_gate),
    SCENARIO(refused_on_a_held_stream),
    SCENARIO(graph_of_two_streams),
};

}  // namespace

int main(int count, char** words) { return run_scenario(kScenarios, count, words); }
