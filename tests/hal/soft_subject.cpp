// SPDX-License-Identifier: Apache-2.0
//
// The software device, in virtual time: kernels of this program.
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends/soft/device.h"
#include "backends/soft/kernel.h"
#include "tests/hal/subject.h"

namespace vitamin::conformance {
namespace {

class SoftSubject final : public Subject {
 public:
  SoftSubject() {
    auto opened = soft::open_device();
    if (!opened) throw std::runtime_error(opened.error().message);
    device_ = std::move(*opened);
  }
  hal::Device& device() override { return *device_; }
  hal::KernelHandle kernel(const char* name) override {
    const soft::ModuleTable& table = *soft::vitamin_soft_module();
    for (std::uint32_t i = 0; i < table.kernel_count; ++i)
      if (std::strcmp(table.kernels[i]->name, name) == 0) return table.kernels[i];
    throw std::runtime_error(std::string("there is no kernel ") + name);
  }
  void* memory(std::size_t bytes) override {
    memory_.push_back(std::make_unique<std::uint64_t[]>((bytes + 7) / 8));
    return memory_.back().get();
  }
  void* make_stream() override { return *device_->create_stream(soft::SyncClass::kBlocking); }
  void destroy_stream(void* stream) override { device_->destroy_stream(stream); }
  void* legacy_stream() override { return device_->legacy_stream(); }
  unsigned processor(unsigned seen) override { return seen; }
  void pack(void** extra, void* buffer, std::size_t* bytes) override {
    extra[0] = reinterpret_cast<void*>(soft::kExtraBuffer);
    extra[1] = buffer;
    extra[2] = reinterpret_cast<void*>(soft::kExtraSize);
    extra[3] = bytes;
    extra[4] = reinterpret_cast<void*>(soft::kExtraEnd);
  }

 private:
  std::vector<std::unique_ptr<std::uint64_t[]>> memory_;
  std::unique_ptr<soft::Device> device_;
};

}  // namespace

std::unique_ptr<Subject> open_subject() { return std::make_unique<SoftSubject>(); }
const char* lacks(Ability) { return nullptr; }

}  // namespace vitamin::conformance
