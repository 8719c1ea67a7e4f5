// SPDX-License-Identifier: Apache-2.0
//
// The determinism suite over the HIP backend: the real runtime, hipcc's code, the software AMD GPU.
#include <doctest/doctest.h>
#include <hip/hip_runtime_api.h>

#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>

#include "backends/hip/device.h"
#include "policies/registry.h"
#include "runtime/virtual_context.h"
#include "tests/determinism/trials.h"

namespace vitamin::determinism {
namespace {

constexpr TrialOptions kTrials{.scale = Scale::kSmall, .trials = 1, .seed = 7};

void check(int status, const std::string& what) {
  if (status != 0) throw std::runtime_error(what + " answered " + std::to_string(status));
}
template <class Value>
Value needed(hal::Result<Value> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

std::unique_ptr<hal::Device> opened() {
  return needed(hip::open_device(needed(hip::open_runtime()), {}));
}

// One process, one module.
const hip::Kernel& kernel_named(const std::string& name) {
  static std::map<std::string, hip::Kernel> kernels;
  static hipModule_t module = [] {
    hipModule_t loaded = nullptr;
    check(hipModuleLoad(&loaded, std::getenv("VITAMIN_TEST_KERNELS")), "VITAMIN_TEST_KERNELS");
    return loaded;
  }();
  hip::Kernel& kernel = kernels[name];
  if (kernel.native == nullptr) {
    hipFunction_t function = nullptr;
    check(hipModuleGetFunction(&function, module, name.c_str()), name);
    kernel.kind = hip::Kernel::Kind::kFunction;
    kernel.native = function;
    kernel.name = name;
  }
  return kernel;
}

class HipMachine : public Machine {
 public:
  unsigned processors() const override { return 104; }
  std::uint64_t allocate(std::size_t bytes) override {
    void* address = nullptr;
    check(hipMalloc(&address, bytes), "hipMalloc");
    blocks_.emplace_back(address, &release);
    return reinterpret_cast<std::uint64_t>(address);
  }
  void launch(const std::string& kernel, Extent grid, Extent block, void** arguments) override {
    hal::KernelLaunch launch;
    launch.kernel = &kernel_named(kernel);
    launch.grid = {grid.x, grid.y, grid.z};
    launch.block = {block.x, block.y, block.z};
    launch.arguments = arguments;
    check(submit(launch), kernel);
  }
  void read(void* to, std::uint64_t from, std::size_t bytes) override {
    check(finish(), "the end of the trials");
    check(hipMemcpy(to, reinterpret_cast<const void*>(from), bytes, hipMemcpyDeviceToHost), "copy");
  }

 protected:
  virtual hal::NativeStatus submit(const hal::KernelLaunch& launch) = 0;
  virtual hal::NativeStatus finish() = 0;

 private:
  static void release(void* address) { static_cast<void>(hipFree(address)); }
  std::vector<std::unique_ptr<void, void (*)(void*)>> blocks_;
};

// Everything on one set of units; no set: on an ordinary stream.
class OnUnits final : public HipMachine {
 public:
  explicit OnUnits(hal::ComputeSet set) : device_(opened()) {
    if (set.empty()) {
      queue_ = needed(device_->create_whole_queue(0));
    } else {
      context_ = needed(device_->create_context(set));
      queue_ = needed(context_->create_queue(0));
    }
  }

 private:
  hal::NativeStatus submit(const hal::KernelLaunch& l) override { return queue_->launch(l); }
  hal::NativeStatus finish() override { return queue_->synchronize(); }
  std::unique_ptr<hal::Device> device_;
  std::unique_ptr<hal::PhysicalContext> context_;
  std::unique_ptr<hal::Queue> queue_;
};

// Through the runtime, a policy choosing for each launch among slots that change all the time.
class Bound final : public HipMachine {
 public:
  explicit Bound(const std::string& policy) {
    runtime::DispatchOptions options;
    options.page = &page;
    options.markers = 64;
    options.slots_stay = std::chrono::milliseconds(20);
    context_ = needed(runtime::VirtualContext::create(opened(), needed(policies::make(policy, 3)),
                                                      options, nullptr));
    check(hipStreamCreateWithFlags(&native_, hipStreamNonBlocking), "hipStreamCreateWithFlags");
    stream_ = &context_->adopt(native_, runtime::StreamKind::kNonBlocking, 0);
  }
  runtime::stats::DevicePage page{};

 private:
  hal::NativeStatus submit(const hal::KernelLaunch& l) override {
    return context_->launch(*stream_, l);
  }
  hal::NativeStatus finish() override { return context_->synchronize(*stream_); }
  std::unique_ptr<runtime::VirtualContext> context_;
  hipStream_t native_ = nullptr;
  runtime::Stream* stream_ = nullptr;
};

using Results = std::map<std::string, std::vector<Digest>>;

Results all_digests(Machine& machine) {
  Results results;
  for (const auto& subject : all_subjects())
    results[subject->name()] = digests(machine, *subject, kTrials);
  return results;
}

const Results& native() {
  static const Results results = [] {
    OnUnits machine{hal::ComputeSet()};
    return all_digests(machine);
  }();
  return results;
}

// Answers how many trials of the excluded subject, which adds in the order of arrival, differ.
unsigned check_equal(Machine& machine) {
  unsigned excluded = 0;
  for (const auto& subject : all_subjects()) {
    CAPTURE(subject->name());
    const unsigned differ =
        differing(native().at(subject->name()), digests(machine, *subject, kTrials));
    if (subject->expect() == Expect::kExcluded)
      excluded += differ;
    else
      CHECK(differ == 0);
  }
  return excluded;
}

TEST_CASE("every entry of the pool gives the bits of the whole device") {
  const auto layout = runtime::PoolLayout::build(opened()->info());
  CHECK(layout.size() > 30);
  unsigned excluded = 0;
  for (const auto& entry : layout.entries()) {
    if (entry.whole()) continue;
    CAPTURE(entry.compute.bits());
    OnUnits machine(entry.compute);
    excluded += check_equal(machine);
  }
  CHECK(excluded > 0);  // the masks do change what may change
}

TEST_CASE("no policy changes a byte while slots change under it") {
  for (const char* policy : {"fifo", "static", "random", "extremes"}) {
    CAPTURE(policy);
    Bound machine(policy);
    check_equal(machine);
    if (std::string(policy) == "random") CHECK(machine.page.launches.moved.get() > 20);
  }
}

TEST_CASE("launches that follow the free processors drift where the structure follows") {
  OnUnits machine{hal::ComputeSet()};
  TrialOptions options = kTrials;
  options.trials = 24;
  for (const auto& subject : all_subjects()) {
    if (subject->expect() == Expect::kExcluded) continue;
    const Drift drift =
        reshaped(machine, *subject, options, [](unsigned trial) { return 8 + trial * 24 % 96; });
    CAPTURE(subject->name());
    CHECK(drift.turned > 0);
    if (subject->expect() == Expect::kDrift)
      CHECK(drift.differing > 0);
    else
      CHECK(drift.differing == 0);
  }
}

}  // namespace
}  // namespace vitamin::determinism
