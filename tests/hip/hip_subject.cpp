// SPDX-License-Identifier: Apache-2.0
//
// The HIP backend under the real ROCm runtime, on whatever device that finds: in the build's own
// tests the software AMD GPU. VITAMIN_TEST_KERNELS names the suite's kernels: a code object (.co,
// kernels are hipFunction_t) or a library of hipcc (.so, kernels are the addresses of host stubs).
// With VITAMIN_TEST_GREEN set, over a stand-in for HIP's execution contexts.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

#include "backends/hip/device.h"
#include "tests/hal/subject.h"
#include "tests/hip/green_fake.h"

namespace vitamin::conformance {
namespace {

void check(hipError_t status, const char* what) {
  if (status != hipSuccess)
    throw std::runtime_error(std::string(what) + ": HIP error " + std::to_string(status));
}

const char* kernel_file() {
  const char* file = std::getenv("VITAMIN_TEST_KERNELS");
  return file != nullptr ? file : "";
}
bool by_stubs() { return std::string_view(kernel_file()).ends_with(".so"); }

class HipSubject final : public Subject {
 public:
  HipSubject() {
    auto api = std::getenv("VITAMIN_TEST_GREEN") != nullptr
                   ? tests::open_runtime_with_green_contexts()
                   : hip::open_runtime();
    if (!api) throw std::runtime_error(api.error().message);
    auto opened = hip::open_device(*api, {});
    if (!opened) throw std::runtime_error(opened.error().message);
    device_ = std::move(*opened);
    if (std::getenv("VITAMIN_TEST_GREEN") != nullptr && !device_->info().pool_priorities)
      throw std::runtime_error("execution contexts are not used");
    int major = 0;
    check(hipDeviceGetAttribute(&major, hipDeviceAttributeComputeCapabilityMajor, 0), "the part");
    pairs_ = major >= 10;
    const std::string file = std::getenv("VITAMIN_TEST_KERNELS");
    if (file.ends_with(".so"))
      library_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    else
      check(hipModuleLoad(&module_, file.c_str()), file.c_str());
    add("add_later", {{0, 8}, {8, 8}, {16, 8}, {24, 8}}, 32);
    add("places", {{0, 8}}, 8);
    add("partial_sums", {{0, 8}, {8, 4}}, 12);
  }
  hal::Device& device() override { return *device_; }
  hal::KernelHandle kernel(const char* name) override { return &kernels_.at(name); }
  void* memory(std::size_t bytes) override {
    void* address = nullptr;
    check(hipHostMalloc(&address, bytes, hipHostMallocDefault), "hipHostMalloc");
    std::memset(address, 0, bytes);
    return address;
  }
  void* make_stream() override {
    hipStream_t stream = nullptr;
    check(hipStreamCreate(&stream), "hipStreamCreate");
    return stream;
  }
  void destroy_stream(void* stream) override {
    check(hipStreamDestroy(static_cast<hipStream_t>(stream)), "hipStreamDestroy");
  }
  void* legacy_stream() override { return nullptr; }
  // A workgroup processor is two CUs, told apart by the lowest bit.
  unsigned processor(unsigned seen) override { return pairs_ ? seen >> 1 : seen; }
  void pack(void** extra, void* buffer, std::size_t* bytes) override {
    extra[0] = HIP_LAUNCH_PARAM_BUFFER_POINTER;
    extra[1] = buffer;
    extra[2] = HIP_LAUNCH_PARAM_BUFFER_SIZE;
    extra[3] = bytes;
    extra[4] = HIP_LAUNCH_PARAM_END;
  }

 private:
  void add(const char* name, std::vector<hal::KernelLayout::Parameter> parameters,
           std::uint32_t bytes) {
    hip::Kernel::Kind kind = hip::Kernel::Kind::kHostFunction;
    const void* native = library_ != nullptr ? ::dlsym(library_, name) : nullptr;
    if (hipFunction_t function = nullptr; module_ != nullptr) {
      check(hipModuleGetFunction(&function, module_, name), name);
      kind = hip::Kernel::Kind::kFunction;
      native = function;
    }
    if (native == nullptr) throw std::runtime_error(std::string("there is no kernel ") + name);
    kernels_[name] = {kind, native, "", "hip_subject",
                      hal::KernelLayout{std::move(parameters), bytes}};
  }

  std::unique_ptr<hal::Device> device_;
  bool pairs_ = false;
  hipModule_t module_ = nullptr;  // one of the two
  void* library_ = nullptr;
  std::map<std::string, hip::Kernel> kernels_;
};

}  // namespace

std::unique_ptr<Subject> open_subject() { return std::make_unique<HipSubject>(); }

const char* lacks(Ability ability) {
  switch (ability) {
    case Ability::kQueuesOutsideLegacyOrder:
      return "hipExtStreamCreateWithCUMask takes no flags: a masked stream is a blocking stream";
    case Ability::kPackedArguments:
      return by_stubs() ? "hipLaunchKernel takes no packed arguments" : nullptr;
  }
  return nullptr;
}

}  // namespace vitamin::conformance
