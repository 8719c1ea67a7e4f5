// SPDX-License-Identifier: Apache-2.0
//
// The determinism suite over the CUDA backend, over whatever libcuda.so.1 is found: here the
// software driver. VITAMIN_TEST_KERNELS names the suite's kernels.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <vector>

#include "backends/cuda/device.h"
#include "tests/determinism/platform.h"

namespace vitamin::determinism {
namespace {

// clang-format off
#define CALLS(X) \
  X(cuInit) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxSetCurrent) \
  X(cuCtxSynchronize) X(cuModuleLoad) X(cuModuleUnload) X(cuModuleGetFunction) X(cuMemAlloc) \
  X(cuMemFree) X(cuMemcpyDtoH) X(cuStreamCreate) X(cuStreamDestroy)
// clang-format on

#define TEXT(name) #name
#define SYMBOL(name) TEXT(name)  // "cuStreamDestroy_v2", as cuda.h maps it

void* driver_function(const char* name) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(::dlerror());
  return ::dlsym(library, name);
}

struct Driver {
#define MEMBER(name) \
  decltype(&::name) name = reinterpret_cast<decltype(&::name)>(driver_function(SYMBOL(name)));
  CALLS(MEMBER)
#undef MEMBER
};

void check(CUresult status, const std::string& what) {
  if (status != CUDA_SUCCESS)
    throw std::runtime_error(what + ": CUDA error " + std::to_string(status));
}

class CudaPlatform final : public Platform {
 public:
  CudaPlatform() {
    check(driver_.cuInit(0), "cuInit");
    cuda::DeviceOptions options;
    check(driver_.cuDevicePrimaryCtxRetain(&options.primary, 0), "the primary context");
    check(driver_.cuCtxSetCurrent(options.primary), "cuCtxSetCurrent");
    static const auto api = needed(cuda::Api::load(&driver_function));
    device_ = needed(cuda::open_device(api, options));
    const char* file = std::getenv("VITAMIN_TEST_KERNELS");
    check(driver_.cuModuleLoad(&module_, file != nullptr ? file : ""), "VITAMIN_TEST_KERNELS");
  }
  ~CudaPlatform() override {
    for (CUdeviceptr block : blocks_) driver_.cuMemFree(block);
    for (CUstream stream : streams_) driver_.cuStreamDestroy(stream);
    driver_.cuModuleUnload(module_);
    driver_.cuDevicePrimaryCtxRelease(0);
  }
  std::unique_ptr<hal::Device> take_device() override { return std::move(device_); }
  hal::KernelHandle kernel(const std::string& name) override {
    CUfunction& function = kernels_[name];
    if (function == nullptr)
      check(driver_.cuModuleGetFunction(&function, module_, name.c_str()), name);
    return function;
  }
  std::uint64_t allocate(std::size_t bytes) override {
    CUdeviceptr address = 0;
    check(driver_.cuMemAlloc(&address, bytes), "cuMemAlloc");
    blocks_.push_back(address);
    return address;
  }
  void read(void* to, std::uint64_t from, std::size_t bytes) override {
    check(driver_.cuMemcpyDtoH(to, from, bytes), "cuMemcpyDtoH");
  }
  void* make_stream() override {
    CUstream stream = nullptr;
    check(driver_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    streams_.push_back(stream);
    return stream;
  }
  void* legacy_stream() override { return CU_STREAM_LEGACY; }
  void settle() override { check(driver_.cuCtxSynchronize(), "cuCtxSynchronize"); }

 private:
  Driver driver_;
  CUmodule module_ = nullptr;
  std::unique_ptr<hal::Device> device_;
  std::map<std::string, CUfunction> kernels_;
  std::vector<CUdeviceptr> blocks_;
  std::vector<CUstream> streams_;
};

}  // namespace

// The order of what arrives at once is the machine's own.
std::unique_ptr<Platform> make_platform(std::uint64_t /*seed*/) {
  return std::make_unique<CudaPlatform>();
}
Effort effort() {
  return {.trials = 4, .drift_trials = 24, .every_partition = 1, .every_other = 1, .seeded = false};
}

}  // namespace vitamin::determinism
