// SPDX-License-Identifier: Apache-2.0
//
// Records and host waits behind which the runtime records no marker of its own: where nothing is
// deferred each is one call of the driver, and what they mean is the same.
#include "tests/runtime/fixture.h"

namespace vitamin::tests {
namespace {

using runtime::call;
using soft::EngineOperationKind;

VITAMIN_KERNEL(unmarked_kernel, unsigned* total, unsigned amount) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(total, amount); }
}

// An event of the application that the runtime knows by its handle, as the interposers' are.
struct KnownEvent {
  explicit KnownEvent(Fixture& fixture) : f(fixture) {
    REQUIRE(f.engine->create_event(&native) == soft::kOk);
    state.native = {native};
  }
  ~KnownEvent() { f.context->forget(state); }
  KnownEvent(const KnownEvent&) = delete;
  KnownEvent& operator=(const KnownEvent&) = delete;
  void record(runtime::Stream& stream) {
    auto operation =
        call([=, this](void* q) { return f.engine->record(static_cast<soft::Queue*>(q), native); });
    REQUIRE(f.context->record(stream, state, operation) == 0);
  }
  void wait(runtime::Stream& stream) {
    auto operation =
        call([=, this](void* q) { return f.engine->wait(static_cast<soft::Queue*>(q), native); });
    REQUIRE(f.context->wait(stream, state, operation) == 0);
  }
  Fixture& f;
  soft::Event* native = nullptr;
  runtime::EventState state;
};

// Work of the device that ends when its gate is opened; no host wait as far as the runtime knows.
soft::Gate* long_work(Fixture& f, runtime::Stream& stream) {
  soft::Gate* const gate = f.engine->create_gate();
  auto work =
      call([=, &f](void* q) { return f.engine->wait_gate(static_cast<soft::Queue*>(q), gate); });
  REQUIRE(f.context->bridge(stream, work) == 0);
  return gate;
}

void host_function(Fixture& f, runtime::Stream& stream) {
  auto function = call([&f](void* q) {
    return f.engine->host_function(static_cast<soft::Queue*>(q), [](soft::Status) {});
  });
  REQUIRE(f.context->bridge(stream, function, runtime::CallKind::kPlacelessHostWait) == 0);
}

// All that can happen now, the stream's deferred work included.
void advance(Fixture& f, runtime::Stream& stream) {
  for (int i = 0; i < 20; ++i) {
    while (f.engine->advance() == soft::AdvanceResult::kMoved) {
    }
    static_cast<void>(f.context->query(stream));
  }
}

struct Sum {
  void add(Fixture& f, runtime::Stream& stream) {
    REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(unmarked_kernel), {&address, &one}) == 0);
  }
  unsigned total = 0, one = 1;
  unsigned* address = &total;
};

TEST_CASE("a_wait_for_an_event_that_has_ended_covers_the_legacy_stream_where_the_vendor_says_so") {
  for (const bool covers : {false, true}) {
    CAPTURE(covers);
    Fixture f({.ended_wait_covers_legacy = covers});
    runtime::Stream& blocking = f.stream(StreamKind::kBlocking);
    runtime::Stream& free = f.stream();
    KnownEvent event(f);
    soft::Gate* const gate = long_work(f, f.context->legacy());
    event.record(free);
    CHECK(f.context->synchronize(free) == 0);
    event.wait(blocking);
    const hal::NativeStatus outstanding = f.context->device().errors().not_ready();
    CHECK(f.context->query(blocking) == (covers ? outstanding : hal::kNativeOk));
    // What comes behind the wait is behind the legacy stream in any case.
    unsigned total = 0, one = 1;
    unsigned* address = &total;
    REQUIRE(f.launch(blocking, VITAMIN_SOFT_KERNEL(unmarked_kernel), {&address, &one}) == 0);
    CHECK(f.context->query(blocking) == outstanding);
    f.engine->open_gate(gate);
    CHECK(f.context->synchronize(blocking) == 0);
    CHECK(total == 1);
  }
}

TEST_CASE("Where nothing is deferred records, waits and host functions are one call each") {
  for (const char* policy : {"fifo", "static", "random"}) {
    CAPTURE(policy);
    Fixture f({.policy = policy, .markers_take_places = false});
    runtime::Stream& first = f.stream();
    runtime::Stream& second = f.stream();
    KnownEvent event(f);
    Sum sum;
    constexpr unsigned kRounds = 20;
    for (unsigned i = 0; i < kRounds; ++i) {
      auto work = call([&f](void* q) {
        return f.engine->work(
            static_cast<soft::Queue*>(q), [] {}, 900);
      });
      REQUIRE(f.context->enqueue(first, work) == 0);
      event.record(first);
      event.wait(second);
      host_function(f, second);
    }
    CHECK(f.enqueued(EngineOperationKind::kRecord) == kRounds);
    CHECK(f.enqueued(EngineOperationKind::kWait) <= kRounds);
    sum.add(f, second);
    CHECK(f.context->synchronize(second) == 0);
    CHECK(sum.total == 1);
  }
}

// The wait must be kept, since a launch ahead of it is; then the event is recorded again where
// nothing ends.
TEST_CASE("A wait that is deferred means the record of its time, which had no marker") {
  for (const bool work_behind : {false, true}) {
    CAPTURE(work_behind);
    Fixture f;
    runtime::Stream& recorded_on = f.stream();
    runtime::Stream& waiting = f.stream();
    runtime::Stream& elsewhere = f.stream();
    KnownEvent event(f);
    Sum before, after;
    soft::Gate* const work = long_work(f, recorded_on);
    event.record(recorded_on);
    CHECK(!event.state.point);
    soft::Gate* const behind = work_behind ? long_work(f, recorded_on) : nullptr;
    soft::Gate* const held = f.hold(waiting);
    before.add(f, waiting);  // deferred: it is behind a host wait
    CHECK(f.page.launches.seen.get() == 0);
    event.wait(waiting);
    // Only the event knew where it was: the wait and what was ahead of it were made at once.
    CHECK(f.page.launches.seen.get() == (work_behind ? 1 : 0));
    soft::Gate* const never = long_work(f, elsewhere);
    event.record(elsewhere);
    after.add(f, waiting);
    f.engine->open_gate(held);
    advance(f, waiting);
    CHECK(f.context->query(waiting) == soft::kNotReady);
    CHECK(after.total == 0);
    f.engine->open_gate(work);
    CHECK(f.context->synchronize(waiting) == 0);
    CHECK(before.total == 1);
    CHECK(after.total == 1);
    if (behind != nullptr) f.engine->open_gate(behind);
    f.engine->open_gate(never);
    CHECK(f.context->synchronize(recorded_on) == 0);
    CHECK(f.context->synchronize(elsewhere) == 0);
  }
}

TEST_CASE("A launch waits where it is downstream of a host wait that has no marker") {
  Fixture f;
  runtime::Stream& host = f.stream();
  runtime::Stream& downstream = f.stream();
  KnownEvent event(f);
  Sum sum;
  soft::Gate* const gate = f.hold(host);
  event.record(host);
  CHECK(f.enqueued(EngineOperationKind::kRecord) == 1);
  SUBCASE("on its own stream") {
    sum.add(f, host);
    CHECK(f.page.launches.seen.get() == 0);
    f.engine->open_gate(gate);
    CHECK(f.context->synchronize(host) == 0);
  }
  SUBCASE("on another one, by an event") {
    event.wait(downstream);
    sum.add(f, downstream);
    CHECK(f.page.launches.seen.get() == 0);
    f.engine->open_gate(gate);
    CHECK(f.context->synchronize(downstream) == 0);
  }
  CHECK(f.page.launches.deferred.get() == 1);
  CHECK(sum.total == 1);
}

// Natively a marker that is recorded on a blocking stream comes behind that.
TEST_CASE("A wait that is deferred does not come behind legacy work issued since the record") {
  Fixture f;
  runtime::Stream& recorded_on = f.stream(runtime::StreamKind::kBlocking);
  runtime::Stream& waiting = f.stream();
  KnownEvent event(f);
  Sum sum;
  soft::Gate* const work = long_work(f, recorded_on);
  event.record(recorded_on);
  soft::Gate* const legacy = long_work(f, f.context->legacy());
  soft::Gate* const held = f.hold(waiting);
  sum.add(f, waiting);
  event.wait(waiting);
  f.engine->open_gate(held);
  f.engine->open_gate(work);
  advance(f, waiting);
  CHECK(f.context->query(waiting) == soft::kOk);
  f.engine->open_gate(legacy);
  CHECK(f.context->synchronize(f.context->legacy()) == 0);
  CHECK(sum.total == 1);
}

TEST_CASE("A launch behind a host function that has ended is not deferred") {
  Fixture f({.policy = "static"});
  runtime::Stream& stream = f.stream();
  Sum sum;
  host_function(f, stream);
  advance(f, stream);
  sum.add(f, stream);
  CHECK(f.page.launches.seen.get() == 1);
  CHECK(f.context->synchronize(stream) == 0);
  CHECK(f.page.launches.deferred.get() == 0);
}

// hipExtLaunchKernel: the launch itself records the event, `nothing` says so.
TEST_CASE("A record by a deferred launch is made before a later one of the same event") {
  Fixture f;
  runtime::Stream& first = f.stream();
  runtime::Stream& second = f.stream();
  runtime::Stream& waiting = f.stream();
  KnownEvent event(f);
  Sum sum;
  soft::Gate* const held = f.hold(first);
  sum.add(f, first);  // deferred
  auto launch = call([&f, native = event.native](void* q) {
    return f.engine->record(static_cast<soft::Queue*>(q), native);
  });
  REQUIRE(f.context->compute(first, launch) == 0);
  auto nothing = call([](void*) { return hal::kNativeOk; });
  REQUIRE(f.context->record(first, event.state, nothing, false) == 0);
  for (int i = 0; i < 100; ++i) {  // records have no markers again
    KnownEvent other(f);
    other.record(second);
  }
  soft::Gate* const work = long_work(f, second);
  event.record(second);
  f.engine->open_gate(held);
  CHECK(f.context->synchronize(first) == 0);
  event.wait(waiting);
  sum.add(f, waiting);
  advance(f, waiting);
  CHECK(sum.total == 1);
  f.engine->open_gate(work);
  CHECK(f.context->synchronize(waiting) == 0);
  CHECK(f.context->synchronize(second) == 0);
  CHECK(sum.total == 2);
}

}  // namespace
}  // namespace vitamin::tests
