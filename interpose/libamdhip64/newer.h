// SPDX-License-Identifier: Apache-2.0
//
// Functions of libamdhip64 that the oldest supported header (5.2) does not declare, or declares
// beside C++ overloads of the same name, or under a C++ name: as their C symbols, in a namespace
// where nothing else has that name. A runtime that lacks one has no such symbol; nothing is called
// then. Sources: HIP API reference, "hip_runtime_api.h" of 5.3 to 7.2; exports of 5.2.3 and 5.7.1.
#pragma once

#include <hip/hip_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace vitamin::interpose {

// hipLaunchConfig_t (6.5) and HIP_LAUNCH_CONFIG. Attributes are carried, never read.
struct RuntimeLaunchConfig {
  dim3 grid, block;
  std::size_t shared_bytes;
  hipStream_t stream;
  void* attributes;
  unsigned attribute_count;
};
struct DriverLaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  hipStream_t stream;
  void* attributes;
  unsigned attribute_count;
};

// hipFunctionLaunchParams (5.5).
struct ModuleLaunch {
  hipFunction_t function;
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  hipStream_t stream;
  void** arguments;
};
// hipGraphNodeParams (5.5), as far as it is read: `event` where the type says that it is one.
struct GraphNodeParams {
  int type;
  int reserved[3];
  hipEvent_t event;
};

extern "C" {

// Overloaded in C++.
hipError_t hipMallocAsync(void**, std::size_t, hipStream_t);
hipError_t hipMallocFromPoolAsync(void**, std::size_t, hipMemPool_t, hipStream_t);
hipError_t hipMemcpyToSymbol(const void*, const void*, std::size_t, std::size_t, hipMemcpyKind);
hipError_t hipMemcpyFromSymbol(void*, const void*, std::size_t, std::size_t, hipMemcpyKind);
hipError_t hipMemcpyToSymbolAsync(const void*, const void*, std::size_t, std::size_t, hipMemcpyKind,
                                  hipStream_t);
hipError_t hipMemcpyFromSymbolAsync(void*, const void*, std::size_t, std::size_t, hipMemcpyKind,
                                    hipStream_t);
hipError_t hipLaunchCooperativeKernel(const void*, dim3, dim3, void**, unsigned, hipStream_t);
hipError_t hipLaunchCooperativeKernelMultiDevice(hipLaunchParams*, int, unsigned);
hipError_t hipExtLaunchMultiKernelMultiDevice(hipLaunchParams*, int, unsigned);
hipError_t hipExtLaunchKernel(const void*, dim3, dim3, void**, std::size_t, hipStream_t, hipEvent_t,
                              hipEvent_t, int);

// C++ functions: hipExtModuleLaunchKernel and its older name.
hipError_t
_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j(
    hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, std::size_t,
    hipStream_t, void**, void**, hipEvent_t, hipEvent_t, unsigned);
hipError_t
_Z24hipHccModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_(
    hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, std::size_t,
    hipStream_t, void**, void**, hipEvent_t, hipEvent_t);

// 6.4 exports them under their C names, too.
hipError_t hipExtModuleLaunchKernel(hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned,
                                    unsigned, std::size_t, hipStream_t, void**, void**, hipEvent_t,
                                    hipEvent_t, unsigned);
hipError_t hipHccModuleLaunchKernel(hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned,
                                    unsigned, std::size_t, hipStream_t, void**, void**, hipEvent_t,
                                    hipEvent_t);

// What the compiler's code calls.
void** __hipRegisterFatBinary(const void*);
void __hipRegisterFunction(void**, const void*, char*, const char*, unsigned, void*, void*, void*,
                           void*, int*);
void __hipUnregisterFatBinary(void**);

// 5.3
hipError_t hipEventRecord_spt(hipEvent_t, hipStream_t);
hipError_t hipLaunchHostFunc_spt(hipStream_t, hipHostFn_t, void*);
hipError_t hipStreamAddCallback_spt(hipStream_t, hipStreamCallback_t, void*, unsigned);
hipError_t hipMemsetAsync_spt(void*, int, std::size_t, hipStream_t);
hipError_t hipMemset2DAsync_spt(void*, std::size_t, int, std::size_t, std::size_t, hipStream_t);
hipError_t hipMemset3DAsync_spt(hipPitchedPtr, int, hipExtent, hipStream_t);
hipError_t hipMemcpy2DAsync_spt(void*, std::size_t, const void*, std::size_t, std::size_t,
                                std::size_t, hipMemcpyKind, hipStream_t);
hipError_t hipMemcpy3DAsync_spt(const hipMemcpy3DParms*, hipStream_t);
hipError_t hipMemcpyToSymbolAsync_spt(const void*, const void*, std::size_t, std::size_t,
                                      hipMemcpyKind, hipStream_t);
hipError_t hipMemcpyFromSymbolAsync_spt(void*, const void*, std::size_t, std::size_t, hipMemcpyKind,
                                        hipStream_t);
hipError_t hipMemcpy2DToArrayAsync_spt(hipArray*, std::size_t, std::size_t, const void*,
                                       std::size_t, std::size_t, std::size_t, hipMemcpyKind,
                                       hipStream_t);
hipError_t hipMemcpy2DFromArrayAsync_spt(void*, std::size_t, hipArray_const_t, std::size_t,
                                         std::size_t, std::size_t, std::size_t, hipMemcpyKind,
                                         hipStream_t);
hipError_t hipGraphLaunch_spt(hipGraphExec_t, hipStream_t);
hipError_t hipStreamBeginCapture_spt(hipStream_t, hipStreamCaptureMode);
hipError_t hipStreamEndCapture_spt(hipStream_t, hipGraph_t*);
hipError_t hipStreamIsCapturing_spt(hipStream_t, hipStreamCaptureStatus*);
hipError_t hipStreamGetCaptureInfo_spt(hipStream_t, hipStreamCaptureStatus*, unsigned long long*);
hipError_t hipGraphUpload(hipGraphExec_t, hipStream_t);

// 5.3; the attribute is an enumeration.
hipError_t hipDeviceGetGraphMemAttribute(int, int, void*);
hipError_t hipDeviceGraphMemTrim(int);

// 5.5
hipError_t hipPointerSetAttribute(const void*, hipPointer_attribute, hipDeviceptr_t);
hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t, unsigned, unsigned, unsigned, unsigned,
                                            unsigned, unsigned, unsigned, hipStream_t, void**);

hipError_t hipModuleLaunchCooperativeKernelMultiDevice(ModuleLaunch*, unsigned, unsigned);
hipError_t hipGraphAddNode(hipGraphNode_t*, hipGraph_t, const hipGraphNode_t*, std::size_t,
                           GraphNodeParams*);

// 6.0
hipError_t hipMemcpyFromArray_spt(void*, hipArray_const_t, std::size_t, std::size_t, std::size_t,
                                  hipMemcpyKind);
hipError_t hipStreamGetCaptureInfo_v2_spt(hipStream_t, hipStreamCaptureStatus*, unsigned long long*,
                                          hipGraph_t*, const hipGraphNode_t**, std::size_t*);
// The structure is not that of hipGetDeviceProperties.
hipError_t hipGetDevicePropertiesR0600(void*, int);
// 6.1: the last argument points to an enumeration that is only handed on.
hipError_t hipGetProcAddress(const char*, void**, int, std::uint64_t, void*);
hipError_t hipGraphInstantiateWithParams(hipGraphExec_t*, hipGraph_t, void*);
hipError_t hipStreamBeginCaptureToGraph(hipStream_t, hipGraph_t, const hipGraphNode_t*, const void*,
                                        std::size_t, hipStreamCaptureMode);
// 6.2
hipError_t hipMemcpyAtoD(hipDeviceptr_t, hipArray*, std::size_t, std::size_t);
hipError_t hipMemcpyDtoA(hipArray*, std::size_t, hipDeviceptr_t, std::size_t);
hipError_t hipMemcpyAtoA(hipArray*, std::size_t, hipArray*, std::size_t, std::size_t);
hipError_t hipMemcpyAtoHAsync(void*, hipArray*, std::size_t, std::size_t, hipStream_t);
hipError_t hipMemcpyHtoAAsync(hipArray*, std::size_t, const void*, std::size_t, hipStream_t);
hipError_t hipMemcpy2DArrayToArray(hipArray*, std::size_t, std::size_t, hipArray_const_t,
                                   std::size_t, std::size_t, std::size_t, std::size_t,
                                   hipMemcpyKind);
hipError_t hipGraphNodeSetParams(hipGraphNode_t, GraphNodeParams*);
hipError_t hipGraphExecNodeSetParams(hipGraphExec_t, hipGraphNode_t, GraphNodeParams*);
// 6.4
hipError_t hipEventRecordWithFlags(hipEvent_t, hipStream_t, unsigned);
hipError_t hipStreamBatchMemOp(hipStream_t, unsigned, void*, unsigned);
// 6.5
hipError_t hipLaunchKernelExC(const RuntimeLaunchConfig*, const void*, void**);
hipError_t hipDrvLaunchKernelEx(const DriverLaunchConfig*, hipFunction_t, void**, void**);
// 7.1: attributes, operations and parameters are only handed on.
hipError_t hipMemcpyBatchAsync(void**, void**, std::size_t*, std::size_t, void*, std::size_t*,
                               std::size_t, std::size_t*, hipStream_t);
hipError_t hipMemcpy3DBatchAsync(std::size_t, void*, std::size_t*, unsigned long long, hipStream_t);
hipError_t hipMemcpy3DPeer(void*);
hipError_t hipMemcpy3DPeerAsync(void*, hipStream_t);
hipError_t hipMemPrefetchAsync_v2(const void*, std::size_t, hipMemLocation, unsigned, hipStream_t);
hipError_t hipMemsetD2D8(hipDeviceptr_t, std::size_t, unsigned char, std::size_t, std::size_t);
hipError_t hipMemsetD2D16(hipDeviceptr_t, std::size_t, unsigned short, std::size_t, std::size_t);
hipError_t hipMemsetD2D32(hipDeviceptr_t, std::size_t, unsigned, std::size_t, std::size_t);
hipError_t hipMemsetD2D8Async(hipDeviceptr_t, std::size_t, unsigned char, std::size_t, std::size_t,
                              hipStream_t);
hipError_t hipMemsetD2D16Async(hipDeviceptr_t, std::size_t, unsigned short, std::size_t,
                               std::size_t, hipStream_t);
hipError_t hipMemsetD2D32Async(hipDeviceptr_t, std::size_t, unsigned, std::size_t, std::size_t,
                               hipStream_t);
hipError_t hipGetDriverEntryPoint(const char*, void**, unsigned long long, void*);
hipError_t hipGetDriverEntryPoint_spt(const char*, void**, unsigned long long, void*);
hipError_t hipModuleLoadFatBinary(hipModule_t*, const void*);
// 7.2
hipError_t hipMemPrefetchBatchAsync(void**, std::size_t*, std::size_t, hipMemLocation*,
                                    std::size_t*, std::size_t, unsigned long long, hipStream_t);
hipError_t hipLibraryUnload(void*);

}  // extern "C"
}  // namespace vitamin::interpose
