// SPDX-License-Identifier: Apache-2.0
//
// What fits where, who shares an SM with whom, and block orders that depend on the allocation.
#include <algorithm>
#include <set>

#include "backends/soft/hash.h"
#include "tests/soft/harness.h"
#include "tests/soft/kernels.h"

namespace vitamin::soft {
namespace {

struct Order {
  std::vector<std::uint32_t> place, sm;
  friend bool operator==(const Order&, const Order&) = default;
};

Order order_of(const SmSet& sms, std::uint32_t blocks, std::uint64_t seed, bool warm = false) {
  auto engine = make_engine(DeviceDescription::h200(), seed);
  Queue* queue = make_queue(*engine, sms);
  if (warm) {  // an unrelated past must not show
    Call before(VITAMIN_SOFT_KERNEL(busy), {37, 1, 1}, {512, 1, 1}, std::uint64_t{123});
    REQUIRE(engine->launch(queue, *before) == kOk);
    REQUIRE(engine->work(
                queue, [] {}, 77) == kOk);
  }
  std::uint32_t next = 0;
  Order order{std::vector<std::uint32_t>(blocks), std::vector<std::uint32_t>(blocks)};
  Call call(VITAMIN_SOFT_KERNEL(trace_order), {blocks, 1, 1}, {256, 1, 1}, &next,
            order.place.data(), order.sm.data());
  REQUIRE(engine->launch(queue, *call) == kOk);
  REQUIRE(engine->synchronize(queue) == kOk);
  CHECK(next == blocks);
  return order;
}

TEST_CASE("the order of blocks is a function of grid, SM set and seed, and of all three") {
  const DeviceDescription device = DeviceDescription::h200();
  const SmSet one = device.unit(3);
  CHECK(order_of(one, 40, 1) == order_of(one, 40, 1));
  CHECK(order_of(one, 40, 1) == order_of(one, 40, 1, true));
  CHECK(order_of(one, 40, 1).place != order_of(one, 40, 2).place);
  CHECK(order_of(one, 40, 1).place != order_of(device.unit(4), 40, 1).place);
  CHECK(order_of(one, 40, 1).place != order_of(device.all(), 40, 1).place);
  CHECK(order_of(one, 40, 1).place != order_of(one | device.unit(9), 40, 1).place);
  const Order order = order_of(one, 40, 1);
  for (const std::uint32_t sm : order.sm) CHECK(one.has(sm));
  CHECK(std::set<std::uint32_t>(order.sm.begin(), order.sm.end()).size() == 8);
}

TEST_CASE("a sum by atomics differs between SM sets; a fixed tree has the same bits on all") {
  constexpr std::uint32_t kCount = 1 << 14;
  std::vector<float> in(kCount);
  Random random(5);
  for (float& value : in) value = static_cast<float>(random.below(1 << 20)) * 1e-5f;
  std::set<std::uint32_t> atomic_bits;
  std::set<std::vector<float>> trees;
  for (std::uint32_t width = 1; width <= 16; ++width) {
    auto engine = make_engine(DeviceDescription::h200());
    Queue* queue = make_queue(*engine, engine->device().units_of((1u << width) - 1));
    float sum = 0;
    std::vector<float> partial(64);
    Call atomic(VITAMIN_SOFT_KERNEL(sum_atomic), {64, 1, 1}, {128, 1, 1}, (const float*)in.data(),
                &sum, kCount);
    Call tree(VITAMIN_SOFT_KERNEL(sum_partial), {64, 1, 1}, {128, 1, 1}, (const float*)in.data(),
              partial.data(), kCount);
    REQUIRE(engine->launch(queue, *atomic) == kOk);
    REQUIRE(engine->launch(queue, *tree) == kOk);
    REQUIRE(engine->synchronize(queue) == kOk);
    atomic_bits.insert(kernel::float_bits(sum));
    trees.insert(partial);
  }
  CHECK(atomic_bits.size() > 4);
  CHECK(trees.size() == 1);
}

TEST_CASE("occupancy follows threads, blocks, shared memory and registers") {
  auto engine = make_engine(DeviceDescription::h200());
  KernelDescriptor kernel = *VITAMIN_SOFT_KERNEL(count_blocks);
  CHECK(engine->blocks_per_sm(kernel, 1024, 0) == 2);
  CHECK(engine->blocks_per_sm(kernel, 32, 0) == 32);
  CHECK(engine->blocks_per_sm(kernel, 33, 0) == 32);  // two warps
  CHECK(engine->blocks_per_sm(kernel, 65, 0) == 21);  // three warps of 96 threads
  CHECK(engine->blocks_per_sm(kernel, 128, 100 * 1024) == 2);
  CHECK(engine->blocks_per_sm(kernel, 128, 227 * 1024) == 1);
  CHECK(engine->blocks_per_sm(kernel, 128, 227 * 1024 + 1) == 0);
  CHECK(engine->blocks_per_sm(kernel, 1025, 0) == 0);
  kernel.traits.registers = 255;
  CHECK(engine->blocks_per_sm(kernel, 256, 0) == 1);
  CHECK(engine->blocks_per_sm(kernel, 512, 0) == 0);
  kernel.traits.registers = 32;
  kernel.traits.max_threads = 256;
  CHECK(engine->blocks_per_sm(kernel, 257, 0) == 0);
}

TEST_CASE("a kernel takes as many waves as its SMs need") {
  const auto time = [](std::uint32_t units, std::uint32_t blocks) {
    auto engine = make_engine(DeviceDescription::uniform(8, 2));
    Queue* queue = make_queue(*engine, engine->device().units_of((1u << units) - 1));
    Call call(VITAMIN_SOFT_KERNEL(busy), {blocks, 1, 1}, {1024, 1, 1}, std::uint64_t{1000});
    REQUIRE(engine->launch(queue, *call) == kOk);
    REQUIRE(engine->synchronize(queue) == kOk);
    return engine->now();
  };
  CHECK(time(8, 32) == 1000);
  CHECK(time(8, 33) == 2000);
  CHECK(time(4, 32) == 2000);
  CHECK(time(1, 32) == 8000);
}

TEST_CASE("kernels on disjoint SMs do not delay each other and on the same SMs they do") {
  const auto time = [](std::uint64_t units_a, std::uint64_t units_b) {
    auto engine = make_engine(DeviceDescription::uniform(8, 2));
    for (const std::uint64_t units : {units_a, units_b}) {
      Queue* queue = make_queue(*engine, engine->device().units_of(units));
      for (int i = 0; i < 10; ++i) {
        Call call(VITAMIN_SOFT_KERNEL(busy), {16, 1, 1}, {1024, 1, 1}, std::uint64_t{1000});
        REQUIRE(engine->launch(queue, *call) == kOk);
      }
    }
    CHECK(engine->drain() == AdvanceResult::kIdle);
    return engine->now();
  };
  CHECK(time(0x0f, 0xf0) == 10'000);
  CHECK(time(0x0f, 0x0f) == 20'000);
}

TEST_CASE("two small kernels of different queues are resident on one SM at once") {
  auto engine = make_engine(DeviceDescription::uniform(1, 1));
  Queue* a = make_queue(*engine);
  Queue* b = make_queue(*engine);
  std::uint32_t flag = 0;
  Call spin(VITAMIN_SOFT_KERNEL(spin_on), {}, {256, 1, 1}, (const std::uint32_t*)&flag);
  Call signal(VITAMIN_SOFT_KERNEL(signal_after), {}, {256, 1, 1}, &flag, std::uint64_t{400});
  REQUIRE(engine->launch(a, *spin) == kOk);
  REQUIRE(engine->launch(b, *signal) == kOk);
  CHECK(engine->drain() == AdvanceResult::kIdle);
  CHECK(engine->now() == 400);
}

Event* make_event(Engine& engine) {
  Event* event = nullptr;
  REQUIRE(engine.create_event(&event) == kOk);
  return event;
}

Nanoseconds time_of(Engine& engine, Event* event) {
  Nanoseconds at = 0;
  REQUIRE(engine.event_time(event, &at) == kOk);
  return at;
}

TEST_CASE("a kernel of higher priority gets the SMs that come free first") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    auto engine = make_engine(DeviceDescription::uniform(1, 1), seed);
    Queue* first = make_queue(*engine);
    Queue* low = make_queue(*engine, engine->device().all(), SyncClass::kNonBlocking, 0);
    Queue* high = make_queue(*engine, engine->device().all(), SyncClass::kNonBlocking, -5);
    Call call(VITAMIN_SOFT_KERNEL(busy), {2, 1, 1}, {1024, 1, 1}, std::uint64_t{1000});
    Event* low_done = make_event(*engine);
    Event* high_done = make_event(*engine);
    REQUIRE(engine->launch(first, *call) == kOk);
    REQUIRE(engine->advance() == AdvanceResult::kMoved);  // it has the SM
    REQUIRE(engine->launch(low, *call) == kOk);
    REQUIRE(engine->record(low, low_done) == kOk);
    REQUIRE(engine->launch(high, *call) == kOk);
    REQUIRE(engine->record(high, high_done) == kOk);
    CHECK(engine->drain() == AdvanceResult::kIdle);
    CHECK(time_of(*engine, high_done) == 2000);
    CHECK(time_of(*engine, low_done) == 3000);
  }
}

TEST_CASE("a gang gets its SMs as soon as they are free, ahead of kernels that came later") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    auto engine = make_engine(DeviceDescription::uniform(1, 1), seed);
    Call half(VITAMIN_SOFT_KERNEL(busy), {1, 1, 1}, {1024, 1, 1}, std::uint64_t{1000});
    Call gang(VITAMIN_SOFT_KERNEL(busy), {2, 1, 1}, {1024, 1, 1}, std::uint64_t{500});
    Call later(VITAMIN_SOFT_KERNEL(busy), {1, 1, 1}, {1024, 1, 1}, std::uint64_t{600});
    gang->cooperative = true;
    Queue* gang_queue = make_queue(*engine);
    Queue* later_queue = make_queue(*engine);
    Event* gang_done = make_event(*engine);
    REQUIRE(engine->launch(make_queue(*engine), *half) == kOk);
    REQUIRE(engine->advance() == AdvanceResult::kMoved);
    REQUIRE(engine->launch(gang_queue, *gang) == kOk);
    REQUIRE(engine->record(gang_queue, gang_done) == kOk);
    REQUIRE(engine->advance() == AdvanceResult::kMoved);  // half of the SM is free, but not enough
    for (int i = 0; i < 5; ++i) REQUIRE(engine->launch(later_queue, *later) == kOk);
    CHECK(engine->drain() == AdvanceResult::kIdle);
    CHECK(time_of(*engine, gang_done) == 1500);
    CHECK(engine->now() == 1500 + 5 * 600);
  }
}

TEST_CASE("a kernel that stood behind a gang goes on as soon as the gang is placed") {
  auto engine = make_engine(DeviceDescription::uniform(2, 1));
  Call blocker(VITAMIN_SOFT_KERNEL(busy), {4, 1, 1}, {512, 1, 1}, std::uint64_t{1000});
  Call gang(VITAMIN_SOFT_KERNEL(busy), {6, 1, 1}, {512, 1, 1}, std::uint64_t{5000});
  Call behind(VITAMIN_SOFT_KERNEL(busy), {1, 1, 1}, {512, 1, 1}, std::uint64_t{700});
  gang->cooperative = true;
  Queue* behind_queue = make_queue(*engine, engine->device().unit(1));
  Event* behind_done = make_event(*engine);
  REQUIRE(engine->launch(make_queue(*engine, engine->device().unit(0)), *blocker) == kOk);
  REQUIRE(engine->advance() == AdvanceResult::kMoved);
  REQUIRE(engine->launch(make_queue(*engine), *gang) == kOk);
  REQUIRE(engine->advance() == AdvanceResult::kMoved);
  REQUIRE(engine->launch(behind_queue, *behind) == kOk);
  REQUIRE(engine->record(behind_queue, behind_done) == kOk);
  CHECK(engine->drain() == AdvanceResult::kIdle);
  // At 1000 the gang takes three quarters of each SM; nothing has come free on unit 1 itself.
  CHECK(time_of(*engine, behind_done) == 1700);
}

TEST_CASE("a cooperative grid runs when all of it fits at once and is refused when it does not") {
  auto engine = make_engine(DeviceDescription::uniform(4, 2));
  const SmSet narrow = engine->device().unit(2);
  Queue* queue = make_queue(*engine, narrow);
  std::uint32_t arrived = 0;
  std::vector<std::uint32_t> seen(8);
  Call fits(VITAMIN_SOFT_KERNEL(grid_barrier), {4, 1, 1}, {1024, 1, 1}, &arrived, seen.data());
  fits->cooperative = true;
  REQUIRE(engine->launch(queue, *fits) == kOk);
  CHECK(engine->synchronize(queue) == kOk);
  CHECK(seen == std::vector<std::uint32_t>{8, 8, 8, 8, 0, 0, 0, 0});

  Call large(VITAMIN_SOFT_KERNEL(grid_barrier), {5, 1, 1}, {1024, 1, 1}, &arrived, seen.data());
  large->cooperative = true;
  CHECK(engine->launch(queue, *large) == kCooperativeTooLarge);
  CHECK(engine->check_launch(make_queue(*engine), *large) == kOk);
  CHECK(engine->outstanding() == 0);
}

TEST_CASE("a grid barrier that does not say so hangs where it does not fit, and it shows") {
  auto engine = make_engine(DeviceDescription::uniform(4, 2));
  Queue* queue = make_queue(*engine, engine->device().unit(0));
  std::uint32_t arrived = 0;
  std::vector<std::uint32_t> seen(5);
  Call call(VITAMIN_SOFT_KERNEL(grid_barrier), {5, 1, 1}, {1024, 1, 1}, &arrived, seen.data());
  REQUIRE(engine->launch(queue, *call) == kOk);
  CHECK(engine->synchronize(queue) == kStuck);
  CHECK(engine->drain() == AdvanceResult::kBlocked);
}

TEST_CASE("two cooperative kernels that cannot be resident together take turns") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    auto engine = make_engine(DeviceDescription::uniform(2, 2), seed);
    std::uint32_t arrived[4] = {};
    std::vector<std::uint32_t> seen(6);
    for (std::uint32_t& counter : arrived) {
      Call call(VITAMIN_SOFT_KERNEL(grid_barrier), {6, 1, 1}, {1024, 1, 1}, &counter, seen.data());
      call->cooperative = true;
      REQUIRE(engine->launch(make_queue(*engine), *call) == kOk);
    }
    CHECK(engine->drain() == AdvanceResult::kIdle);
    for (const std::uint32_t counter : arrived) CHECK(counter == 12);
  }
}

struct Clusters {
  Status status;
  std::vector<std::uint32_t> sm, rank;
};

Clusters run_clusters(Engine& engine, const SmSet& sms, bool whole, std::uint32_t size,
                      std::uint32_t clusters) {
  QueueOptions options;
  options.sms = sms;
  if (!whole) options.clusters = std::make_shared<const ClusterRule>(engine.device().unit_rule());
  Queue* queue = nullptr;
  REQUIRE(engine.create_queue(options, &queue) == kOk);
  Clusters result;
  result.sm.resize(std::size_t{size} * clusters);
  result.rank.resize(std::size_t{size} * clusters);
  Call call(VITAMIN_SOFT_KERNEL(note_clusters), {size * clusters, 1, 1}, {1024, 1, 1},
            result.sm.data(), result.rank.data());
  call->cluster_blocks = size;
  result.status = engine.launch(queue, *call);
  CHECK(engine.drain() == AdvanceResult::kIdle);
  engine.destroy_queue(queue);
  return result;
}

TEST_CASE("clusters up to 8 run inside a unit, clusters of 16 only on the whole device") {
  auto engine = make_engine(DeviceDescription::h200());
  const DeviceDescription& device = engine->device();
  for (const std::uint32_t size : {2u, 4u, 8u}) {
    CHECK(run_clusters(*engine, device.unit(0), false, size, 20).status == kOk);
    CHECK(run_clusters(*engine, device.all(), false, size, 20).status == kOk);
  }
  CHECK(run_clusters(*engine, device.all(), false, 16, 4).status == kClusterTooLarge);
  CHECK(run_clusters(*engine, device.all(), true, 16, 20).status == kOk);
  CHECK(run_clusters(*engine, device.all(), true, 32, 4).status == kClusterTooLarge);

  auto pairs = make_engine(DeviceDescription::h200_ignoring_coscheduling(2));
  CHECK(pairs->device().units() == 66);
  CHECK(run_clusters(*pairs, pairs->device().all(), false, 2, 20).status == kOk);
  CHECK(run_clusters(*pairs, pairs->device().all(), false, 4, 20).status == kClusterTooLarge);
}

TEST_CASE("a cooperative grid of clusters is resident as a whole or refused") {
  auto engine = make_engine(DeviceDescription::uniform(4, 5));
  QueueOptions options;
  options.sms = engine->device().units_of(0b0011);
  options.clusters = std::make_shared<const ClusterRule>(engine->device().unit_rule());
  Queue* queue = nullptr;
  REQUIRE(engine->create_queue(options, &queue) == kOk);
  // Ten blocks a unit, so two clusters of four in each: four clusters in all.
  for (const std::uint32_t clusters : {1u, 4u, 5u}) {
    std::uint32_t arrived = 0;
    std::vector<std::uint32_t> seen(20);
    Call call(VITAMIN_SOFT_KERNEL(grid_barrier), {4 * clusters, 1, 1}, {1024, 1, 1}, &arrived,
              seen.data());
    call->cooperative = true;
    call->cluster_blocks = 4;
    CHECK(engine->launch(queue, *call) == (clusters < 5 ? kOk : kCooperativeTooLarge));
    CHECK(engine->drain() == AdvanceResult::kIdle);
    CHECK(arrived == (clusters < 5 ? 8 * clusters : 0));
  }
}

TEST_CASE("a cluster needs as many SMs as it has blocks") {
  auto engine = make_engine(DeviceDescription::h200());
  const DeviceDescription& device = engine->device();
  const SmSet rest = device.unit(15);
  Call pair(VITAMIN_SOFT_KERNEL(grid_barrier), {4, 1, 1}, {32, 1, 1}, nullptr, nullptr);
  pair->cluster_blocks = 2;
  CHECK(engine->check_launch(rest, device.unit_rule(), *pair) == kOk);
  // Two SMs could hold these four blocks, and they are no cluster.
  pair->cluster_blocks = 4;
  CHECK(engine->check_launch(rest, device.unit_rule(), *pair) == kClusterTooLarge);
}

TEST_CASE("every cluster lies in one group, its ranks in order") {
  auto engine = make_engine(DeviceDescription::h200());
  const DeviceDescription& device = engine->device();
  const Clusters inside =
      run_clusters(*engine, device.unit(2) | device.unit(7) | device.unit(15), false, 4, 30);
  REQUIRE(inside.status == kOk);
  for (std::size_t first = 0; first < inside.sm.size(); first += 4) {
    const auto unit_of = [&](std::uint32_t sm) {
      for (std::uint32_t unit = 0; unit < device.units(); ++unit)
        if (device.unit(unit).has(sm)) return unit;
      return device.units();
    };
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(inside.rank[first + i] == i);
      CHECK(unit_of(inside.sm[first + i]) == unit_of(inside.sm[first]));
    }
  }
}

TEST_CASE("descriptions have the units and SMs that they stand for") {
  const DeviceDescription h200 = DeviceDescription::h200();
  CHECK(h200.units() == 16);
  CHECK(h200.sms() == 132);
  CHECK(h200.unit_sms[14] == 8);
  CHECK(h200.unit_sms[15] == 12);
  CHECK(h200.unit(15).count() == 12);
  const DeviceDescription eights = DeviceDescription::h200_ignoring_coscheduling(8);
  CHECK(eights.units() == 17);
  CHECK(eights.unit_sms.back() == 4);
  CHECK(eights.max_cluster_in_unit == 2);
  SmSet all;
  for (std::uint32_t unit = 0; unit < h200.units(); ++unit) {
    CHECK_FALSE(all.overlaps(h200.unit(unit)));
    all = all | h200.unit(unit);
  }
  CHECK(all == h200.all());
}

TEST_CASE("random kernels on random SM sets never exceed an SM and all end") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    auto engine = make_engine(DeviceDescription::uniform(static_cast<std::uint32_t>(2 + seed % 7),
                                                         static_cast<std::uint32_t>(1 + seed % 3)),
                              seed);
    const std::uint32_t units = engine->device().units();
    std::uint32_t count = 0, expected = 0;
    for (int q = 0; q < 6; ++q) {
      const std::uint64_t bits = 1 + random.below((1u << units) - 1);
      Queue* queue = make_queue(*engine, engine->device().units_of(bits));
      for (int i = 0; i < 5; ++i) {
        const auto blocks = static_cast<std::uint32_t>(1 + random.below(50));
        const auto threads = static_cast<std::uint32_t>(1 + random.below(1024));
        Call call(VITAMIN_SOFT_KERNEL(count_blocks), {blocks, 1, 1}, {threads, 1, 1}, &count);
        call->dynamic_shared = static_cast<std::uint32_t>(random.below(100'000));
        call->cooperative = random.below(4) == 0 &&
                            (call->cooperative = true, engine->check_launch(queue, *call)) == kOk;
        REQUIRE(engine->launch(queue, *call) == kOk);
        expected += blocks;
      }
    }
    CHECK(engine->drain() == AdvanceResult::kIdle);
    CHECK(count == expected);
  }
}

}  // namespace
}  // namespace vitamin::soft
