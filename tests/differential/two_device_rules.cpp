// SPDX-License-Identifier: Apache-2.0
//
// Two devices, or two contexts of one: which calls that concern one of them wait for streams of the
// other. Rules of two devices are asked of a machine with two GPUs; elsewhere they are not
// answered.
#include <cstdlib>

#include "session.h"

namespace vitamin::differential {
namespace {

// An object of a device, made before the gate closes, and the call that is made behind it.
struct Probe {
  const char* name;
  std::function<std::function<CUresult()>(Session&)> prepare;
};

template <class Call>
std::function<CUresult()> call(Call make) {
  return make;
}

std::function<CUresult()> free_of_pinned(unsigned flags) {
  void* memory = nullptr;
  VITAMIN_MUST(cuMemHostAlloc(&memory, 1 << 16, flags));
  return call([memory] { return api.cuMemFreeHost(memory); });
}

CUfunction launched(CUfunction function, CUdeviceptr word) {
  const std::uint32_t value = 1;
  must(launch(function, nullptr, {&word, &value}), "launch");
  drain();
  return function;
}

std::vector<Probe> frees() {
  return {
      {"cuMemAlloc",
       [](Session&) {
         return call([] {
           CUdeviceptr memory = 0;
           return api.cuMemAlloc(&memory, 1 << 16);
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
      {"cuMemHostAlloc",
       [](Session&) {
         return call([] {
           void* memory = nullptr;
           return api.cuMemHostAlloc(&memory, 1 << 16, 0);
         });
       }},
      {"cuMemFreeHost", [](Session&) { return free_of_pinned(0); }},
      {"cuMemFreeHost of mapped memory",
       [](Session&) { return free_of_pinned(CU_MEMHOSTALLOC_DEVICEMAP); }},
      {"cuMemFreeHost of portable memory",
       [](Session&) { return free_of_pinned(CU_MEMHOSTALLOC_PORTABLE); }},
      {"cuMemHostUnregister",
       [](Session&) {
         void* memory = std::aligned_alloc(4096, 1 << 16);
         VITAMIN_MUST(cuMemHostRegister(memory, 1 << 16, 0));
         return call([memory] { return api.cuMemHostUnregister(memory); });
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

std::vector<Probe> code_and_contexts() {
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
         CUfunction store = nullptr;
         VITAMIN_MUST(cuModuleLoadData(&module, session.image().data()));
         VITAMIN_MUST(cuModuleGetFunction(&store, module, "store"));
         launched(store, session.memory(64));
         return call([module] { return api.cuModuleUnload(module); });
       }},
      {"cuLibraryUnload of a library used here",
       [](Session& session) {
         CUlibrary library = nullptr;
         CUkernel kernel = nullptr;
         CUfunction store = nullptr;
         VITAMIN_MUST(cuLibraryLoadData(&library, session.image().data(), nullptr, nullptr, 0,
                                        nullptr, nullptr, 0));
         VITAMIN_MUST(cuLibraryGetKernel(&kernel, library, "store"));
         VITAMIN_MUST(cuKernelGetFunction(&store, kernel));
         launched(store, session.memory(64));
         return call([library] { return api.cuLibraryUnload(library); });
       }},
      {"cuCtxSynchronize", [](Session&) { return call([] { return api.cuCtxSynchronize(); }); }},
      {"cuCtxSetLimit of the printf buffer",
       [](Session&) {
         return call([] { return api.cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 2 << 20); });
       }},
      {"cuCtxSetLimit of the stack size",
       [](Session&) {
         return call([size = std::size_t{4096}]() mutable {
           return api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, size += 1024);
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
      {"cuStreamCreate",
       [](Session&) {
         return call([] {
           CUstream stream = nullptr;
           return api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
         });
       }},
  };
}

enum class HeldDevice { kFirst, kSecond };
enum class Current { kFirst, kSecond };

// Objects of the first device. With the first one held the answer says which device the call
// waits for when the other one's context is current.
void beside(const std::vector<Probe>& probes, HeldDevice held, Current current) {
  Session second(1);
  const Log second_log(second);
  CUstream second_stream = second.stream(CU_STREAM_NON_BLOCKING);
  Session first(0);
  const Log first_log(first);
  CUstream first_stream = first.stream(CU_STREAM_NON_BLOCKING);
  Session& holder = held == HeldDevice::kFirst ? first : second;
  CUstream stream = held == HeldDevice::kFirst ? first_stream : second_stream;
  const Log& log = held == HeldDevice::kFirst ? first_log : second_log;
  for (const Probe& probe : probes) {
    VITAMIN_MUST(cuCtxSetCurrent(first.primary()));
    const std::function<CUresult()> make = probe.prepare(first);
    VITAMIN_MUST(cuCtxSetCurrent(holder.primary()));
    Gate gate(holder, stream);
    must(log.append(stream, 1), "launch");
    VITAMIN_MUST(cuCtxSetCurrent(current == Current::kFirst ? first.primary() : second.primary()));
    Say{"{}", std::string(probe.name) + ": " + waits_for(gate, make)};
    gate.open();
    VITAMIN_MUST(cuCtxSetCurrent(holder.primary()));
    drain();
  }
}

enum class Of { kPrimary, kCreated };

// The same of two contexts of one device: objects of `from`, while a stream of `held` is held.
void beside_a_context(const std::vector<Probe>& probes, Of held, Of from, Of current) {
  Session session;
  CUcontext contexts[2] = {session.primary(), nullptr};
  must(api.create_context(&contexts[1], 0, session.device()), "cuCtxCreate");
  const auto index = [](Of one) { return static_cast<std::size_t>(one); };
  const CUcontext holder = contexts[index(held)];
  VITAMIN_MUST(cuCtxSetCurrent(holder));
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  const CUdeviceptr word = session.memory(64);
  for (const Probe& probe : probes) {
    VITAMIN_MUST(cuCtxSetCurrent(contexts[index(from)]));
    const std::function<CUresult()> make = probe.prepare(session);
    VITAMIN_MUST(cuCtxSetCurrent(holder));
    Gate gate(session, stream);
    VITAMIN_MUST(cuMemsetD32Async(word, 1, 1, stream));
    VITAMIN_MUST(cuCtxSetCurrent(contexts[index(current)]));
    Say{"{}", std::string(probe.name) + ": " + waits_for(gate, make)};
    gate.open();
    VITAMIN_MUST(cuCtxSetCurrent(holder));
    drain();
  }
}

}  // namespace

VITAMIN_RULE(two_contexts_frees_while_the_primary_one_is_held,
             "Which allocations and frees of a context wait for a held stream of its device's "
             "primary context?") {
  beside_a_context(frees(), Of::kPrimary, Of::kCreated, Of::kCreated);
}
VITAMIN_RULE(two_contexts_frees_while_the_created_one_is_held,
             "Which allocations and frees of a primary context wait for a held stream of another "
             "context of the device?") {
  beside_a_context(frees(), Of::kCreated, Of::kPrimary, Of::kPrimary);
}
VITAMIN_RULE(two_contexts_frees_in_the_held_one,
             "Do frees of a context's memory wait for the context that is current?") {
  beside_a_context(frees(), Of::kPrimary, Of::kCreated, Of::kPrimary);
}
VITAMIN_RULE(two_contexts_frees_in_the_other,
             "Do frees of a held context's memory wait for it when another is current?") {
  beside_a_context(frees(), Of::kPrimary, Of::kPrimary, Of::kCreated);
}
VITAMIN_RULE(two_contexts_code_while_the_primary_one_is_held,
             "Which loads, unloads and context calls wait for a held stream of another context of "
             "the device?") {
  beside_a_context(code_and_contexts(), Of::kPrimary, Of::kCreated, Of::kCreated);
}

VITAMIN_RULE(two_devices_frees_while_the_other_is_held,
             "Which allocations and frees of a device wait for a held stream of another?") {
  beside(frees(), HeldDevice::kSecond, Current::kFirst);
}
VITAMIN_RULE(two_devices_code_and_contexts_while_the_other_is_held,
             "Which loads, unloads and context calls wait for a held stream of another device?") {
  beside(code_and_contexts(), HeldDevice::kSecond, Current::kFirst);
}
VITAMIN_RULE(two_devices_frees_in_the_context_of_the_held_one,
             "Do frees wait for the device that is current when the memory is another's?") {
  beside(frees(), HeldDevice::kSecond, Current::kSecond);
}
VITAMIN_RULE(two_devices_frees_in_the_context_of_the_other,
             "Do frees wait for the device of the memory when another is current?") {
  beside(frees(), HeldDevice::kFirst, Current::kSecond);
}
VITAMIN_RULE(two_devices_unloads_in_the_context_of_the_held_one,
             "Do unloads wait for the device that is current when the code is another's?") {
  beside(code_and_contexts(), HeldDevice::kSecond, Current::kSecond);
}
VITAMIN_RULE(two_devices_unloads_in_the_context_of_the_other,
             "Do unloads wait for the device of the code when another is current?") {
  beside(code_and_contexts(), HeldDevice::kFirst, Current::kSecond);
}

VITAMIN_RULE(two_devices_frees_of_what_peers_may_use,
             "Do frees wait for a held stream of a device that was given access to the memory?") {
  Session second(1);
  const Log log(second);
  CUstream stream = second.stream(CU_STREAM_NON_BLOCKING);
  Session first(0);
  VITAMIN_MUST(cuCtxSetCurrent(second.primary()));
  Say{"access of the second to the first {}", code(api.cuCtxEnablePeerAccess(first.primary(), 0))};
  VITAMIN_MUST(cuCtxSetCurrent(first.primary()));
  Say{"access of the first to the second {}", code(api.cuCtxEnablePeerAccess(second.primary(), 0))};
  for (const Probe& probe : frees()) {
    VITAMIN_MUST(cuCtxSetCurrent(first.primary()));
    const std::function<CUresult()> make = probe.prepare(first);
    VITAMIN_MUST(cuCtxSetCurrent(second.primary()));
    Gate gate(second, stream);
    must(log.append(stream, 1), "launch");
    VITAMIN_MUST(cuCtxSetCurrent(first.primary()));
    Say{"{}", std::string(probe.name) + ": " + waits_for(gate, make)};
    gate.open();
    VITAMIN_MUST(cuCtxSetCurrent(second.primary()));
    drain();
  }
}

}  // namespace vitamin::differential
