// SPDX-License-Identifier: Apache-2.0
//
// Prints how many instructions of LIBRARY each of a few launches executes on the thread that
// launches, one line each: launch_path LIBRARY MODULE.
#include <cuda.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "bench/programs/single_step.h"

namespace {

constexpr int kWarmUp = 300, kCounted = 7;

void check(CUresult result) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "launch_path: CUresult %d\n", static_cast<int>(result));
  _exit(2);
}

void traced(const char* path) {
  bench::let_parent_trace();
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr word = 0;
  check(cuInit(0));
  check(cuDeviceGet(&device, 0));
  check(cuDevicePrimaryCtxRetain(&context, device));
  check(cuCtxSetCurrent(context));
  check(cuModuleLoad(&module, path));
  check(cuModuleGetFunction(&kernel, module, "advised_kernel"));
  check(cuMemAlloc(&word, sizeof(unsigned)));
  check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  void* parameters[] = {&word};
  for (int i = 0; i < kWarmUp + kCounted; ++i) {
    // As in a running program: a launch before this one, and nothing that waits.
    check(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr));
    if (i < kWarmUp) continue;
    CUresult result = CUDA_SUCCESS;
    BENCH_STEP(result = cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr));
    check(result);
    check(cuStreamSynchronize(stream));
  }
  _exit(0);
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 2;
  const pid_t child = fork();
  if (child == 0) traced(words[2]);
  for (const bench::Counts& counts : bench::Tracer(child).run()) {
    const auto ours = counts.by_library.find(words[1]);
    std::printf("%llu\n", ours == counts.by_library.end()
                              ? 0ULL
                              : static_cast<unsigned long long>(ours->second));
  }
}
