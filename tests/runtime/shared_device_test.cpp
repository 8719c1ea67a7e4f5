// SPDX-License-Identifier: Apache-2.0
//
// Launches behind what may need the host or another process, on a device that is shared freely
// (Placer::claim_free_sharing).
#include <doctest/doctest.h>

#include <deque>
#include <string>

#include "tests/runtime/fixture.h"

namespace vitamin::tests {
namespace {

VITAMIN_KERNEL_WITH((.block_ns = 5000), sum_kernel, unsigned* total, unsigned amount) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(total, amount); }
}

VITAMIN_KERNEL_WITH((.block_ns = 5000), ncclDevKernel_AllReduce, unsigned* total, unsigned amount) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(total, amount); }
}

// On the whole device that it shares a stream may wait as natively: it keeps no partition busy.
TEST_CASE("Launches behind a held stream are submitted at once where the whole device is shared") {
  for (const bool bounded : {false, true}) {
    Fixture f({.policy = "fifo", .window_ns = bounded ? 2'000'000 : ~0ULL});
    runtime::Stream& held = f.stream();
    runtime::Stream& behind = f.stream();
    unsigned total = 0, one = 1;
    unsigned* address = &total;
    const auto add = [&](runtime::Stream& stream) {
      REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(sum_kernel), {&address, &one}) == 0);
    };
    add(held);
    add(behind);
    soft::Gate* gate = f.hold(held);
    for (int i = 0; i < 50; ++i) add(held);
    soft::Event* event = nullptr;
    REQUIRE(f.engine->create_event(&event) == soft::kOk);
    runtime::EventState state;
    auto record = runtime::call(
        [=, &f](void* q) { return f.engine->record(static_cast<soft::Queue*>(q), event); });
    REQUIRE(f.context->record(held, state, record) == 0);
    auto wait = runtime::call(
        [=, &f](void* q) { return f.engine->wait(static_cast<soft::Queue*>(q), event); });
    REQUIRE(f.context->wait(behind, state, wait) == 0);
    for (int i = 0; i < 50; ++i) add(behind);
    CHECK(f.context->query(held) == soft::kNotReady);
    CHECK(f.page.launches.seen.get() == (bounded ? 2 : 102));
    CHECK(total <= 2);
    f.engine->open_gate(gate);
    CHECK(f.context->synchronize(behind) == 0);
    CHECK(total == 102);
    CHECK(f.page.launches.deferred.get() == (bounded ? 100 : 0));
    CHECK(f.page.whole[static_cast<unsigned>(runtime::stats::WholeReason::kPolicy)].get() == 102);
    CHECK(f.context->synchronize(held) == 0);
    f.context->forget(state);
  }
}

// Streams share hardware queues, and a full one blocks the caller with the device lock held.
TEST_CASE("What waits in the driver on a shared device takes at most half of a queue") {
  Fixture f({.policy = "fifo"});
  const std::uint64_t half = f.context->device().info().queue_depth / 2;
  REQUIRE(half > 100);
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  std::deque<soft::Gate*> gates;
  std::deque<runtime::Stream*> streams;
  const auto add = [&](runtime::Stream& stream) {
    REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(sum_kernel), {&address, &one}) == 0);
  };
  constexpr unsigned kStreams = 4, kLaunches = 400;
  for (unsigned i = 0; i < kStreams; ++i) {
    streams.push_back(&f.stream());
    add(*streams.back());
    gates.push_back(f.hold(*streams.back()));
  }
  for (unsigned i = 0; i < kLaunches; ++i)
    for (runtime::Stream* stream : streams) add(*stream);
  CHECK(f.page.launches.seen.get() > half / 2);
  CHECK(f.page.launches.seen.get() <= half + kStreams);
  for (soft::Gate* gate : gates) f.engine->open_gate(gate);
  for (runtime::Stream* stream : streams) CHECK(f.context->synchronize(*stream) == 0);
  CHECK(total == kStreams * (kLaunches + 1));
}

// Each layer's products wait for the collective of the layer before, on a stream of its own.
TEST_CASE("A distributed step is submitted at once where the whole device is shared") {
  for (const std::string policy : {"fifo", "static"}) {
    Fixture f({.policy = policy});
    runtime::Stream& computes = f.stream();
    runtime::Stream& collects = f.stream();
    unsigned total = 0, collected = 0, one = 1;
    unsigned *total_at = &total, *collected_at = &collected;
    std::deque<runtime::EventState> events;
    const auto come_behind = [&](runtime::Stream& stream, runtime::Stream& before) {
      soft::Event* event = nullptr;
      REQUIRE(f.engine->create_event(&event) == soft::kOk);
      runtime::EventState& state = events.emplace_back();
      auto record = runtime::call(
          [=, &f](void* q) { return f.engine->record(static_cast<soft::Queue*>(q), event); });
      REQUIRE(f.context->record(before, state, record) == 0);
      auto wait = runtime::call(
          [=, &f](void* q) { return f.engine->wait(static_cast<soft::Queue*>(q), event); });
      REQUIRE(f.context->wait(stream, state, wait) == 0);
    };
    const auto step = [&] {
      for (int layer = 0; layer < 20; ++layer) {
        REQUIRE(f.launch(computes, VITAMIN_SOFT_KERNEL(sum_kernel), {&total_at, &one}) == 0);
        come_behind(collects, computes);
        REQUIRE(f.launch(collects, VITAMIN_SOFT_KERNEL(ncclDevKernel_AllReduce),
                         {&collected_at, &one}) == 0);
        come_behind(computes, collects);
      }
    };
    step();
    CHECK(f.context->synchronize(computes) == 0);
    const std::uint64_t deferred = f.page.launches.deferred.get();
    soft::Gate* gate = f.hold(collects);  // a peer is late
    step();
    CHECK((f.page.launches.seen.get() == 80) == (policy == "fifo"));
    f.engine->open_gate(gate);
    CHECK(f.context->synchronize(computes) == 0);
    CHECK((total == 40 && collected == 40));
    CHECK((f.page.launches.deferred.get() == deferred) == (policy == "fifo"));
    CHECK(f.context->synchronize(collects) == 0);
    for (runtime::EventState& state : events) f.context->forget(state);
  }
}

}  // namespace
}  // namespace vitamin::tests
