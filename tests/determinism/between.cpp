// SPDX-License-Identifier: Apache-2.0
#include "tests/determinism/between.h"

#include <utility>

namespace vitamin::determinism {
namespace {

class SeenQueue final : public hal::Queue {
 public:
  SeenQueue(std::shared_ptr<Between> between, std::uint32_t sms, std::unique_ptr<hal::Queue> queue)
      : between_(std::move(between)), sms_(sms), queue_(std::move(queue)) {}
  ~SeenQueue() override { between_->ends(*queue_); }
  void* native() const noexcept override { return queue_->native(); }
  hal::NativeStatus launch(const hal::KernelLaunch& launch) noexcept override {
    return between_->launch(*queue_, sms_, launch);
  }
  hal::NativeStatus record(hal::Event event) noexcept override { return queue_->record(event); }
  hal::NativeStatus wait(hal::Event event) noexcept override {
    return between_->wait(*queue_, event);
  }
  hal::NativeStatus query() noexcept override { return queue_->query(); }
  hal::NativeStatus synchronize() noexcept override { return queue_->synchronize(); }

 private:
  std::shared_ptr<Between> between_;
  std::uint32_t sms_;
  std::unique_ptr<hal::Queue> queue_;
};

class SeenContext final : public hal::PhysicalContext {
 public:
  SeenContext(std::shared_ptr<Between> between, std::unique_ptr<hal::PhysicalContext> context)
      : between_(std::move(between)), context_(std::move(context)) {}
  hal::ComputeSet compute() const noexcept override { return context_->compute(); }
  std::uint32_t sms() const noexcept override { return context_->sms(); }
  hal::Result<std::unique_ptr<hal::Queue>> create_queue(int priority) override {
    auto queue = context_->create_queue(priority);
    if (!queue) return queue;
    return std::make_unique<SeenQueue>(between_, sms(), std::move(*queue));
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
  hal::KernelInspector& inspector() noexcept override { return device_->inspector(); }
  const hal::ErrorClassifier& errors() const noexcept override { return device_->errors(); }
  std::uint32_t pool_queues_now() override { return device_->pool_queues_now(); }
  hal::Result<std::unique_ptr<hal::PhysicalContext>> create_context(
      hal::ComputeSet compute) override {
    auto context = device_->create_context(compute);
    if (!context) return context;
    return std::make_unique<SeenContext>(between_, std::move(*context));
  }
  std::unique_ptr<hal::Queue> adopt_queue(void* native) override {
    return std::make_unique<SeenQueue>(between_, info().sms, device_->adopt_queue(native));
  }
  hal::Result<std::unique_ptr<hal::Queue>> create_whole_queue(int priority) override {
    auto queue = device_->create_whole_queue(priority);
    if (!queue) return queue;
    return std::make_unique<SeenQueue>(between_, info().sms, std::move(*queue));
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
  std::uint64_t free_bytes() noexcept override { return device_->free_bytes(); }
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
