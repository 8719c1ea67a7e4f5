// SPDX-License-Identifier: Apache-2.0
//
// The hand-written overrides of calls that only HIP has, or has in this form.
#pragma once

#include "interpose/call_wrappers.h"
#include "interpose/graphs.h"
#include "interpose/libamdhip64/memory.h"
#include "interpose/libamdhip64/vendor_traits.h"
#include "interpose/manual_overrides.h"

namespace vitamin::interpose {

// A hand-written override that is no call of the application's to be remembered.
template <auto kFunction>
struct Asks : Manual<kFunction> {
  static constexpr bool kAsksOnly = true;
};

// What the runtime answered when it was asked whether there is a device.
void note_runtime(hipError_t answer);

// symbol_lookup.cpp
hipError_t init(Via<hipError_t(unsigned)> via, unsigned flags);
hipError_t get_proc_address(Via<decltype(hipGetProcAddress)> via, const char* name, void** address,
                            int version, std::uint64_t flags, void* found);
hipError_t get_driver_entry_point(Via<decltype(hipGetDriverEntryPoint)> via, const char* name,
                                  void** address, unsigned long long flags, void* found);
hipError_t get_last_error(Via<hipError_t()> via);
hipError_t peek_last_error(Via<hipError_t()> via);

// code.cpp
void** register_fat_binary(Via<decltype(__hipRegisterFatBinary)> via, const void* binary);
void unregister_fat_binary(Via<decltype(__hipUnregisterFatBinary)> via, void** modules);
void register_function(Via<decltype(__hipRegisterFunction)> via, void** modules, const void* stub,
                       char* device_function, const char* device_name, unsigned thread_limit,
                       void* thread, void* block, void* block_dim, void* grid_dim, int* wave_size);
hipError_t module_load(Via<decltype(::hipModuleLoad)> via, hipModule_t* module, const char* file);
hipError_t module_load_data(Via<decltype(::hipModuleLoadData)> via, hipModule_t* module,
                            const void* image);
hipError_t module_load_data_ex(Via<decltype(::hipModuleLoadDataEx)> via, hipModule_t* module,
                               const void* image, unsigned count, hipJitOption* options,
                               void** values);
hipError_t module_unload(Via<decltype(::hipModuleUnload)> via, hipModule_t module);
hipError_t module_get_function(Via<decltype(::hipModuleGetFunction)> via, hipFunction_t* function,
                               hipModule_t module, const char* name);
hipError_t function_set_attribute(Via<decltype(::hipFuncSetAttribute)> via, const void* function,
                                  hipFuncAttribute attribute, int value);

// launches.cpp
hipError_t launch_kernel(Via<decltype(::hipLaunchKernel)> via, const void* stub, dim3 grid,
                         dim3 block, void** arguments, std::size_t shared_bytes,
                         hipStream_t stream);
hipError_t launch_cooperative(Via<decltype(hipLaunchCooperativeKernel)> via, const void* stub,
                              dim3 grid, dim3 block, void** arguments, unsigned shared_bytes,
                              hipStream_t stream);
hipError_t launch_extended(Via<decltype(hipExtLaunchKernel)> via, const void* stub, dim3 grid,
                           dim3 block, void** arguments, std::size_t shared_bytes,
                           hipStream_t stream, hipEvent_t start, hipEvent_t stop, int flags);
hipError_t launch_module(Via<decltype(::hipModuleLaunchKernel)> via, hipFunction_t function,
                         unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                         unsigned block_y, unsigned block_z, unsigned shared_bytes,
                         hipStream_t stream, void** arguments, void** extra);
hipError_t launch_module_cooperative(Via<decltype(hipModuleLaunchCooperativeKernel)> via,
                                     hipFunction_t function, unsigned grid_x, unsigned grid_y,
                                     unsigned grid_z, unsigned block_x, unsigned block_y,
                                     unsigned block_z, unsigned shared_bytes, hipStream_t stream,
                                     void** arguments);
hipError_t launch_module_extended(
    Via<hipError_t(hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   std::size_t, hipStream_t, void**, void**, hipEvent_t, hipEvent_t, unsigned)>
        via,
    hipFunction_t function, unsigned items_x, unsigned items_y, unsigned items_z, unsigned block_x,
    unsigned block_y, unsigned block_z, std::size_t shared_bytes, hipStream_t stream,
    void** arguments, void** extra, hipEvent_t start, hipEvent_t stop, unsigned flags);
hipError_t launch_module_hcc(
    Via<hipError_t(hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   std::size_t, hipStream_t, void**, void**, hipEvent_t, hipEvent_t)>
        via,
    hipFunction_t function, unsigned items_x, unsigned items_y, unsigned items_z, unsigned block_x,
    unsigned block_y, unsigned block_z, std::size_t shared_bytes, hipStream_t stream,
    void** arguments, void** extra, hipEvent_t start, hipEvent_t stop);
hipError_t launch_runtime_config(Via<decltype(hipLaunchKernelExC)> via,
                                 const RuntimeLaunchConfig* config, const void* stub,
                                 void** arguments);
hipError_t launch_driver_config(Via<decltype(hipDrvLaunchKernelEx)> via,
                                const DriverLaunchConfig* config, hipFunction_t function,
                                void** arguments, void** extra);
hipError_t launch_multi_device(Via<hipError_t(hipLaunchParams*, int, unsigned)> via,
                               hipLaunchParams* launches, int count, unsigned flags);
hipError_t configure_call(Via<decltype(::hipConfigureCall)> via, dim3 grid, dim3 block,
                          std::size_t shared_bytes, hipStream_t stream);
hipError_t launch_by_pointer(Via<decltype(::hipLaunchByPtr)> via, const void* stub);
hipError_t wait_value32(Via<decltype(::hipStreamWaitValue32)> via, hipStream_t stream,
                        void* address, std::uint32_t value, unsigned flags, std::uint32_t mask);
hipError_t wait_value64(Via<decltype(::hipStreamWaitValue64)> via, hipStream_t stream,
                        void* address, std::uint64_t value, unsigned flags, std::uint64_t mask);
hipError_t batch_memory_operation(Via<decltype(hipStreamBatchMemOp)> via, hipStream_t stream,
                                  unsigned count, void* operations, unsigned flags);

// devices.cpp
hipError_t event_create_plain(Via<hipError_t(hipEvent_t*)> via, hipEvent_t* event);
hipError_t launched_event_query(Via<decltype(::hipEventQuery)> via, hipEvent_t event);
hipError_t launched_event_elapsed_time(Via<decltype(::hipEventElapsedTime)> via,
                                       float* milliseconds, hipEvent_t start, hipEvent_t stop);
hipError_t event_open(Via<decltype(::hipIpcOpenEventHandle)> via, hipEvent_t* event,
                      hipIpcEventHandle_t handle);
hipError_t stream_create_plain(Via<hipError_t(hipStream_t*)> via, hipStream_t* stream);
hipError_t stream_create_masked(Via<decltype(::hipExtStreamCreateWithCUMask)> via,
                                hipStream_t* stream, std::uint32_t words,
                                const std::uint32_t* mask);
hipError_t device_count(Via<hipError_t(int*)> via, int* count);
hipError_t device_synchronize(Via<hipError_t()> via);
hipError_t device_reset(Via<hipError_t()> via);
hipError_t primary_reset(Via<hipError_t(hipDevice_t)> via, hipDevice_t device);

}  // namespace vitamin::interpose
