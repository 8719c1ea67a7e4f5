// SPDX-License-Identifier: Apache-2.0
//
// Calls that concern a whole context: waiting for it, its settings and its end, and the code that
// was loaded into it.
#include "interpose/call_wrappers.h"
#include "interpose/handle_map.h"
#include "interpose/libcuda/backend.h"
#include "interpose/libcuda/manual_overrides.h"
#include "interpose/module_origins.h"

namespace vitamin::interpose {
namespace {

// A context handle that was looked at: managed, or null for foreign ones.
struct ContextRecord {
  Context* context = nullptr;
};
constinit HandleMap<ContextRecord> contexts;

// The contexts that modules were loaded into: an unload waits for that one, whichever is current.
constinit HandleMap<CUcontext> contexts_of_modules;

void note_module(CUmodule module) {
  auto* handle = new CUcontext{};
  VITAMIN_REAL(cuCtxGetCurrent)(handle);
  const std::lock_guard lock(registry_mutex());
  delete contexts_of_modules.insert(module, handle);
}
void forget_module(CUmodule module) {
  const std::lock_guard lock(registry_mutex());
  delete contexts_of_modules.erase(module);
}

// The ordinal of the device whose primary context this is, or -1.
int primary_of(CUcontext handle) {
  CUdevice device = 0;
  if (VITAMIN_REAL(cuCtxPushCurrent_v2)(handle) != CUDA_SUCCESS) return -1;
  const CUresult got = VITAMIN_REAL(cuCtxGetDevice)(&device);
  CUcontext popped = nullptr;
  VITAMIN_REAL(cuCtxPopCurrent_v2)(&popped);
  if (got != CUDA_SUCCESS || device < 0 || device >= kMaxContexts) return -1;
  unsigned flags = 0;
  int active = 0;
  if (VITAMIN_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS ||
      active == 0)
    return -1;
  // The handle can only be had by retaining; it was active before, so this creates nothing.
  CUcontext primary = nullptr;
  if (VITAMIN_REAL(cuDevicePrimaryCtxRetain)(&primary, device) != CUDA_SUCCESS) return -1;
  VITAMIN_REAL(cuDevicePrimaryCtxRelease_v2)(device);
  return primary == handle ? device : -1;
}

Context* adopt_context(CUcontext handle) {
  std::unique_lock lock(registry_mutex());
  if (const ContextRecord* record = contexts.find(handle)) return record->context;
  const ReentrancyGuard ours;
  const int ordinal = primary_of(handle);
  Context* const context = ordinal >= 0 ? make_context(lock, handle, ordinal) : nullptr;
  // Another thread may have come first meanwhile.
  if (const ContextRecord* record = contexts.find(handle)) return record->context;
  contexts.insert(handle, new ContextRecord{context});
  return context;
}

// The managed context of a handle, made if need be; null: foreign.
Context* managed_context(CUcontext handle) {
  if (handle == nullptr) return nullptr;
  if (const ContextRecord* record = contexts.find(handle)) return record->context;
  return adopt_context(handle);
}

// Null: foreign. A module that came in by a way that we do not know is taken for one of the current
// context, as the driver's documentation has it.
Context* context_of_module(CUmodule module) {
  const CUcontext* handle = contexts_of_modules.find(module);
  if (handle == nullptr) return known_current_context();
  const ContextRecord* record = contexts.find(*handle);
  return record != nullptr ? record->context : nullptr;
}

// The handle will not mean this context any more.
void forget_context(CUcontext handle) {
  const std::lock_guard lock(registry_mutex());
  delete contexts.erase(handle);
}

void primary_ends(CUdevice device) {
  if (device < 0 || device >= kMaxContexts) return;
  finish_work(device, Deferred::kAwait);
  if (const Context* context = context_of_device[device].load()) forget_context(context->handle);
  tear_down(device);
}

// References to each primary context that the application holds. Ours do not count: when the
// application drops its last one, the context ends as it does without us.
constinit std::atomic<int> application_references[kMaxContexts]{};

// The same setting in the context of every partition, so that a launch finds it wherever it runs.
template <class Call>
void on_every_partition(Context& context, Call call) {
  const ReentrancyGuard ours;
  context.virtual_context->for_each_partition([&](hal::PhysicalContext& partition) {
    const CurrentContext current(context_of_partition(partition));
    call();
  });
}

// Everything that is deferred was launched with the function as it was.
template <class Get, class Set>
CUresult set_attribute(CUfunction_attribute attribute, int value, Get current, Set call) {
  int before = 0;
  // What only adds freedom cannot break a launch that was legal before; the rest goes behind what
  // is deferred. Programs set the shared memory limit before every launch, to the same value.
  const bool adds = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
                    attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
  if (current(&before) == CUDA_SUCCESS && (before == value || (adds && before < value)))
    return call();
  return flush_deferred_then([&] { return hal::NativeStatus(call()); });
}

}  // namespace

Context* current_context() {
  CUcontext handle = nullptr;
  if (VITAMIN_REAL(cuCtxGetCurrent)(&handle) != CUDA_SUCCESS) return nullptr;
  return managed_context(handle);
}

Context* known_current_context() {
  CUcontext handle = nullptr;
  if (VITAMIN_REAL(cuCtxGetCurrent)(&handle) != CUDA_SUCCESS || handle == nullptr) return nullptr;
  const ContextRecord* known = contexts.find(handle);
  return known != nullptr ? known->context : nullptr;
}

hal::Result<CUstream> legacy_stream(CUcontext) { return CU_STREAM_LEGACY; }

bool blocking_covers_legacy() { return false; }
bool ended_wait_covers_legacy() { return true; }

std::optional<StreamFacts> stream_facts(CUstream stream) {
  CUcontext handle = nullptr;
  if (VITAMIN_REAL(cuStreamGetCtx)(stream, &handle) != CUDA_SUCCESS) return std::nullopt;
  StreamFacts facts;
  CUgreenCtx green = nullptr;
  const bool in_green =
      VITAMIN_REAL(cuStreamGetGreenCtx)(stream, &green) == CUDA_SUCCESS && green != nullptr;
  if (!in_green) facts.context = managed_context(handle);
  if (facts.context == nullptr) return facts;
  unsigned flags = 0;
  VITAMIN_REAL(cuStreamGetFlags)(stream, &flags);
  VITAMIN_REAL(cuStreamGetPriority)(stream, &facts.priority);
  if ((flags & CU_STREAM_NON_BLOCKING) != 0) facts.kind = runtime::StreamKind::kNonBlocking;
  return facts;
}

CUcontext native_current_context() {
  CUcontext context = nullptr;
  VITAMIN_REAL(cuCtxGetCurrent)(&context);
  return context;
}

CUcontext context_of_stream(CUstream stream) {
  CUcontext context = nullptr;
  return VITAMIN_REAL(cuStreamGetCtx)(stream, &context) == CUDA_SUCCESS ? context : nullptr;
}

bool captures(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return VITAMIN_REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CUmemoryPool pool_of(const Context& context, CUstream) {
  CUmemoryPool pool = nullptr;
  VITAMIN_REAL(cuDeviceGetMemPool)(&pool, context.ordinal);
  return pool;
}

CUresult synchronize_natively(CUstream stream) { return VITAMIN_REAL(cuStreamSynchronize)(stream); }

CUresult query_natively(CUstream stream) { return VITAMIN_REAL(cuStreamQuery)(stream); }
CUresult query_natively(CUevent event) { return VITAMIN_REAL(cuEventQuery)(event); }

CUresult wait_for_all(const Context& context) {
  const CurrentContext current(context.handle);
  return VITAMIN_REAL(cuCtxSynchronize)();
}

void CurrentContext::enter(CUcontext wanted) {
  CUcontext current = nullptr;
  VITAMIN_REAL(cuCtxGetCurrent)(&current);
  entered_ = current != wanted && VITAMIN_REAL(cuCtxPushCurrent_v2)(wanted) == CUDA_SUCCESS;
}

void CurrentContext::leave() {
  CUcontext popped = nullptr;
  VITAMIN_REAL(cuCtxPopCurrent_v2)(&popped);
}

CUresult context_synchronize(EntryPoint<CUresult()> entry) {
  return await_if_accepted_then(current_context(), true,
                                [&] { return hal::NativeStatus(entry.real()); });
}

CUresult context_synchronize_v2(EntryPoint<CUresult(CUcontext)> entry, CUcontext context) {
  Context* managed = context == nullptr ? current_context() : managed_context(context);
  return await_if_accepted_then(managed, true,
                                [&] { return hal::NativeStatus(entry.real(context)); });
}

CUresult context_set_limit(EntryPoint<decltype(::cuCtxSetLimit)> entry, CUlimit limit,
                           std::size_t value) {
  Context* context = current_context();
  // Where the driver itself waits for the device it does so with our work on the device, too.
  const CUresult answer =
      flush_deferred_then([&] { return hal::NativeStatus(entry.real(limit, value)); });
  if (context != nullptr && answer == CUDA_SUCCESS)
    on_every_partition(*context, [&] { entry.real(limit, value); });
  return answer;
}

CUresult context_set_cache_config(EntryPoint<decltype(::cuCtxSetCacheConfig)> entry,
                                  CUfunc_cache config) {
  const CUresult answer = entry.real(config);
  if (Context* context = current_context(); context != nullptr && answer == CUDA_SUCCESS)
    on_every_partition(*context, [&] { entry.real(config); });
  return answer;
}

CUresult context_set_shared_config(EntryPoint<decltype(::cuCtxSetSharedMemConfig)> entry,
                                   CUsharedconfig config) {
  const CUresult answer = entry.real(config);
  if (Context* context = current_context(); context != nullptr && answer == CUDA_SUCCESS)
    on_every_partition(*context, [&] { entry.real(config); });
  return answer;
}

CUresult context_destroy(EntryPoint<decltype(::cuCtxDestroy)> entry, CUcontext context) {
  const CUresult answer =
      flush_deferred_then([&] { return hal::NativeStatus(entry.real(context)); });
  // Only a context that was made with cuCtxCreate can be destroyed: a foreign one.
  if (answer != CUDA_SUCCESS) return answer;
  forget_context(context);
  forget_captures(context);
  return answer;
}

CUresult primary_retain(EntryPoint<decltype(::cuDevicePrimaryCtxRetain)> entry, CUcontext* context,
                        CUdevice device) {
  const CUresult answer = entry.real(context, device);
  if (answer == CUDA_SUCCESS && device >= 0 && device < kMaxContexts)
    application_references[device].fetch_add(1, std::memory_order_relaxed);
  return answer;
}

CUresult primary_release(EntryPoint<decltype(::cuDevicePrimaryCtxRelease)> entry, CUdevice device) {
  if (device >= 0 && device < kMaxContexts &&
      application_references[device].load(std::memory_order_relaxed) > 0 &&
      application_references[device].fetch_sub(1, std::memory_order_relaxed) == 1)
    primary_ends(device);
  return entry.real(device);
}

CUresult primary_reset(EntryPoint<decltype(::cuDevicePrimaryCtxReset)> entry, CUdevice device) {
  primary_ends(device);
  return entry.real(device);
}

// --- code ----------------------------------------------------------------------------------------

CUresult module_load(EntryPoint<decltype(::cuModuleLoad)> entry, CUmodule* module,
                     const char* file) {
  const CUresult answer = entry.real(module, file);
  if (answer == CUDA_SUCCESS) note_module(*module);
  if (answer == CUDA_SUCCESS) note_origin(*module, file);
  return answer;
}

CUresult module_load_data(EntryPoint<decltype(::cuModuleLoadData)> entry, CUmodule* module,
                          const void* image) {
  const CUresult answer = entry.real(module, image);
  if (answer == CUDA_SUCCESS) note_module(*module);
  if (answer == CUDA_SUCCESS) note_image(*module, image);
  return answer;
}

CUresult module_load_data_ex(EntryPoint<decltype(::cuModuleLoadDataEx)> entry, CUmodule* module,
                             const void* image, unsigned count, CUjit_option* options,
                             void** values) {
  const CUresult answer = entry.real(module, image, count, options, values);
  if (answer == CUDA_SUCCESS) note_module(*module);
  if (answer == CUDA_SUCCESS) note_image(*module, image);
  return answer;
}

CUresult library_load_data(EntryPoint<decltype(::cuLibraryLoadData)> entry, CUlibrary* library,
                           const void* code, CUjit_option* jit_options, void** jit_values,
                           unsigned jit_count, CUlibraryOption* options, void** values,
                           unsigned count) {
  const CUresult answer =
      entry.real(library, code, jit_options, jit_values, jit_count, options, values, count);
  if (answer == CUDA_SUCCESS) note_image(*library, code);
  return answer;
}

CUresult library_load_from_file(EntryPoint<decltype(::cuLibraryLoadFromFile)> entry,
                                CUlibrary* library, const char* file, CUjit_option* jit_options,
                                void** jit_values, unsigned jit_count, CUlibraryOption* options,
                                void** values, unsigned count) {
  const CUresult answer =
      entry.real(library, file, jit_options, jit_values, jit_count, options, values, count);
  if (answer == CUDA_SUCCESS) note_origin(*library, file);
  return answer;
}

// A free waits for the context that the memory was allocated in, not for another one of its device
// (bench/results/differential/two_contexts_frees_*.trace).
Context* owner_of(const void* address) {
  int ordinal = -1;
  CUcontext owner = nullptr;
  const auto at = reinterpret_cast<CUdeviceptr>(address);
  if (VITAMIN_REAL(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at) !=
          CUDA_SUCCESS ||
      ordinal < 0 || ordinal >= kMaxContexts)
    return nullptr;
  Context* const context = context_of_device[ordinal].load(std::memory_order_acquire);
  const bool known =
      VITAMIN_REAL(cuPointerGetAttribute)(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, at) == CUDA_SUCCESS;
  return context != nullptr && known && owner != context->handle ? nullptr : context;
}

bool is_of_pool(CUdeviceptr address) {
  CUmemoryPool pool = nullptr;
  return VITAMIN_REAL(cuPointerGetAttribute)(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) ==
             CUDA_SUCCESS &&
         pool != nullptr;
}

bool begins_memory(CUdeviceptr address, CUmemorytype type) {
  CUdeviceptr start = 0;
  unsigned found = 0;
  return VITAMIN_REAL(cuPointerGetAttribute)(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                             address) == CUDA_SUCCESS &&
         start == address &&
         VITAMIN_REAL(cuPointerGetAttribute)(&found, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ==
             CUDA_SUCCESS &&
         found == static_cast<unsigned>(type);
}

namespace {

// The driver tells registered memory from its own page-locked memory when it is freed, and in no
// attribute (bench/results/differential/pointer_attributes_of_each_memory.trace).
constinit HandleMap<const void> registered;

CUresult host_released(EntryPoint<CUresult(void*)> entry, void* memory, bool of_registered) {
  const bool accepted = begins_memory(reinterpret_cast<CUdeviceptr>(memory), CU_MEMORYTYPE_HOST) &&
                        (registered.find(memory) != nullptr) == of_registered;
  return await_if_accepted_then(owner_of(memory), accepted,
                                [&] { return hal::NativeStatus(entry.real(memory)); });
}

}  // namespace

CUresult host_register(EntryPoint<CUresult(void*, std::size_t, unsigned)> entry, void* memory,
                       std::size_t bytes, unsigned flags) {
  const CUresult answer = entry.real(memory, bytes, flags);
  if (answer == CUDA_SUCCESS) registered.insert(memory, memory);
  return answer;
}

CUresult host_unregister(EntryPoint<CUresult(void*)> entry, void* memory) {
  if (memory == nullptr) return entry.real(memory);
  const CUresult answer = host_released(entry, memory, true);
  if (answer == CUDA_SUCCESS) registered.erase(memory);
  return answer;
}

CUresult host_free(EntryPoint<CUresult(void*)> entry, void* memory) {
  if (memory == nullptr) return entry.real(memory);
  return host_released(entry, memory, false);
}

CUresult module_unload(EntryPoint<decltype(::cuModuleUnload)> entry, CUmodule module) {
  if (module == nullptr) return entry.real(module);
  Context* const context = context_of_module(module);
  const bool known = contexts_of_modules.find(module) != nullptr;
  const CUresult answer = await_if_accepted_then(context, known, [&] {
    const GraphsQuiesced quiesced;
    return hal::NativeStatus(entry.real(module));
  });
  if (answer == CUDA_SUCCESS) forget_module(module);
  return unloaded(module, answer);
}

CUresult library_unload(EntryPoint<decltype(::cuLibraryUnload)> entry, CUlibrary library) {
  // Unlike a module's, a library's end waits for nothing (code_calls_behind_a_gate.trace).
  return unloaded(library, FlushedAndQuiesced::run(entry, library));
}

CUresult function_set_attribute(EntryPoint<decltype(::cuFuncSetAttribute)> entry,
                                CUfunction function, CUfunction_attribute attribute, int value) {
  return set_attribute(
      attribute, value,
      [&](int* before) { return VITAMIN_REAL(cuFuncGetAttribute)(before, attribute, function); },
      [&] { return entry.real(function, attribute, value); });
}

CUresult kernel_set_attribute(EntryPoint<decltype(::cuKernelSetAttribute)> entry,
                              CUfunction_attribute attribute, int value, CUkernel kernel,
                              CUdevice device) {
  return set_attribute(
      attribute, value,
      [&](int* before) {
        return VITAMIN_REAL(cuKernelGetAttribute)(before, attribute, kernel, device);
      },
      [&] { return entry.real(attribute, value, kernel, device); });
}

}  // namespace vitamin::interpose
