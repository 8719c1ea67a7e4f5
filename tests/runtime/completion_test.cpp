// SPDX-License-Identifier: Apache-2.0
//
// What it costs to see that work has ended: an event query is 1.3 us on an H200, so of each queue
// one marker that has not fired is asked for in a look, and a launch that need not know asks for
// none.
#include <algorithm>
#include <cmath>

#include "tests/runtime/fixture.h"

namespace vitamin::tests {
namespace {

VITAMIN_KERNEL_WITH((.block_ns = 5000), add_kernel, unsigned* total, unsigned amount) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(total, amount); }
}

struct Burst {
  std::uint64_t looks = 0;             // after which the runtime waited
  std::uint64_t most_outstanding = 0;  // queries between two of those that were answered "not yet"
  std::uint64_t queues = 0;            // of the pool
  soft::Device::EventQueries launching, all;
};

Burst burst(const std::string& policy, std::uint64_t window_ns, unsigned queues,
            unsigned launches) {
  Burst seen;
  Fixture* fixture = nullptr;
  std::uint64_t before = 0;
  FixtureOptions options;
  options.policy = policy;
  options.window_ns = window_ns;
  options.on_idle = [&] {
    ++seen.looks;
    const std::uint64_t now = fixture->event_queries().outstanding;
    seen.most_outstanding = std::max(seen.most_outstanding, now - before);
    before = now;
  };
  Fixture f(options);
  fixture = &f;
  std::vector<runtime::Stream*> streams;
  for (unsigned i = 0; i < queues; ++i) streams.push_back(&f.stream());
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  for (unsigned i = 0; i < launches; ++i)
    for (runtime::Stream* stream : streams)
      REQUIRE(f.launch(*stream, VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) == 0);
  seen.launching = f.event_queries();
  before = seen.launching.outstanding;
  for (runtime::Stream* stream : streams) CHECK(f.context->synchronize(*stream) == 0);
  CHECK(total == queues * launches);
  seen.all = f.event_queries();
  seen.queues = f.page.pool.queues.get();
  return seen;
}

TEST_CASE("A look asks for one marker of each queue that has not fired") {
  for (const char* policy : {"static", "random", "random:every=3"})
    for (const std::uint64_t window_ns : {50'000ULL, 400'000ULL})
      for (const unsigned queues : {1U, 4U}) {
        CAPTURE(policy);
        CAPTURE(window_ns);
        CAPTURE(queues);
        const Burst seen = burst(policy, window_ns, queues, 300);
        REQUIRE(seen.looks > 20);
        // Before it waits it has looked twice: with what the first look found something went on.
        // One that moves asks for the queues that others had before it, too.
        const std::uint64_t most = policy == std::string("static") ? queues : queues + seen.queues;
        CHECK(seen.most_outstanding <= 2 * most);
        // Besides, those that have fired: no more than there were launches, whatever the markers.
        CHECK(seen.all.asked - seen.all.outstanding <= std::uint64_t{queues} * 300);
      }
}

TEST_CASE("A burst of launches without a window asks for nothing that it need not know") {
  for (const unsigned queues : {1U, 4U}) {
    CAPTURE(queues);
    const Burst seen = burst("static", ~0ULL, queues, 500);
    CHECK(seen.launching.asked <= std::uint64_t{queues} * 4);
    CHECK(seen.all.asked <= std::uint64_t{queues} * 16);
  }
}

TEST_CASE("A launch beyond the window asks once") {
  const Burst seen = burst("static", 50'000, 1, 300);
  // The first ones fit; the one that does not is put off, and those behind it with it.
  CHECK(seen.launching.asked <= 2);
}

TEST_CASE("A question about a stream looks at no stream that it does not depend on") {
  std::function<void()> nothing = [] {};
  Fixture f({.policy = "static", .on_idle = nothing});
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  const auto add = [&](runtime::Stream& stream) {
    REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) == 0);
  };
  runtime::Stream& free = f.stream();
  soft::Gate* gate = f.engine->create_gate();
  auto hold = runtime::call(
      [&](void* q) { return f.engine->wait_gate(static_cast<soft::Queue*>(q), gate); });
  constexpr unsigned kHeld = 50;
  std::vector<runtime::Stream*> held;
  for (unsigned i = 0; i < kHeld; ++i) {
    held.push_back(&f.stream());
    REQUIRE(f.context->bridge(*held.back(), hold, runtime::CallKind::kHostWait) == 0);
    add(*held.back());
    REQUIRE_FALSE(held.back()->deferral.operations.empty());
  }
  add(free);
  CHECK(f.context->synchronize(free) == 0);
  const auto asked_by = [&](runtime::Stream& stream) {
    const std::uint64_t before = f.event_queries().asked;
    static_cast<void>(f.context->query(stream));
    return f.event_queries().asked - before;
  };
  CHECK(asked_by(free) <= 1);
  CHECK(asked_by(*held.front()) <= 2);
  CHECK(asked_by(*held.back()) <= 2);
  f.engine->open_gate(gate);
  for (runtime::Stream* stream : held) CHECK(f.context->synchronize(*stream) == 0);
  CHECK(total == kHeld + 1);
}

}  // namespace
}  // namespace vitamin::tests
