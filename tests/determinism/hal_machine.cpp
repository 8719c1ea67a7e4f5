// SPDX-License-Identifier: Apache-2.0
#include "tests/determinism/hal_machine.h"

#include <cstring>
#include <map>
#include <random>
#include <stdexcept>

#include "backends/soft/device.h"
#include "backends/soft/kernel.h"
#include "policies/registry.h"
#include "runtime/virtual_context.h"

namespace vitamin::determinism {
namespace {

// As many processors as an H200 has, in as many units.
soft::EngineOptions engine_options(std::uint64_t seed) {
  soft::EngineOptions options;
  options.device = soft::DeviceDescription::h200();
  options.seed = seed;
  options.jitter_percent = 30;
  return options;
}

std::unique_ptr<soft::Device> opened(std::uint64_t seed) {
  auto device = soft::open_device(engine_options(seed));
  if (!device) throw std::runtime_error(device.error().message);
  return std::move(*device);
}

template <class Value>
Value needed(hal::Result<Value> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

void check(hal::NativeStatus status, const std::string& what) {
  if (status != hal::kNativeOk)
    throw std::runtime_error(what + " answered " + std::to_string(status));
}

// The kernels that are linked into this program, by name.
hal::KernelHandle kernel_named(const std::string& name) {
  static const auto* const kernels = [] {
    auto* all = new std::map<std::string, hal::KernelHandle>;
    const soft::ModuleTable& table = *soft::vitamin_soft_module();
    for (std::uint32_t i = 0; i < table.kernel_count; ++i)
      all->emplace(table.kernels[i]->name, table.kernels[i]);
    return all;
  }();
  const auto found = kernels->find(name);
  if (found == kernels->end()) throw std::runtime_error("there is no kernel " + name);
  return found->second;
}

hal::KernelLaunch launch_of(const std::string& kernel, Extent grid, Extent block,
                            void** arguments) {
  hal::KernelLaunch launch;
  launch.kernel = kernel_named(kernel);
  launch.grid = {grid.x, grid.y, grid.z};
  launch.block = {block.x, block.y, block.z};
  launch.arguments = arguments;
  return launch;
}

// The software device's memory is the host's.
class HostMemory {
 public:
  std::uint64_t allocate(std::size_t bytes) {
    blocks_.emplace_back(new std::max_align_t[bytes / sizeof(std::max_align_t) + 1]);
    return reinterpret_cast<std::uint64_t>(blocks_.back().get());
  }

 private:
  std::vector<std::unique_ptr<std::max_align_t[]>> blocks_;
};

class Native final : public HalMachine {
 public:
  explicit Native(std::uint64_t seed)
      : device_(opened(seed)), queue_(needed(device_->create_whole_queue(0))) {}
  unsigned processors() const override { return device_->info().processors; }
  std::uint64_t allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  void launch(const std::string& kernel, Extent grid, Extent block, void** arguments) override {
    check(queue_->launch(launch_of(kernel, grid, block, arguments)), kernel);
  }
  void read(void* to, std::uint64_t from, std::size_t bytes) override {
    check(queue_->synchronize(), "the end of the trials");
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  }
  const std::vector<unsigned>& widths() const override { return widths_; }
  std::uint64_t moved() const override { return 0; }
  void settle() override { device_->engine().drain(); }

 private:
  HostMemory memory_;
  std::unique_ptr<soft::Device> device_;
  std::unique_ptr<hal::Queue> queue_;
  std::vector<unsigned> widths_;
};

// Writes down what a policy answers for one lane.
class Recorded final : public runtime::Policy {
 public:
  Recorded(std::unique_ptr<runtime::Policy> policy, std::vector<unsigned>& widths)
      : policy_(std::move(policy)), widths_(widths) {}
  std::string_view name() const override { return policy_->name(); }
  std::optional<std::size_t> pick(std::span<const runtime::ReadyOperation> ready,
                                  const runtime::PoolView& pool) override {
    return policy_->pick(ready, pool);
  }
  runtime::Choice select(const runtime::ReadyOperation& operation,
                         std::span<const runtime::EntryId> eligible,
                         const runtime::PoolView& pool) override {
    const runtime::Choice choice = policy_->select(operation, eligible, pool);
    if (operation.lane == kSubjectLane) widths_.push_back(pool.entries[choice.entry].processors);
    return choice;
  }
  runtime::Plan prepare(const runtime::Hint& hint, const runtime::PoolView& pool) override {
    return policy_->prepare(hint, pool);
  }
  bool lanes_share() const override { return policy_->lanes_share(); }

  static constexpr runtime::LaneId kSubjectLane = 1;  // the legacy stream is lane 0

 private:
  std::unique_ptr<runtime::Policy> policy_;
  std::vector<unsigned>& widths_;
};

class Shared final : public HalMachine {
 public:
  Shared(std::uint64_t seed, const Colocation& colocation)
      : random_(colocation.seed), page_(std::make_unique<runtime::stats::DevicePage>()) {
    std::unique_ptr<soft::Device> device = opened(seed);
    soft::Engine& engine = device->engine();
    engine_ = &engine;
    runtime::DispatchOptions options;
    options.window.ahead_ns = colocation.window_ns;
    options.markers = 64;
    options.thread = false;
    options.idle = [&engine] { engine.advance(); };
    options.page = page_.get();
    auto policy = std::make_unique<Recorded>(
        needed(policies::make(colocation.policy, colocation.seed)), widths_);
    std::vector<void*> natives;
    for (unsigned i = 0; i < 1 + colocation.tenants; ++i)
      natives.push_back(needed(device->create_stream(soft::SyncClass::kNonBlocking)));
    void* legacy = device->legacy_stream();
    std::unique_ptr<hal::Device> seen = std::move(device);
    options.audit = colocation.audit;
    if (options.audit) seen = runtime::Audit::watch(options.audit, std::move(seen));
    if (colocation.planted) seen = colocation.planted(std::move(seen));
    context_ = needed(runtime::VirtualContext::create(std::move(seen), std::move(policy), options,
                                                      legacy));
    for (void* native : natives)
      streams_.push_back(&context_->adopt(native, runtime::StreamKind::kNonBlocking, 0));
    cell_ = allocate(64);
  }

  unsigned processors() const override { return context_->device().info().processors; }
  std::uint64_t allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  void launch(const std::string& kernel, Extent grid, Extent block, void** arguments) override {
    for (std::size_t tenant = 1; tenant < streams_.size(); ++tenant) interfere(*streams_[tenant]);
    check(context_->launch(*streams_.front(), launch_of(kernel, grid, block, arguments)), kernel);
  }
  void read(void* to, std::uint64_t from, std::size_t bytes) override {
    for (runtime::Stream* stream : streams_)
      check(context_->synchronize(*stream), "the end of the trials");
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  }
  const std::vector<unsigned>& widths() const override { return widths_; }
  std::uint64_t moved() const override { return page_->launches.moved.get(); }
  void settle() override { engine_->drain(); }

 private:
  void interfere(runtime::Stream& tenant) {
    if (random_() % 3 == 0) return;
    Atom all{0, ~0u};
    unsigned rounds = 1;
    void* arguments[] = {&all, &cell_, &rounds};
    const auto blocks = static_cast<unsigned>(1 + random_() % 200);
    check(context_->launch(tenant, launch_of("interfere", {blocks}, {32}, arguments)), "a tenant");
  }

  std::mt19937_64 random_;
  soft::Engine* engine_ = nullptr;
  HostMemory memory_;
  std::vector<unsigned> widths_;
  std::unique_ptr<runtime::stats::DevicePage> page_;
  std::unique_ptr<runtime::VirtualContext> context_;
  std::vector<runtime::Stream*> streams_;
  std::uint64_t cell_ = 0;
};

}  // namespace

std::unique_ptr<HalMachine> native_machine(std::uint64_t seed) {
  return std::make_unique<Native>(seed);
}

std::unique_ptr<HalMachine> shared_machine(std::uint64_t seed, const Colocation& colocation) {
  return std::make_unique<Shared>(seed, colocation);
}

}  // namespace vitamin::determinism
