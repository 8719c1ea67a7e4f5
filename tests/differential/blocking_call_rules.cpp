// SPDX-License-Identifier: Apache-2.0
//
// Which calls that enqueue nothing wait for held streams all the same: frees, unloads, limits,
// creations, destructions. What native CUDA does not wait for, an interposer must not either.
#include <cstdlib>

#include "session.h"

namespace vitamin::differential {
namespace {

// Prepared before the gate closes, made behind it.
struct Probe {
  const char* name;
  std::function<std::function<CUresult()>(Session&)> prepare;
};

template <class Call>
std::function<CUresult()> call(Call make) {
  return make;
}

std::vector<Probe> memory_probes() {
  return {
      {"cuMemAlloc",
       [](Session&) {
         return call([] {
           CUdeviceptr memory = 0;
           return api.cuMemAlloc(&memory, 1 << 16);
         });
       }},
      {"cuMemAlloc of 64 MiB",
       [](Session&) {
         return call([] {
           CUdeviceptr memory = 0;
           return api.cuMemAlloc(&memory, std::size_t{64} << 20);
         });
       }},
      {"cuMemFree",
       [](Session& session) {
         return call([memory = session.memory(1 << 16)] { return api.cuMemFree(memory); });
       }},
      {"cuMemFree of 64 MiB",
       [](Session& session) {
         return call(
             [memory = session.memory(std::size_t{64} << 20)] { return api.cuMemFree(memory); });
       }},
      {"cuMemFree of NULL", [](Session&) { return call([] { return api.cuMemFree(0); }); }},
      {"cuMemHostAlloc",
       [](Session&) {
         return call([] {
           void* memory = nullptr;
           return api.cuMemHostAlloc(&memory, 1 << 16, 0);
         });
       }},
      {"cuMemFreeHost",
       [](Session& session) {
         return call([memory = session.pinned(1 << 16)] { return api.cuMemFreeHost(memory); });
       }},
      {"cuMemHostRegister",
       [](Session&) {
         return call([memory = std::aligned_alloc(4096, 1 << 16)] {
           return api.cuMemHostRegister(memory, 1 << 16, 0);
         });
       }},
      {"cuMemHostUnregister",
       [](Session&) {
         void* memory = std::aligned_alloc(4096, 1 << 16);
         VITAMIN_MUST(cuMemHostRegister(memory, 1 << 16, 0));
         return call([memory] { return api.cuMemHostUnregister(memory); });
       }},
      {"cuMemAllocAsync on another stream",
       [](Session& session) {
         return call([stream = session.stream(CU_STREAM_NON_BLOCKING)] {
           CUdeviceptr memory = 0;
           return api.cuMemAllocAsync(&memory, 1 << 16, stream);
         });
       }},
      {"cuMemFreeAsync on another stream",
       [](Session& session) {
         CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
         CUdeviceptr memory = 0;
         VITAMIN_MUST(cuMemAllocAsync(&memory, 1 << 16, stream));
         drain();
         return call([=] { return api.cuMemFreeAsync(memory, stream); });
       }},
      {"cuMemFree of memory from cuMemAllocAsync",
       [](Session& session) {
         CUdeviceptr memory = 0;
         VITAMIN_MUST(cuMemAllocAsync(&memory, 1 << 16, session.stream(CU_STREAM_NON_BLOCKING)));
         drain();
         return call([memory] { return api.cuMemFree(memory); });
       }},
      {"cuMemPoolTrimTo",
       [](Session& session) {
         CUmemoryPool pool = nullptr;
         VITAMIN_MUST(cuDeviceGetDefaultMemPool(&pool, session.device()));
         return call([pool] { return api.cuMemPoolTrimTo(pool, 0); });
       }},
  };
}

std::vector<Probe> array_probes() {
  return {
      {"cuArrayDestroy",
       [](Session&) {
         CUDA_ARRAY_DESCRIPTOR description{};
         description.Width = 64;
         description.Height = 64;
         description.Format = CU_AD_FORMAT_UNSIGNED_INT8;
         description.NumChannels = 1;
         CUarray array = nullptr;
         VITAMIN_MUST(cuArrayCreate(&array, &description));
         return call([array] { return api.cuArrayDestroy(array); });
       }},
  };
}

std::vector<Probe> code_probes() {
  return {
      {"cuModuleLoadData",
       [](Session& session) {
         return call([&session] {
           CUmodule module = nullptr;
           return api.cuModuleLoadData(&module, session.image().data());
         });
       }},
      {"cuModuleUnload",
       [](Session& session) {
         CUmodule module = nullptr;
         VITAMIN_MUST(cuModuleLoadData(&module, session.image().data()));
         return call([module] { return api.cuModuleUnload(module); });
       }},
      {"cuModuleUnload after a launch",
       [](Session& session) {
         CUmodule module = nullptr;
         CUfunction store = nullptr;
         VITAMIN_MUST(cuModuleLoadData(&module, session.image().data()));
         VITAMIN_MUST(cuModuleGetFunction(&store, module, "store"));
         const CUdeviceptr word = session.memory(64);
         const std::uint32_t value = 1;
         must(launch(store, nullptr, {&word, &value}), "launch");
         drain();
         return call([module] { return api.cuModuleUnload(module); });
       }},
      {"cuLibraryLoadData",
       [](Session& session) {
         return call([&session] {
           CUlibrary library = nullptr;
           return api.cuLibraryLoadData(&library, session.image().data(), nullptr, nullptr, 0,
                                        nullptr, nullptr, 0);
         });
       }},
      {"cuLibraryUnload",
       [](Session& session) {
         CUlibrary library = nullptr;
         VITAMIN_MUST(cuLibraryLoadData(&library, session.image().data(), nullptr, nullptr, 0,
                                        nullptr, nullptr, 0));
         return call([library] { return api.cuLibraryUnload(library); });
       }},
      {"launch of a kernel never launched",
       [](Session& session) {
         CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
         const CUdeviceptr word = session.memory(64);
         CUmodule module = nullptr;
         VITAMIN_MUST(cuModuleLoadData(&module, session.image().data()));
         return call([=] {
           const std::uint32_t value = 1;
           CUfunction store = nullptr;
           const CUresult found = api.cuModuleGetFunction(&store, module, "store");
           return found != CUDA_SUCCESS ? found : launch(store, stream, {&word, &value});
         });
       }},
      {"cuFuncSetAttribute",
       [](Session& session) {
         return call([function = session.function("store")] {
           return api.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                         64 << 10);
         });
       }},
      {"cuFuncSetCacheConfig",
       [](Session& session) {
         return call([function = session.function("store")] {
           return api.cuFuncSetCacheConfig(function, CU_FUNC_CACHE_PREFER_L1);
         });
       }},
  };
}

std::vector<Probe> context_probes() {
  return {
      {"cuCtxSynchronize", [](Session&) { return call([] { return api.cuCtxSynchronize(); }); }},
      {"cuCtxSetLimit of the stack size",
       [](Session&) {
         return call([size = std::size_t{2048}]() mutable {
           return api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, size += 1024);
         });
       }},
      {"cuCtxSetLimit of the printf buffer",
       [](Session&) {
         return call([] { return api.cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 2 << 20); });
       }},
      {"cuCtxSetLimit of the heap",
       [](Session&) {
         return call([] { return api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 << 20); });
       }},
      {"cuCtxSetCacheConfig",
       [](Session&) {
         return call([] { return api.cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1); });
       }},
      {"cuEventCreate",
       [](Session&) {
         return call([] {
           CUevent event = nullptr;
           return api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
         });
       }},
      {"cuEventDestroy of a fired event",
       [](Session& session) {
         CUevent event = session.event();
         VITAMIN_MUST(cuEventRecord(event, session.stream(CU_STREAM_NON_BLOCKING)));
         drain();
         return call([event] { return api.cuEventDestroy(event); });
       }},
      {"cuStreamCreate",
       [](Session&) {
         return call([] {
           CUstream stream = nullptr;
           return api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
         });
       }},
      {"cuStreamDestroy of an idle stream",
       [](Session& session) {
         return call([stream = session.stream(CU_STREAM_NON_BLOCKING)] {
           return api.cuStreamDestroy(stream);
         });
       }},
      {"cuGreenCtxCreate",
       [](Session& session) {
         session.green({2});  // the split is made here
         return call([&session] {
           session.green({2});
           return CUDA_SUCCESS;
         });
       }},
      {"cuGreenCtxStreamCreate",
       [](Session& session) {
         return call([context = session.green({2})] {
           CUstream stream = nullptr;
           return api.cuGreenCtxStreamCreate(&stream, context, CU_STREAM_NON_BLOCKING, 0);
         });
       }},
      {"cuGreenCtxDestroy of an idle one",
       [](Session& session) {
         return call([context = session.green({2})] { return api.cuGreenCtxDestroy(context); });
       }},
      {"cuMemGetInfo",
       [](Session&) {
         return call([] {
           std::size_t free = 0;
           std::size_t total = 0;
           return api.cuMemGetInfo(&free, &total);
         });
       }},
  };
}

void behind(Session& session, const char* kind, CUstream held, const std::vector<Probe>& probes) {
  const Log log(session);
  for (const Probe& probe : probes) {
    const std::function<CUresult()> make = probe.prepare(session);
    Gate gate(session, held);
    must(log.append(held, 1), "launch");
    Say{"{} stream held: {} {}", kind, probe.name, waits_for(gate, make)};
    gate.open();
    drain();
  }
}

void behind_each(const std::vector<Probe>& probes) {
  Session session;
  behind(session, "blocking", session.stream(), probes);
  behind(session, "non-blocking", session.stream(CU_STREAM_NON_BLOCKING), probes);
  behind(session, "green", session.green_stream(session.green({0})), probes);
  behind(session, "legacy", nullptr, probes);
}

}  // namespace

VITAMIN_RULE(memory_calls_behind_a_gate, "Which allocations and frees wait for a held stream?") {
  behind_each(memory_probes());
}

VITAMIN_RULE(array_calls_behind_a_gate, "Does freeing an array wait for a held stream?") {
  behind_each(array_probes());
}

VITAMIN_RULE(code_calls_behind_a_gate,
             "Which loads, unloads and settings wait for a held stream?") {
  behind_each(code_probes());
}

VITAMIN_RULE(context_calls_behind_a_gate,
             "Which calls on contexts, events and streams wait for a held stream?") {
  behind_each(context_probes());
}

VITAMIN_RULE(stream_destroyed_with_work,
             "Does destroying a held stream wait, and does its work still run?") {
  Session session;
  const Log log(session);
  for (const bool green : {false, true}) {
    CUstream stream =
        green ? session.green_stream(session.green({0})) : session.stream(CU_STREAM_NON_BLOCKING);
    CUevent event = session.event();
    Gate gate(session, stream);
    must(log.append(stream, 1), "launch");
    VITAMIN_MUST(cuEventRecord(event, stream));
    Say{"destroy {}", waits_for(gate, [&] { return api.cuStreamDestroy(stream); })};
    Say{"event {}", now(event)};
    gate.open();
    Say{"event after the gate {}", soon(event)};
    drain();
    Say{"kernels {}", log.text()};
  }
}

VITAMIN_RULE(ordered_allocation_behind_a_gate,
             "Do cuMemAllocAsync and cuMemFreeAsync on a held stream return, and is the memory "
             "usable in stream order?") {
  Session session;
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream green = session.green_stream(session.green({0}));
  CUfunction store = session.function("store");
  CUfunction copy = session.function("copy_word");
  CUdeviceptr result = session.memory(64);
  for (CUstream on : {stream, green, static_cast<CUstream>(nullptr)}) {
    Gate gate(session, on);
    CUdeviceptr memory = 0;
    const std::uint32_t value = 41;
    Say{"alloc {}", waits_for(gate, [&] { return api.cuMemAllocAsync(&memory, 1 << 16, on); })};
    Say{"store {}", code(launch(store, on, {&memory, &value}))};
    Say{"copy {}", code(launch(copy, on, {&result, &memory}))};
    Say{"free {}", waits_for(gate, [&] { return api.cuMemFreeAsync(memory, on); })};
    gate.open();
    drain();
    std::uint32_t got = 0;
    VITAMIN_MUST(cuMemcpyDtoH(&got, result, 4));
    Say{"value {}", got};
    VITAMIN_MUST(cuMemsetD32(result, 0, 1));
  }
}

}  // namespace vitamin::differential
