// SPDX-License-Identifier: Apache-2.0
#include "tests/determinism/hal_machine.h"

#include <random>
#include <stdexcept>

#include "daemon/client/local_arbiter.h"
#include "runtime/virtual_context.h"
#include "tests/determinism/between.h"
#include "tests/determinism/platform.h"

namespace vitamin::determinism {
namespace {

void check(hal::NativeStatus status, const std::string& what) {
  if (status != hal::kNativeOk)
    throw std::runtime_error(what + " answered " + std::to_string(status));
}

hal::KernelLaunch launch_of(Platform& platform, const std::string& kernel, Extent grid,
                            Extent block, void** arguments) {
  hal::KernelLaunch launch;
  launch.kernel = platform.kernel(kernel);
  launch.grid = {grid.x, grid.y, grid.z};
  launch.block = {block.x, block.y, block.z};
  launch.arguments = arguments;
  return launch;
}

class Native final : public HalMachine {
 public:
  Native(std::uint64_t seed, hal::ComputeSet set)
      : platform_(make_platform(seed)), device_(platform_->take_device()) {
    if (!set.empty()) context_ = needed(device_->create_context(set));
    queue_ = needed(context_ ? context_->create_queue(0) : device_->create_whole_queue(0));
  }
  unsigned sms() const override { return device_->info().sms; }
  std::uint64_t allocate(std::size_t bytes) override { return platform_->allocate(bytes); }
  void launch(const std::string& kernel, Extent grid, Extent block, void** arguments) override {
    check(queue_->launch(launch_of(*platform_, kernel, grid, block, arguments)), kernel);
  }
  void read(void* to, std::uint64_t from, std::size_t bytes) override {
    check(queue_->synchronize(), "the end of the trials");
    platform_->read(to, from, bytes);
  }
  const std::vector<LaunchRun>& launch_runs() const override { return launch_runs_; }
  std::uint64_t moved() const override { return 0; }
  std::uint64_t tenants_launches() const override { return 0; }
  void settle() override { platform_->settle(); }

 private:
  std::unique_ptr<Platform> platform_;
  std::unique_ptr<hal::Device> device_;
  std::unique_ptr<hal::PhysicalContext> context_;
  std::unique_ptr<hal::Queue> queue_;
  std::vector<LaunchRun> launch_runs_;
};

constexpr const char* kTenantKernel = "interfere";

// Writes down where the launches of the subject really go: not every answer of a policy is
// followed.
class LaunchRuns final : public Between {
 public:
  std::vector<LaunchRun> all;
  std::uint64_t tenants = 0;

  void opened(hal::Device& device) override { device_ = &device; }
  hal::NativeStatus launch(hal::Queue& queue, std::uint32_t sms,
                           const hal::KernelLaunch& launch) override {
    const hal::NativeStatus status = queue.launch(launch);
    if (status != hal::kNativeOk) return status;
    std::string name = device_->inspector().name(launch.kernel);
    if (name == kTenantKernel)
      ++tenants;
    else
      all.push_back({std::move(name), sms});
    return status;
  }

 private:
  hal::Device* device_ = nullptr;
};

class Shared final : public HalMachine {
 public:
  Shared(std::uint64_t seed, const Colocation& colocation)
      : random_(colocation.seed),
        platform_(make_platform(seed)),
        page_(std::make_unique<runtime::stats::DevicePage>()),
        told_(colocation.leaked_sms) {
    runtime::DispatchOptions options;
    options.window.ahead_ns = colocation.window_ns;
    options.markers = 64;
    options.idle = platform_->idle();
    options.thread = !options.idle;  // virtual time moves only when a call waits
    options.page = page_.get();
    options.slots_stay = std::chrono::milliseconds(2);
    options.audit = colocation.audit;
    std::unique_ptr<hal::Device> device = platform_->take_device();
    if (options.audit) device = runtime::Audit::watch(options.audit, std::move(device));
    if (colocation.planted) device = colocation.planted(std::move(device));
    device = device_between(launch_runs_, std::move(device));
    if (told_ == 0) told_ = device->info().sms;
    context_ = needed(runtime::VirtualContext::create(
        std::move(device), needed(client::local_arbiter(colocation.policy, colocation.seed)),
        options, platform_->legacy_stream()));
    for (unsigned i = 0; i < 1 + colocation.tenants; ++i)
      streams_.push_back(
          &context_->adopt(platform_->make_stream(), runtime::StreamKind::kNonBlocking, 0));
    cell_ = allocate(64);
  }

  unsigned sms() const override { return told_; }
  std::uint64_t allocate(std::size_t bytes) override { return platform_->allocate(bytes); }
  void launch(const std::string& kernel, Extent grid, Extent block, void** arguments) override {
    for (std::size_t tenant = 1; tenant < streams_.size(); ++tenant) interfere(*streams_[tenant]);
    check(
        context_->launch(*streams_.front(), launch_of(*platform_, kernel, grid, block, arguments)),
        kernel);
  }
  void read(void* to, std::uint64_t from, std::size_t bytes) override {
    for (runtime::Stream* stream : streams_)
      check(context_->synchronize(*stream), "the end of the trials");
    platform_->read(to, from, bytes);
  }
  const std::vector<LaunchRun>& launch_runs() const override { return launch_runs_->all; }
  std::uint64_t moved() const override { return page_->launches.moved.get(); }
  std::uint64_t tenants_launches() const override { return launch_runs_->tenants; }
  void settle() override { platform_->settle(); }

 private:
  void interfere(runtime::Stream& tenant) {
    if (random_() % 3 == 0) return;
    Atom all{0, ~0u};
    unsigned rounds = 1;
    void* arguments[] = {&all, &cell_, &rounds};
    const auto blocks = static_cast<unsigned>(1 + random_() % 200);
    check(context_->launch(tenant, launch_of(*platform_, kTenantKernel, {blocks}, {32}, arguments)),
          "a tenant");
  }

  std::mt19937_64 random_;
  std::unique_ptr<Platform> platform_;
  std::shared_ptr<LaunchRuns> launch_runs_ = std::make_shared<LaunchRuns>();
  std::unique_ptr<runtime::stats::DevicePage> page_;
  unsigned told_;
  std::unique_ptr<runtime::VirtualContext> context_;
  std::vector<runtime::Stream*> streams_;
  std::uint64_t cell_ = 0;
};

}  // namespace

std::unique_ptr<HalMachine> native_machine(std::uint64_t seed, hal::ComputeSet set) {
  return std::make_unique<Native>(seed, set);
}

std::unique_ptr<HalMachine> shared_machine(std::uint64_t seed, const Colocation& colocation) {
  return std::make_unique<Shared>(seed, colocation);
}

}  // namespace vitamin::determinism
