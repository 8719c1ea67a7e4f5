// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver as the demo programs see it: a table filled at start, nothing linked. The two
// programs find the driver by the two ways that real programs use, dlsym and cuGetProcAddress.
//
// A demo program has nobody to report to: a failed call ends it with a sentence.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>
#include <vector>

namespace vitamin::demo {

#define VITAMIN_DEMO_CALLS(X)                                                                     \
  X(cuInit)                                                                                       \
  X(cuGetErrorName) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent)                 \
      X(cuCtxSynchronize) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuMemAlloc) X(cuMemFree)   \
          X(cuMemAllocHost) X(cuMemFreeHost) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync)            \
              X(cuMemcpyDtoH) X(cuMemsetD32Async) X(cuLaunchKernel) X(cuStreamCreate)             \
                  X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamWaitEvent) X(cuEventCreate) \
                      X(cuEventRecord) X(cuEventSynchronize) X(cuEventDestroy)

enum class Door { kSymbol, kProcAddress };

struct Driver {
#define VITAMIN_DEMO_MEMBER(name) decltype(&::name) name = nullptr;
  VITAMIN_DEMO_CALLS(VITAMIN_DEMO_MEMBER)
#undef VITAMIN_DEMO_MEMBER
};

// The driver, its first device's primary context current, the demo's kernels loaded.
class Device {
 public:
  explicit Device(Door door);

  const Driver& driver() const { return driver_; }
  CUfunction kernel(const char* name) const;
  // Ends the program unless `status` is success. `what`: "launch of layer".
  void check(CUresult status, const std::string& what) const;

  // `count` floats of device memory, for the life of the program.
  CUdeviceptr floats(std::size_t count) const;
  // Ceil(threads / 256) blocks of 256 threads, arguments by value.
  template <class... Arguments>
  void launch(CUfunction kernel, std::size_t threads, CUstream stream, Arguments... arguments) {
    void* pointers[] = {static_cast<void*>(&arguments)...};
    const auto blocks = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
    check(
        driver_.cuLaunchKernel(kernel, blocks, 1, 1, kThreads, 1, 1, 0, stream, pointers, nullptr),
        "launch");
    ++launches_;
  }
  std::uint64_t launches() const { return launches_; }

 private:
  static constexpr unsigned kThreads = 256;
  void load_driver(Door door);
  void load_module();

  Driver driver_;
  CUmodule module_ = nullptr;
  std::uint64_t launches_ = 0;
};

// FNV-1a over the bytes of `values`: two runs agree exactly when their hashes do (for our purpose).
std::uint64_t hash(const std::vector<float>& values);

// A positive number from the command line, or `preset` without one.
unsigned count_argument(int argc, char** argv, unsigned preset);

// The line that scripts read: "<name>: hash <hex>, <n> launches, <s> seconds".
void print_result(const char* name, std::uint64_t hash, std::uint64_t launches, double seconds);

}  // namespace vitamin::demo
