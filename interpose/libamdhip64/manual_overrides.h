// SPDX-License-Identifier: Apache-2.0
//
// The hand-written overrides of calls that only HIP has, or has in this form.
#pragma once

#include "backends/hip/api.h"
#include "interpose/call_wrappers.h"
#include "interpose/graphs.h"
#include "interpose/libamdhip64/memory.h"
#include "interpose/libamdhip64/twin.h"
#include "interpose/libamdhip64/vendor_traits.h"
#include "interpose/manual_overrides.h"

namespace vitamin::interpose {

// A hand-written override that is no call of the application's to be remembered.
template <auto kFunction>
struct Asks : Manual<kFunction> {
  static constexpr bool kAsksOnly = true;
};

// The runtime's functions; null: some that the backend needs are missing.
const hip::Api* runtime_functions();

// What the runtime answered when it was asked whether there is a device.
void note_runtime(hipError_t answer);

// symbol_lookup.cpp
hipError_t init(EntryPoint<hipError_t(unsigned)> entry, unsigned flags);
hipError_t get_proc_address(EntryPoint<decltype(hipGetProcAddress)> entry, const char* name,
                            void** address, int version, std::uint64_t flags, void* found);
hipError_t get_driver_entry_point(EntryPoint<decltype(hipGetDriverEntryPoint)> entry,
                                  const char* name, void** address, unsigned long long flags,
                                  void* found);
hipError_t get_last_error(EntryPoint<hipError_t()> entry);
hipError_t peek_last_error(EntryPoint<hipError_t()> entry);

// code.cpp
void** register_fat_binary(EntryPoint<decltype(__hipRegisterFatBinary)> entry, const void* binary);
void unregister_fat_binary(EntryPoint<decltype(__hipUnregisterFatBinary)> entry, void** modules);
void register_function(EntryPoint<decltype(__hipRegisterFunction)> entry, void** modules,
                       const void* stub, char* device_function, const char* device_name,
                       unsigned thread_limit, void* thread, void* block, void* block_dim,
                       void* grid_dim, int* wave_size);
hipError_t module_load(EntryPoint<decltype(::hipModuleLoad)> entry, hipModule_t* module,
                       const char* file);
hipError_t module_load_data(EntryPoint<decltype(::hipModuleLoadData)> entry, hipModule_t* module,
                            const void* image);
hipError_t module_load_data_ex(EntryPoint<decltype(::hipModuleLoadDataEx)> entry,
                               hipModule_t* module, const void* image, unsigned count,
                               hipJitOption* options, void** values);
hipError_t module_unload(EntryPoint<decltype(::hipModuleUnload)> entry, hipModule_t module);
hipError_t library_unload(EntryPoint<decltype(hipLibraryUnload)> entry, void* library);
hipError_t module_get_function(EntryPoint<decltype(::hipModuleGetFunction)> entry,
                               hipFunction_t* function, hipModule_t module, const char* name);
hipError_t function_set_attribute(EntryPoint<decltype(::hipFuncSetAttribute)> entry,
                                  const void* function, hipFuncAttribute attribute, int value);

// launches.cpp
hipError_t launch_kernel(EntryPoint<decltype(::hipLaunchKernel)> entry, const void* stub, dim3 grid,
                         dim3 block, void** arguments, std::size_t shared_bytes,
                         hipStream_t stream);
hipError_t launch_cooperative(EntryPoint<decltype(hipLaunchCooperativeKernel)> entry,
                              const void* stub, dim3 grid, dim3 block, void** arguments,
                              unsigned shared_bytes, hipStream_t stream);
hipError_t launch_extended(EntryPoint<decltype(hipExtLaunchKernel)> entry, const void* stub,
                           dim3 grid, dim3 block, void** arguments, std::size_t shared_bytes,
                           hipStream_t stream, hipEvent_t start, hipEvent_t stop, int flags);
hipError_t launch_module(EntryPoint<decltype(::hipModuleLaunchKernel)> entry,
                         hipFunction_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                         unsigned block_x, unsigned block_y, unsigned block_z,
                         unsigned shared_bytes, hipStream_t stream, void** arguments, void** extra);
hipError_t launch_module_cooperative(EntryPoint<decltype(hipModuleLaunchCooperativeKernel)> entry,
                                     hipFunction_t function, unsigned grid_x, unsigned grid_y,
                                     unsigned grid_z, unsigned block_x, unsigned block_y,
                                     unsigned block_z, unsigned shared_bytes, hipStream_t stream,
                                     void** arguments);
hipError_t launch_module_extended(
    EntryPoint<hipError_t(hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          std::size_t, hipStream_t, void**, void**, hipEvent_t, hipEvent_t,
                          unsigned)>
        entry,
    hipFunction_t function, unsigned items_x, unsigned items_y, unsigned items_z, unsigned block_x,
    unsigned block_y, unsigned block_z, std::size_t shared_bytes, hipStream_t stream,
    void** arguments, void** extra, hipEvent_t start, hipEvent_t stop, unsigned flags);
hipError_t launch_module_hcc(
    EntryPoint<hipError_t(hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          std::size_t, hipStream_t, void**, void**, hipEvent_t, hipEvent_t)>
        entry,
    hipFunction_t function, unsigned items_x, unsigned items_y, unsigned items_z, unsigned block_x,
    unsigned block_y, unsigned block_z, std::size_t shared_bytes, hipStream_t stream,
    void** arguments, void** extra, hipEvent_t start, hipEvent_t stop);
hipError_t launch_runtime_config(EntryPoint<decltype(hipLaunchKernelExC)> entry,
                                 const RuntimeLaunchConfig* config, const void* stub,
                                 void** arguments);
hipError_t launch_driver_config(EntryPoint<decltype(hipDrvLaunchKernelEx)> entry,
                                const DriverLaunchConfig* config, hipFunction_t function,
                                void** arguments, void** extra);
hipError_t launch_multi_device(EntryPoint<hipError_t(hipLaunchParams*, int, unsigned)> entry,
                               hipLaunchParams* launches, int count, unsigned flags);
hipError_t launch_modules_multi_device(
    EntryPoint<decltype(hipModuleLaunchCooperativeKernelMultiDevice)> entry, ModuleLaunch* launches,
    unsigned count, unsigned flags);
hipError_t configure_call(EntryPoint<decltype(::hipConfigureCall)> entry, dim3 grid, dim3 block,
                          std::size_t shared_bytes, hipStream_t stream);
hipError_t launch_by_pointer(EntryPoint<decltype(::hipLaunchByPtr)> entry, const void* stub);
hipError_t wait_value32(EntryPoint<decltype(::hipStreamWaitValue32)> entry, hipStream_t stream,
                        void* address, std::uint32_t value, unsigned flags, std::uint32_t mask);
hipError_t wait_value64(EntryPoint<decltype(::hipStreamWaitValue64)> entry, hipStream_t stream,
                        void* address, std::uint64_t value, unsigned flags, std::uint64_t mask);
hipError_t batch_memory_operation(EntryPoint<decltype(hipStreamBatchMemOp)> entry,
                                  hipStream_t stream, unsigned count, void* operations,
                                  unsigned flags);

// devices.cpp
hipError_t event_create_plain(EntryPoint<hipError_t(hipEvent_t*)> entry, hipEvent_t* event);
hipError_t launched_event_query(EntryPoint<decltype(::hipEventQuery)> entry, hipEvent_t event);
hipError_t launched_event_elapsed_time(EntryPoint<decltype(::hipEventElapsedTime)> entry,
                                       float* milliseconds, hipEvent_t start, hipEvent_t stop);
hipError_t event_open(EntryPoint<decltype(::hipIpcOpenEventHandle)> entry, hipEvent_t* event,
                      hipIpcEventHandle_t handle);
hipError_t stream_create_plain(EntryPoint<hipError_t(hipStream_t*)> entry, hipStream_t* stream);
hipError_t stream_create_masked(EntryPoint<decltype(::hipExtStreamCreateWithCUMask)> entry,
                                hipStream_t* stream, std::uint32_t words,
                                const std::uint32_t* mask);
hipError_t device_count(EntryPoint<hipError_t(int*)> entry, int* count);
hipError_t pointer_set_attribute(
    EntryPoint<hipError_t(const void*, hipPointer_attribute, hipDeviceptr_t)> entry,
    const void* value, hipPointer_attribute attribute, hipDeviceptr_t memory);
hipError_t device_synchronize(EntryPoint<hipError_t()> entry);
hipError_t device_reset(EntryPoint<hipError_t()> entry);
hipError_t primary_reset(EntryPoint<hipError_t(hipDevice_t)> entry, hipDevice_t device);

// graphs.cpp: what the application does to an executable that is followed.
hal::Followed graph_updated(FollowedGraph& followed, hipError_t answer, hipGraph_t by,
                            hipGraphNode_t* node, hipGraphExecUpdateResult* result);
hal::Followed kernel_set(FollowedGraph& followed, hipError_t answer, hipGraphNode_t node,
                         const hipKernelNodeParams* parameters);
hal::Followed fill_set(FollowedGraph& followed, hipError_t answer, hipGraphNode_t node,
                       const hipMemsetParams* fill);
hal::Followed child_set(FollowedGraph& followed, hipError_t answer, hipGraphNode_t node,
                        hipGraph_t child);

}  // namespace vitamin::interpose
