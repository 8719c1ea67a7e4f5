// SPDX-License-Identifier: Apache-2.0
//
// What an operation comes behind when the lock was dropped while it came in, and how much a native
// queue is given.
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>

#include "backends/soft/kernel.h"
#include "tests/runtime/fixture.h"

namespace vitamin::tests {
namespace {

using runtime::call;
using runtime::Keep;
using runtime::StreamKind;

VITAMIN_KERNEL_WITH((.block_ns = 5000), count_kernel, unsigned* total) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(total, 1U); }
}
VITAMIN_WAITING_KERNEL(until_kernel, unsigned* flag) {
  VITAMIN_SPIN_UNTIL(vitamin::kernel::load_acquire(flag) != 0);
}

// More than a queue takes, behind a kernel that waits for the host.
void fill(Fixture& f, runtime::Stream& stream, unsigned* flag, unsigned* total) {
  REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(until_kernel), {&flag}) == 0);
  for (unsigned i = 0; i < 1200; ++i)
    REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(count_kernel), {&total}) == 0);
}

// A call that cannot be kept waits for room on `waiting`; meanwhile, without the lock, `other` gets
// an operation. When the call has returned, the next operation of `other` comes behind it.
void call_waits_for_room(StreamKind waits, StreamKind comes) {
  unsigned flag = 0;
  unsigned before = 0;
  unsigned meanwhile = 0;
  unsigned behind = 0;
  std::function<void()> on_idle;
  Fixture f({.policy = "static", .on_idle = [&] {
               if (on_idle) on_idle();
             }});
  runtime::Stream& blocking = f.stream(StreamKind::kBlocking);
  const auto stream_of = [&](StreamKind kind) -> runtime::Stream& {
    return kind == StreamKind::kLegacy ? f.context->legacy() : blocking;
  };
  runtime::Stream& waiting = stream_of(waits);
  runtime::Stream& other = stream_of(comes);
  fill(f, waiting, &flag, &before);
  REQUIRE_FALSE(waiting.deferral.operations.empty());

  bool dropped = false;
  on_idle = [&] {
    if (std::exchange(dropped, true)) return;
    unsigned* total = &meanwhile;
    REQUIRE(f.launch(other, VITAMIN_SOFT_KERNEL(count_kernel), {&total}) == 0);
    flag = 1;
  };
  soft::Gate* gate = f.engine->create_gate();
  auto hold = call([&](void* q) { return f.engine->wait_gate(static_cast<soft::Queue*>(q), gate); },
                   Keep::kNo);
  REQUIRE(f.context->bridge(waiting, hold) == 0);
  CHECK(dropped);

  unsigned* total = &behind;
  REQUIRE(f.launch(other, VITAMIN_SOFT_KERNEL(count_kernel), {&total}) == 0);
  for (unsigned i = 0; i < 4000; ++i) {
    f.context->query(other);
    f.engine->advance();
  }
  CHECK(before == 1200);
  CHECK(behind == 0);
  f.engine->open_gate(gate);
  CHECK(f.context->synchronize(other) == 0);
  CHECK(behind == 1);
  CHECK(meanwhile == 1);
}

TEST_CASE("A legacy operation is ordered behind a blocking call that waited for room") {
  call_waits_for_room(StreamKind::kBlocking, StreamKind::kLegacy);
}

TEST_CASE("A blocking stream's operation is ordered behind a legacy call that waited for room") {
  call_waits_for_room(StreamKind::kLegacy, StreamKind::kBlocking);
}

// Counts what native queues were given and have not ended, waits and records included.
TEST_CASE("A native queue is never given more than it takes without blocking") {
  for (const char* policy : {"static", "fifo", "random"}) {
    CAPTURE(policy);
    Fixture f({.policy = policy});
    unsigned flag = 0;
    unsigned total = 0;
    runtime::Stream& first = f.stream(StreamKind::kBlocking);
    runtime::Stream& second = f.stream(StreamKind::kBlocking);
    unsigned* address = &flag;
    REQUIRE(f.launch(first, VITAMIN_SOFT_KERNEL(until_kernel), {&address}) == 0);
    soft::Event* event = nullptr;
    REQUIRE(f.engine->create_event(&event) == soft::kOk);
    runtime::EventState state;
    auto record =
        call([&](void* q) { return f.engine->record(static_cast<soft::Queue*>(q), event); });
    auto wait = call([&](void* q) { return f.engine->wait(static_cast<soft::Queue*>(q), event); });
    unsigned* counter = &total;
    for (unsigned i = 0; i < 700; ++i) {
      REQUIRE(f.launch(first, VITAMIN_SOFT_KERNEL(count_kernel), {&counter}) == 0);
      REQUIRE(f.context->record(first, state, record) == 0);
      REQUIRE(f.context->wait(second, state, wait) == 0);
      REQUIRE(f.launch(second, VITAMIN_SOFT_KERNEL(count_kernel), {&counter}) == 0);
      if (i % 3 == 0)
        REQUIRE(f.launch(f.context->legacy(), VITAMIN_SOFT_KERNEL(count_kernel), {&counter}) == 0);
    }
    CHECK(f.most_outstanding() <= 1000);
    flag = 1;
    CHECK(f.context->synchronize(first) == 0);
    CHECK(f.context->synchronize(second) == 0);
    CHECK(f.context->synchronize(f.context->legacy()) == 0);
    CHECK(total == 700 + 700 + 234);
    CHECK(f.most_outstanding() <= 1000);
    f.context->forget(state);
  }
}

}  // namespace
}  // namespace vitamin::tests
