// SPDX-License-Identifier: Apache-2.0
#include "tests/determinism/planted_device.h"

#include <utility>

namespace vitamin::determinism {
namespace {

struct Mistake {
  Plant plant;
  std::function<void()> settle;
  hal::Event stranger;  // recorded before anything else
  unsigned calls = 0;

  // Once in a while, not at the first occasion.
  bool strikes(Plant kind) {
    if (plant != kind || ++calls % 16 != 0) return false;
    settle();
    return true;
  }
};

class PlantedQueue final : public hal::Queue {
 public:
  PlantedQueue(std::shared_ptr<Mistake> mistake, std::unique_ptr<hal::Queue> queue)
      : mistake_(std::move(mistake)), queue_(std::move(queue)) {}
  void* native() const noexcept override { return queue_->native(); }
  hal::NativeStatus launch(const hal::KernelLaunch& launch) noexcept override {
    hal::KernelLaunch changed = launch;
    if (mistake_->strikes(Plant::kDescriptor)) changed.shared_bytes += 16;
    return queue_->launch(changed);
  }
  hal::NativeStatus record(hal::Event event) noexcept override { return queue_->record(event); }
  hal::NativeStatus wait(hal::Event event) noexcept override {
    if (mistake_->strikes(Plant::kDroppedEdge)) return hal::kNativeOk;
    if (mistake_->strikes(Plant::kOtherEvent)) return queue_->wait(mistake_->stranger);
    return queue_->wait(event);
  }
  hal::NativeStatus query() noexcept override { return queue_->query(); }
  hal::NativeStatus synchronize() noexcept override { return queue_->synchronize(); }

 private:
  std::shared_ptr<Mistake> mistake_;
  std::unique_ptr<hal::Queue> queue_;
};

class PlantedContext final : public hal::PhysicalContext {
 public:
  PlantedContext(std::shared_ptr<Mistake> mistake, std::unique_ptr<hal::PhysicalContext> context)
      : mistake_(std::move(mistake)), context_(std::move(context)) {}
  hal::ComputeSet compute() const noexcept override { return context_->compute(); }
  std::uint32_t processors() const noexcept override { return context_->processors(); }
  hal::Result<std::unique_ptr<hal::Queue>> create_queue(int priority) override {
    auto queue = context_->create_queue(priority);
    if (!queue) return queue;
    return std::make_unique<PlantedQueue>(mistake_, std::move(*queue));
  }

 private:
  std::shared_ptr<Mistake> mistake_;
  std::unique_ptr<hal::PhysicalContext> context_;
};

class PlantedDevice final : public hal::Device {
 public:
  PlantedDevice(std::shared_ptr<Mistake> mistake, std::unique_ptr<hal::Device> device)
      : mistake_(std::move(mistake)), device_(std::move(device)) {
    if (auto event = device_->create_event()) mistake_->stranger = *event;
  }
  ~PlantedDevice() override { device_->destroy_event(mistake_->stranger); }
  const hal::DeviceInfo& info() const noexcept override { return device_->info(); }
  hal::Result<std::unique_ptr<hal::PhysicalContext>> create_context(
      hal::ComputeSet compute) override {
    auto context = device_->create_context(compute);
    if (!context) return context;
    return std::make_unique<PlantedContext>(mistake_, std::move(*context));
  }
  std::unique_ptr<hal::Queue> adopt_queue(void* native) override {
    return std::make_unique<PlantedQueue>(mistake_, device_->adopt_queue(native));
  }
  hal::Result<std::unique_ptr<hal::Queue>> create_whole_queue(int priority) override {
    return device_->create_whole_queue(priority);
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
  void enter_internal() noexcept override { device_->enter_internal(); }
  void leave_internal() noexcept override { device_->leave_internal(); }

 private:
  std::shared_ptr<Mistake> mistake_;
  std::unique_ptr<hal::Device> device_;
};

}  // namespace

std::unique_ptr<hal::Device> planted_device(std::unique_ptr<hal::Device> device, Plant plant,
                                            std::function<void()> settle) {
  auto mistake = std::make_shared<Mistake>();
  mistake->plant = plant;
  mistake->settle = std::move(settle);
  return std::make_unique<PlantedDevice>(std::move(mistake), std::move(device));
}

}  // namespace vitamin::determinism
