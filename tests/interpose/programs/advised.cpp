// SPDX-License-Identifier: Apache-2.0
//
// Launches on which advice is given in every way: the C API, NVTX as the toolkit ships it, and from
// a script, which calls these functions through ctypes (advised.py).
#include <cuda.h>
#include <nvtx3/nvToolsExt.h>

#include <cstdio>

#include "interpose/advice/vitamin_advice.h"

#define EXPORT extern "C" [[gnu::visibility("default")]]

static CUfunction function = nullptr;
static CUdeviceptr word = 0;
static CUgraphExec executable = nullptr;

EXPORT int setup(const char* kernels) {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
      cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS ||
      cuCtxSetCurrent(context) != CUDA_SUCCESS)
    return 1;
  if (cuModuleLoad(&module, kernels) != CUDA_SUCCESS ||
      cuModuleGetFunction(&function, module, "advised_kernel") != CUDA_SUCCESS)
    return 2;
  const bool ready =
      cuMemAlloc(&word, 4) == CUDA_SUCCESS && cuMemsetD32(word, 0, 1) == CUDA_SUCCESS;
  return ready ? 0 : 3;
}

EXPORT int launch_on(CUstream stream) {
  void* arguments[] = {&word};
  return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr);
}
EXPORT int launch() { return launch_on(nullptr); }
EXPORT int finish() { return cuCtxSynchronize(); }
EXPORT int launches() {
  unsigned count = 0;
  return cuMemcpyDtoH(&count, word, sizeof count) == CUDA_SUCCESS ? static_cast<int>(count) : -1;
}
EXPORT CUstream make_stream() {
  CUstream stream = nullptr;
  return cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS ? stream : nullptr;
}

// A graph of one launch.
EXPORT int capture(CUstream stream) {
  CUgraph graph = nullptr;
  const bool captured =
      cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS &&
      launch_on(stream) == CUDA_SUCCESS && cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS;
  if (!captured) return 1;
  const CUresult made = cuGraphInstantiate(&executable, graph, 0);
  return cuGraphDestroy(graph) == CUDA_SUCCESS ? made : 2;
}
EXPORT int replay(CUstream stream) { return cuGraphLaunch(executable, stream); }

// The answers of a whole walk through the API, one digit each (its absolute value).
EXPORT int use_c_api() {
  // Minutes: no machine is so busy that they are over before the launch.
  vitamin_work decode = {sizeof decode, VITAMIN_WORK_DECODE, 4, 0, 0, 300'000'000'000, 0};
  vitamin_work prefill = {sizeof prefill, VITAMIN_WORK_PREFILL, 0, 0, 0, 0, 0};
  vitamin_work nonsense = {sizeof nonsense, 17, 0, 0, 0, 0, 0};
  int answers = 0;
  auto told = [&](int answer) { answers = answers * 10 - answer; };
  launch();
  told(vitamin_active());
  told(vitamin_work_begin(&decode));
  launch();
  told(vitamin_work_begin(&prefill));
  launch();
  told(vitamin_work_end());
  launch();
  told(vitamin_work_end());
  launch();
  told(vitamin_work_end());
  told(vitamin_work_begin(&nonsense));
  told(vitamin_work_begin(nullptr));
  return answers;
}

EXPORT void use_nvtx() {
  nvtxRangePushA("step 7: decode");
  launch();
  nvtxRangePushA("attention");
  launch();
  nvtxRangePop();
  nvtxRangePop();
  launch();
  nvtxEventAttributes_t attributes = {};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  nvtxDomainHandle_t domain = nvtxDomainCreateA("engine");
  attributes.message.registered =
      nvtxDomainRegisterStringA(domain, "vitamin:prefill deadline_us=500000000 processors=8");
  nvtxDomainRangePushEx(domain, &attributes);
  launch();
  nvtxDomainRangePop(domain);
  nvtxRangePushW(L"PREFILL of a wide range");
  launch();
  nvtxRangePop();
  nvtxMarkA("vitamin:iteration_end");
  launch();
}

EXPORT void say_nonsense() {
  nvtxRangePushA("vitamin:decoed");
  launch();
  nvtxRangePop();
}

EXPORT void never_close() {
  for (int i = 0; i < 1000; ++i) nvtxRangePushA("decode without an end");
  launch();
}
