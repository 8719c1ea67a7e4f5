// SPDX-License-Identifier: Apache-2.0
//
// How the test programs reach the driver: linked (DRIVER_LINKED), by dlsym, or by cuGetProcAddress
// as cudart does; the last two are chosen by DRIVER_DOOR=dlsym|proc. With
// CUDA_API_PER_THREAD_DEFAULT_STREAM every name means its per-thread-default-stream form.
//
// Programs write drv.cuMemcpyHtoD(...), and check() wherever an error is not what they look for.
#pragma once

#include <cuda.h>

#include <cstdio>
#include <cstdlib>

// clang-format off
#define DRIVER_FUNCTIONS(X) \
  X(cuInit) X(cuDeviceGet) X(cuDeviceGetCount) X(cuDevicePrimaryCtxRetain) \
  X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxReset) X(cuCtxSetCurrent) X(cuCtxGetCurrent) \
  X(cuCtxDestroy) X(cuCtxSetLimit) X(cuCtxGetLimit) X(cuModuleLoadData) X(cuModuleUnload) \
  X(cuModuleGetFunction) X(cuLibraryLoadData) X(cuLibraryGetKernel) X(cuLibraryUnload) \
  X(cuMemAlloc) X(cuMemFree) X(cuMemAllocHost) X(cuMemFreeHost) X(cuMemHostGetDevicePointer) \
  X(cuMemAllocAsync) X(cuMemFreeAsync) X(cuMemcpyHtoD) X(cuMemcpyDtoH) X(cuMemcpyDtoD) \
  X(cuMemcpyAsync) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoDAsync) \
  X(cuMemcpy2DAsync) X(cuMemcpyPeerAsync) X(cuMemsetD32) X(cuMemsetD32Async) \
  X(cuMemsetD2D32Async) X(cuStreamCreate) X(cuStreamCreateWithPriority) X(cuStreamDestroy) \
  X(cuStreamQuery) X(cuStreamSynchronize) X(cuStreamWaitEvent) X(cuStreamAddCallback) \
  X(cuStreamBeginCapture) X(cuStreamEndCapture) X(cuStreamIsCapturing) X(cuStreamWaitValue32) \
  X(cuStreamWriteValue32) X(cuStreamGetAttribute) X(cuStreamSetAttribute) X(cuEventCreate) \
  X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize) X(cuEventElapsedTime) X(cuEventDestroy) \
  X(cuLaunchKernel) X(cuLaunchKernelEx) X(cuLaunchCooperativeKernel) X(cuLaunchHostFunc) \
  X(cuGraphInstantiate) X(cuGraphLaunch) X(cuGraphExecDestroy) X(cuGraphDestroy) \
  X(cuCtxSynchronize) X(cuFuncSetAttribute) X(cuCtxCreate)
#define GRAPH_FUNCTIONS(X) \
  X(cuGraphCreate) X(cuGraphClone) X(cuGraphAddKernelNode) X(cuGraphAddEmptyNode) \
  X(cuGraphAddMemsetNode) X(cuGraphAddMemcpyNode) X(cuGraphAddHostNode) \
  X(cuGraphAddChildGraphNode) X(cuGraphAddEventRecordNode) X(cuGraphGetNodes) \
  X(cuGraphNodeGetType) X(cuGraphKernelNodeGetParams) X(cuGraphKernelNodeSetParams) \
  X(cuGraphKernelNodeSetAttribute) X(cuGraphExecUpdate) X(cuGraphExecKernelNodeSetParams) \
  X(cuGraphExecMemcpyNodeSetParams) X(cuGraphExecMemsetNodeSetParams) X(cuGraphNodeSetEnabled) \
  X(cuGraphExecChildGraphNodeSetParams) X(cuGraphUpload)
// clang-format on

struct Driver {
#define DRIVER_ENTRY(name) decltype(&::name) name;
  DRIVER_FUNCTIONS(DRIVER_ENTRY)
  GRAPH_FUNCTIONS(DRIVER_ENTRY)
#undef DRIVER_ENTRY
};
extern Driver drv;

// Fills `drv`; a program that cannot reach the driver ends with 3.
void reach_driver();

inline void check_at(CUresult status, const char* what, int line) {
  if (status == CUDA_SUCCESS) return;
  std::printf("line %d: %s answers %d\n", line, what, static_cast<int>(status));
  std::fflush(stdout);
  std::_Exit(4);
}
#define check(call) check_at((call), #call, __LINE__)
