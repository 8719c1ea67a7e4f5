// SPDX-License-Identifier: Apache-2.0
//
// The hand-written overrides of calls that only CUDA has, or has in this form.
#pragma once

#include "interpose/call_wrappers.h"
#include "interpose/graphs.h"
#include "interpose/libcuda/memory.h"
#include "interpose/libcuda/peers.h"
#include "interpose/libcuda/vendor_traits.h"
#include "interpose/manual_overrides.h"

namespace vitamin::interpose {

// symbol_lookup.cpp
CUresult init(EntryPoint<CUresult(unsigned)> entry, unsigned flags);
CUresult get_proc_address(EntryPoint<decltype(::cuGetProcAddress)> entry, const char* name,
                          void** address, int version, cuuint64_t flags);
CUresult get_proc_address_v2(EntryPoint<decltype(::cuGetProcAddress_v2)> entry, const char* name,
                             void** address, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* found);

// launches.cpp
CUresult launch_kernel(EntryPoint<decltype(::cuLaunchKernel)> entry, CUfunction kernel,
                       unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                       void** arguments, void** extra);
CUresult launch_kernel_ex(EntryPoint<decltype(::cuLaunchKernelEx)> entry,
                          const CUlaunchConfig* config, CUfunction kernel, void** arguments,
                          void** extra);
CUresult launch_cooperative(EntryPoint<decltype(::cuLaunchCooperativeKernel)> entry,
                            CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned shared_bytes, CUstream stream, void** arguments);
CUresult launch_multi_device(EntryPoint<decltype(::cuLaunchCooperativeKernelMultiDevice)> entry,
                             CUDA_LAUNCH_PARAMS* launches, unsigned count, unsigned flags);
CUresult wait_value32(EntryPoint<decltype(::cuStreamWaitValue32)> entry, CUstream stream,
                      CUdeviceptr address, cuuint32_t value, unsigned flags);
CUresult wait_value64(EntryPoint<decltype(::cuStreamWaitValue64)> entry, CUstream stream,
                      CUdeviceptr address, cuuint64_t value, unsigned flags);
CUresult batch_memory_operation(EntryPoint<decltype(::cuStreamBatchMemOp)> entry, CUstream stream,
                                unsigned count, CUstreamBatchMemOpParams* operations,
                                unsigned flags);

// graphs.cpp: what the application changes of an executable, done to what is followed.
hal::Followed graph_updated(FollowedGraph& followed, CUresult answer, CUgraph by, CUgraphNode* node,
                            CUgraphExecUpdateResult* result);
hal::Followed graph_updated_v2(FollowedGraph& followed, CUresult answer, CUgraph by,
                               CUgraphExecUpdateResultInfo* result);
hal::Followed kernel_set_v1(FollowedGraph& followed, CUresult answer, CUgraphNode node,
                            const CUDA_KERNEL_NODE_PARAMS_v1* parameters);
hal::Followed kernel_set(FollowedGraph& followed, CUresult answer, CUgraphNode node,
                         const CUDA_KERNEL_NODE_PARAMS* parameters);
hal::Followed copy_set(FollowedGraph& followed, CUresult answer, CUgraphNode node,
                       const CUDA_MEMCPY3D* box, CUcontext context);
hal::Followed fill_set(FollowedGraph& followed, CUresult answer, CUgraphNode node,
                       const CUDA_MEMSET_NODE_PARAMS* fill, CUcontext context);
hal::Followed child_set(FollowedGraph& followed, CUresult answer, CUgraphNode node, CUgraph graph);
hal::Followed node_set(FollowedGraph& followed, CUresult answer, CUgraphNode node,
                       CUgraphNodeParams* parameters);
hal::Followed node_enabled(FollowedGraph& followed, CUresult answer, CUgraphNode node,
                           unsigned enabled);

// contexts.cpp. Natively a free waits for the device, but memory of a pool is only given back to it
// and a null pointer is nothing (bench/results/differential/memory_calls_behind_a_gate.trace).
bool is_of_pool(CUdeviceptr address);
// Whether an allocation, or a registered range, of this kind of memory begins there.
bool begins_memory(CUdeviceptr address, CUmemorytype type);
template <class Address>
CUresult memory_free(EntryPoint<CUresult(Address)> entry, Address address) {
  if (address == 0) return entry.real(address);
  const auto call = [&] { return hal::NativeStatus(entry.real(address)); };
  if (!is_of_pool(address))
    return await_if_accepted_then(owner_of(first_address(address)),
                                  begins_memory(address, CU_MEMORYTYPE_DEVICE), call);
  forget_block(address);
  return flush_deferred_then(call);
}
CUresult host_register(EntryPoint<CUresult(void*, std::size_t, unsigned)> entry, void* memory,
                       std::size_t bytes, unsigned flags);
CUresult host_unregister(EntryPoint<CUresult(void*)> entry, void* memory);
CUresult host_free(EntryPoint<CUresult(void*)> entry, void* memory);

// events.cpp
CUresult event_open(EntryPoint<decltype(::cuIpcOpenEventHandle)> entry, CUevent* event,
                    CUipcEventHandle handle);
CUresult context_record_event(EntryPoint<CUresult(CUcontext, CUevent)> entry, CUcontext context,
                              CUevent event);
CUresult context_wait_event(EntryPoint<CUresult(CUcontext, CUevent)> entry, CUcontext context,
                            CUevent event);
CUresult green_record_event(EntryPoint<decltype(::cuGreenCtxRecordEvent)> entry, CUgreenCtx context,
                            CUevent event);
CUresult green_wait_event(EntryPoint<decltype(::cuGreenCtxWaitEvent)> entry, CUgreenCtx context,
                          CUevent event);

// peers.cpp
CUresult copy_peer(EntryPoint<decltype(::cuMemcpyPeer)> entry, CUdeviceptr target,
                   CUcontext target_context, CUdeviceptr source, CUcontext source_context,
                   std::size_t bytes);
CUresult copy_peer_async(EntryPoint<decltype(::cuMemcpyPeerAsync)> entry, CUdeviceptr target,
                         CUcontext target_context, CUdeviceptr source, CUcontext source_context,
                         std::size_t bytes, CUstream stream);
CUresult copy_3d_peer_async(EntryPoint<decltype(::cuMemcpy3DPeerAsync)> entry,
                            const CUDA_MEMCPY3D_PEER* box, CUstream stream);
CUresult copy_3d_peer(EntryPoint<decltype(::cuMemcpy3DPeer)> entry, const CUDA_MEMCPY3D_PEER* box);

// streams.cpp
CUresult green_stream_create(EntryPoint<CUresult(CUstream*, CUgreenCtx, unsigned, int)> entry,
                             CUstream* stream, CUgreenCtx context, unsigned flags, int priority);
CUresult stream_set_attribute(EntryPoint<decltype(::cuStreamSetAttribute)> entry, CUstream stream,
                              CUstreamAttrID attribute, const CUstreamAttrValue* value);
CUresult stream_copy_attributes(EntryPoint<decltype(::cuStreamCopyAttributes)> entry, CUstream to,
                                CUstream from);

// contexts.cpp
CUresult context_synchronize(EntryPoint<CUresult()> entry);
CUresult context_synchronize_v2(EntryPoint<CUresult(CUcontext)> entry, CUcontext context);
CUresult context_set_limit(EntryPoint<decltype(::cuCtxSetLimit)> entry, CUlimit limit,
                           std::size_t value);
CUresult context_set_cache_config(EntryPoint<decltype(::cuCtxSetCacheConfig)> entry,
                                  CUfunc_cache config);
CUresult context_set_shared_config(EntryPoint<decltype(::cuCtxSetSharedMemConfig)> entry,
                                   CUsharedconfig config);
CUresult context_destroy(EntryPoint<decltype(::cuCtxDestroy)> entry, CUcontext context);
CUresult primary_retain(EntryPoint<decltype(::cuDevicePrimaryCtxRetain)> entry, CUcontext* context,
                        CUdevice device);
CUresult primary_release(EntryPoint<decltype(::cuDevicePrimaryCtxRelease)> entry, CUdevice device);
CUresult primary_reset(EntryPoint<decltype(::cuDevicePrimaryCtxReset)> entry, CUdevice device);
CUresult module_load(EntryPoint<decltype(::cuModuleLoad)> entry, CUmodule* module,
                     const char* file);
CUresult module_load_data(EntryPoint<decltype(::cuModuleLoadData)> entry, CUmodule* module,
                          const void* image);
CUresult module_load_data_ex(EntryPoint<decltype(::cuModuleLoadDataEx)> entry, CUmodule* module,
                             const void* image, unsigned count, CUjit_option* options,
                             void** values);
CUresult module_unload(EntryPoint<decltype(::cuModuleUnload)> entry, CUmodule module);
CUresult library_load_data(EntryPoint<decltype(::cuLibraryLoadData)> entry, CUlibrary* library,
                           const void* code, CUjit_option* jit_options, void** jit_values,
                           unsigned jit_count, CUlibraryOption* options, void** values,
                           unsigned count);
CUresult library_load_from_file(EntryPoint<decltype(::cuLibraryLoadFromFile)> entry,
                                CUlibrary* library, const char* file, CUjit_option* jit_options,
                                void** jit_values, unsigned jit_count, CUlibraryOption* options,
                                void** values, unsigned count);
CUresult library_unload(EntryPoint<decltype(::cuLibraryUnload)> entry, CUlibrary library);
CUresult function_set_attribute(EntryPoint<decltype(::cuFuncSetAttribute)> entry,
                                CUfunction function, CUfunction_attribute attribute, int value);
CUresult kernel_set_attribute(EntryPoint<decltype(::cuKernelSetAttribute)> entry,
                              CUfunction_attribute attribute, int value, CUkernel kernel,
                              CUdevice device);

}  // namespace vitamin::interpose
