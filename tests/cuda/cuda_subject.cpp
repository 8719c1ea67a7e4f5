// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend over whatever libcuda.so.1 is found: in the build's own tests the software
// driver, from an installed tree the GPU's. VITAMIN_TEST_KERNELS names the suite's kernels, a
// module that the driver can load.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "backends/cuda/device.h"
#include "tests/hal/subject.h"

namespace vitamin::conformance {
namespace {

// clang-format off
#define CALLS(X) \
  X(cuInit) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuModuleLoad) \
  X(cuModuleGetFunction) X(cuMemHostAlloc) X(cuStreamCreate) X(cuStreamDestroy)
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

void check(CUresult status, const char* what) {
  if (status != CUDA_SUCCESS)
    throw std::runtime_error(std::string(what) + ": CUDA error " + std::to_string(status));
}

class CudaSubject final : public Subject {
 public:
  CudaSubject() {
    check(driver_.cuInit(0), "cuInit");
    cuda::DeviceOptions options;
    check(driver_.cuDevicePrimaryCtxRetain(&options.primary, 0), "the primary context");
    check(driver_.cuCtxSetCurrent(options.primary), "cuCtxSetCurrent");
    static const auto api = cuda::Api::load(&driver_function);
    if (!api) throw std::runtime_error(api.error().message);
    auto opened = cuda::open_device(*api, options);
    if (!opened) throw std::runtime_error(opened.error().message);
    device_ = std::move(*opened);
    const char* file = std::getenv("VITAMIN_TEST_KERNELS");
    check(driver_.cuModuleLoad(&module_, file != nullptr ? file : ""), "VITAMIN_TEST_KERNELS");
  }
  hal::Device& device() override { return *device_; }
  hal::KernelHandle kernel(const char* name) override {
    CUfunction function = nullptr;
    check(driver_.cuModuleGetFunction(&function, module_, name), name);
    return function;
  }
  void* memory(std::size_t bytes) override {
    void* address = nullptr;
    check(driver_.cuMemHostAlloc(&address, bytes, CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
    std::memset(address, 0, bytes);
    return address;
  }
  void* make_stream() override {
    CUstream stream = nullptr;
    check(driver_.cuStreamCreate(&stream, CU_STREAM_DEFAULT), "cuStreamCreate");
    return stream;
  }
  void destroy_stream(void* stream) override {
    check(driver_.cuStreamDestroy(static_cast<CUstream>(stream)), "cuStreamDestroy");
  }
  void* legacy_stream() override { return CU_STREAM_LEGACY; }
  unsigned processor(unsigned seen) override { return seen; }
  void pack(void** extra, void* buffer, std::size_t* bytes) override {
    extra[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
    extra[1] = buffer;
    extra[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
    extra[3] = bytes;
    extra[4] = CU_LAUNCH_PARAM_END;
  }

 private:
  Driver driver_;
  CUmodule module_ = nullptr;
  std::unique_ptr<hal::Device> device_;
};

}  // namespace

std::unique_ptr<Subject> open_subject() { return std::make_unique<CudaSubject>(); }
const char* lacks(Ability) { return nullptr; }

}  // namespace vitamin::conformance
