// SPDX-License-Identifier: Apache-2.0
//
// Boundaries (boundaries.cpp) between contexts: contexts that end, copies from one to another.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "boundaries.h"

namespace {

// Memory of the host that outlives the context in which it is registered.
struct Registered {
  explicit Registered(std::size_t count) {
    void* memory = std::aligned_alloc(4096, 4096);
    std::memset(memory, 0, 4096);
    check(cuMemHostRegister(memory, count * sizeof(Word), CU_MEMHOSTREGISTER_DEVICEMAP));
    check(cuMemHostGetDevicePointer(&device, memory, 0));
    words = static_cast<volatile Word*>(memory);
  }
  ~Registered() { std::free(const_cast<Word*>(words)); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  volatile Word* words;
  CUdeviceptr device = 0;
};

// --- contexts that end --------------------------------------------------------------------------

void end_with_work(CUresult (*end)(CUdevice)) {
  for (int round = 0; round < 2; ++round) {
    Session s;
    const Registered memory(3);
    const CUstream chain = s.stream(), held = s.stream(), behind = s.stream();
    for (int i = 0; i < 50; ++i)
      s.launch("slow_add", chain, memory.device, Word{1}, kMillisecond / 2);
    for (int i = 0; i < 8; ++i)
      s.launch("slow_add", s.stream(), memory.device + 4, Word{1}, 5 * kMillisecond);
    Gate gate;
    gate.close(held);
    s.launch("slow_add", held, memory.device + 8, Word{1}, kMillisecond);
    const CUevent event = s.event();
    check(cuEventRecord(event, held));
    check(cuStreamWaitEvent(behind, event, 0));
    s.launch("slow_add", behind, memory.device + 8, Word{1}, kMillisecond);
    std::thread opener([&] {
      sleep_ms(30);
      gate.open = true;
    });
    print("end", end(s.device));
    opener.join();
    print("added by one stream", memory.words[0]);
    print("added by many", memory.words[1]);
    print("added behind a gate", memory.words[2]);
  }
  Session s;
  const CUdeviceptr x = s.words(1);
  s.launch("slow_add", s.stream(), x, Word{1}, kMillisecond);
  print("used again", s.word(x));
}

void primary_context_reset() {
  end_with_work([](CUdevice device) {
    const CUresult reset = cuDevicePrimaryCtxReset(device);
    check(cuDevicePrimaryCtxRelease(device));
    return reset;
  });
}

void primary_context_released() {
  end_with_work([](CUdevice device) { return cuDevicePrimaryCtxRelease(device); });
}

// A context of the application's own, whose work is foreign, ends beside deferred work.
void created_context_destroyed() {
  Session s;
  const Registered memory(2);
  const CUstream held = s.stream();
  Gate gate;
  gate.close(held);
  s.launch("slow_add", held, memory.device, Word{1}, kMillisecond);
  const CUcontext second = second_context(s.device);
  Session inside = s;
  inside.load();
  const CUstream stream = inside.stream();
  for (int i = 0; i < 10; ++i)
    inside.launch("slow_add", stream, memory.device + 4, Word{1}, kMillisecond);
  check(cuStreamBeginCapture(inside.stream(), CU_STREAM_CAPTURE_MODE_RELAXED));
  // The call waits for the streams of the primary context, too (measured:
  // created_context_destroyed_with_work.trace).
  std::thread opener([&] {
    sleep_ms(20);
    gate.open = true;
  });
  print("destroy", cuCtxDestroy(second));
  opener.join();
  print("added there", memory.words[1]);
  check(cuCtxSetCurrent(s.context));
  check(cuCtxSynchronize());
  print("added here", memory.words[0]);
  const CUdeviceptr x = s.words(1);
  for (int i = 0; i < 10; ++i) s.launch("slow_add", nullptr, x, Word{1}, std::uint64_t{1000});
  print("added on the default stream", s.word(x));
}

// --- copies between contexts --------------------------------------------------------------------

// A copy between two contexts comes behind what blocking streams of either are to do, and before
// what they are given afterwards.
void copies_between(const Session& from, const Session& to) {
  check(cuCtxSetCurrent(to.context));
  const CUdeviceptr target = to.words(1), read = to.words(1);
  const CUstream b = to.stream(CU_STREAM_DEFAULT), c = to.stream(CU_STREAM_DEFAULT);
  check(cuCtxSetCurrent(from.context));
  const CUdeviceptr source = from.words(1);
  const CUstream a = from.stream(CU_STREAM_DEFAULT), later = from.stream(CU_STREAM_DEFAULT);
  const auto at = [](const Session& session) { check(cuCtxSetCurrent(session.context)); };
  const std::function<CUresult()> copies[] = {
      [&] { return cuMemcpyPeer(target, to.context, source, from.context, sizeof(Word)); },
      [&] {
        return cuMemcpyPeerAsync(target, to.context, source, from.context, sizeof(Word), nullptr);
      },
      [&] { return cuMemcpyDtoD(target, source, sizeof(Word)); },
      [&] { return cuMemcpy(target, source, sizeof(Word)); },
      [&] { return cuMemcpyAsync(target, source, sizeof(Word), nullptr); },
      [&] { return cuMemcpyDtoDAsync(target, source, sizeof(Word), CU_STREAM_LEGACY); }};
  for (Word round = 0; round < 2 * std::size(copies); ++round) {
    at(from);
    from.launch("slow_add", a, source, Word{1}, 5 * kMillisecond);
    at(to);
    to.launch("slow_add", b, target, Word{100}, 5 * kMillisecond);
    at(round % 2 == 0 ? from : to);
    check(copies[round / 2]());
    at(to);
    to.launch("slow_copy", c, read, target, Word{1}, std::uint64_t{1000});
    at(from);
    from.launch("slow_add", later, source, Word{1000}, std::uint64_t{1000});
    check(cuCtxSynchronize());
    at(to);
    print("copied", to.word(target));
    print("read behind it", to.word(read));
  }
}

// The same of copies between the host and memory of a context that is not the current one.
void copies_from_elsewhere(const Session& owner, const Session& current) {
  check(cuCtxSetCurrent(owner.context));
  const CUdeviceptr word = owner.words(1), read = owner.words(1);
  const CUstream before = owner.stream(CU_STREAM_DEFAULT), behind = owner.stream(CU_STREAM_DEFAULT);
  for (Word round = 1; round <= 4; ++round) {
    owner.launch("slow_add", before, word, Word{1}, 5 * kMillisecond);
    check(cuCtxSetCurrent(current.context));
    Word value = 1000 * round;
    if (round % 2 == 0) {
      check(cuMemcpyHtoD(word, &value, sizeof value));
    } else {
      check(cuMemcpyDtoH(&value, word, sizeof value));
      print("found", value);
    }
    check(cuCtxSetCurrent(owner.context));
    owner.launch("slow_copy", behind, read, word, Word{1}, std::uint64_t{1000});
    check(cuCtxSynchronize());
    print("holds", owner.word(word));
    print("read behind it", owner.word(read));
  }
}

void peer_copies() {
  Session s, t(1);
  copies_between(s, t);
  copies_between(t, s);
}

// The same of two contexts of one device, one of which the application made itself.
void copies_beside_a_created_context() {
  Session s;
  Session second = s;
  second.context = second_context(s.device);
  second.load();
  copies_between(s, second);
  copies_between(second, s);
  copies_from_elsewhere(s, second);
  copies_from_elsewhere(second, s);
}

// A copy between two contexts that is behind work of one of them is ordered with what the other was
// given before it, not with what it is given afterwards.
void copies_behind_a_gate() {
  Session s, t(1);
  const auto at = [](const Session& session) { check(cuCtxSetCurrent(session.context)); };
  at(s);
  const CUdeviceptr source = s.words(1, 7);
  const CUstream later = s.stream(CU_STREAM_DEFAULT);
  at(t);
  const CUdeviceptr target = t.words(1), other = t.words(1);
  const CUstream held = t.stream(CU_STREAM_DEFAULT);
  Pinned host(1);
  CUDA_MEMCPY3D_PEER box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = source;
  box.dstDevice = target;
  box.srcContext = s.context;
  box.dstContext = t.context;
  box.WidthInBytes = sizeof(Word);
  box.Height = box.Depth = 1;
  const std::function<CUresult()> copies[] = {
      [&] { return cuMemcpyDtoHAsync(host.host(), source, sizeof(Word), nullptr); },
      [&] { return cuMemcpyHtoDAsync(source, host.host(), sizeof(Word), nullptr); },
      [&] { return cuMemcpyAsync(target, source, sizeof(Word), nullptr); },
      [&] { return cuMemcpyDtoDAsync(source, target, sizeof(Word), CU_STREAM_LEGACY); },
      [&] {
        return cuMemcpyPeerAsync(target, t.context, source, s.context, sizeof(Word), nullptr);
      },
      [&] { return cuMemcpy3DPeerAsync(&box, nullptr); }};
  for (const auto& copy : copies) {
    Gate before, after;
    before.close(held);
    t.launch("add", nullptr, other, Word{1}, Word{1});
    print("copy", copy());
    at(s);
    after.close(later);
    before.open = true;
    at(t);
    print("synchronize", cuStreamSynchronize(nullptr));
    after.open = true;
    at(s);
    print("holds", s.word(source));
    at(t);
    print("holds", t.word(target));
    print("added", t.word(other));
  }
}

}  // namespace

const Scenarios kContextBoundaries = {
    {"primary_context_reset", &primary_context_reset},
    {"primary_context_released", &primary_context_released},
    {"created_context_destroyed", &created_context_destroyed},
    {"peer_copies", &peer_copies},
    {"copies_behind_a_gate", &copies_behind_a_gate},
    {"copies_beside_a_created_context", &copies_beside_a_created_context},
};
