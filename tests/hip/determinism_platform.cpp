// SPDX-License-Identifier: Apache-2.0
//
// The determinism suite over the HIP backend: the real runtime, hipcc's code, in the build's own
// tests the software AMD GPU. VITAMIN_TEST_KERNELS names the suite's kernels, a code object.
#include <hip/hip_runtime_api.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <vector>

#include "backends/hip/device.h"
#include "interpose/libamdhip64/code_object.h"
#include "tests/determinism/platform.h"

namespace vitamin::determinism {
namespace {

void expect_success(int status, const std::string& what) {
  if (status != hipSuccess)
    throw std::runtime_error(what + ": HIP error " + std::to_string(status));
}

// One process, one module: as the interposer knows its kernels.
class Module {
 public:
  Module() {
    const char* name = std::getenv("VITAMIN_TEST_KERNELS");
    std::ifstream file(name != nullptr ? name : "", std::ios::binary);
    const std::string image{std::istreambuf_iterator<char>(file), {}};
    expect_success(hipModuleLoadData(&module_, image.data()), "VITAMIN_TEST_KERNELS");
    if (!interpose::read_layouts(std::as_bytes(std::span(image)), layouts_))
      throw std::runtime_error("the kernels' parameters cannot be read");
  }
  const hip::Kernel* kernel(const std::string& name) {
    hip::Kernel& kernel = kernels_[name];
    if (kernel.native != nullptr) return &kernel;
    hipFunction_t function = nullptr;
    expect_success(hipModuleGetFunction(&function, module_, name.c_str()), name);
    kernel = {hip::Kernel::Kind::kFunction, function, name, "determinism", layouts_.at(name)};
    return &kernel;
  }

 private:
  hipModule_t module_ = nullptr;
  interpose::KernelLayouts layouts_;
  std::map<std::string, hip::Kernel> kernels_;
};

class HipPlatform final : public Platform {
 public:
  HipPlatform() : device_(needed(hip::open_device(needed(hip::open_runtime()), {}))) {}
  ~HipPlatform() override {
    for (void* block : blocks_) static_cast<void>(hipFree(block));
    for (hipStream_t stream : streams_) static_cast<void>(hipStreamDestroy(stream));
  }
  std::unique_ptr<hal::Device> take_device() override { return std::move(device_); }
  hal::KernelHandle kernel(const std::string& name) override {
    static Module module;
    return module.kernel(name);
  }
  std::uint64_t allocate(std::size_t bytes) override {
    void* address = nullptr;
    expect_success(hipMalloc(&address, bytes), "hipMalloc");
    blocks_.push_back(address);
    return reinterpret_cast<std::uint64_t>(address);
  }
  void read(void* to, std::uint64_t from, std::size_t bytes) override {
    expect_success(hipMemcpy(to, reinterpret_cast<const void*>(from), bytes, hipMemcpyDeviceToHost),
                   "copy");
  }
  void* make_stream() override {
    hipStream_t stream = nullptr;
    expect_success(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking),
                   "hipStreamCreateWithFlags");
    streams_.push_back(stream);
    return stream;
  }
  void* legacy_stream() override { return nullptr; }
  void settle() override { expect_success(hipDeviceSynchronize(), "hipDeviceSynchronize"); }

 private:
  std::unique_ptr<hal::Device> device_;
  std::vector<void*> blocks_;
  std::vector<hipStream_t> streams_;
};

}  // namespace

// The order of what arrives at once is the machine's own.
std::unique_ptr<Platform> make_platform(std::uint64_t /*seed*/) {
  return std::make_unique<HipPlatform>();
}
Effort effort() {
  return {.trials = 1, .drift_trials = 10, .every_partition = 8, .every_other = 3, .seeded = false};
}

}  // namespace vitamin::determinism
