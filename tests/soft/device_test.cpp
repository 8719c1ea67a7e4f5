// SPDX-License-Identifier: Apache-2.0
//
// The software device as a hal::Device.
#include <string>

#include "backends/soft/device.h"
#include "tests/hal/call.h"
#include "tests/soft/harness.h"
#include "tests/soft/kernels.h"

namespace vitamin::soft {
namespace {

std::unique_ptr<Device> open_h200() {
  auto device = open_device();
  REQUIRE(device.has_value());
  return std::move(*device);
}

TEST_CASE("a device of more units than a ComputeSet holds is refused") {
  EngineOptions options;
  options.device = DeviceDescription::h200_ignoring_coscheduling(2);
  const auto device = open_device(options);
  REQUIRE_FALSE(device.has_value());
  CHECK(device.error().code == hal::Errc::kUnsupported);
}

TEST_CASE("the device shows its units and contexts show their processors") {
  auto device = open_h200();
  CHECK(device->info().vendor == hal::Vendor::kSoftware);
  CHECK(device->info().sms == 132);
  CHECK(device->info().units() == 16);
  auto context = device->create_context(hal::ComputeSet::range(14, 2));
  REQUIRE(context.has_value());
  CHECK((*context)->sms() == 20);
  CHECK((*context)->compute() == hal::ComputeSet::range(14, 2));
  CHECK_FALSE(device->create_context(hal::ComputeSet()).has_value());
  CHECK_FALSE(device->create_context(hal::ComputeSet::range(16, 1)).has_value());
}

TEST_CASE("a launch by pointers and one by a packed buffer do the same") {
  auto device = open_h200();
  auto context = device->create_context(hal::ComputeSet::range(0, 1));
  REQUIRE(context.has_value());
  auto queue = (*context)->create_queue(0);
  REQUIRE(queue.has_value());
  std::uint64_t in = 3, out = 0;
  HalCall by_pointer(VITAMIN_SOFT_KERNEL(add_later), {}, {}, (const std::uint64_t*)&in, &out,
                     std::uint64_t{4}, std::uint64_t{10});
  REQUIRE((*queue)->launch(by_pointer.launch) == kOk);
  CHECK((*queue)->query() == kNotReady);
  REQUIRE((*queue)->synchronize() == kOk);
  CHECK(out == 7);

  struct {
    const std::uint64_t* in;
    std::uint64_t* out;
    std::uint64_t add, ns;
  } packed{&in, &out, 5, 10};
  std::size_t bytes = sizeof packed;
  void* extra[] = {reinterpret_cast<void*>(kExtraBuffer), &packed,
                   reinterpret_cast<void*>(kExtraSize), &bytes, nullptr};
  hal::KernelLaunch launch = by_pointer.launch;
  launch.extra = extra;
  CHECK((*queue)->launch(launch) == kInvalidArgument);  // both forms
  launch.arguments = nullptr;
  REQUIRE((*queue)->launch(launch) == kOk);
  REQUIRE((*queue)->synchronize() == kOk);
  CHECK(out == 8);
  bytes = 8;
  CHECK((*queue)->launch(launch) == kInvalidArgument);
}

TEST_CASE("events order a context's queue and an application's stream") {
  auto device = open_h200();
  auto context = device->create_context(hal::ComputeSet::range(2, 1));
  auto queue = (*context)->create_queue(0);
  auto stream = device->create_stream(SyncClass::kBlocking);
  REQUIRE(stream.has_value());
  auto adopted = device->adopt_queue(*stream);
  CHECK(adopted->native() == *stream);
  auto event = device->create_event();
  REQUIRE(event.has_value());
  std::uint64_t value = 1;
  HalCall add(VITAMIN_SOFT_KERNEL(add_later), {}, {}, (const std::uint64_t*)&value, &value,
              std::uint64_t{1}, std::uint64_t{1000});
  REQUIRE(adopted->launch(add.launch) == kOk);
  REQUIRE(adopted->record(*event) == kOk);
  REQUIRE((*queue)->wait(*event) == kOk);
  REQUIRE((*queue)->launch(add.launch) == kOk);
  CHECK(device->query(*event) == kNotReady);
  CHECK(device->synchronize(*event) == kOk);
  CHECK(value == 2);
  CHECK((*queue)->synchronize() == kOk);
  CHECK(value == 3);
  device->destroy_event(*event);
  adopted.reset();
  device->destroy_stream(*stream);
}

TEST_CASE("a whole queue of ours takes part in the legacy order and a pool queue does not") {
  auto device = open_h200();
  Engine& engine = device->engine();
  auto whole = device->create_whole_queue(0);
  auto context = device->create_context(hal::ComputeSet::range(0, 16));
  auto pooled = (*context)->create_queue(0);
  REQUIRE(whole.has_value());
  REQUIRE(pooled.has_value());
  auto* legacy = static_cast<soft::Queue*>(device->legacy_stream());
  bool ended = false, whole_saw = false, pooled_saw = false;
  REQUIRE(engine.work(
              legacy, [] {}, 1000) == kOk);
  REQUIRE(engine.work(
              legacy, [&] { ended = true; }, 0) == kOk);
  REQUIRE(engine.work(
              static_cast<soft::Queue*>((*whole)->native()), [&] { whole_saw = ended; }, 0) == kOk);
  REQUIRE(engine.work(
              static_cast<soft::Queue*>((*pooled)->native()), [&] { pooled_saw = ended; }, 0) ==
          kOk);
  CHECK(engine.drain() == AdvanceResult::kIdle);
  CHECK(whole_saw);
  CHECK_FALSE(pooled_saw);
}

TEST_CASE("layout, name and origin come from the kernel itself") {
  auto device = open_h200();
  auto layout = device->inspector().layout(VITAMIN_SOFT_KERNEL(add_later));
  REQUIRE(layout.has_value());
  CHECK(layout->parameters.size() == 4);
  CHECK(layout->bytes == 32);
  CHECK(device->inspector().name(VITAMIN_SOFT_KERNEL(add_later)) == "add_later");
  CHECK(device->inspector().origin(VITAMIN_SOFT_KERNEL(add_later)) == "soft_test");
  CHECK_FALSE(device->inspector().layout(nullptr).has_value());
}

TEST_CASE("processors_needed is the width at which a context begins to accept a launch") {
  auto device = open_h200();
  std::uint32_t arrived = 0;
  std::uint32_t seen[300] = {};
  for (const std::uint32_t blocks : {1u, 16u, 17u, 100u, 264u, 265u}) {
    HalCall call(VITAMIN_SOFT_KERNEL(grid_barrier), {blocks, 1, 1}, {1024, 1, 1}, &arrived,
                 &seen[0]);
    CHECK(device->inspector().sms_needed(call.launch, false) == 1);
    CHECK(device->inspector().sms_needed(call.launch, true) ==
          (blocks > 264 ? 133 : (blocks + 1) / 2));
    call.launch.cooperative = true;
    call.launch.form = hal::LaunchForm::kCooperative;
    const std::uint32_t needed = device->inspector().sms_needed(call.launch, false);
    CHECK(hal::Outcome::kOk ==
          (blocks > 264 ? hal::Outcome::kOk
                        : device->errors().classify(device->inspector().validate(call.launch))));
    for (unsigned units = 1; units <= 16; ++units) {
      auto context = device->create_context(hal::ComputeSet::range(0, units));
      auto queue = (*context)->create_queue(0);
      const hal::NativeStatus status = (*queue)->launch(call.launch);
      CHECK((status == kOk) == ((*context)->sms() >= needed));
      if (status != kOk)
        CHECK(device->errors().classify(status) == hal::Outcome::kPartitionRefused);
      CHECK(device->engine().drain() == AdvanceResult::kIdle);
      arrived = 0;
    }
  }
}

TEST_CASE("a cluster of 16 needs the whole device through the application's stream") {
  auto device = open_h200();
  std::uint32_t sm[64] = {}, rank[64] = {};
  HalCall call(VITAMIN_SOFT_KERNEL(note_clusters), {64, 1, 1}, {1024, 1, 1}, &sm[0], &rank[0]);
  call.launch.cluster_blocks = 16;
  CHECK(device->inspector().sms_needed(call.launch, false) == 133);
  auto context = device->create_context(hal::ComputeSet::range(0, 16));
  auto queue = (*context)->create_queue(0);
  CHECK(device->errors().classify((*queue)->launch(call.launch)) ==
        hal::Outcome::kPartitionRefused);
  auto stream = device->adopt_queue(device->legacy_stream());
  CHECK(stream->launch(call.launch) == kOk);
  CHECK(stream->synchronize() == kOk);
  call.launch.cluster_blocks = 8;
  CHECK(device->inspector().sms_needed(call.launch, false) == 4);
  CHECK((*queue)->launch(call.launch) == kOk);
}

TEST_CASE("what a launch would answer natively is known without submitting it") {
  auto device = open_h200();
  std::uint32_t count = 0;
  HalCall call(VITAMIN_SOFT_KERNEL(count_blocks), {1, 1, 1}, {1025, 1, 1}, &count);
  CHECK(device->inspector().validate(call.launch) == kInvalidLaunch);
  CHECK(device->errors().classify(kInvalidLaunch) == hal::Outcome::kError);
  call.launch.block = {64, 1, 1};
  CHECK(device->inspector().validate(call.launch) == kOk);
  call.launch.shared_bytes = 1 << 20;
  CHECK(device->inspector().validate(call.launch) == kInvalidLaunch);
  call.launch.shared_bytes = 0;
  call.launch.grid = {0, 1, 1};
  CHECK(device->inspector().validate(call.launch) == kInvalidLaunch);
  call.launch.kernel = nullptr;
  CHECK(device->inspector().validate(call.launch) == kInvalidArgument);
  CHECK(device->errors().classify(device->errors().not_ready()) == hal::Outcome::kNotReady);
  CHECK(device->errors().classify(device->errors().out_of_memory()) == hal::Outcome::kError);
  CHECK(device->engine().outstanding() == 0);
}

TEST_CASE("scripted faults reach the caller of the HAL unchanged") {
  auto device = open_h200();
  auto context = device->create_context(hal::ComputeSet::range(1, 2));
  auto queue = (*context)->create_queue(0);
  std::uint32_t count = 0;
  HalCall call(VITAMIN_SOFT_KERNEL(count_blocks), {1, 1, 1}, {64, 1, 1}, &count);
  InjectedFault refusal{FaultPoint::kLaunch, 0, 1, kClusterTooLarge, {}};
  refusal.sms = device->engine().device().units_of(0b110);
  device->engine().inject(refusal);
  CHECK(device->errors().classify((*queue)->launch(call.launch)) ==
        hal::Outcome::kPartitionRefused);
  CHECK((*queue)->launch(call.launch) == kOk);
  device->engine().inject({FaultPoint::kCreateQueue, 0, 1, kOutOfMemory, {}});
  const auto failed = (*context)->create_queue(0);
  REQUIRE_FALSE(failed.has_value());
  CHECK(failed.error().code == hal::Errc::kOutOfMemory);
  CHECK(failed.error().native == kOutOfMemory);
}

}  // namespace
}  // namespace vitamin::soft
