// SPDX-License-Identifier: Apache-2.0
//
// Prints what a few allocations and frees do on the thread that calls them, apart from what the
// driver does in its functions: allocation_path LIBRARY. One line each: "take" or "give", the bytes
// of the allocation, instructions of LIBRARY, its calls into the driver, system calls.
#include <cuda.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdio>

#include "bench/programs/single_step.h"

namespace {

constexpr int kWarmUp = 20, kCounted = 7;
constexpr std::array kSizes = {std::size_t{512}, std::size_t{2} << 20};

void check(CUresult result) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "allocation_path: CUresult %d\n", static_cast<int>(result));
  _exit(2);
}

void traced() {
  bench::let_parent_trace();
  CUdevice device = 0;
  CUcontext context = nullptr;
  check(cuInit(0));
  check(cuDeviceGet(&device, 0));
  check(cuDevicePrimaryCtxRetain(&context, device));
  check(cuCtxSetCurrent(context));
  for (const std::size_t bytes : kSizes)
    for (int i = 0; i < kWarmUp + kCounted; ++i) {
      CUdeviceptr address = 0;
      if (i < kWarmUp) {
        check(cuMemAlloc(&address, bytes));
        check(cuMemFree(address));
        continue;
      }
      CUresult result = CUDA_SUCCESS;
      BENCH_STEP(result = cuMemAlloc(&address, bytes));
      check(result);
      BENCH_STEP(result = cuMemFree(address));
      check(result);
    }
  _exit(0);
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return 2;
  const pid_t child = fork();
  if (child == 0) traced();
  bench::Tracer tracer(child);
  tracer.run_over_calls(words[1], "libcuda.so.1");
  std::size_t line = 0;
  for (const bench::Counts& counts : tracer.run()) {
    const auto ours = counts.by_library.find(words[1]);
    std::printf("%s %zu %llu %llu %llu\n", line % 2 == 0 ? "take" : "give",
                kSizes.at(line / (2 * kCounted)),
                static_cast<unsigned long long>(ours != counts.by_library.end() ? ours->second : 0),
                static_cast<unsigned long long>(counts.calls_run_over),
                static_cast<unsigned long long>(counts.system_calls));
    ++line;
  }
}
