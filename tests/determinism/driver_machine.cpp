// SPDX-License-Identifier: Apache-2.0
#include "tests/determinism/driver_machine.h"

#include <cuda.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>

namespace vitamin::determinism {
namespace {

// clang-format off
#define DRIVER_CALLS(X) \
  X(cuInit) X(cuGetErrorName) X(cuDeviceGet) X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) \
  X(cuCtxSetCurrent) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuMemAlloc) X(cuMemcpyDtoH) \
  X(cuLaunchKernel) X(cuStreamCreate) X(cuStreamSynchronize)
#define GREEN_CALLS(X) \
  X(cuDeviceGetDevResource) X(cuDevSmResourceSplitByCount) X(cuDevResourceGenerateDesc) \
  X(cuGreenCtxCreate) X(cuGreenCtxStreamCreate)
// clang-format on

struct Driver {
#define MEMBER(name) decltype(&::name) name = nullptr;
  DRIVER_CALLS(MEMBER)
  GREEN_CALLS(MEMBER)
#undef MEMBER
};

#define TEXT(name) #name
#define SYMBOL(name) TEXT(name)  // "cuMemAlloc_v2", as cuda.h maps it

Driver load() {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(::dlerror());
  Driver driver;
#define NEEDED(name)                                                                     \
  driver.name = reinterpret_cast<decltype(driver.name)>(::dlsym(library, SYMBOL(name))); \
  if (driver.name == nullptr) throw std::runtime_error("the driver has no " SYMBOL(name));
  DRIVER_CALLS(NEEDED)
#define OPTIONAL(name) \
  driver.name = reinterpret_cast<decltype(driver.name)>(::dlsym(library, SYMBOL(name)));
  GREEN_CALLS(OPTIONAL)
#undef NEEDED
#undef OPTIONAL
  return driver;
}

class Program final : public DriverMachine {
 public:
  explicit Program(const DriverOptions& options) : driver_(load()) {
    check(driver_.cuInit(0), "cuInit");
    check(driver_.cuDeviceGet(&device_, 0), "cuDeviceGet");
    check(driver_.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
    check(driver_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    int count = 0;
    check(driver_.cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_),
          "the number of multiprocessors");
    sms_ = static_cast<unsigned>(count);
#if defined(VITAMIN_PLANTED_LEAK)
    // What a Vitamin that lets the allocation through would answer. Only in the test's own program.
    const char* policy = std::getenv("VITAMIN_POLICY");
    if (policy != nullptr && std::strcmp(policy, "fifo") != 0) sms_ /= 2;
#endif
    load_kernels();
    if (options.green_sms > 0)
      make_green_stream(options.green_sms);
    else
      check(driver_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }

  unsigned sms() const override { return sms_; }
  std::uint64_t allocate(std::size_t bytes) override {
    CUdeviceptr address = 0;
    check(driver_.cuMemAlloc(&address, bytes), "cuMemAlloc");
    return address;
  }
  void launch(const std::string& kernel, Extent grid, Extent block, void** arguments) override {
    check(driver_.cuLaunchKernel(function(kernel), grid.x, grid.y, grid.z, block.x, block.y,
                                 block.z, 0, stream_, arguments, nullptr),
          kernel);
  }
  void read(void* to, std::uint64_t from, std::size_t bytes) override {
    pace();
    check(driver_.cuMemcpyDtoH(to, from, bytes), "cuMemcpyDtoH");
  }
  void pace() override { check(driver_.cuStreamSynchronize(stream_), "cuStreamSynchronize"); }

 private:
  void check(CUresult status, const std::string& what) const {
    if (status == CUDA_SUCCESS) return;
    const char* name = nullptr;
    if (driver_.cuGetErrorName(status, &name) != CUDA_SUCCESS) name = "unknown error";
    throw std::runtime_error(what + ": " + name + " (" + std::to_string(status) + ")");
  }

  // The same kernels for a GPU and for the software driver; the driver takes what it understands.
  void load_kernels() {
    namespace fs = std::filesystem;
    const fs::path directory = fs::read_symlink("/proc/self/exe").parent_path();
    CUresult status = CUDA_ERROR_FILE_NOT_FOUND;
    for (const char* name : {"determinism_kernels.fatbin", "determinism_kernels.so"}) {
      std::ifstream file(directory / name, std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      if (bytes.empty()) continue;
      status = driver_.cuModuleLoadData(&module_, bytes.data());
      if (status == CUDA_SUCCESS) return;
    }
    check(status, "loading the kernels from " + directory.native());
  }

  void make_green_stream(unsigned sms) {
    if (driver_.cuGreenCtxCreate == nullptr || driver_.cuGreenCtxStreamCreate == nullptr)
      throw std::runtime_error("this driver has no green contexts");
    CUdevResource all{}, part{}, rest{};
    unsigned groups = 1;
    check(driver_.cuDeviceGetDevResource(device_, &all, CU_DEV_RESOURCE_TYPE_SM), "SM resource");
    check(driver_.cuDevSmResourceSplitByCount(&part, &groups, &all, &rest, 0, sms), "split");
    CUdevResourceDesc description = nullptr;
    check(driver_.cuDevResourceGenerateDesc(&description, &part, 1), "resource description");
    CUgreenCtx green = nullptr;
    check(driver_.cuGreenCtxCreate(&green, description, device_, CU_GREEN_CTX_DEFAULT_STREAM),
          "cuGreenCtxCreate");
    check(driver_.cuGreenCtxStreamCreate(&stream_, green, CU_STREAM_NON_BLOCKING, 0),
          "cuGreenCtxStreamCreate");
  }

  CUfunction function(const std::string& name) {
    CUfunction& function = functions_[name];
    if (function == nullptr)
      check(driver_.cuModuleGetFunction(&function, module_, name.c_str()), name);
    return function;
  }

  Driver driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  CUstream stream_ = nullptr;
  unsigned sms_ = 0;
  std::map<std::string, CUfunction> functions_;
};

}  // namespace

std::unique_ptr<DriverMachine> driver_machine(const DriverOptions& options) {
  return std::make_unique<Program>(options);
}

}  // namespace vitamin::determinism
