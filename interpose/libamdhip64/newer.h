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
hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t, unsigned, unsigned, unsigned, unsigned,
                                            unsigned, unsigned, unsigned, hipStream_t, void**);

// 6.0: the structure is not that of hipGetDeviceProperties.
hipError_t hipGetDevicePropertiesR0600(void*, int);
// 6.1: the last argument points to an enumeration that is only handed on.
hipError_t hipGetProcAddress(const char*, void**, int, std::uint64_t, void*);
// 6.4
hipError_t hipEventRecordWithFlags(hipEvent_t, hipStream_t, unsigned);
hipError_t hipStreamBatchMemOp(hipStream_t, unsigned, void*, unsigned);
// 6.5
hipError_t hipLaunchKernelExC(const RuntimeLaunchConfig*, const void*, void**);
hipError_t hipDrvLaunchKernelEx(const DriverLaunchConfig*, hipFunction_t, void**, void**);
// 7.1
hipError_t hipGetDriverEntryPoint(const char*, void**, unsigned long long, void*);
hipError_t hipGetDriverEntryPoint_spt(const char*, void**, unsigned long long, void*);

}  // extern "C"
}  // namespace vitamin::interpose
