// SPDX-License-Identifier: Apache-2.0
//
// What counts as outstanding on the whole device, and when its end is seen (runtime/arbiter.h).
#include <doctest/doctest.h>

#include <atomic>

#include "backends/soft/kernel.h"
#include "tests/runtime/fixture.h"
#include "tests/runtime/leases.h"
#include "tests/time_limit.h"

namespace vitamin::tests {
namespace {

VITAMIN_KERNEL_WITH((.block_ns = 5000), add_one_kernel, unsigned* total) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(total, 1U); }
}
VITAMIN_WAITING_KERNEL(until_set_kernel, unsigned* flag) {
  VITAMIN_SPIN_UNTIL(vitamin::kernel::load_acquire(flag) != 0);
}
// By its name a kernel that waits for other processes.
VITAMIN_KERNEL(ncclDevKernel_once, unsigned* total) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(total, 1U); }
}

struct Node {
  explicit Node(bool counts_outstanding = true)
      : f({.clock = soft::Clock::kReal, .make_arbiter = Leasing::maker(leases)}) {
    leases.counts_outstanding = counts_outstanding;
  }
  ~Node() { std::atomic_ref(flag).store(1); }
  void add(runtime::Stream& on, unsigned launches) {
    unsigned* address = &total;
    for (unsigned i = 0; i < launches; ++i)
      REQUIRE(f.launch(on, VITAMIN_SOFT_KERNEL(add_one_kernel), {&address}) == 0);
  }
  // A kernel that runs until set().
  void hold(runtime::Stream& on) {
    unsigned* address = &flag;
    REQUIRE(f.launch(on, VITAMIN_SOFT_KERNEL(until_set_kernel), {&address}) == 0);
  }
  void set() { std::atomic_ref(flag).store(1); }
  bool ends(std::uint64_t count) {
    return test::eventually([&] { return leases.ended >= count; }) && leases.ended == count;
  }
  // From now on the runtime looks for the end of what counts; it has done so.
  void drain() {
    leases.drain();
    const std::uint64_t looks = leases.looks;
    REQUIRE(test::eventually([&] { return leases.looks >= looks + 8; }));
  }

  Leases leases;
  unsigned total = 0, flag = 0;
  Fixture f;
  runtime::Stream& stream = f.stream();
};

TEST_CASE("every launch under a lease of the whole device counts until it was seen to end") {
  for (const bool counts_outstanding : {true, false}) {
    CAPTURE(counts_outstanding);
    Node n(counts_outstanding);
    runtime::Stream* const streams[] = {&n.stream, &n.f.stream(),
                                        &n.f.stream(runtime::StreamKind::kBlocking)};
    std::uint64_t launches = 0;
    for (const unsigned more : {1U, 7U, 450U}) {
      for (runtime::Stream* stream : streams) n.add(*stream, more);
      launches += 3 * more;
      CHECK(n.leases.submitted == (counts_outstanding ? launches : 0));
      for (runtime::Stream* stream : streams) CHECK(n.f.context->synchronize(*stream) == 0);
      CHECK(n.leases.ended == (counts_outstanding ? launches : 0));
    }
    CHECK(n.total == launches);
  }
}

// The word of a lease changes at any time.
TEST_CASE("a launch counts though its grant is revoked before the driver has it") {
  Node n;
  n.leases.brief = true;
  n.add(n.stream, 5);
  CHECK(n.leases.submitted == 5);
  CHECK(n.f.context->synchronize(n.stream) == 0);
  CHECK(n.leases.ended == 5);
}

TEST_CASE("the end of leased work is seen though the program makes no call") {
  Node n;
  n.add(n.stream, 2);
  n.hold(n.stream);
  n.add(n.stream, 5);
  n.drain();
  CHECK(n.leases.ended == 0);  // they are seen to end together
  n.set();
  CHECK(n.ends(8));
  // The stream goes on where it was.
  n.add(n.stream, 3);
  CHECK(n.ends(11));
  CHECK(n.leases.submitted == 11);
}

TEST_CASE("a stream that is destroyed keeps its leased work counted until that ends") {
  Node n;
  n.add(n.stream, 1);
  n.hold(n.stream);
  n.add(n.stream, 1);
  auto nothing = runtime::call([](void*) { return hal::kNativeOk; });
  CHECK(n.f.context->retire(n.stream, nothing) == 0);
  runtime::Stream& next = n.f.stream();
  CHECK(&next != &n.stream);
  n.drain();
  CHECK(n.leases.ended == 0);
  n.set();
  CHECK(n.ends(3));
  n.add(next, 2);
  CHECK(n.ends(5));
}

TEST_CASE("streams that come and go leave nothing to look at") {
  Node n;
  auto nothing = runtime::call([](void*) { return hal::kNativeOk; });
  for (unsigned i = 0; i < 50; ++i) {
    runtime::Stream& stream = n.f.stream();
    n.add(stream, 1);
    CHECK(n.f.context->synchronize(stream) == 0);
    CHECK(n.f.context->retire(stream, nothing) == 0);
  }
  CHECK(n.leases.ended == 50);
  n.add(n.stream, 1);
  n.drain();
  CHECK(n.ends(51));
}

TEST_CASE("work counts by the grant under which it was launched") {
  for (const bool leased_first : {false, true}) {
    CAPTURE(leased_first);
    Node n(leased_first);
    n.hold(n.stream);
    n.add(n.stream, 2);
    n.leases.change(!leased_first);
    n.add(n.stream, 4);
    const std::uint64_t counted = leased_first ? 3 : 4;
    CHECK(n.leases.submitted == counted);
    n.drain();
    CHECK(n.leases.ended == 0);
    n.set();
    CHECK(n.ends(counted));
  }
}

TEST_CASE("what waits for no grant does not count") {
  Node n;
  n.add(n.stream, 1);
  unsigned* address = &n.total;
  SUBCASE("a kernel that waits for other processes") {
    REQUIRE(n.f.launch(n.stream, VITAMIN_SOFT_KERNEL(ncclDevKernel_once), {&address}) == 0);
    CHECK(n.leases.submitted == 1);
  }
  SUBCASE("launches behind the host that could not wait") {
    soft::Gate* const gate = n.f.hold(n.stream);
    n.add(n.stream, 3);
    CHECK(n.leases.submitted == 1);
    auto nothing = runtime::call([](void*) { return hal::kNativeOk; }, runtime::Keep::kNo);
    CHECK(n.f.context->bridge(n.stream, nothing) == 0);
    CHECK(n.leases.submitted == 1);
    n.drain();
    CHECK(n.ends(1));
    n.f.engine->open_gate(gate);
  }
  CHECK(n.f.context->synchronize(n.stream) == 0);
  CHECK(n.leases.ended == 1);
}

}  // namespace
}  // namespace vitamin::tests
