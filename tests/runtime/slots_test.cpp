// SPDX-License-Identifier: Apache-2.0
//
// Pool queues where they are scarce: few at a time, changed off the dispatch path.
#include <doctest/doctest.h>

#include <set>
#include <thread>

#include "tests/runtime/fixture.h"
#include "tests/soft/kernels.h"
#include "tests/time_limit.h"

namespace vitamin::tests {
namespace {

FixtureOptions scarce(std::chrono::milliseconds stay) {
  FixtureOptions options;
  options.clock = soft::Clock::kReal;
  options.pool_queues_max = 3;
  options.slots_stay = stay;
  return options;
}

using soft::vitamin_kernel_count_blocks;

struct Run {
  std::set<std::uint64_t> queues;  // that ran something, the application's own included
  std::uint64_t most = 0;          // pool queues at any look
};

Run run(Fixture& f, int launches, std::chrono::microseconds apart = {}) {
  runtime::Stream& stream = f.stream();
  std::uint32_t count = 0;
  std::uint32_t* counter = &count;
  Run result;
  for (int i = 0; i < launches; ++i) {
    REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(count_blocks), {&counter}) == hal::kNativeOk);
    result.most = std::max(result.most, f.page.pool.queues.get());
    if (apart.count() > 0) std::this_thread::sleep_for(apart);
  }
  REQUIRE(f.context->synchronize(stream) == hal::kNativeOk);
  CHECK(count == static_cast<std::uint32_t>(launches));
  CHECK(f.page.launches.bound.get() == static_cast<std::uint64_t>(launches));
  for (const Stay& stay : f.stays) result.queues.insert(stay.queue);
  return result;
}

TEST_CASE("as many entries have a queue as there are slots, spread over the widths") {
  soft::EngineOptions options;
  options.device = soft::DeviceDescription::uniform(8, 2);
  for (const std::uint32_t slots : {1U, 3U, 5U, 1000U}) {
    options.device.pool_queues_max = slots;
    auto device = soft::open_device(options);
    REQUIRE(device.has_value());
    const auto layout = runtime::PoolLayout::build((*device)->info());
    auto pool = runtime::PhysicalContextPool::realise(**device, layout);
    REQUIRE(pool.has_value());
    CHECK(pool->realised() == layout.size() - 1);  // every partition can be asked for
    CHECK(pool->queue_count() <= slots);
    CHECK(pool->queue_count() >= std::min(slots, 20U));
    std::set<std::uint32_t> widths;
    for (const auto& partition : layout.partitions())
      if (!partition.whole() && pool->has_queue(partition.id)) widths.insert(partition.sms);
    CHECK(widths.size() >= std::min(slots, 3U));
  }
}

TEST_CASE("slots that stay are never changed, and launches go where a queue is") {
  // Again and again: wishes that come while the first is granted must not be granted as well.
  for (int round = 0; round < 10; ++round) {
    Fixture f(scarce(std::chrono::hours(1)));
    const Run result = run(f, 400);
    // The first wish of all is granted, then nothing changes.
    CHECK(result.queues.size() <= 3 + 1 + 1);
    CHECK(result.most == 3);
  }
}

TEST_CASE("what a policy asks for takes the slot of an idle queue and there are never more") {
  // They are changed on another thread, meanwhile: how long that needs is the machine's.
  std::size_t queues = 0;
  for (int apart_us = 500; queues <= 8 && apart_us <= 32'000; apart_us *= 4) {
    Fixture f(scarce(std::chrono::milliseconds(1)));
    const Run result = run(f, 300, std::chrono::microseconds(apart_us));
    CHECK(result.most <= 3);
    queues = result.queues.size();
  }
  CHECK(queues > 8);
}

// Each owns a slot all the time, so none could move unless another goes elsewhere first.
TEST_CASE("as many busy streams as there are slots do not stay where they are") {
  Fixture f(scarce(std::chrono::hours(1)));
  constexpr unsigned kStreams = 3, kLaunches = 100;
  std::uint32_t counts[kStreams] = {};
  std::uint32_t* counters[kStreams];
  runtime::Stream* streams[kStreams];
  for (unsigned s = 0; s < kStreams; ++s) streams[s] = &f.stream(), counters[s] = &counts[s];
  for (unsigned i = 0; i < kLaunches; ++i)
    for (unsigned s = 0; s < kStreams; ++s)
      REQUIRE(f.launch(*streams[s], VITAMIN_SOFT_KERNEL(count_blocks), {&counters[s]}) ==
              hal::kNativeOk);
  for (unsigned s = 0; s < kStreams; ++s) {
    REQUIRE(f.context->synchronize(*streams[s]) == hal::kNativeOk);
    CHECK(counts[s] == kLaunches);
  }
  CHECK(f.page.launches.moved.get() > kStreams * kLaunches / 10);
}

TEST_CASE("a queue that cannot be created costs a slot and no launch") {
  Fixture f(scarce(std::chrono::milliseconds(1)));
  runtime::Stream& stream = f.stream();
  f.engine->inject({soft::FaultPoint::kCreateQueue, 1, ~0ULL, soft::kOutOfMemory, {}});
  const Run result = run(f, 200, std::chrono::microseconds(200));
  CHECK(result.most <= 3);
  // The thread that changes them may not have run meanwhile, or have found none idle.
  std::uint32_t count = 0;
  std::uint32_t* counter = &count;
  CHECK(test::eventually([&] {
    REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(count_blocks), {&counter}) == hal::kNativeOk);
    return f.page.pool.queues.get() <= 2;
  }));
  CHECK(f.context->synchronize(stream) == hal::kNativeOk);
}

}  // namespace
}  // namespace vitamin::tests
