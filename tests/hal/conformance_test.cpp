// SPDX-License-Identifier: Apache-2.0
//
// What every backend must do (hal/device.h), said once.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/hal/call.h"
#include "tests/hal/subject.h"
#include "tests/time_limit.h"

namespace vitamin::conformance {
namespace {

using hal::ComputeSet;
using hal::Outcome;
using namespace std::chrono_literals;

// A case of an ability that the backend lacks must fail: when it passes, the list is out of date.
auto needs(Ability ability) { return doctest::should_fail(lacks(ability) != nullptr); }

void explain(Ability ability) {
  if (const char* reason = lacks(ability)) MESSAGE(std::string(reason));
}

struct Fixture {
  Fixture() : subject(open_subject()), device(subject->device()) {}

  std::unique_ptr<hal::Queue> queue(ComputeSet set) {
    auto context = device.create_context(set);
    REQUIRE(context.has_value());
    contexts.push_back(std::move(*context));
    auto made = contexts.back()->create_queue(0);
    REQUIRE(made.has_value());
    // What a vendor does at the first use of a queue is not measured.
    HalCall call(subject->kernel("places"), {}, {}, static_cast<unsigned*>(subject->memory(4)));
    REQUIRE((*made)->launch(call.launch) == hal::kNativeOk);
    HalCall sum(subject->kernel("add_later"), {}, {}, word(), word(), std::uint64_t{0}, open_gate);
    REQUIRE((*made)->launch(sum.launch) == hal::kNativeOk);
    REQUIRE((*made)->synchronize() == hal::kNativeOk);
    return std::move(*made);
  }
  ComputeSet unit(unsigned index) const { return ComputeSet::range(index, 1); }
  ComputeSet all() const { return ComputeSet::range(0, device.info().units()); }
  std::uint64_t* word() { return static_cast<std::uint64_t*>(subject->memory(8)); }
  // What add_later waits for.
  std::uint32_t* go(std::uint32_t value) {
    auto* const made = static_cast<std::uint32_t*>(subject->memory(4));
    *made = value;
    return made;
  }
  hal::Event event() {
    auto made = device.create_event();
    REQUIRE(made.has_value());
    return *made;
  }
  bool ready(hal::Event event_) {
    const Outcome outcome = device.errors().classify(device.query(event_));
    REQUIRE((outcome == Outcome::kOk || outcome == Outcome::kNotReady));
    return outcome == Outcome::kOk;
  }

  std::unique_ptr<Subject> subject;
  hal::Device& device;
  // What a kernel that need not wait is given. Made once, because several threads launch.
  std::uint32_t* const open_gate = go(1);
  std::vector<std::unique_ptr<hal::PhysicalContext>> contexts;
};

// A kernel that does not end before the test says so.
class Held {
 public:
  explicit Held(Fixture& f) : go_(f.go(0)) {}
  ~Held() { end(); }
  void end() { std::atomic_ref(*go_).store(1, std::memory_order_release); }
  std::uint32_t* go() const { return go_; }

 private:
  std::uint32_t* go_;
};

hal::NativeStatus add(Fixture& f, hal::Queue& queue, std::uint64_t* in, std::uint64_t* out,
                      std::uint64_t value, const Held* held = nullptr) {
  HalCall call(f.subject->kernel("add_later"), {}, {}, in, out, value,
               held != nullptr ? held->go() : f.open_gate);
  return queue.launch(call.launch);
}

std::set<unsigned> places(Fixture& f, hal::Queue& queue, unsigned blocks) {
  auto* seen = static_cast<unsigned*>(f.subject->memory(blocks * sizeof(unsigned)));
  HalCall call(f.subject->kernel("places"), {blocks, 1, 1}, {64, 1, 1}, seen);
  REQUIRE(queue.launch(call.launch) == hal::kNativeOk);
  REQUIRE(queue.synchronize() == hal::kNativeOk);
  std::set<unsigned> result;
  for (unsigned i = 0; i < blocks; ++i) result.insert(f.subject->processor(seen[i]));
  return result;
}

// --- units and contexts ----------------------------------------------------------------------

TEST_CASE_FIXTURE(Fixture, "the device has a name, units, and all its processors in them") {
  const hal::DeviceInfo& info = device.info();
  CHECK_FALSE(info.name.empty());
  REQUIRE(info.units() > 1);
  CHECK(info.units() <= ComputeSet::kMaxUnits);
  CHECK(info.sms_of(all()) == info.sms);
  for (const std::uint32_t sms : info.sms_per_unit) CHECK(sms > 0);
}

TEST_CASE_FIXTURE(Fixture, "a context of no unit or of one that is not there is refused") {
  const auto empty = device.create_context(ComputeSet());
  REQUIRE_FALSE(empty.has_value());
  CHECK(empty.error().code == hal::Errc::kInvalidArgument);
  CHECK_FALSE(empty.error().message.empty());
  CHECK_FALSE(device.create_context(unit(device.info().units())).has_value());
  CHECK_FALSE(device.create_context(unit(device.info().units()) | unit(0)).has_value());
}

TEST_CASE_FIXTURE(Fixture, "a context shows the units and processors that it was made of") {
  for (const ComputeSet set : {unit(0), unit(1) | unit(device.info().units() - 1), all()}) {
    const auto context = device.create_context(set);
    REQUIRE(context.has_value());
    CHECK((*context)->compute() == set);
    CHECK((*context)->sms() == device.info().sms_of(set));
  }
}

TEST_CASE_FIXTURE(Fixture, "a grid runs on the processors of its context and on all of them") {
  const ComputeSet left = ComputeSet::range(0, device.info().units() / 2), right = all() - left;
  const auto on_left = queue(left), on_right = queue(right), on_one = queue(unit(1));
  const auto a = places(*this, *on_left, 2048), b = places(*this, *on_right, 2048);
  CHECK(a.size() == device.info().sms_of(left));
  CHECK(b.size() == device.info().sms_of(right));
  for (const unsigned processor : a) CHECK(b.count(processor) == 0);
  const auto c = places(*this, *on_one, 2048);
  CHECK(c.size() == device.info().sms_of(unit(1)));
  for (const unsigned processor : c) CHECK(a.count(processor) == 1);
}

TEST_CASE_FIXTURE(Fixture, "a grid gives the same bits on every context") {
  constexpr unsigned kBlocks = 48, kCount = 10'000;
  std::vector<float> expected;
  for (const ComputeSet set : {all(), unit(0), unit(0) | unit(1), all() - unit(0)}) {
    const auto made = queue(set);
    auto* sums = static_cast<float*>(subject->memory(kBlocks * sizeof(float)));
    HalCall call(subject->kernel("partial_sums"), {kBlocks, 1, 1}, {64, 1, 1}, sums, kCount);
    REQUIRE(made->launch(call.launch) == hal::kNativeOk);
    REQUIRE(made->synchronize() == hal::kNativeOk);
    if (expected.empty()) expected.assign(sums, sums + kBlocks);
    CHECK(expected.front() > 0);
    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): the promise is equal bits
    CHECK(std::memcmp(expected.data(), sums, kBlocks * sizeof(float)) == 0);
  }
}

// --- launches --------------------------------------------------------------------------------

TEST_CASE_FIXTURE(Fixture, "a launch by pointers and one by a packed buffer do the same" *
                               needs(Ability::kPackedArguments)) {
  explain(Ability::kPackedArguments);
  const auto made = queue(unit(0));
  std::uint64_t *in = word(), *out = word();
  *in = 3;
  REQUIRE(add(*this, *made, in, out, 4) == hal::kNativeOk);
  REQUIRE(made->synchronize() == hal::kNativeOk);
  CHECK(*out == 7);
  struct {
    std::uint64_t *in, *out;
    std::uint64_t add;
    std::uint32_t* go;
  } packed{in, out, 5, open_gate};
  std::size_t bytes = sizeof packed;
  void* extra[5] = {};
  subject->pack(extra, &packed, &bytes);
  hal::KernelLaunch launch;
  launch.kernel = subject->kernel("add_later");
  launch.extra = extra;
  REQUIRE(made->launch(launch) == hal::kNativeOk);
  packed.add = 100;  // the buffer was borrowed for the call only
  REQUIRE(made->synchronize() == hal::kNativeOk);
  CHECK(*out == 8);
}

TEST_CASE_FIXTURE(Fixture, "arguments are read during the launch and not later") {
  const auto made = queue(unit(0));
  std::uint64_t *in = word(), *out = word();
  Held held(*this);
  REQUIRE(add(*this, *made, in, in, 0, &held) == hal::kNativeOk);
  {
    HalCall call(subject->kernel("add_later"), {}, {}, in, out, std::uint64_t{9}, open_gate);
    REQUIRE(made->launch(call.launch) == hal::kNativeOk);
    std::get<2>(call.storage) = 1000;
  }
  held.end();
  REQUIRE(made->synchronize() == hal::kNativeOk);
  CHECK(*out == 9);
}

TEST_CASE_FIXTURE(Fixture, "a queue is in order") {
  const auto made = queue(unit(0) | unit(1));
  std::uint64_t* value = word();
  Held held(*this);
  REQUIRE(add(*this, *made, value, value, 1, &held) == hal::kNativeOk);
  for (std::uint64_t i = 1; i < 50; ++i)
    REQUIRE(add(*this, *made, value, value, 1) == hal::kNativeOk);
  CHECK(device.errors().classify(made->query()) == Outcome::kNotReady);
  held.end();
  REQUIRE(made->synchronize() == hal::kNativeOk);
  CHECK(made->query() == hal::kNativeOk);
  CHECK(*value == 50);
}

TEST_CASE_FIXTURE(Fixture, "queues of several contexts work from several threads at one time") {
  std::vector<std::unique_ptr<hal::Queue>> queues;
  std::vector<std::uint64_t*> values;
  for (unsigned i = 0; i < 3; ++i) {
    queues.push_back(queue(unit(i)));
    values.push_back(word());
  }
  std::vector<std::thread> threads;
  std::vector<int> failed(3);
  for (unsigned i = 0; i < 3; ++i)
    threads.emplace_back([&, i] {
      device.attach_thread();
      for (int n = 0; n < 20; ++n)
        failed[i] += add(*this, *queues[i], values[i], values[i], i + 1) != hal::kNativeOk;
    });
  for (std::thread& thread : threads) thread.join();
  for (unsigned i = 0; i < 3; ++i) {
    REQUIRE(queues[i]->synchronize() == hal::kNativeOk);
    CHECK(failed[i] == 0);
    CHECK(*values[i] == 20 * (i + 1));
  }
}

TEST_CASE_FIXTURE(Fixture, "a queue may have any priority, heeded or not") {
  const auto context = device.create_context(unit(0));
  REQUIRE(context.has_value());
  for (const int priority : {-1, 0}) {
    const auto made = (*context)->create_queue(priority);
    REQUIRE(made.has_value());
    std::uint64_t* value = word();
    CHECK(add(*this, **made, value, value, 1) == hal::kNativeOk);
    CHECK((*made)->synchronize() == hal::kNativeOk);
    CHECK(*value == 1);
  }
}

// --- events ----------------------------------------------------------------------------------

TEST_CASE_FIXTURE(Fixture, "an event is not ready before its work has ended and is afterwards") {
  const auto made = queue(unit(0));
  const hal::Event done = event();
  CHECK(ready(done));  // never recorded
  std::uint64_t* value = word();
  Held held(*this);
  REQUIRE(add(*this, *made, value, value, 1, &held) == hal::kNativeOk);
  REQUIRE(made->record(done) == hal::kNativeOk);
  CHECK(device.query(done) == device.errors().not_ready());
  CHECK(device.errors().classify(made->query()) == Outcome::kNotReady);
  held.end();
  CHECK(device.synchronize(done) == hal::kNativeOk);
  CHECK(ready(done));
  CHECK(*value == 1);
  device.destroy_event(done);
}

TEST_CASE_FIXTURE(Fixture, "a wait orders two queues and blocks no other queue") {
  const auto first = queue(unit(0)), second = queue(unit(1)), third = queue(unit(2));
  const hal::Event done = event(), aside = event();
  std::uint64_t *value = word(), *copy = word(), *other = word();
  Held held(*this);
  REQUIRE(add(*this, *first, value, value, 5, &held) == hal::kNativeOk);
  REQUIRE(first->record(done) == hal::kNativeOk);
  REQUIRE(second->wait(done) == hal::kNativeOk);
  REQUIRE(add(*this, *second, value, copy, 1) == hal::kNativeOk);
  REQUIRE(add(*this, *third, other, other, 1) == hal::kNativeOk);
  REQUIRE(third->record(aside) == hal::kNativeOk);
  REQUIRE(device.synchronize(aside) == hal::kNativeOk);
  CHECK_FALSE(ready(done));
  held.end();
  REQUIRE(second->synchronize() == hal::kNativeOk);
  CHECK(*copy == 6);
}

TEST_CASE_FIXTURE(Fixture, "a wait captures the record that was newest when it was made") {
  const auto first = queue(unit(0)), second = queue(unit(1));
  const hal::Event done = event(), late = event();
  std::uint64_t *value = word(), *copy = word();
  REQUIRE(add(*this, *first, value, value, 1) == hal::kNativeOk);
  REQUIRE(first->record(done) == hal::kNativeOk);
  REQUIRE(second->wait(done) == hal::kNativeOk);
  REQUIRE(add(*this, *second, value, copy, 10) == hal::kNativeOk);
  REQUIRE(second->record(late) == hal::kNativeOk);
  Held held(*this);
  REQUIRE(add(*this, *first, value, value, 1, &held) == hal::kNativeOk);
  REQUIRE(first->record(done) == hal::kNativeOk);  // again: the wait above stays where it was
  REQUIRE(device.synchronize(late) == hal::kNativeOk);
  CHECK(*copy == 11);
  CHECK_FALSE(ready(done));
  held.end();
  REQUIRE(first->synchronize() == hal::kNativeOk);
}

TEST_CASE_FIXTURE(Fixture, "two timed events tell the time between them once both have fired") {
  const auto made = queue(unit(0));
  const auto from = device.create_timed_event(), to = device.create_timed_event();
  REQUIRE(from.has_value());
  REQUIRE(to.has_value());
  std::uint64_t* value = word();
  Held held(*this);
  REQUIRE(made->record(*from) == hal::kNativeOk);
  REQUIRE(add(*this, *made, value, value, 1, &held) == hal::kNativeOk);
  REQUIRE(made->record(*to) == hal::kNativeOk);
  double ns = -1;
  CHECK(device.errors().classify(device.elapsed(*from, *to, ns)) == Outcome::kNotReady);
  held.end();
  REQUIRE(made->synchronize() == hal::kNativeOk);
  CHECK(device.elapsed(*from, *to, ns) == hal::kNativeOk);
  CHECK(ns >= 0);
  device.destroy_event(*from);
  device.destroy_event(*to);
}

TEST_CASE_FIXTURE(Fixture, "what was submitted is carried out though its queue is destroyed") {
  auto made = queue(unit(0));
  const hal::Event done = event();
  std::uint64_t* value = word();
  Held held(*this);
  REQUIRE(add(*this, *made, value, value, 1, &held) == hal::kNativeOk);
  REQUIRE(made->record(done) == hal::kNativeOk);
  // The call may wait for the work.
  auto destroyed = std::async(std::launch::async, [&] {
    device.attach_thread();
    made.reset();
  });
  held.end();
  destroyed.get();
  CHECK(device.synchronize(done) == hal::kNativeOk);
  CHECK(*value == 1);
  device.destroy_event(done);
}

// --- the application's streams -----------------------------------------------------------------

TEST_CASE_FIXTURE(Fixture,
                  "a stream of the application is adopted as it is and outlives the queue") {
  void* stream = subject->make_stream();
  std::uint64_t* value = word();
  for (int i = 0; i < 2; ++i) {
    const auto adopted = device.adopt_queue(stream);
    CHECK(adopted->native() == stream);
    REQUIRE(add(*this, *adopted, value, value, 1) == hal::kNativeOk);
    REQUIRE(adopted->synchronize() == hal::kNativeOk);
  }
  CHECK(*value == 2);
  subject->destroy_stream(stream);
}

TEST_CASE_FIXTURE(Fixture, "a whole queue of ours takes part in the legacy stream's order") {
  const auto whole = device.create_whole_queue(0);
  REQUIRE(whole.has_value());
  const auto legacy = device.adopt_queue(subject->legacy_stream());
  std::uint64_t *value = word(), *copy = word();
  Held held(*this);
  REQUIRE(add(*this, *legacy, value, value, 1, &held) == hal::kNativeOk);
  REQUIRE(add(*this, **whole, value, copy, 10) == hal::kNativeOk);
  held.end();
  REQUIRE((*whole)->synchronize() == hal::kNativeOk);
  CHECK(*copy == 11);
}

TEST_CASE_FIXTURE(Fixture, "a pool queue takes no part in the legacy stream's order" *
                               needs(Ability::kQueuesOutsideLegacyOrder)) {
  explain(Ability::kQueuesOutsideLegacyOrder);
  const auto pooled = queue(unit(0));
  const auto legacy = device.adopt_queue(subject->legacy_stream());
  const hal::Event ended = event();
  std::uint64_t *value = word(), *other = word();
  Held held(*this);
  REQUIRE(add(*this, *legacy, value, value, 1, &held) == hal::kNativeOk);
  REQUIRE(legacy->record(ended) == hal::kNativeOk);
  REQUIRE(add(*this, *pooled, other, other, 1) == hal::kNativeOk);
  auto synchronized = std::async(std::launch::async, [&] {
    device.attach_thread();
    return pooled->synchronize();
  });
  // Where the ability lacks, waiting for longer only delays the failure that is expected.
  const bool lacking = lacks(Ability::kQueuesOutsideLegacyOrder) != nullptr;
  const bool independent =
      synchronized.wait_for(lacking ? 200ms : test::time_limit(60s)) == std::future_status::ready &&
      !ready(ended);
  held.end();
  CHECK(synchronized.get() == hal::kNativeOk);
  REQUIRE(legacy->synchronize() == hal::kNativeOk);
  CHECK(independent);
}

// --- kernels -----------------------------------------------------------------------------------

TEST_CASE_FIXTURE(Fixture, "a kernel has a layout, a name and an origin") {
  const auto layout = device.inspector().layout(subject->kernel("add_later"));
  REQUIRE(layout.has_value());
  REQUIRE(layout->parameters.size() == 4);
  for (std::uint32_t i = 0; i < 4; ++i) {
    CHECK(layout->parameters[i].offset == 8 * i);
    CHECK(layout->parameters[i].size == 8);
  }
  CHECK(layout->bytes == 32);
  CHECK(device.inspector().name(subject->kernel("add_later")) == "add_later");
  CHECK_FALSE(device.inspector().origin(subject->kernel("add_later")).empty());
  CHECK_FALSE(device.inspector().layout(nullptr).has_value());
}

TEST_CASE_FIXTURE(Fixture,
                  "a plain launch needs one processor and a resident one room for its grid") {
  unsigned* seen = nullptr;
  const std::uint32_t sms = device.info().sms;
  std::uint32_t before = 0;
  for (const unsigned blocks : {1U, 64U, 300U, 1000U, 1U << 20}) {
    HalCall call(subject->kernel("places"), {blocks, 1, 1}, {1024, 1, 1}, seen);
    CHECK(device.inspector().sms_needed(call.launch, false) == 1);
    const std::uint32_t needed = device.inspector().sms_needed(call.launch, true);
    CHECK(needed >= before);
    CHECK(needed <= sms + 1);
    before = needed;
  }
  CHECK(before == sms + 1);
}

TEST_CASE_FIXTURE(Fixture, "a context that is as wide as a cooperative grid needs takes it") {
  auto* seen = static_cast<unsigned*>(subject->memory(64 * sizeof(unsigned)));
  HalCall call(subject->kernel("places"), {64, 1, 1}, {1024, 1, 1}, seen);
  call.launch.form = hal::LaunchForm::kCooperative;
  call.launch.cooperative = true;
  const std::uint32_t needed = device.inspector().sms_needed(call.launch, false);
  for (unsigned units = 1; units <= device.info().units(); units += 3) {
    const auto context = device.create_context(ComputeSet::range(0, units));
    REQUIRE(context.has_value());
    if ((*context)->sms() < needed) continue;
    const auto made = (*context)->create_queue(0);
    REQUIRE(made.has_value());
    CHECK((*made)->launch(call.launch) == hal::kNativeOk);
    CHECK((*made)->synchronize() == hal::kNativeOk);
  }
}

TEST_CASE_FIXTURE(Fixture, "what a launch would answer natively is known without submitting it") {
  void* stream = subject->make_stream();
  const auto adopted = device.adopt_queue(stream);
  unsigned* seen = static_cast<unsigned*>(subject->memory(64));
  HalCall call(subject->kernel("places"), {1, 1, 1}, {64, 1, 1}, seen);
  CHECK(device.inspector().validate(call.launch) == hal::kNativeOk);
  auto refused = [&](hal::KernelLaunch launch) {
    const hal::NativeStatus told = device.inspector().validate(launch);
    const hal::NativeStatus status = adopted->launch(launch);
    CHECK(device.errors().classify(status) == Outcome::kError);
    if (told != hal::kRefusedInAnyPlace) CHECK(told == status);
  };
  hal::KernelLaunch wide = call.launch, no_threads = wide, no_blocks = wide, greedy = wide;
  wide.block = {1025, 1, 1};
  no_threads.block = {0, 1, 1};
  no_blocks.grid = {0, 1, 1};
  greedy.shared_bytes = 1 << 20;
  SUBCASE("too many threads") { refused(wide); }
  SUBCASE("no threads") { refused(no_threads); }
  SUBCASE("no blocks") { refused(no_blocks); }
  SUBCASE("too much shared memory") { refused(greedy); }
  CHECK(adopted->synchronize() == hal::kNativeOk);
  subject->destroy_stream(stream);
}

TEST_CASE_FIXTURE(Fixture, "codes mean what the runtime takes them for") {
  CHECK(device.errors().classify(hal::kNativeOk) == Outcome::kOk);
  CHECK(device.errors().classify(device.errors().not_ready()) == Outcome::kNotReady);
  CHECK(device.errors().classify(device.errors().out_of_memory()) == Outcome::kError);
  device.enter_internal();
  device.enter_internal();
  const hal::Event never = event();
  CHECK(ready(never));
  device.leave_internal();
  device.leave_internal();
  device.destroy_event(never);
}

}  // namespace
}  // namespace vitamin::conformance
