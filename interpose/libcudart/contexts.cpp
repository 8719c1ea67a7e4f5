// SPDX-License-Identifier: Apache-2.0
//
// Calls that concern a whole context: waiting for it, its settings and its end, and the code that
// was loaded into it.
#include "interpose/libcudart/backend.h"
#include "interpose/libcudart/handlers.h"
#include "interpose/libcudart/treatments.h"

namespace vitamin::interpose {
namespace {

// References to each primary context that the application holds. Ours do not count: when the
// application drops its last one, the context ends as it does without us.
constinit std::atomic<int> application_references[kMaxContexts]{};

// The same setting in the context of every pool entry, so that a launch finds it wherever it runs.
template <class Call>
void on_every_entry(Context& context, Call call) {
  const Inside ours;
  context.virtual_context->for_each_entry([&](hal::PhysicalContext& entry) {
    const CurrentContext current(context_of_entry(entry));
    call();
  });
}

template <class Call>
CUresult synchronize(Context* context, Call call) {
  if (context == nullptr) return call();
  const Inside ours;
  return result(
      context->virtual_context->drain(Drain::kWait, [&] { return hal::NativeStatus(call()); }));
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
  return drained(Drain::kFlush, [&] { return hal::NativeStatus(call()); });
}

}  // namespace

CUresult context_synchronize(Via<CUresult()> via) {
  return synchronize(current_context(), [&] { return via.real(); });
}

CUresult context_synchronize_v2(Via<CUresult(CUcontext)> via, CUcontext context) {
  Context* managed = context == nullptr ? current_context() : managed_context(context);
  return synchronize(managed, [&] { return via.real(context); });
}

CUresult context_set_limit(Via<decltype(::cuCtxSetLimit)> via, CUlimit limit, std::size_t value) {
  Context* context = current_context();
  // Where the driver itself waits for the device it does so with our work on the device, too.
  const CUresult answer =
      drained(Drain::kFlush, [&] { return hal::NativeStatus(via.real(limit, value)); });
  if (context != nullptr && answer == CUDA_SUCCESS)
    on_every_entry(*context, [&] { via.real(limit, value); });
  return answer;
}

CUresult context_set_cache_config(Via<decltype(::cuCtxSetCacheConfig)> via, CUfunc_cache config) {
  const CUresult answer = via.real(config);
  if (Context* context = current_context(); context != nullptr && answer == CUDA_SUCCESS)
    on_every_entry(*context, [&] { via.real(config); });
  return answer;
}

CUresult context_set_shared_config(Via<decltype(::cuCtxSetSharedMemConfig)> via,
                                   CUsharedconfig config) {
  const CUresult answer = via.real(config);
  if (Context* context = current_context(); context != nullptr && answer == CUDA_SUCCESS)
    on_every_entry(*context, [&] { via.real(config); });
  return answer;
}

CUresult context_destroy(Via<decltype(::cuCtxDestroy)> via, CUcontext context) {
  const CUresult answer =
      drained(Drain::kFlush, [&] { return hal::NativeStatus(via.real(context)); });
  // Only a context that was made with cuCtxCreate can be destroyed: a foreign one.
  if (answer == CUDA_SUCCESS) forget_context(context);
  return answer;
}

CUresult primary_retain(Via<decltype(::cuDevicePrimaryCtxRetain)> via, CUcontext* context,
                        CUdevice device) {
  const CUresult answer = via.real(context, device);
  if (answer == CUDA_SUCCESS && device >= 0 && device < kMaxContexts)
    application_references[device].fetch_add(1, std::memory_order_relaxed);
  return answer;
}

CUresult primary_release(Via<decltype(::cuDevicePrimaryCtxRelease)> via, CUdevice device) {
  if (device >= 0 && device < kMaxContexts &&
      application_references[device].load(std::memory_order_relaxed) > 0 &&
      application_references[device].fetch_sub(1, std::memory_order_relaxed) == 1)
    tear_down(device);
  return via.real(device);
}

CUresult primary_reset(Via<decltype(::cuDevicePrimaryCtxReset)> via, CUdevice device) {
  tear_down(device);
  return via.real(device);
}

// --- code ----------------------------------------------------------------------------------------

CUresult module_load(Via<decltype(::cuModuleLoad)> via, CUmodule* module, const char* file) {
  const CUresult answer = via.real(module, file);
  if (answer == CUDA_SUCCESS) note_origin(*module, file);
  return answer;
}

CUresult module_load_data(Via<decltype(::cuModuleLoadData)> via, CUmodule* module,
                          const void* image) {
  const CUresult answer = via.real(module, image);
  if (answer == CUDA_SUCCESS) note_image(*module, image);
  return answer;
}

CUresult module_load_data_ex(Via<decltype(::cuModuleLoadDataEx)> via, CUmodule* module,
                             const void* image, unsigned count, CUjit_option* options,
                             void** values) {
  const CUresult answer = via.real(module, image, count, options, values);
  if (answer == CUDA_SUCCESS) note_image(*module, image);
  return answer;
}

CUresult library_load_data(Via<decltype(::cuLibraryLoadData)> via, CUlibrary* library,
                           const void* code, CUjit_option* jit_options, void** jit_values,
                           unsigned jit_count, CUlibraryOption* options, void** values,
                           unsigned count) {
  const CUresult answer =
      via.real(library, code, jit_options, jit_values, jit_count, options, values, count);
  if (answer == CUDA_SUCCESS) note_image(*library, code);
  return answer;
}

CUresult library_load_from_file(Via<decltype(::cuLibraryLoadFromFile)> via, CUlibrary* library,
                                const char* file, CUjit_option* jit_options, void** jit_values,
                                unsigned jit_count, CUlibraryOption* options, void** values,
                                unsigned count) {
  const CUresult answer =
      via.real(library, file, jit_options, jit_values, jit_count, options, values, count);
  if (answer == CUDA_SUCCESS) note_origin(*library, file);
  return answer;
}

namespace {

CUresult unload(const void* code, Drain how, const runtime::VendorCall& call) {
  const CUresult answer = drained(how, call);
  if (answer != CUDA_SUCCESS) return answer;
  forget_origin(code);
  const Inside ours;
  for_each_context([](Context& context) { context.virtual_context->forget_kernels(); });
  return answer;
}

}  // namespace

CUresult module_unload(Via<decltype(::cuModuleUnload)> via, CUmodule module) {
  return unload(module, Drain::kWait, [&] { return hal::NativeStatus(via.real(module)); });
}

CUresult library_unload(Via<decltype(::cuLibraryUnload)> via, CUlibrary library) {
  // Unlike a module's, a library's end waits for nothing (code_calls_behind_a_gate.trace).
  return unload(library, Drain::kFlush, [&] { return hal::NativeStatus(via.real(library)); });
}

CUresult function_set_attribute(Via<decltype(::cuFuncSetAttribute)> via, CUfunction function,
                                CUfunction_attribute attribute, int value) {
  return set_attribute(
      attribute, value,
      [&](int* before) { return VITAMIN_REAL(cuFuncGetAttribute)(before, attribute, function); },
      [&] { return via.real(function, attribute, value); });
}

CUresult kernel_set_attribute(Via<decltype(::cuKernelSetAttribute)> via,
                              CUfunction_attribute attribute, int value, CUkernel kernel,
                              CUdevice device) {
  return set_attribute(
      attribute, value,
      [&](int* before) {
        return VITAMIN_REAL(cuKernelGetAttribute)(before, attribute, kernel, device);
      },
      [&] { return via.real(attribute, value, kernel, device); });
}

}  // namespace vitamin::interpose
