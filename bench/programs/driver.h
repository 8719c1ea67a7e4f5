// SPDX-License-Identifier: Apache-2.0
//
// The driver for measurements that run on a GPU and on the software device alike: looked up, never
// linked. Their kernels are portable_kernels.cpp, found beside the installed program.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace bench {

// clang-format off
#define BENCH_CALLS(X) \
  X(cuInit) X(cuDeviceGet) X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) \
  X(cuCtxSynchronize) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuMemAlloc) X(cuMemAllocHost) \
  X(cuMemsetD32) X(cuMemcpyDtoH) X(cuMemGetInfo) X(cuLaunchKernel) X(cuLaunchKernelEx) \
  X(cuLaunchCooperativeKernel) X(cuFuncSetAttribute) X(cuStreamCreate) X(cuStreamSynchronize) \
  X(cuStreamWaitValue32) X(cuStreamWaitEvent) X(cuEventCreate) X(cuEventRecord) \
  X(cuEventSynchronize) X(cuOccupancyMaxActiveBlocksPerMultiprocessor)
// clang-format on
#define BENCH_TEXT(name) #name
#define BENCH_SYMBOL(name) BENCH_TEXT(name)  // as cuda.h maps it: "cuMemAlloc_v2"

struct Driver {
#define BENCH_MEMBER(name) decltype(&::name) name = nullptr;
  BENCH_CALLS(BENCH_MEMBER)
#undef BENCH_MEMBER

  Driver() {
    library_ = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) stop(::dlerror());
#define BENCH_FIND(name)                                                          \
  name = reinterpret_cast<decltype(name)>(::dlsym(library_, BENCH_SYMBOL(name))); \
  if (name == nullptr) stop("the driver has no " BENCH_SYMBOL(name));
    BENCH_CALLS(BENCH_FIND)
#undef BENCH_FIND
  }

  // One that not every program needs.
  template <class Function>
  Function find(const char* name) const {
    void* found = ::dlsym(library_, name);
    if (found == nullptr) stop(std::string("the driver has no ") + name);
    return reinterpret_cast<Function>(found);
  }

  [[noreturn]] static void stop(const std::string& why) {
    std::fprintf(stderr, "%s\n", why.c_str());
    std::_Exit(3);
  }

 private:
  void* library_ = nullptr;
};

inline void check_at(CUresult status, const char* what, int line) {
  if (status == CUDA_SUCCESS) return;
  Driver::stop("line " + std::to_string(line) + ": " + what + " answers " +
               std::to_string(static_cast<int>(status)));
}
#define BENCH_MUST(call) ::bench::check_at((call), #call, __LINE__)

// CLOCK_MONOTONIC, which the scripts read as time.monotonic().
inline std::uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// A device with its primary context current, and the kernels.
class Device {
 public:
  explicit Device(int ordinal = 0) {
    BENCH_MUST(cu.cuInit(0));
    BENCH_MUST(cu.cuDeviceGet(&device, ordinal));
    CUcontext context = nullptr;
    BENCH_MUST(cu.cuDevicePrimaryCtxRetain(&context, device));
    BENCH_MUST(cu.cuCtxSetCurrent(context));
    load();
  }

  CUfunction kernel(const char* name) const {
    CUfunction function = nullptr;
    BENCH_MUST(cu.cuModuleGetFunction(&function, module_, name));
    return function;
  }
  CUstream stream() const {
    CUstream made = nullptr;
    BENCH_MUST(cu.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
    return made;
  }
  CUevent event() const {
    CUevent made = nullptr;
    BENCH_MUST(cu.cuEventCreate(&made, CU_EVENT_DISABLE_TIMING));
    return made;
  }
  // Page-locked memory that both sides see at one address.
  template <class T>
  T* pinned(std::size_t count) const {
    void* memory = nullptr;
    BENCH_MUST(cu.cuMemAllocHost(&memory, count * sizeof(T)));
    T* words = static_cast<T*>(memory);
    for (std::size_t i = 0; i < count; ++i) words[i] = T{};
    return words;
  }
  CUdeviceptr words(std::size_t count) const {
    CUdeviceptr memory = 0;
    BENCH_MUST(cu.cuMemAlloc(&memory, count * sizeof(std::uint32_t)));
    BENCH_MUST(cu.cuMemsetD32(memory, 0, count));
    BENCH_MUST(cu.cuCtxSynchronize());
    return memory;
  }
  std::vector<std::uint32_t> read(CUdeviceptr memory, std::size_t count) const {
    std::vector<std::uint32_t> words(count);
    BENCH_MUST(cu.cuMemcpyDtoH(words.data(), memory, count * sizeof(std::uint32_t)));
    return words;
  }
  int attribute(CUdevice_attribute what) const {
    int value = 0;
    BENCH_MUST(cu.cuDeviceGetAttribute(&value, what, device));
    return value;
  }
  template <class... Arguments>
  CUresult launch(CUfunction kernel, CUstream stream, unsigned blocks, unsigned threads,
                  Arguments... arguments) const {
    void* pointers[] = {static_cast<void*>(&arguments)...};
    return cu.cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, nullptr);
  }

  // Gives each file of the kernels to `load`, until that answers success.
  template <class Load>
  static CUresult offer_kernels(Load load) {
    const std::filesystem::path directory = kernels_directory();
    CUresult status = CUDA_ERROR_FILE_NOT_FOUND;
    for (const char* name : {"portable_kernels.fatbin", "portable_kernels.so"}) {
      std::ifstream file(directory / name, std::ios::binary);
      const std::string image{std::istreambuf_iterator<char>(file), {}};
      if (image.empty()) continue;
      status = load(image.data());
      if (status == CUDA_SUCCESS) break;
    }
    return status;
  }

  Driver cu;
  CUdevice device = 0;

 private:
  static std::filesystem::path kernels_directory() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path() /
           "../../../lib/vitamin/bench";
  }
  void load() {
    const CUresult status =
        offer_kernels([&](const void* image) { return cu.cuModuleLoadData(&module_, image); });
    if (status != CUDA_SUCCESS)
      Driver::stop("the kernels of " + kernels_directory().native() +
                   " cannot be loaded: " + std::to_string(static_cast<int>(status)));
  }

  CUmodule module_ = nullptr;
};

}  // namespace bench
