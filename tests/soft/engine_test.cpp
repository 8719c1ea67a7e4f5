// SPDX-License-Identifier: Apache-2.0
//
// Order, events, value operations, host functions, implicit synchronisation and faults, in virtual
// time.
#include <algorithm>
#include <map>
#include <string>

#include "tests/soft/harness.h"
#include "tests/soft/kernels.h"

namespace vitamin::soft {
namespace {

DeviceDescription small() { return DeviceDescription::uniform(4, 2); }

// A work operation that notes its name when it runs.
struct Notes {
  std::vector<std::string> names;
  auto note(const std::string& name) {
    return [this, name] { names.push_back(name); };
  }
  std::size_t place(const std::string& name) const {
    return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  }
};

TEST_CASE("a queue runs its operations in the order in which they were enqueued") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    auto engine = make_engine(small(), seed);
    Queue* queue = make_queue(*engine);
    std::uint64_t value = 1;
    Call first(VITAMIN_SOFT_KERNEL(add_later), {}, {}, (const std::uint64_t*)&value, &value,
               std::uint64_t{10}, std::uint64_t{500});
    REQUIRE(engine->launch(queue, *first) == kOk);
    REQUIRE(engine->work(
                queue, [&] { value *= 3; }, 200) == kOk);
    Call second(VITAMIN_SOFT_KERNEL(add_later), {}, {}, (const std::uint64_t*)&value, &value,
                std::uint64_t{4}, std::uint64_t{0});
    REQUIRE(engine->launch(queue, *second) == kOk);
    CHECK(engine->query(queue) == kNotReady);
    CHECK(value == 1);
    CHECK(engine->synchronize(queue) == kOk);
    CHECK(value == 37);
    CHECK(engine->now() == 700);
    CHECK(engine->query(queue) == kOk);
    CHECK(engine->outstanding() == 0);
  }
}

TEST_CASE("parameters are copied when a kernel is enqueued") {
  auto engine = make_engine(small());
  Queue* queue = make_queue(*engine);
  std::uint64_t in = 5, out = 0;
  {
    Call call(VITAMIN_SOFT_KERNEL(add_later), {}, {}, (const std::uint64_t*)&in, &out,
              std::uint64_t{1}, std::uint64_t{100});
    REQUIRE(engine->launch(queue, *call) == kOk);
    std::memset(const_cast<void*>(call->parameters), 0xff, 32);
  }
  CHECK(engine->synchronize(queue) == kOk);
  CHECK(out == 6);
}

TEST_CASE("two queues without an event have no order: seeds show both") {
  std::map<std::size_t, int> first;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    auto engine = make_engine(small(), seed);
    Notes notes;
    REQUIRE(engine->work(make_queue(*engine), notes.note("a"), 0) == kOk);
    REQUIRE(engine->work(make_queue(*engine), notes.note("b"), 0) == kOk);
    CHECK(engine->drain() == AdvanceResult::kIdle);
    ++first[notes.place("a")];
  }
  CHECK(first[0] > 5);
  CHECK(first[1] > 5);
}

TEST_CASE("one seed gives one run") {
  const auto run = [](std::uint64_t seed) {
    auto engine = make_engine(small(), seed);
    Notes notes;
    for (int q = 0; q < 4; ++q) {
      Queue* queue = make_queue(*engine);
      for (int i = 0; i < 5; ++i)
        REQUIRE(engine->work(queue, notes.note(std::to_string(q)), i % 2 * 100u) == kOk);
    }
    CHECK(engine->drain() == AdvanceResult::kIdle);
    return notes.names;
  };
  CHECK(run(7) == run(7));
  CHECK(run(7) != run(8));
}

TEST_CASE("a wait is for the record that was newest when the wait was enqueued") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    auto engine = make_engine(small(), seed);
    Queue* fast = make_queue(*engine);
    Queue* slow = make_queue(*engine);
    Queue* waiter = make_queue(*engine);
    Event* event = nullptr;
    REQUIRE(engine->create_event(&event) == kOk);
    Notes notes;
    REQUIRE(engine->wait(waiter, event) == kOk);  // never recorded: no wait
    REQUIRE(engine->work(waiter, notes.note("before"), 0) == kOk);
    REQUIRE(engine->work(fast, notes.note("fast"), 100) == kOk);
    REQUIRE(engine->record(fast, event) == kOk);
    REQUIRE(engine->wait(waiter, event) == kOk);
    REQUIRE(engine->work(waiter, notes.note("after fast"), 0) == kOk);
    REQUIRE(engine->work(slow, notes.note("slow"), 10'000) == kOk);
    REQUIRE(engine->record(slow, event) == kOk);
    CHECK(engine->synchronize(waiter) == kOk);
    CHECK(engine->now() < 10'000);
    CHECK(notes.place("fast") < notes.place("after fast"));
    CHECK(engine->query(event) == kNotReady);
    Nanoseconds at = 0;
    CHECK(engine->event_time(event, &at) == kNotReady);
    CHECK(engine->synchronize(event) == kOk);
    CHECK(engine->event_time(event, &at) == kOk);
    CHECK(at == 10'000);
  }
}

TEST_CASE("an event may be destroyed while a wait for it is pending") {
  auto engine = make_engine(small());
  Queue* producer = make_queue(*engine);
  Queue* consumer = make_queue(*engine);
  Event* event = nullptr;
  REQUIRE(engine->create_event(&event) == kOk);
  int value = 0;
  REQUIRE(engine->work(
              producer, [&] { value = 1; }, 1000) == kOk);
  REQUIRE(engine->record(producer, event) == kOk);
  REQUIRE(engine->wait(consumer, event) == kOk);
  engine->destroy_event(event);
  int seen = -1;
  REQUIRE(engine->work(
              consumer, [&] { seen = value; }, 0) == kOk);
  CHECK(engine->drain() == AdvanceResult::kIdle);
  CHECK(seen == 1);
}

TEST_CASE("a destroyed queue still carries out what is enqueued") {
  auto engine = make_engine(small());
  Queue* queue = make_queue(*engine);
  int value = 0;
  REQUIRE(engine->work(
              queue, [&] { value = 1; }, 1000) == kOk);
  engine->destroy_queue(queue);
  CHECK(value == 0);
  CHECK(engine->drain() == AdvanceResult::kIdle);
  CHECK(value == 1);
}

TEST_CASE("value waits see host writes and queue writes with every comparison") {
  auto engine = make_engine(small());
  const auto passes = [&](std::uint64_t memory, std::uint64_t value, Width width, Compare compare) {
    alignas(8) std::uint64_t word = memory;
    Queue* queue = make_queue(*engine);
    REQUIRE(engine->wait_value(queue, &word, value, width, compare) == kOk);
    const AdvanceResult end = engine->drain();
    const bool passed = engine->query(queue) == kOk;
    CHECK(end == (passed ? AdvanceResult::kIdle : AdvanceResult::kBlocked));
    if (!passed) {  // let it go: each comparison has a value that satisfies it
      word = compare == Compare::kNor ? 0 : compare == Compare::kAnd ? ~std::uint64_t{0} : value;
      CHECK(engine->synchronize(queue) == kOk);
    }
    engine->destroy_queue(queue);
    return passed;
  };
  CHECK(passes(5, 5, Width::k32, Compare::kEqual));
  CHECK_FALSE(passes(6, 5, Width::k32, Compare::kEqual));
  CHECK(passes(0xabcd00000005, 5, Width::k32, Compare::kEqual));
  CHECK_FALSE(passes(0xabcd00000005, 5, Width::k64, Compare::kEqual));
  CHECK(passes(6, 5, Width::k32, Compare::kGreaterOrEqual));
  CHECK_FALSE(passes(4, 5, Width::k32, Compare::kGreaterOrEqual));
  CHECK(passes(2, 0xfffffffe, Width::k32, Compare::kGreaterOrEqual));  // cyclic
  CHECK_FALSE(passes(2, 0xfffffffe, Width::k64, Compare::kGreaterOrEqual));
  CHECK(passes(6, 4, Width::k64, Compare::kAnd));
  CHECK_FALSE(passes(2, 4, Width::k64, Compare::kAnd));
  CHECK(passes(2, 4, Width::k32, Compare::kNor));
  CHECK_FALSE(passes(0xffffffff, 4, Width::k32, Compare::kNor));

  alignas(8) std::uint64_t word = 0;
  Queue* waiter = make_queue(*engine);
  Queue* writer = make_queue(*engine);
  REQUIRE(engine->wait_value(waiter, &word, 9, Width::k64, Compare::kEqual) == kOk);
  REQUIRE(engine->work(
              writer, [] {}, 300) == kOk);
  REQUIRE(engine->write_value(writer, &word, 9, Width::k64) == kOk);
  CHECK(engine->synchronize(waiter) == kOk);
  CHECK(word == 9);
}

TEST_CASE("work that only the host can release is reported as stuck until the host acts") {
  auto engine = make_engine(small());
  Queue* queue = make_queue(*engine);
  Gate* gate = engine->create_gate();
  bool ran = false;
  REQUIRE(engine->wait_gate(queue, gate) == kOk);
  REQUIRE(engine->work(
              queue, [&] { ran = true; }, 0) == kOk);
  CHECK(engine->advance() == AdvanceResult::kMoved);  // the wait itself begins
  CHECK(engine->drain() == AdvanceResult::kBlocked);
  CHECK(engine->synchronize(queue) == kStuck);
  CHECK_FALSE(ran);
  engine->open_gate(gate);
  CHECK(engine->synchronize(queue) == kOk);
  CHECK(ran);
  engine->destroy_gate(gate);
}

TEST_CASE("a host function runs in order and may enqueue work") {
  auto engine = make_engine(small());
  Queue* queue = make_queue(*engine);
  Queue* other = make_queue(*engine);
  Notes notes;
  REQUIRE(engine->work(queue, notes.note("before"), 100) == kOk);
  REQUIRE(engine->host_function(queue, [&](Status status) {
    CHECK(status == kOk);
    notes.names.push_back("host");
    CHECK(engine->work(other, notes.note("from host"), 0) == kOk);
  }) == kOk);
  REQUIRE(engine->work(queue, notes.note("after"), 0) == kOk);
  CHECK(engine->drain() == AdvanceResult::kIdle);
  REQUIRE(notes.names.size() == 4);
  CHECK(notes.place("before") == 0);
  CHECK(notes.place("host") == 1);
}

TEST_CASE("tickets tell when one operation of a queue has ended") {
  auto engine = make_engine(small());
  Queue* queue = make_queue(*engine);
  REQUIRE(engine->work(
              queue, [] {}, 100) == kOk);
  const std::uint64_t first = engine->last_ticket(queue);
  REQUIRE(engine->work(
              queue, [] {}, 100) == kOk);
  CHECK(engine->query(queue, first) == kNotReady);
  CHECK(engine->synchronize(queue, first) == kOk);
  CHECK(engine->now() == 100);
  CHECK(engine->query(queue, first) == kOk);
  CHECK(engine->query(queue) == kNotReady);
}

// One scenario for each pair of sync classes: does the later operation of `second` wait for the
// earlier one of `first`?
bool implicitly_ordered(SyncClass first, SyncClass second, std::uint32_t second_group) {
  int violations = 0;
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    auto engine = make_engine(small(), seed);
    Queue* a = make_queue(*engine, first);
    QueueOptions options;
    options.sms = engine->device().all();
    options.sync = second;
    options.sync_group = second_group;
    Queue* b = nullptr;
    REQUIRE(engine->create_queue(options, &b) == kOk);
    bool ended = false, ordered = false;
    REQUIRE(engine->work(
                a, [] {}, 1000) == kOk);
    REQUIRE(engine->work(
                a, [&] { ended = true; }, 0) == kOk);
    REQUIRE(engine->work(
                b, [&] { ordered = ended; }, 0) == kOk);
    CHECK(engine->drain() == AdvanceResult::kIdle);
    if (!ordered) ++violations;
  }
  return violations == 0;
}

TEST_CASE(
    "the legacy queue and the blocking queues of its group wait for each other, no others do") {
  CHECK(implicitly_ordered(SyncClass::kLegacy, SyncClass::kBlocking, 0));
  CHECK(implicitly_ordered(SyncClass::kBlocking, SyncClass::kLegacy, 0));
  CHECK_FALSE(implicitly_ordered(SyncClass::kBlocking, SyncClass::kBlocking, 0));
  CHECK_FALSE(implicitly_ordered(SyncClass::kLegacy, SyncClass::kNonBlocking, 0));
  CHECK_FALSE(implicitly_ordered(SyncClass::kNonBlocking, SyncClass::kLegacy, 0));
  CHECK_FALSE(implicitly_ordered(SyncClass::kLegacy, SyncClass::kBlocking, 1));
  CHECK_FALSE(implicitly_ordered(SyncClass::kBlocking, SyncClass::kLegacy, 1));
}

TEST_CASE("synchronising the legacy queue waits for the blocking queues of its group") {
  auto engine = make_engine(small());
  Queue* legacy = make_queue(*engine, SyncClass::kLegacy);
  Queue* blocking = make_queue(*engine, SyncClass::kBlocking);
  Queue* nonblocking = make_queue(*engine);
  REQUIRE(engine->work(
              blocking, [] {}, 500) == kOk);
  REQUIRE(engine->work(
              nonblocking, [] {}, 9000) == kOk);
  CHECK(engine->query(legacy) == kNotReady);
  CHECK(engine->synchronize(legacy) == kOk);
  CHECK(engine->now() == 500);
  CHECK(engine->query_group(0) == kNotReady);
  CHECK(engine->synchronize_group(0) == kOk);
  CHECK(engine->now() == 9000);
}

TEST_CASE("an operation that a legacy operation waits for may be on a queue destroyed since") {
  auto engine = make_engine(small());
  Queue* legacy = make_queue(*engine, SyncClass::kLegacy);
  Queue* blocking = make_queue(*engine, SyncClass::kBlocking);
  Gate* gate = engine->create_gate();
  bool first = false, seen = false;
  REQUIRE(engine->wait_gate(legacy, gate) == kOk);  // keeps the implicit wait away from the head
  REQUIRE(engine->work(
              blocking, [&] { first = true; }, 700) == kOk);
  REQUIRE(engine->work(
              legacy, [&] { seen = first; }, 0) == kOk);
  engine->destroy_queue(blocking);
  engine->open_gate(gate);
  CHECK(engine->drain() == AdvanceResult::kIdle);
  CHECK(seen);
  engine->destroy_gate(gate);
}

TEST_CASE("a kernel's fault is sticky, ends everything and runs nothing new") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    auto engine = make_engine(small(), seed);
    Queue* bad = make_queue(*engine);
    Queue* spinner = make_queue(*engine);
    Queue* waiter = make_queue(*engine);
    Queue* gated = make_queue(*engine);
    Event* event = nullptr;
    REQUIRE(engine->create_event(&event) == kOk);
    Gate* gate = engine->create_gate();
    std::uint32_t never = 0;
    bool ran = false;
    Status called_with = kOk;
    Call spin(VITAMIN_SOFT_KERNEL(spin_on), {64, 1, 1}, {1024, 1, 1}, (const std::uint32_t*)&never);
    REQUIRE(engine->launch(spinner, *spin) == kOk);  // more blocks than fit
    REQUIRE(engine->wait_value(waiter, &never, 1, Width::k32, Compare::kEqual) == kOk);
    REQUIRE(engine->wait_gate(gated, gate) == kOk);
    CHECK(engine->drain() == AdvanceResult::kBlocked);
    Call call(VITAMIN_SOFT_KERNEL(touch_nothing), {}, {});
    REQUIRE(engine->launch(bad, *call) == kOk);
    REQUIRE(engine->work(
                bad, [&] { ran = true; }, 10) == kOk);
    REQUIRE(engine->record(bad, event) == kOk);
    REQUIRE(engine->host_function(bad, [&](Status) { ran = true; }) == kOk);
    REQUIRE(engine->host_function(
                bad, [&](Status status) { called_with = status; }, true) == kOk);
    // The spinning kernel holds every SM; a fault needs one.
    if (engine->synchronize(bad) == kStuck) store_release(&never, 1u);
    CHECK(engine->synchronize(bad) == kIllegalAddress);
    CHECK(engine->drain() == AdvanceResult::kIdle);
    CHECK(engine->outstanding() == 0);
    CHECK_FALSE(ran);
    CHECK(called_with == kIllegalAddress);
    CHECK(engine->query(event) == kIllegalAddress);
    CHECK(engine->launch(bad, *call) == kIllegalAddress);
    CHECK(engine->record(bad, event) == kIllegalAddress);
    CHECK(engine->fault() == kIllegalAddress);
    engine->clear_fault();
    CHECK(engine->query(spinner) == kOk);
    engine->destroy_gate(gate);
  }
}

TEST_CASE("a fault ends kernels that spin and queues that wait") {
  auto engine = make_engine(small());
  Queue* bad = make_queue(*engine, engine->device().unit(0));
  Queue* spinner = make_queue(*engine, engine->device().unit(1));
  Queue* sleeper = make_queue(*engine, engine->device().unit(2));
  Queue* waiter = make_queue(*engine);
  std::uint32_t never = 0;
  Call spin(VITAMIN_SOFT_KERNEL(spin_on), {8, 1, 1}, {1024, 1, 1}, (const std::uint32_t*)&never);
  Call sleep(VITAMIN_SOFT_KERNEL(busy), {}, {}, std::uint64_t{5000});
  Call call(VITAMIN_SOFT_KERNEL(touch_nothing), {}, {});
  REQUIRE(engine->launch(spinner, *spin) == kOk);
  REQUIRE(engine->launch(sleeper, *sleep) == kOk);
  REQUIRE(engine->wait_value(waiter, &never, 1, Width::k32, Compare::kEqual) == kOk);
  REQUIRE(engine->launch(bad, *call) == kOk);
  CHECK(engine->drain() == AdvanceResult::kIdle);
  CHECK(engine->fault() == kIllegalAddress);
  CHECK(engine->outstanding() == 0);
  engine->clear_fault();
  std::uint32_t count = 0;
  Call after(VITAMIN_SOFT_KERNEL(count_blocks), {100, 1, 1}, {1024, 1, 1}, &count);
  REQUIRE(engine->launch(spinner, *after) == kOk);
  CHECK(engine->synchronize(spinner) == kOk);
  CHECK(count == 100);
}

TEST_CASE("after a fault nothing in flight is waited for") {
  auto engine = make_engine(small());
  Queue* slow = make_queue(*engine, engine->device().unit(0));
  Queue* bad = make_queue(*engine, engine->device().unit(1));
  bool copied = false;
  Call sleep(VITAMIN_SOFT_KERNEL(busy), {40, 1, 1}, {1024, 1, 1}, std::uint64_t{1'000'000'000});
  Call call(VITAMIN_SOFT_KERNEL(touch_nothing), {}, {});
  REQUIRE(engine->launch(slow, *sleep) == kOk);
  REQUIRE(engine->work(
              slow, [&] { copied = true; }, 100) == kOk);
  REQUIRE(engine->launch(bad, *call) == kOk);
  CHECK(engine->drain() == AdvanceResult::kIdle);
  CHECK(engine->now() < 1'000'000);
  CHECK_FALSE(copied);
}

TEST_CASE("too little declared shared memory is a launch failure of that kernel") {
  auto engine = make_engine(small());
  Queue* queue = make_queue(*engine);
  Call call(VITAMIN_SOFT_KERNEL(too_little_shared), {}, {32, 1, 1});
  REQUIRE(engine->launch(queue, *call) == kOk);
  CHECK(engine->synchronize(queue) == kLaunchFailure);
}

TEST_CASE("a scripted fault hits the n-th call and no other, and has no effect on the device") {
  auto engine = make_engine(small());
  Queue* narrow = make_queue(*engine, engine->device().unit(1));
  Queue* wide = make_queue(*engine);
  std::uint32_t count = 0;
  Call call(VITAMIN_SOFT_KERNEL(count_blocks), {}, {}, &count);

  engine->inject({FaultPoint::kSubmit, 2, 1, kOutOfMemory, {}});
  CHECK(engine->launch(wide, *call) == kOk);
  CHECK(engine->marker(wide) == kOk);
  CHECK(engine->launch(wide, *call) == kOutOfMemory);
  CHECK(engine->launch(wide, *call) == kOk);

  engine->inject({FaultPoint::kLaunch, 0, 2, kCooperativeTooLarge, engine->device().unit(1)});
  CHECK(engine->launch(wide, *call) == kOk);
  CHECK(engine->marker(narrow) == kOk);
  CHECK(engine->launch(narrow, *call) == kCooperativeTooLarge);
  CHECK(engine->launch(narrow, *call) == kCooperativeTooLarge);
  CHECK(engine->launch(narrow, *call) == kOk);

  engine->inject({FaultPoint::kCreateQueue, 0, 1, kOutOfMemory, {}});
  engine->inject({FaultPoint::kCreateEvent, 0, 1, kOutOfMemory, {}});
  QueueOptions options;
  options.sms = engine->device().all();
  Queue* queue = nullptr;
  CHECK(engine->create_queue(options, &queue) == kOutOfMemory);
  CHECK(engine->create_queue(options, &queue) == kOk);
  Event* event = nullptr;
  CHECK(engine->create_event(&event) == kOutOfMemory);
  CHECK(engine->create_event(&event) == kOk);
  CHECK(engine->drain() == AdvanceResult::kIdle);
  CHECK(count == 4);
}

TEST_CASE("the trace shows enqueue, start and end, and a hash that leaves the placement out") {
  auto engine = make_engine(small());
  std::vector<TraceRecord> trace;
  engine->set_trace([&](const TraceRecord& record) { trace.push_back(record); });
  Queue* narrow = make_queue(*engine, engine->device().unit(1));
  Queue* wide = make_queue(*engine);
  std::uint32_t count = 0, other = 0;
  Call call(VITAMIN_SOFT_KERNEL(count_blocks), {3, 1, 1}, {64, 1, 1}, &count);
  Call changed(VITAMIN_SOFT_KERNEL(count_blocks), {3, 1, 1}, {64, 1, 1}, &other);
  REQUIRE(engine->launch(narrow, *call) == kOk);
  REQUIRE(engine->launch(wide, *call) == kOk);
  REQUIRE(engine->launch(wide, *changed) == kOk);
  CHECK(engine->drain() == AdvanceResult::kIdle);
  CHECK(trace.size() == 9);
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<TraceRecord>> operations;
  for (const TraceRecord& record : trace)
    operations[{record.queue, record.ticket}].push_back(record);
  REQUIRE(operations.size() == 3);
  for (const auto& [key, records] : operations) {
    REQUIRE(records.size() == 3);
    CHECK(records[0].phase == TraceRecord::Phase::kEnqueue);
    CHECK(records[1].phase == TraceRecord::Phase::kStart);
    CHECK(records[2].phase == TraceRecord::Phase::kEnd);
    CHECK(records[1].at <= records[2].at);
  }
  const auto hash = [&](Queue* queue, std::uint64_t ticket) {
    return operations[{engine->serial_of(queue), ticket}].front().launch_hash;
  };
  CHECK(hash(narrow, 1) == hash(wide, 1));
  CHECK(hash(wide, 1) != hash(wide, 2));
  engine->set_trace({});
}

TEST_CASE("device memory has a limit, knows its allocations and spoils what is freed") {
  DeviceDescription device = small();
  device.memory_bytes = 4096;
  auto engine = make_engine(device);
  void* a = nullptr;
  void* b = nullptr;
  REQUIRE(engine->allocate(3000, &a) == kOk);
  CHECK(reinterpret_cast<std::uintptr_t>(a) % 512 == 0);
  CHECK(engine->allocate(2000, &b) == kOutOfMemory);
  CHECK(engine->memory_used() == 3000);
  void* base = nullptr;
  std::size_t bytes = 0;
  engine->find_allocation(static_cast<char*>(a) + 2999, &base, &bytes);
  CHECK(base == a);
  CHECK(bytes == 3000);
  engine->find_allocation(static_cast<char*>(a) + 3000, &base, &bytes);
  CHECK(base == nullptr);
  CHECK(engine->free_memory(a) == kOk);
  CHECK(engine->free_memory(a) == kInvalidArgument);
  CHECK(engine->memory_used() == 0);
}

TEST_CASE("a description that makes no device is refused with a reason") {
  EngineOptions options;
  options.device = small();
  options.device.gpc_of_sm.pop_back();
  CHECK_FALSE(Engine::create(options).has_value());
  options.device = DeviceDescription::uniform(2, 257);
  CHECK_FALSE(Engine::create(options).has_value());
  options.device = small();
  options.ledger_path = "/tmp/unused";  // virtual time cannot be shared
  const auto refused = Engine::create(options);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == hal::Errc::kInvalidArgument);
}

}  // namespace
}  // namespace vitamin::soft
