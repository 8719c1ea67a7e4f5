// SPDX-License-Identifier: Apache-2.0
//
// Allocations and frees in the order of a stream.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "runtime/virtual_context.h"
#include "tests/runtime/fixture.h"

namespace vitamin::tests {
namespace {

using runtime::call;
using runtime::StreamKind;

VITAMIN_KERNEL_WITH((.block_ns = 5000), stored_kernel, unsigned* total, unsigned amount) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(total, amount); }
}

// Counts the calls that reach the driver.
struct Pool {
  explicit Pool(Fixture& fixture) : f(fixture) {}
  std::uint64_t allocate(runtime::Stream& stream, std::size_t bytes, const void* pool = nullptr) {
    runtime::MemoryBlock block{0, bytes, pool};
    auto call = runtime::call([&](void*) {
      block.address = ++allocated;
      return hal::kNativeOk;
    });
    CHECK(f.context->allocate(stream, block, call) == 0);
    return block.address;
  }
  void free(runtime::Stream& stream, std::uint64_t address) {
    auto call = runtime::call([this](void*) {
      ++freed;
      return hal::kNativeOk;
    });
    CHECK(f.context->free(stream, address, call) == 0);
  }
  Fixture& f;
  unsigned allocated = 0, freed = 0;
};

TEST_CASE("memory_that_a_deferred_operation_frees_is_given_out_again") {
  Fixture f;
  Pool pool(f);
  runtime::Stream& held = f.stream();
  runtime::Stream& other = f.stream();
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  soft::Gate* gate = f.hold(held);
  for (unsigned i = 0; i < 20; ++i) {
    const std::uint64_t block = pool.allocate(held, 4096);
    CHECK(block == 1);
    REQUIRE(f.launch(held, VITAMIN_SOFT_KERNEL(stored_kernel), {&address, &one}) == 0);
    pool.free(held, block);
  }
  CHECK(pool.allocated == 1);
  // Neither by another stream nor from another pool.
  CHECK(pool.allocate(other, 4096) == 2);
  const int elsewhere = 0;
  CHECK(held.deferral.operations.size() > 0);
  CHECK(pool.allocate(held, 4096, &elsewhere) == 3);
  f.engine->open_gate(gate);
  CHECK(f.context->synchronize(held) == 0);
  CHECK(total == 20);
  CHECK(pool.freed == 1);
  CHECK(held.deferral.freed_bytes == 0);
}

TEST_CASE("deferred_frees_are_made_before_memory_of_another_size_is_allocated") {
  Fixture f;
  Pool pool(f);
  runtime::Stream& held = f.stream();
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  soft::Gate* gate = f.hold(held);
  for (std::size_t bytes : {4096, 8192, 8192, 4096}) {
    const std::uint64_t block = pool.allocate(held, bytes);
    REQUIRE(f.launch(held, VITAMIN_SOFT_KERNEL(stored_kernel), {&address, &one}) == 0);
    pool.free(held, block);
  }
  CHECK(pool.allocated == 3);
  CHECK(pool.freed == 2);
  CHECK(held.deferral.freed_bytes == 4096);
  f.engine->open_gate(gate);
  CHECK(f.context->synchronize(held) == 0);
  CHECK(total == 4);
  CHECK(pool.freed == 3);
}

TEST_CASE("A query and a synchronisation cover an allocation whose memory is not there yet") {
  for (const StreamKind kind : {StreamKind::kNonBlocking, StreamKind::kBlocking}) {
    CAPTURE(static_cast<int>(kind));
    Fixture fixture({.policy = "static"});
    runtime::Stream& stream = fixture.stream(kind);
    unsigned total = 0;
    unsigned* address = &total;
    unsigned amount = 1;
    REQUIRE(fixture.launch(stream, VITAMIN_SOFT_KERNEL(stored_kernel), {&address, &amount}) ==
            hal::kNativeOk);
    REQUIRE(fixture.context->synchronize(stream) == hal::kNativeOk);
    soft::Gate* freed = fixture.engine->create_gate();
    runtime::MemoryBlock block;  // its address is not looked at
    auto allocate = call(
        [&](void* q) { return fixture.engine->wait_gate(static_cast<soft::Queue*>(q), freed); });
    for (const bool behind_a_kernel : {false, true}) {
      CAPTURE(behind_a_kernel);
      if (behind_a_kernel)
        REQUIRE(fixture.launch(stream, VITAMIN_SOFT_KERNEL(stored_kernel), {&address, &amount}) ==
                hal::kNativeOk);
      REQUIRE(fixture.context->allocate(stream, block, allocate) == hal::kNativeOk);
      for (int i = 0; i < 2000; ++i) fixture.engine->advance();
      CHECK(fixture.context->query(stream) == soft::kNotReady);
      if (!behind_a_kernel) continue;
      fixture.engine->destroy_gate(freed);
      CHECK(fixture.context->synchronize(stream) == hal::kNativeOk);
      CHECK(fixture.context->query(stream) == hal::kNativeOk);
      break;
    }
    CHECK(total == 2);
  }
}

TEST_CASE("A synchronisation waits until the memory of an allocation is there") {
  Fixture fixture({.policy = "static", .clock = soft::Clock::kReal});
  runtime::Stream& stream = fixture.stream();
  unsigned total = 0;
  unsigned* address = &total;
  unsigned amount = 1;
  REQUIRE(fixture.launch(stream, VITAMIN_SOFT_KERNEL(stored_kernel), {&address, &amount}) ==
          hal::kNativeOk);
  REQUIRE(fixture.context->synchronize(stream) == hal::kNativeOk);
  soft::Gate* freed = fixture.engine->create_gate();
  runtime::MemoryBlock block;  // its address is not looked at
  auto allocate =
      call([&](void* q) { return fixture.engine->wait_gate(static_cast<soft::Queue*>(q), freed); });
  REQUIRE(fixture.context->allocate(stream, block, allocate) == hal::kNativeOk);
  std::atomic<bool> there{false};
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    there = true;
    fixture.engine->destroy_gate(freed);
  });
  CHECK(fixture.context->synchronize(stream) == hal::kNativeOk);
  CHECK(there);
  other.join();
}

// The legacy stream comes behind everything that a blocking stream holds, allocations included.
TEST_CASE("A launch on the legacy stream comes behind an allocation of a blocking stream") {
  Fixture fixture({.policy = "static"});
  runtime::Stream& stream = fixture.stream(StreamKind::kBlocking);
  unsigned total = 0;
  unsigned* address = &total;
  unsigned amount = 1;
  REQUIRE(fixture.launch(stream, VITAMIN_SOFT_KERNEL(stored_kernel), {&address, &amount}) ==
          hal::kNativeOk);
  REQUIRE(fixture.context->synchronize(stream) == hal::kNativeOk);
  soft::Gate* freed = fixture.engine->create_gate();
  runtime::MemoryBlock block;  // its address is not looked at
  auto allocate =
      call([&](void* q) { return fixture.engine->wait_gate(static_cast<soft::Queue*>(q), freed); });
  REQUIRE(fixture.context->allocate(stream, block, allocate) == hal::kNativeOk);
  REQUIRE(fixture.launch(fixture.context->legacy(), VITAMIN_SOFT_KERNEL(stored_kernel),
                         {&address, &amount}) == hal::kNativeOk);
  for (int i = 0; i < 2000; ++i) fixture.engine->advance();
  CHECK(total == 1);
  fixture.engine->destroy_gate(freed);
  CHECK(fixture.context->synchronize(fixture.context->legacy()) == hal::kNativeOk);
  CHECK(total == 2);
}

}  // namespace
}  // namespace vitamin::tests
