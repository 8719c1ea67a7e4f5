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
CUresult init(Via<CUresult(unsigned)> via, unsigned flags);
CUresult get_proc_address(Via<decltype(::cuGetProcAddress)> via, const char* name, void** address,
                          int version, cuuint64_t flags);
CUresult get_proc_address_v2(Via<decltype(::cuGetProcAddress_v2)> via, const char* name,
                             void** address, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* found);

// launches.cpp
CUresult launch_kernel(Via<decltype(::cuLaunchKernel)> via, CUfunction kernel, unsigned grid_x,
                       unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                       unsigned block_z, unsigned shared_bytes, CUstream stream, void** arguments,
                       void** extra);
CUresult launch_kernel_ex(Via<decltype(::cuLaunchKernelEx)> via, const CUlaunchConfig* config,
                          CUfunction kernel, void** arguments, void** extra);
CUresult launch_cooperative(Via<decltype(::cuLaunchCooperativeKernel)> via, CUfunction kernel,
                            unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared_bytes,
                            CUstream stream, void** arguments);
CUresult launch_multi_device(Via<decltype(::cuLaunchCooperativeKernelMultiDevice)> via,
                             CUDA_LAUNCH_PARAMS* launches, unsigned count, unsigned flags);
CUresult wait_value32(Via<decltype(::cuStreamWaitValue32)> via, CUstream stream,
                      CUdeviceptr address, cuuint32_t value, unsigned flags);
CUresult wait_value64(Via<decltype(::cuStreamWaitValue64)> via, CUstream stream,
                      CUdeviceptr address, cuuint64_t value, unsigned flags);
CUresult batch_memory_operation(Via<decltype(::cuStreamBatchMemOp)> via, CUstream stream,
                                unsigned count, CUstreamBatchMemOpParams* operations,
                                unsigned flags);

// graphs.cpp: what the application changes of an executable, done to what is followed.
hal::Followed graph_updated(RebindableGraph& followed, CUresult answer, CUgraph by,
                            CUgraphNode* node, CUgraphExecUpdateResult* result);
hal::Followed graph_updated_v2(RebindableGraph& followed, CUresult answer, CUgraph by,
                               CUgraphExecUpdateResultInfo* result);
hal::Followed kernel_set_v1(RebindableGraph& followed, CUresult answer, CUgraphNode node,
                            const CUDA_KERNEL_NODE_PARAMS_v1* parameters);
hal::Followed kernel_set(RebindableGraph& followed, CUresult answer, CUgraphNode node,
                         const CUDA_KERNEL_NODE_PARAMS* parameters);
hal::Followed copy_set(RebindableGraph& followed, CUresult answer, CUgraphNode node,
                       const CUDA_MEMCPY3D* box, CUcontext context);
hal::Followed fill_set(RebindableGraph& followed, CUresult answer, CUgraphNode node,
                       const CUDA_MEMSET_NODE_PARAMS* fill, CUcontext context);
hal::Followed child_set(RebindableGraph& followed, CUresult answer, CUgraphNode node,
                        CUgraph graph);
hal::Followed node_set(RebindableGraph& followed, CUresult answer, CUgraphNode node,
                       CUgraphNodeParams* parameters);
hal::Followed node_enabled(RebindableGraph& followed, CUresult answer, CUgraphNode node,
                           unsigned enabled);

// contexts.cpp. Natively a free waits for the device, but memory of a pool is only given back to it
// and a null pointer is nothing (bench/results/differential/memory_calls_behind_a_gate.trace).
bool is_of_pool(CUdeviceptr address);
// Whether an allocation, or a registered range, of this kind of memory begins there.
bool begins_memory(CUdeviceptr address, CUmemorytype type);
template <class Address>
CUresult memory_free(Via<CUresult(Address)> via, Address address) {
  if (address == 0) return via.real(address);
  const auto call = [&] { return hal::NativeStatus(via.real(address)); };
  if (!is_of_pool(address))
    return await_if_accepted_then(owner_of(first_address(address)),
                                  begins_memory(address, CU_MEMORYTYPE_DEVICE), call);
  forget_block(address);
  return flush_deferred_then(call);
}
CUresult host_register(Via<CUresult(void*, std::size_t, unsigned)> via, void* memory,
                       std::size_t bytes, unsigned flags);
CUresult host_unregister(Via<CUresult(void*)> via, void* memory);
CUresult host_free(Via<CUresult(void*)> via, void* memory);

// events.cpp
CUresult event_open(Via<decltype(::cuIpcOpenEventHandle)> via, CUevent* event,
                    CUipcEventHandle handle);
CUresult context_record_event(Via<CUresult(CUcontext, CUevent)> via, CUcontext context,
                              CUevent event);
CUresult context_wait_event(Via<CUresult(CUcontext, CUevent)> via, CUcontext context,
                            CUevent event);
CUresult green_record_event(Via<decltype(::cuGreenCtxRecordEvent)> via, CUgreenCtx context,
                            CUevent event);
CUresult green_wait_event(Via<decltype(::cuGreenCtxWaitEvent)> via, CUgreenCtx context,
                          CUevent event);

// peers.cpp
CUresult copy_peer(Via<decltype(::cuMemcpyPeer)> via, CUdeviceptr target, CUcontext target_context,
                   CUdeviceptr source, CUcontext source_context, std::size_t bytes);
CUresult copy_peer_async(Via<decltype(::cuMemcpyPeerAsync)> via, CUdeviceptr target,
                         CUcontext target_context, CUdeviceptr source, CUcontext source_context,
                         std::size_t bytes, CUstream stream);
CUresult copy_3d_peer_async(Via<decltype(::cuMemcpy3DPeerAsync)> via, const CUDA_MEMCPY3D_PEER* box,
                            CUstream stream);
CUresult copy_3d_peer(Via<decltype(::cuMemcpy3DPeer)> via, const CUDA_MEMCPY3D_PEER* box);

// streams.cpp
CUresult green_stream_create(Via<CUresult(CUstream*, CUgreenCtx, unsigned, int)> via,
                             CUstream* stream, CUgreenCtx context, unsigned flags, int priority);
CUresult stream_set_attribute(Via<decltype(::cuStreamSetAttribute)> via, CUstream stream,
                              CUstreamAttrID attribute, const CUstreamAttrValue* value);
CUresult stream_copy_attributes(Via<decltype(::cuStreamCopyAttributes)> via, CUstream to,
                                CUstream from);

// contexts.cpp
CUresult context_synchronize(Via<CUresult()> via);
CUresult context_synchronize_v2(Via<CUresult(CUcontext)> via, CUcontext context);
CUresult context_set_limit(Via<decltype(::cuCtxSetLimit)> via, CUlimit limit, std::size_t value);
CUresult context_set_cache_config(Via<decltype(::cuCtxSetCacheConfig)> via, CUfunc_cache config);
CUresult context_set_shared_config(Via<decltype(::cuCtxSetSharedMemConfig)> via,
                                   CUsharedconfig config);
CUresult context_destroy(Via<decltype(::cuCtxDestroy)> via, CUcontext context);
CUresult primary_retain(Via<decltype(::cuDevicePrimaryCtxRetain)> via, CUcontext* context,
                        CUdevice device);
CUresult primary_release(Via<decltype(::cuDevicePrimaryCtxRelease)> via, CUdevice device);
CUresult primary_reset(Via<decltype(::cuDevicePrimaryCtxReset)> via, CUdevice device);
CUresult module_load(Via<decltype(::cuModuleLoad)> via, CUmodule* module, const char* file);
CUresult module_load_data(Via<decltype(::cuModuleLoadData)> via, CUmodule* module,
                          const void* image);
CUresult module_load_data_ex(Via<decltype(::cuModuleLoadDataEx)> via, CUmodule* module,
                             const void* image, unsigned count, CUjit_option* options,
                             void** values);
CUresult module_unload(Via<decltype(::cuModuleUnload)> via, CUmodule module);
CUresult library_load_data(Via<decltype(::cuLibraryLoadData)> via, CUlibrary* library,
                           const void* code, CUjit_option* jit_options, void** jit_values,
                           unsigned jit_count, CUlibraryOption* options, void** values,
                           unsigned count);
CUresult library_load_from_file(Via<decltype(::cuLibraryLoadFromFile)> via, CUlibrary* library,
                                const char* file, CUjit_option* jit_options, void** jit_values,
                                unsigned jit_count, CUlibraryOption* options, void** values,
                                unsigned count);
CUresult library_unload(Via<decltype(::cuLibraryUnload)> via, CUlibrary library);
CUresult function_set_attribute(Via<decltype(::cuFuncSetAttribute)> via, CUfunction function,
                                CUfunction_attribute attribute, int value);
CUresult kernel_set_attribute(Via<decltype(::cuKernelSetAttribute)> via,
                              CUfunction_attribute attribute, int value, CUkernel kernel,
                              CUdevice device);

}  // namespace vitamin::interpose
