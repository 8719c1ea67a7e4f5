// SPDX-License-Identifier: Apache-2.0
#include "tests/determinism/between.h"

#include <utility>

namespace vitamin::determinism {
namespace {

class SeenQueue final : public hal::Queue {
 public:
  SeenQueue(std::shared_ptr<Between> between, std::uint32_t processors,
            std::unique_ptr<hal::Queue> queue)
      : between_(std::move(between)), processors_(processors), queue_(std::move(queue)) {}
  ~SeenQueue() override { between_->ends(*queue_); }
  void* native() const noexcept override { return queue_->native(); }
  hal::NativeStatus launch(const hal::KernelLaunch& launch) noexcept override {
    return between_->launch(*queue_, processors_, launch);
  }
  hal::NativeStatus record(hal::Event event) noexcept override { return queue_->record(event); }
  hal::NativeStatus wait(hal::Event event) noexcept override {
    return between_->wait(*queue_, event);
  }
  hal::NativeStatus query() noexcept override { return queue_->query(); }
  hal::NativeStatus synchronize() noexcept override { return queue_->synchronize(); }

 private:
  std::shared_ptr<Between> between_;
  std::uint32_t processors_;
  std::unique_ptr<hal::Queue> queue_;
};

class SeenContext final : public hal::PhysicalContext {
 public:
  SeenContext(std::shared_ptr<Between> between, std::unique_ptr<hal::PhysicalContext> context)
      : between_(std::move(between)), context_(std::move(context)) {}
  hal::ComputeSet compute() const noexcept override { return context_->compute(); }
  std::uint32_t processors() const noexcept override { return context_->processors(); }
  hal::Result<std::unique_ptr<hal::Queue>> create_queue(int priority) override {
    auto queue = context_->create_queue(priority);
    if (!queue) return queue;
    return std::make_unique<SeenQueue>(between_, processors(), std::move(*queue));
  }

 private:
  std::shared_ptr<Between> between_;
  std::unique_ptr<hal::PhysicalContext> context_;
};

class SeenDevice final : public hal::Device {
 public:
  SeenDevice(std::shared_ptr<Between> between, std::unique_ptr<hal::Device> device)
      : between_(std::move(between)), device_(std::move(device)) {
    between_->opened(*device_);
  }
  ~SeenDevice() override { between_->closed(*device_); }
  const hal::DeviceInfo& info() const noexcept override { return device_->info(); }
  hal::Result<std::unique_ptr<hal::PhysicalContext>> create_context(
      hal::ComputeSet compute) override {
    auto context = device_->create_context(compute);
    if (!context) return context;
    return std::make_unique<SeenContext>(between_, std::move(*context));
  }
  std::unique_ptr<hal::Queue> adopt_queue(void* native) override {
    return std::make_unique<SeenQueue>(between_, info().processors, device_->adopt_queue(native));
  }
  hal::Result<std::unique_ptr<hal::Queue>> create_whole_queue(int priority) override {
    auto queue = device_->create_whole_queue(priority);
    if (!queue) return queue;
    return std::make_unique<SeenQueue>(between_, info().processors, std::move(*queue));
  }
  hal::Result<hal::Event> create_event() override { return device_->create_event(); }
  hal::Result<hal::Event> create_timed_event() override { return device_->create_timed_event(); }
  hal::NativeStatus elapsed(hal::Event from, hal::Event to, double& ns) noexcept override {
    return device_->elapsed(from, to, ns);
  }
  void destroy_event(hal::Event event) noexcept override { device_->destroy_event(event); }
  hal::NativeStatus query(hal::Event event) noexcept override { return device_->query(event); }
  hal::NativeStatus synchronize(hal::Event event) noexcept override {
    return device_->synchronize(event);
  }
  hal::Result<hal::KernelLayout> kernel_layout(hal::KernelHandle kernel) override {
    return device_->kernel_layout(kernel);
  }
  std::string kernel_name(hal::KernelHandle kernel) override {
    return device_->kernel_name(kernel);
  }
  std::string kernel_origin(hal::KernelHandle kernel) override {
    return device_->kernel_origin(kernel);
  }
  std::uint32_t processors_needed(const hal::KernelLaunch& launch, bool resident) override {
    return device_->processors_needed(launch, resident);
  }
  std::uint32_t resident_blocks(const hal::KernelLaunch& launch) override {
    return device_->resident_blocks(launch);
  }
  hal::NativeStatus validate(const hal::KernelLaunch& launch) noexcept override {
    return device_->validate(launch);
  }
  hal::Outcome classify(hal::NativeStatus status) const noexcept override {
    return device_->classify(status);
  }
  hal::NativeStatus not_ready() const noexcept override { return device_->not_ready(); }
  hal::NativeStatus out_of_memory() const noexcept override { return device_->out_of_memory(); }
  void attach_thread() noexcept override { device_->attach_thread(); }
  void enter_internal() noexcept override { device_->enter_internal(); }
  void leave_internal() noexcept override { device_->leave_internal(); }

 private:
  std::shared_ptr<Between> between_;
  std::unique_ptr<hal::Device> device_;
};

}  // namespace

std::unique_ptr<hal::Device> device_between(std::shared_ptr<Between> between,
                                            std::unique_ptr<hal::Device> device) {
  return std::make_unique<SeenDevice>(std::move(between), std::move(device));
}

}  // namespace vitamin::determinism
