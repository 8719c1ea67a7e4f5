// SPDX-License-Identifier: Apache-2.0
//
// What an event stands for: which record, and what a wait or a question about it means.
#include <string>

#include "tests/runtime/fixture.h"

namespace vitamin::tests {
namespace {

using runtime::call;
using runtime::StreamKind;

VITAMIN_KERNEL(add_once_kernel, unsigned* total, unsigned amount) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(total, amount); }
}

soft::Event* make_event(Fixture& f) {
  soft::Event* event = nullptr;
  REQUIRE(f.engine->create_event(&event) == soft::kOk);
  return event;
}

auto record_of(Fixture& f, soft::Event* event) {
  return call(
      [event, &f](void* q) { return f.engine->record(static_cast<soft::Queue*>(q), event); });
}

TEST_CASE("An event query says not ready while the record is deferred, then what the driver says") {
  Fixture f;
  runtime::Stream& held = f.stream();
  soft::Gate* gate = f.hold(held);
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  REQUIRE(f.launch(held, VITAMIN_SOFT_KERNEL(add_once_kernel), {&address, &one}) == 0);
  soft::Event* const event = make_event(f);
  runtime::EventState state;
  auto record = record_of(f, event);
  REQUIRE(f.context->record(held, state, record) == 0);
  // Natively an event that was never recorded would answer success here.
  CHECK(f.context->query(state, [&] { return f.engine->query(event); }) == soft::kNotReady);
  f.engine->open_gate(gate);
  CHECK(f.context->synchronize(state, [&] { return f.engine->synchronize(event); }) == 0);
  CHECK(total == 1);
  f.context->forget(state);
}

// What stands right behind the record, like the runtime's own marker, may be held up for long:
// under HIP streams share hardware queues.
TEST_CASE("No wait is made for an event that the host was told has ended") {
  for (const bool by_query : {false, true}) {
    CAPTURE(by_query);
    Fixture f;
    runtime::Stream& recorded_on = f.stream();
    runtime::Stream& waiting = f.stream();
    soft::Gate* const gate = f.engine->create_gate();
    soft::Event* const event = make_event(f);
    runtime::EventState state;
    auto record = call([=, &f](void* q) {
      auto* const queue = static_cast<soft::Queue*>(q);
      const hal::NativeStatus status = f.engine->record(queue, event);
      return status == soft::kOk ? f.engine->wait_gate(queue, gate) : status;
    });
    auto wait =
        call([=, &f](void* q) { return f.engine->wait(static_cast<soft::Queue*>(q), event); });
    REQUIRE(f.context->record(recorded_on, state, record) == 0);
    auto ended = [&] { return f.engine->synchronize(event); };
    REQUIRE((by_query ? f.engine->synchronize(event) : 0) == 0);
    CHECK((by_query ? f.context->query(state, ended) : f.context->synchronize(state, ended)) == 0);
    REQUIRE(f.context->wait(waiting, state, wait) == 0);
    unsigned total = 0, one = 1;
    unsigned* address = &total;
    REQUIRE(f.launch(waiting, VITAMIN_SOFT_KERNEL(add_once_kernel), {&address, &one}) == 0);
    CHECK(f.context->synchronize(waiting) == 0);
    CHECK(total == 1);
    f.engine->open_gate(gate);
    CHECK(f.context->synchronize(recorded_on) == 0);
    f.context->forget(state);
  }
}

// Of three kinds: a record by another thread between question and answer, one by another process or
// a graph, and one that the vendor made elsewhere in the stream than the runtime's marker.
TEST_CASE("An answer about another record of an event says nothing about the one before a marker") {
  for (const std::string kind : {"again", "shared", "inexact"}) {
    CAPTURE(kind);
    Fixture f;
    runtime::Stream& held = f.stream(StreamKind::kBlocking);
    runtime::Stream& free = f.stream();
    soft::Event* const event = make_event(f);
    runtime::EventState state;
    state.shared = kind == "shared";
    auto record = record_of(f, event);
    unsigned total = 0, one = 1;
    unsigned* address = &total;
    soft::Gate* const gate = f.engine->create_gate();
    auto work =
        call([=, &f](void* q) { return f.engine->wait_gate(static_cast<soft::Queue*>(q), gate); });
    REQUIRE(f.context->bridge(held, work) == 0);
    REQUIRE(f.context->record(held, state, record, kind != "inexact") == 0);
    CHECK(f.context->synchronize(state, [&]() -> hal::NativeStatus {
      if (kind == "again") REQUIRE(f.context->record(free, state, record) == 0);
      if (kind == "again") return f.engine->synchronize(event);
      return soft::kOk;
    }) == 0);
    REQUIRE(f.launch(f.context->legacy(), VITAMIN_SOFT_KERNEL(add_once_kernel), {&address, &one}) ==
            0);
    CHECK(f.page.other.edges.get() == 1);  // it comes behind `held`
    f.engine->open_gate(gate);
    CHECK(f.context->synchronize(f.context->legacy()) == 0);
    CHECK(total == 1);
    f.context->forget(state);
  }
}

TEST_CASE("A later record of an event is not undone by an earlier one that was deferred") {
  Fixture f;
  runtime::Stream& held = f.stream();
  runtime::Stream& free = f.stream();
  soft::Gate* gate = f.hold(held);
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  soft::Event* const event = make_event(f);
  runtime::EventState state;
  auto record = record_of(f, event);
  REQUIRE(f.launch(held, VITAMIN_SOFT_KERNEL(add_once_kernel), {&address, &one}) == 0);
  REQUIRE(f.context->record(held, state, record) == 0);
  REQUIRE(f.context->record(free, state, record) == 0);  // the newest generation, not held
  CHECK(f.context->synchronize(state, [&] { return f.engine->synchronize(event); }) == 0);
  f.engine->open_gate(gate);
  CHECK(f.context->synchronize(held) == 0);
  CHECK(f.context->query(state, [&] { return f.engine->query(event); }) == 0);
  f.context->forget(state);
}

}  // namespace
}  // namespace vitamin::tests
