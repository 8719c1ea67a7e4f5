// SPDX-License-Identifier: Apache-2.0
//
// Calls that are refused although natively their like waits for a held stream, and what is counted
// behind one: wrong frees, frees made twice, pools, batches, events recorded again.
#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "session.h"

namespace vitamin::differential {
namespace {

struct Refused {
  const char* name;
  std::function<CUresult()> make;
};

void ask(Session& session, const std::vector<Refused>& calls) {
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  for (const Refused& call : calls) {
    const std::string before = code(call.make());
    Gate gate(session, stream);
    Say{"{}: {}; behind a gate {}", call.name, before, waits_for(gate, call.make)};
    gate.open();
    drain();
  }
}

void* registered(std::size_t bytes) {
  void* memory = std::aligned_alloc(4096, bytes);
  VITAMIN_MUST(cuMemHostRegister(memory, bytes, 0));
  return memory;
}

CUdeviceptr address_of(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }
void* host_pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

CUdeviceptr ordered_memory(std::size_t bytes) {
  CUstream stream = nullptr;
  CUdeviceptr memory = 0;
  VITAMIN_MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  VITAMIN_MUST(cuMemAllocAsync(&memory, bytes, stream));
  drain();
  return memory;
}

std::string yes_or_code(CUresult answer, bool equal) {
  return answer == CUDA_SUCCESS ? yes_no(equal) : code(answer);
}

}  // namespace

VITAMIN_RULE(refused_frees_behind_a_gate,
             "Are frees of what cannot be freed refused at once, with the same code, behind a held "
             "stream?") {
  Session session;
  constexpr std::size_t kBytes = 1 << 16;
  const CUdeviceptr device = session.memory(kBytes), pool = ordered_memory(kBytes);
  const CUdeviceptr freed = session.memory(kBytes);
  auto* pinned = reinterpret_cast<char*>(session.pinned(kBytes));
  void* pinned_and_freed = session.pinned(kBytes);
  auto* paged = static_cast<char*>(registered(kBytes));
  void* unregistered = registered(kBytes);
  auto* plain = static_cast<char*>(std::aligned_alloc(4096, kBytes));
  VITAMIN_MUST(cuMemFree(freed));
  VITAMIN_MUST(cuMemFreeHost(pinned_and_freed));
  VITAMIN_MUST(cuMemHostUnregister(unregistered));
  ask(session,
      {{"cuMemFree of an inner address", [=] { return api.cuMemFree(device + 256); }},
       {"cuMemFree of an inner address of a pool", [=] { return api.cuMemFree(pool + 256); }},
       {"cuMemFree of what was freed", [=] { return api.cuMemFree(freed); }},
       {"cuMemFree of page-locked memory", [=] { return api.cuMemFree(address_of(pinned)); }},
       {"cuMemFree of registered memory", [=] { return api.cuMemFree(address_of(paged)); }},
       {"cuMemFree of nowhere", [] { return api.cuMemFree(0x1000); }},
       {"cuMemFreeHost of an inner address", [=] { return api.cuMemFreeHost(pinned + 256); }},
       {"cuMemFreeHost of what was freed", [=] { return api.cuMemFreeHost(pinned_and_freed); }},
       {"cuMemFreeHost of device memory", [=] { return api.cuMemFreeHost(host_pointer(device)); }},
       {"cuMemFreeHost of registered memory", [=] { return api.cuMemFreeHost(paged); }},
       {"cuMemFreeHost of plain memory", [=] { return api.cuMemFreeHost(plain); }},
       {"cuMemFreeHost of NULL", [] { return api.cuMemFreeHost(nullptr); }},
       {"cuMemHostUnregister of an inner address",
        [=] { return api.cuMemHostUnregister(paged + 4096); }},
       {"cuMemHostUnregister of what was unregistered",
        [=] { return api.cuMemHostUnregister(unregistered); }},
       {"cuMemHostUnregister of page-locked memory",
        [=] { return api.cuMemHostUnregister(pinned); }},
       {"cuMemHostUnregister of device memory",
        [=] { return api.cuMemHostUnregister(host_pointer(device)); }},
       {"cuMemHostUnregister of plain memory", [=] { return api.cuMemHostUnregister(plain); }},
       {"cuMemHostUnregister of NULL", [] { return api.cuMemHostUnregister(nullptr); }},
       {"cuModuleUnload of NULL", [] { return api.cuModuleUnload(nullptr); }},
       {"cuMemPoolTrimTo of NULL", [] { return api.cuMemPoolTrimTo(nullptr, 0); }},
       {"cuArrayDestroy of NULL", [] { return api.cuArrayDestroy(nullptr); }}});
}

VITAMIN_RULE(frees_without_a_context_behind_a_gate,
             "What do calls that wait answer on a thread without a current context?") {
  Session session;
  const CUdeviceptr device = session.memory(64);
  void* pinned = session.pinned(64);
  void* paged = registered(4096);
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  Gate gate(session, stream);
  VITAMIN_MUST(cuCtxSetCurrent(nullptr));
  Say{"cuCtxSynchronize {}", waits_for(gate, [] { return api.cuCtxSynchronize(); })};
  Say{"cuMemFree {}", waits_for(gate, [=] { return api.cuMemFree(device); })};
  Say{"cuMemFreeHost {}", waits_for(gate, [=] { return api.cuMemFreeHost(pinned); })};
  Say{"cuMemHostUnregister {}", waits_for(gate, [=] { return api.cuMemHostUnregister(paged); })};
  VITAMIN_MUST(cuCtxSetCurrent(session.primary()));
}

VITAMIN_RULE(frees_in_stream_order_made_twice,
             "Is memory that a held stream is still to free refused to whoever frees it again?") {
  Session session;
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream other = session.stream(CU_STREAM_NON_BLOCKING);
  const CUdeviceptr first = ordered_memory(1 << 16), second = ordered_memory(1 << 16);
  const CUdeviceptr word = session.memory(64);
  const std::uint32_t value = 1;
  must(launch(session.function("store"), stream, {&word, &value}), "launch");
  drain();
  Gate gate(session, stream);
  must(launch(session.function("store"), stream, {&word, &value}), "launch");
  Say{"free {}", waits_for(gate, [=] { return api.cuMemFreeAsync(first, stream); })};
  Say{"again {}", waits_for(gate, [=] { return api.cuMemFreeAsync(first, stream); })};
  Say{"on another stream {}", waits_for(gate, [=] { return api.cuMemFreeAsync(first, other); })};
  Say{"cuMemFree {}", waits_for(gate, [=] { return api.cuMemFree(first); })};
  Say{"cuMemFree of other memory {}", waits_for(gate, [=] { return api.cuMemFree(second); })};
  Say{"which is freed again {}",
      waits_for(gate, [=] { return api.cuMemFreeAsync(second, stream); })};
  gate.open();
  drain();
  Say{"synchronize {}", code(api.cuCtxSynchronize())};
}

VITAMIN_RULE(attributes_of_a_pool_behind_a_gate,
             "What does a pool count as used while a held stream is still to free?") {
  Session session;
  CUmemoryPool pool = nullptr;
  VITAMIN_MUST(cuDeviceGetDefaultMemPool(&pool, session.device()));
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream other = session.stream(CU_STREAM_NON_BLOCKING);
  constexpr std::uint64_t kBlock = std::uint64_t{4} << 20;
  const auto blocks = [&](CUmemPool_attribute attribute) {
    std::uint64_t bytes = 0;
    VITAMIN_MUST(cuMemPoolGetAttribute(pool, attribute, &bytes));
    return bytes / kBlock;
  };
  const auto show = [&](const char* what) {
    Say{"{}: used {}, at most {}", what, blocks(CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
        blocks(CU_MEMPOOL_ATTR_USED_MEM_HIGH)};
  };
  const CUdeviceptr word = session.memory(64);
  const std::uint32_t value = 1;
  must(launch(session.function("store"), stream, {&word, &value}), "launch");
  CUdeviceptr memory[6] = {};
  for (int i = 0; i < 4; ++i) VITAMIN_MUST(cuMemAllocAsync(&memory[i], kBlock, stream));
  VITAMIN_MUST(cuMemAllocAsync(&memory[4], kBlock, other));
  drain();
  VITAMIN_MUST(cuMemFreeAsync(memory[4], other));
  drain();
  show("four blocks");
  Gate gate(session, stream);
  must(launch(session.function("store"), stream, {&word, &value}), "launch");
  VITAMIN_MUST(cuMemFreeAsync(memory[0], stream));
  show("one freed behind the gate");
  VITAMIN_MUST(cuMemFreeAsync(memory[1], stream));
  VITAMIN_MUST(cuMemFreeAsync(memory[2], stream));
  show("three freed behind the gate");
  const std::string there =
      waits_for(gate, [&] { return api.cuMemAllocAsync(&memory[4], kBlock, other); });
  Say{"allocation on another stream {}", there};
  show("behind that");
  std::uint64_t zero = 0;
  Say{"reset of the most {}",
      code(api.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero))};
  show("behind that");
  gate.open();
  drain();
  show("in the end");
}

VITAMIN_RULE(pointer_attributes_of_each_memory,
             "What do the attributes tell of an address inside each kind of memory?") {
  Session session;
  constexpr std::size_t kBytes = 1 << 16;
  struct Memory {
    const char* name;
    CUdeviceptr base;
  };
  for (const Memory& memory :
       {Memory{"cuMemAlloc", session.memory(kBytes)}, Memory{"a pool", ordered_memory(kBytes)},
        Memory{"cuMemHostAlloc", address_of(session.pinned(kBytes))},
        Memory{"cuMemHostRegister", address_of(registered(kBytes))}})
    for (const std::size_t offset : {std::size_t{0}, std::size_t{4096}}) {
      CUdeviceptr start = 0;
      std::size_t size = 0;
      unsigned type = 0, flags = 0;
      int ordinal = -1;
      CUcontext context = nullptr;
      CUmemoryPool pool = nullptr;
      const CUdeviceptr at = memory.base + offset;
      const CUresult asked_start =
          api.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at);
      const CUresult asked_size =
          api.cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at);
      const CUresult asked_type =
          api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
      const CUresult asked_ordinal =
          api.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at);
      const CUresult asked_context =
          api.cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, at);
      const CUresult asked_pool =
          api.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at);
      Say{"{} + {}: start {}, size {}, type {} {}, ordinal {} {}, primary context {}, pool {}, "
          "cuMemHostGetFlags {}",
          memory.name,
          offset,
          yes_or_code(asked_start, start == memory.base),
          yes_or_code(asked_size, size == kBytes),
          code(asked_type),
          type,
          code(asked_ordinal),
          ordinal,
          yes_or_code(asked_context, context == session.primary()),
          yes_or_code(asked_pool, pool != nullptr),
          code(api.cuMemHostGetFlags(&flags, host_pointer(at)))};
    }
}

VITAMIN_RULE(event_synchronized_while_it_is_recorded_again,
             "Does whoever waits for an event wait for the record that was its newest when the "
             "wait began?") {
  Session session;
  CUstream first = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream second = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream idle = session.stream(CU_STREAM_NON_BLOCKING);
  const CUdeviceptr word = session.memory(64);
  const std::uint32_t value = 1;
  CUfunction store = session.function("store");
  for (const bool held : {true, false}) {
    CUevent event = session.event();
    Gate gate(session), later(session);
    gate.put(first);
    must(launch(store, first, {&word, &value}), "launch");
    VITAMIN_MUST(cuEventRecord(event, first));
    std::atomic<int> stage{0};
    CUresult waited = CUDA_ERROR_UNKNOWN;
    std::thread waiter([&] {
      VITAMIN_MUST(cuCtxSetCurrent(session.primary()));
      stage = 1;
      waited = api.cuEventSynchronize(event);
      stage = 2;
    });
    const auto returns = [&] {
      return soon([&] { return stage == 2 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; });
    };
    Say{"the waiter returns {}", code(returns())};
    if (held) later.put(second);
    if (held) must(launch(store, second, {&word, &value}), "launch");
    VITAMIN_MUST(cuEventRecord(event, held ? second : idle));
    Say{"recorded again on {} stream: event {}, the waiter returns {}",
        held ? "another held" : "an idle", soon(event), code(returns())};
    gate.open();
    Say{"the first gate open: the waiter returns {}, event {}", code(returns()), soon(event)};
    later.open();
    waiter.join();
    drain();
    Say{"waited {}", code(waited)};
  }
}

VITAMIN_RULE(batches_that_are_refused,
             "What do batches of value operations of a wrong number or kind answer?") {
  Session session;
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  std::uint32_t* words = session.pinned(64);
  CUdeviceptr address = 0;
  VITAMIN_MUST(cuMemHostGetDevicePointer(&address, words, 0));
  static std::vector<CUstreamBatchMemOpParams> batch(300);
  for (CUstreamBatchMemOpParams& one : batch) {
    one.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    one.writeValue.address = address;
    one.writeValue.value = 1;
  }
  const auto make = [=](unsigned count, unsigned flags) {
    return [=] { return api.cuStreamBatchMemOp(stream, count, batch.data(), flags); };
  };
  ask(session, {{"none", make(0, 0)},
                {"255", make(255, 0)},
                {"256", make(256, 0)},
                {"most", make(~0u, 0)},
                {"flags", make(1, 7)}});
}

namespace {

struct Held {
  CUstream stream, other;
  CUevent event, fired;
  CUdeviceptr memory, pool;
  void* pinned;
  void* paged;
  CUmodule module;
};

struct InCapture {
  const char* name;
  CUresult (*make)(const Held& held);
};

constexpr InCapture kInCapture[] = {
    {"cuCtxSynchronize", [](const Held&) { return api.cuCtxSynchronize(); }},
    {"cuStreamQuery", [](const Held& h) { return api.cuStreamQuery(h.stream); }},
    {"cuStreamSynchronize", [](const Held& h) { return api.cuStreamSynchronize(h.stream); }},
    {"cuEventQuery", [](const Held& h) { return api.cuEventQuery(h.event); }},
    {"cuEventSynchronize", [](const Held& h) { return api.cuEventSynchronize(h.event); }},
    {"cuEventElapsedTime",
     [](const Held& h) {
       float ms = 0;
       return api.elapsed_time_v2(&ms, h.fired, h.event);
     }},
    {"cuMemFree", [](const Held& h) { return api.cuMemFree(h.memory); }},
    {"cuMemFreeHost", [](const Held& h) { return api.cuMemFreeHost(h.pinned); }},
    {"cuMemHostUnregister", [](const Held& h) { return api.cuMemHostUnregister(h.paged); }},
    {"cuMemFreeAsync", [](const Held& h) { return api.cuMemFreeAsync(h.pool, h.stream); }},
    {"cuModuleUnload", [](const Held& h) { return api.cuModuleUnload(h.module); }},
    {"cuStreamDestroy", [](const Held& h) { return api.cuStreamDestroy(h.other); }},
};

Held held_objects(Session& session) {
  Held held{};
  held.stream = session.stream(CU_STREAM_NON_BLOCKING);
  held.other = session.stream(CU_STREAM_NON_BLOCKING);
  held.event = session.event(0);
  held.fired = session.event(0);
  held.memory = session.memory(1 << 16);
  held.pool = ordered_memory(1 << 16);
  held.pinned = session.pinned(1 << 16);
  held.paged = registered(1 << 16);
  VITAMIN_MUST(cuModuleLoadData(&held.module, session.image().data()));
  VITAMIN_MUST(cuEventRecord(held.fired, held.other));
  drain();
  return held;
}

void ask_in_captures(CUstreamCaptureMode mode) {
  Session session;
  const CUdeviceptr word = session.memory(64);
  const std::uint32_t value = 1;
  CUfunction store = session.function("store");
  must(launch(store, nullptr, {&word, &value}), "launch");
  for (const InCapture& call : kInCapture) {
    const Held held = held_objects(session);
    CUstream capturing = session.stream(CU_STREAM_NON_BLOCKING);
    Gate gate(session, held.stream);
    must(launch(store, held.stream, {&word, &value}), "launch");
    VITAMIN_MUST(cuEventRecord(held.event, held.stream));
    VITAMIN_MUST(cuStreamBeginCapture(capturing, mode));
    const std::string answer = waits_for(gate, [&] { return call.make(held); });
    CUstreamCaptureStatus status{};
    const CUresult asked = api.cuStreamIsCapturing(capturing, &status);
    CUgraph graph = nullptr;
    Say{"{}: {}; capture {} {}; end {}",
        call.name,
        answer,
        code(asked),
        static_cast<int>(status),
        code(api.cuStreamEndCapture(capturing, &graph))};
    gate.open();
    drain();
  }
}

}  // namespace

VITAMIN_RULE(calls_for_a_held_stream_in_a_global_capture,
             "Which calls that concern a held stream does a GLOBAL capture refuse, and at once?") {
  ask_in_captures(CU_STREAM_CAPTURE_MODE_GLOBAL);
}

VITAMIN_RULE(calls_for_a_held_stream_in_a_relaxed_capture,
             "Which calls that concern a held stream does a RELAXED capture refuse?") {
  ask_in_captures(CU_STREAM_CAPTURE_MODE_RELAXED);
}

}  // namespace vitamin::differential
