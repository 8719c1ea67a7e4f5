// SPDX-License-Identifier: Apache-2.0
//
// The software device in virtual time. The order of a kernel's blocks depends on where it runs and
// on the seed.
#include <cstring>
#include <map>
#include <vector>

#include "backends/soft/device.h"
#include "backends/soft/kernel.h"
#include "tests/determinism/platform.h"

namespace vitamin::determinism {
namespace {

// As many SMs as an H200 has, in as many units.
soft::EngineOptions engine_options(std::uint64_t seed) {
  soft::EngineOptions options;
  options.device = soft::DeviceDescription::h200();
  options.seed = seed;
  options.jitter_percent = 30;
  return options;
}

class SoftPlatform final : public Platform {
 public:
  explicit SoftPlatform(std::uint64_t seed)
      : device_(needed(soft::open_device(engine_options(seed)))),
        engine_(device_->engine()),
        legacy_(device_->legacy_stream()) {
    // The kernels that are linked into this program.
    const soft::ModuleTable& table = *soft::vitamin_soft_module();
    for (std::uint32_t i = 0; i < table.kernel_count; ++i)
      kernels_.emplace(table.kernels[i]->name, table.kernels[i]);
    for (unsigned i = 0; i < kStreams; ++i)
      streams_.push_back(needed(device_->create_stream(soft::SyncClass::kNonBlocking)));
  }
  std::unique_ptr<hal::Device> take_device() override { return std::move(device_); }
  hal::KernelHandle kernel(const std::string& name) override {
    const auto found = kernels_.find(name);
    if (found == kernels_.end()) throw std::runtime_error("there is no kernel " + name);
    return found->second;
  }
  // The software device's memory is the host's.
  std::uint64_t allocate(std::size_t bytes) override {
    blocks_.emplace_back(new std::max_align_t[bytes / sizeof(std::max_align_t) + 1]);
    return reinterpret_cast<std::uint64_t>(blocks_.back().get());
  }
  void read(void* to, std::uint64_t from, std::size_t bytes) override {
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  }
  void* make_stream() override {
    if (streams_.empty()) throw std::runtime_error("no more streams");
    void* stream = streams_.back();
    streams_.pop_back();
    return stream;
  }
  void* legacy_stream() override { return legacy_; }
  void settle() override { engine_.drain(); }
  std::function<void()> idle() override {
    return [this] { engine_.advance(); };
  }

 private:
  static constexpr unsigned kStreams = 8;
  std::unique_ptr<soft::Device> device_;
  soft::Engine& engine_;
  void* legacy_;
  std::vector<void*> streams_;
  std::map<std::string, hal::KernelHandle> kernels_;
  std::vector<std::unique_ptr<std::max_align_t[]>> blocks_;
};

}  // namespace

std::unique_ptr<Platform> make_platform(std::uint64_t seed) {
  return std::make_unique<SoftPlatform>(seed);
}
Effort effort() {
  return {.trials = 6, .drift_trials = 24, .every_partition = 1, .every_other = 1, .seeded = true};
}

}  // namespace vitamin::determinism
