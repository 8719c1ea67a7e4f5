// SPDX-License-Identifier: Apache-2.0
//
// One rule of the runtime a test. That all of them together keep programs' order is the random
// programs' matter.
#include "runtime/virtual_context.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/runtime/fixture.h"
#include "tests/time_limit.h"

namespace vitamin::tests {
namespace {

using runtime::call;
using runtime::Keep;
using runtime::StreamKind;

VITAMIN_KERNEL_WITH((.block_ns = 5000), add_kernel, unsigned* total, unsigned amount) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(total, amount); }
}

// Hand-written grid barrier: every block waits for all others, and no attribute says so.
VITAMIN_WAITING_KERNEL_WITH((.max_threads = 1024), barrier_kernel, unsigned* arrived) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(arrived, 1U); }
  VITAMIN_SPIN_UNTIL(vitamin::kernel::load_acquire(arrived) >= block.blocks());
}

VITAMIN_WAITING_KERNEL(wait_kernel, unsigned* flag) {
  VITAMIN_SPIN_UNTIL(vitamin::kernel::load_acquire(flag) != 0);
}

VITAMIN_KERNEL(set_kernel, unsigned* flag) {
  VITAMIN_ONCE { vitamin::kernel::store_release(flag, 1U); }
}

// As a daemon: a stream keeps what it holds until it is expected to need more.
class Keeping final : public runtime::Arbiter {
 public:
  explicit Keeping(const hal::DeviceInfo& info) : layout_(runtime::PoolLayout::build(info)) {
    hold(1);
  }
  runtime::GrantTerms grant(const runtime::ReadyOperation&,
                            std::span<const runtime::PartitionId> eligible) override {
    if (std::find(eligible.begin(), eligible.end(), held_) == eligible.end())
      return not_heard({runtime::kWholeDevice, 1});
    return not_heard({held_, runtime::kUntilRevoked});
  }
  void expect(const runtime::ExpectedOperation& expected) override {
    if (layout_.at(held_).sms < expected.sms) hold(expected.sms);
  }
  bool admits(runtime::PartitionId partition, runtime::StreamId) const override {
    return partition == held_;
  }
  void submitted(runtime::PartitionId, runtime::StreamId) override {}
  void ended(runtime::PartitionId, runtime::StreamId, std::uint32_t) override {}
  void release(runtime::PartitionId, runtime::StreamId) override {}
  bool streams_share() const override { return true; }
  bool between_processes() const override { return true; }
  hal::ComputeSet barred(runtime::StreamId) const override { return {}; }

 private:
  static runtime::GrantTerms not_heard(runtime::GrantTerms terms) {
    terms.heard = false;
    return terms;
  }
  void hold(std::uint32_t sms) {
    for (const runtime::Partition& partition :
         layout_.partitions())  // the narrowest, the last such
      if (!partition.whole() && partition.sms >= sms &&
          (held_ == runtime::kNoPartition || layout_.at(held_).sms < sms ||
           partition.sms <= layout_.at(held_).sms))
        held_ = partition.id;
  }
  runtime::PoolLayout layout_;
  runtime::PartitionId held_ = runtime::kNoPartition;
};

TEST_CASE("Under the strict rule no kernel is submitted before its predecessor was seen complete") {
  Fixture f({.window_ns = 0});
  runtime::Stream& stream = f.stream();
  unsigned total = 0;
  unsigned* address = &total;
  for (unsigned i = 0; i < 20; ++i) {
    unsigned one = 1;
    REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) == 0);
  }
  CHECK(f.context->synchronize(stream) == 0);
  CHECK(total == 20);
  REQUIRE(f.stays.size() == 20);
  for (std::size_t i = 1; i < f.stays.size(); ++i) CHECK(f.stays[i].enqueued >= f.stays[i - 1].end);
  CHECK(f.page.launches.deferred.get() > 0);
}

TEST_CASE("With an open window dependent kernels are submitted ahead of completion") {
  Fixture f({.policy = "static"});  // it stays where it is
  runtime::Stream& stream = f.stream();
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  for (unsigned i = 0; i < 20; ++i)
    REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) == 0);
  CHECK(f.page.launches.deferred.get() == 0);
  CHECK(total == 0);  // nothing ran yet: all are queued
  CHECK(f.context->synchronize(stream) == 0);
  CHECK(total == 20);
  for (std::size_t i = 1; i < f.stays.size(); ++i) CHECK(f.stays[i].start >= f.stays[i - 1].end);
}

TEST_CASE("A stream moves only while few of its operations are unfinished") {
  Fixture f({.units = 16});
  runtime::Stream& stream = f.stream();
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  for (unsigned i = 0; i < 60; ++i)
    REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) == 0);
  CHECK(f.context->synchronize(stream) == 0);
  CHECK(total == 60);
  for (const Stay& stay : f.stays) {
    const auto unfinished = std::count_if(f.stays.begin(), f.stays.end(), [&](const Stay& other) {
      return other.enqueued < stay.enqueued && other.end > stay.enqueued;
    });
    CHECK(unfinished <= 10);
  }
  CHECK(f.page.launches.moved.get() > 40);
}

TEST_CASE("Streams that come and go leave no memory behind") {
  Fixture f({.policy = "static"});
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  auto nothing = call([](void*) { return hal::kNativeOk; });
  auto come_and_go = [&](unsigned times) {
    for (unsigned i = 0; i < times; ++i) {
      runtime::Stream& stream = f.stream();
      REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) == 0);
      CHECK(f.context->synchronize(stream) == 0);
      CHECK(f.context->retire(stream, nothing) == 0);
    }
  };
  come_and_go(50);
  const std::size_t before = ::mallinfo2().uordblks;
  come_and_go(500);
  CHECK(total == 550);
  // The device's own streams, which are not destroyed here, and what the fixture keeps of each
  // launch take 800 bytes; what the runtime has of a stream is twice that.
  CHECK(::mallinfo2().uordblks < before + 500 * 1200);
}

TEST_CASE("the_state_of_a_destroyed_stream_is_used_again_when_its_work_has_ended") {
  Fixture f;
  auto nothing = call([](void*) { return hal::kNativeOk; });
  auto drain = [&] {
    CHECK(f.context->call_for_context(runtime::Deferred::kAwait, [&] {
      f.engine->drain();
      return hal::kNativeOk;
    }) == 0);
  };
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  runtime::Stream& held = f.stream();
  soft::Gate* gate = f.hold(held);
  for (unsigned i = 0; i < 5; ++i)
    REQUIRE(f.launch(held, VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) == 0);
  const runtime::StreamId id = held.id;
  const runtime::Token newest = held.timeline.newest();
  CHECK(f.context->retire(held, nothing) == 0);
  CHECK(f.stream().id != id);
  CHECK(!newest.completed());
  f.engine->open_gate(gate);
  drain();
  CHECK(total == 5);

  runtime::Stream& next = f.stream();
  CHECK(next.id == id);
  CHECK(newest.completed());
  CHECK(next.serials_from > newest.serial());
  CHECK(next.number > 2);
  // Of what the former stream was nothing is left: it was held, this one is not.
  REQUIRE(f.launch(next, VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) == 0);
  CHECK(next.timeline.submitted == next.serials_from + 1);
  CHECK(f.context->synchronize(next) == 0);
  CHECK(total == 6);
}

TEST_CASE("a_stream_is_not_taken_for_the_blocking_one_whose_state_it_uses") {
  Fixture f;
  auto nothing = call([](void*) { return hal::kNativeOk; });
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  runtime::Stream& blocking = f.stream(runtime::StreamKind::kBlocking);
  const runtime::StreamId id = blocking.id;
  REQUIRE(f.launch(blocking, VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) == 0);
  CHECK(f.context->synchronize(blocking) == 0);
  CHECK(f.context->retire(blocking, nothing) == 0);
  runtime::Stream& next = f.stream(runtime::StreamKind::kNonBlocking);
  REQUIRE(next.id == id);
  soft::Gate* gate = f.hold(next);
  // The legacy stream does not wait for a non-blocking one.
  REQUIRE(f.launch(f.context->legacy(), VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) == 0);
  CHECK(f.context->synchronize(f.context->legacy()) == 0);
  CHECK(total == 2);
  f.engine->open_gate(gate);
  CHECK(f.context->synchronize(next) == 0);
}

TEST_CASE("A context can be destroyed while its pool still grows") {
  for (unsigned round = 0; round < 60; ++round) {
    Fixture f({.policy = "static:units=0-0", .units = 4, .clock = soft::Clock::kReal});
    unsigned total = 0, one = 1;
    unsigned* address = &total;
    std::vector<runtime::Stream*> streams;
    for (unsigned s = 0; s < 6; ++s) streams.push_back(&f.stream());
    // Six streams on one partition with one queue: five queues are wanted at once.
    for (runtime::Stream* stream : streams)
      REQUIRE(f.launch(*stream, VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) == 0);
    for (runtime::Stream* stream : streams) CHECK(f.context->synchronize(*stream) == 0);
    CHECK(total == 6);
  }
}

TEST_CASE("Exclusive streams never hold the same SMs at the same time") {
  Fixture f({.policy = "random:exclusive=1", .units = 16});
  runtime::Stream* streams[] = {&f.stream(), &f.stream(), &f.stream()};
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  for (unsigned i = 0; i < 300; ++i) {
    REQUIRE(f.launch(*streams[i % 3], VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) == 0);
    if (i % 5 == 0) f.engine->advance();
  }
  for (runtime::Stream* stream : streams) CHECK(f.context->synchronize(*stream) == 0);
  CHECK(total == 300);
  std::size_t concurrent = 0;
  for (const Stay& a : f.stays)
    for (const Stay& b : f.stays) {
      if (a.queue == b.queue || a.start >= b.end || b.start >= a.end) continue;
      ++concurrent;
      CHECK(!a.sms.overlaps(b.sms));
    }
  CHECK(concurrent > 0);
}

TEST_CASE("Launches behind a held stream wait without blocking a thread") {
  Fixture f;
  runtime::Stream& held = f.stream();
  runtime::Stream& innocent = f.stream();
  soft::Gate* gate = f.hold(held);
  unsigned total = 0, other = 0, one = 1;
  unsigned* address = &total;
  unsigned* other_address = &other;
  for (unsigned i = 0; i < 5000; ++i)
    REQUIRE(f.launch(held, VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) == 0);
  // A process that is killed now has deferred none more than it has launched.
  CHECK(f.page.launches.seen.get() == 0);
  CHECK(f.page.launches.deferred.get() == 0);
  CHECK(f.context->query(held) == soft::kNotReady);
  for (unsigned i = 0; i < 50; ++i)
    REQUIRE(f.launch(innocent, VITAMIN_SOFT_KERNEL(add_kernel), {&other_address, &one}) == 0);
  CHECK(f.context->synchronize(innocent) == 0);
  CHECK(other == 50);
  CHECK(total == 0);
  f.engine->open_gate(gate);
  CHECK(f.context->synchronize(held) == 0);
  CHECK(total == 5000);
  CHECK(f.page.launches.deferred.get() >= 5000);  // and those of the other that had to wait
  CHECK(f.page.launches.deferred.get() <= f.page.launches.seen.get());
  CHECK(f.page.launches.narrow.get() == 5050);  // late-bound all the same
}

TEST_CASE("A call that cannot be deferred goes through although the stream is held") {
  Fixture f;
  runtime::Stream& held = f.stream();
  soft::Gate* gate = f.hold(held);
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  for (unsigned i = 0; i < 10; ++i)
    REQUIRE(f.launch(held, VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) == 0);
  unsigned seen = 0;
  auto copy = call(
      [&](void* q) {
        return f.engine->work(
            static_cast<soft::Queue*>(q), [&] { seen = total; }, 100);
      },
      Keep::kNo);
  CHECK(f.context->bridge(held, copy) == 0);  // returns: everything is on the real stream now
  CHECK(f.page.whole[static_cast<unsigned>(runtime::stats::WholeReason::kHostWait)].get() == 10);
  f.engine->open_gate(gate);
  CHECK(f.context->synchronize(held) == 0);
  CHECK(seen == 10);
}

TEST_CASE("Every bridged call is counted once it is made, and no other call") {
  Fixture f;
  runtime::Stream& stream = f.stream();
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  auto work = call([&](void* q) {
    return f.engine->work(
        static_cast<soft::Queue*>(q), [] {}, 100);
  });
  auto refused = call([](void*) { return hal::NativeStatus(soft::kInvalidArgument); }, Keep::kNo);
  const runtime::stats::Counter& bridged = f.page.other.calls_bridged;
  REQUIRE(f.context->enqueue(stream, work) == 0);
  CHECK(bridged.get() == 0);
  REQUIRE(f.context->bridge(stream, work) == 0);
  CHECK(bridged.get() == 1);
  REQUIRE(f.context->bridge(stream, work, runtime::CallKind::kWork, runtime::Host::kMayBlock) == 0);
  CHECK(bridged.get() == 2);
  CHECK(f.context->bridge(stream, refused) == soft::kInvalidArgument);
  CHECK(bridged.get() == 2);
  soft::Gate* gate = f.hold(stream);
  CHECK(bridged.get() == 3);
  REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) == 0);
  REQUIRE(f.context->bridge(stream, work) == 0);  // deferred behind the launch
  CHECK(bridged.get() == 3);
  f.engine->open_gate(gate);
  CHECK(f.context->synchronize(stream) == 0);
  CHECK(bridged.get() == 4);
}

TEST_CASE("A kernel is never queued behind a stranger that waits for it") {
  // One partition for both streams: had B come behind A on its queue, nothing would ever end.
  Fixture f({.policy = "static:units=0-1"});
  runtime::Stream& a = f.stream();
  runtime::Stream& b = f.stream();
  unsigned flag = 0;
  unsigned* address = &flag;
  REQUIRE(f.launch(a, VITAMIN_SOFT_KERNEL(wait_kernel), {&address}) == 0);
  REQUIRE(f.launch(b, VITAMIN_SOFT_KERNEL(set_kernel), {&address}) == 0);
  CHECK(f.context->synchronize(b) == 0);
  CHECK(f.context->synchronize(a) == 0);
}

// Every submission of a program, the n-th refused by the device, for every n.
TEST_CASE("A failed submission reaches the application once and leaves nothing behind") {
  for (const std::uint64_t window : {~std::uint64_t{0}, std::uint64_t{0}}) {
    for (std::uint64_t nth = 0; nth < 60; ++nth) {
      Fixture f({.seed = nth + 1, .window_ns = window});
      runtime::Stream& a = f.stream();
      runtime::Stream& b = f.stream(StreamKind::kBlocking);
      unsigned total = 0, one = 1, errors = 0, accepted = 0;
      unsigned* address = &total;
      f.engine->inject({soft::FaultPoint::kLaunch, nth, 1, soft::kInjected, {}});
      auto submit = [&](runtime::Stream& stream) {
        const hal::NativeStatus status =
            f.launch(stream, VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one});
        if (status == hal::kNativeOk)
          ++accepted;
        else if (status == soft::kInjected)
          ++errors;
        else
          FAIL("an answer that native would not give: " << status);
      };
      for (unsigned i = 0; i < 8; ++i) {
        submit(a);
        submit(b);
        submit(f.context->legacy());
      }
      for (runtime::Stream* stream : {&a, &b, &f.context->legacy()})
        while (true) {
          const hal::NativeStatus status = f.context->synchronize(*stream);
          if (status == hal::kNativeOk) break;
          REQUIRE(status == soft::kInjected);
          ++errors;
        }
      // A launch that was deferred was accepted before it failed; its error comes with a later
      // call.
      CHECK(errors == (nth < 24 ? 1U : 0U));
      CHECK(total + (nth < 24 ? 1 : 0) == 24);
      CHECK(f.page.launches.bound.get() == total);
      (void)accepted;
    }
  }
}

std::atomic<int> hangs{0};
std::atomic<std::uint32_t> hung_width{0};

TEST_CASE(
    "The watchdog names a kernel that waits for its own blocks and sends it wide from then on") {
  hangs = 0;
  Fixture f({.policy = "static:units=0-0",
             .units = 8,
             .clock = soft::Clock::kReal,
             .hang_after = std::chrono::milliseconds(60),
             .on_hang = [](const char* kernel, std::uint32_t sms, double seconds) {
               CHECK(std::strcmp(kernel, "barrier_kernel") == 0);
               CHECK(seconds >= 0.06);
               hung_width = sms;
               ++hangs;
             }});
  runtime::Stream& stream = f.stream();
  // 2 SMs hold 64 blocks of 1,024 threads between them at most; the grid is 100 blocks.
  unsigned arrived = 0;
  unsigned* address = &arrived;
  auto barrier = [&](unsigned blocks) {
    hal::KernelLaunch launch;
    void* arguments[] = {&address};
    launch.kernel = VITAMIN_SOFT_KERNEL(barrier_kernel);
    launch.grid = {blocks, 1, 1};
    launch.block = {1024, 1, 1};
    launch.arguments = arguments;
    return f.context->launch(stream, launch);
  };
  REQUIRE(barrier(20) == 0);
  CHECK(test::eventually([] { return hangs == 1; }));
  CHECK(hung_width == 2);
  // The planted kernel is released by hand; no program could have done that.
  vitamin::kernel::atomic_add(address, 100U);
  CHECK(f.context->synchronize(stream) == 0);
  // From now on its whole grid is resident: 20 blocks of 2 a processor need 10 of the 16.
  arrived = 0;
  REQUIRE(barrier(20) == 0);
  CHECK(f.context->synchronize(stream) == 0);
  CHECK(arrived == 20);
  CHECK(f.stays.back().sms.count() >= 10);
}

TEST_CASE("The watchdog names no kernel that runs only where all of its blocks fit") {
  constexpr std::chrono::milliseconds kHangAfter{20};
  for (const bool cooperative : {false, true}) {
    const std::unordered_set<std::string> listed{cooperative ? "another" : "wait_kernel"};
    hangs = 0;
    Fixture f({.policy = "static:units=0-0",
               .clock = soft::Clock::kReal,
               .hang_after = kHangAfter,
               .on_hang = [](const char*, std::uint32_t, double) { ++hangs; },
               .resident_kernels = listed});
    runtime::Stream& stream = f.stream();
    unsigned flag = 0;
    unsigned* address = &flag;
    REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(wait_kernel), {&address}, 2, cooperative) == 0);
    std::this_thread::sleep_for(10 * kHangAfter);
    vitamin::kernel::store_release(address, 1U);
    CHECK(f.context->synchronize(stream) == 0);
    CHECK(f.stays.back().sms.count() == 2);
    CHECK(hangs == 0);
  }
}

TEST_CASE(
    "A cooperative grid goes where all its blocks fit and is refused as natively where none do") {
  Fixture f({.policy = "random", .units = 8});
  runtime::Stream& stream = f.stream();
  for (unsigned round = 0; round < 30; ++round) {
    unsigned arrived = 0;
    unsigned* address = &arrived;
    REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(barrier_kernel), {&address}, 200, true) == 0);
    REQUIRE(f.context->synchronize(stream) == 0);
    CHECK(arrived == 200);
    CHECK(f.stays.back().sms.count() * 32 >= 200);
  }
  unsigned arrived = 0;
  unsigned* address = &arrived;
  CHECK(f.launch(stream, VITAMIN_SOFT_KERNEL(barrier_kernel), {&address}, 100'000, true) ==
        soft::kCooperativeTooLarge);
}

TEST_CASE("Steps whose kernels the driver refuses somewhere ask for a wider partition") {
  const auto keeping = [](const hal::DeviceInfo& info, runtime::PoolLimits&) {
    return std::make_unique<Keeping>(info);
  };
  Fixture f({.make_arbiter = keeping});
  runtime::Stream& stream = f.stream();
  for (unsigned first = 0; first < 16; first += 2)
    f.engine->inject(
        {soft::FaultPoint::kLaunch, 0, 1, soft::kClusterTooLarge, soft::SmSet::range(first, 2)});
  unsigned total = 0, one = 1, set = 0;
  unsigned *address = &total, *flag = &set;
  for (unsigned step = 1; step <= 4; ++step) {
    runtime::Advice advice;
    advice.kind = runtime::WorkKind::kDecode;
    advice.deadline_ns = step * 1'000'000;
    f.context->advise(stream, advice);
    for (unsigned i = 0; i < 3; ++i) {
      REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) == 0);
      REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(set_kernel), {&flag}) == 0);
    }
  }
  CHECK(f.context->synchronize(stream) == 0);
  CHECK(total == 12);
  REQUIRE(f.stays.size() == 24);
  CHECK(f.page.launches.retried.get() == 1);
  // The first step is under way where one of its kernels was refused, and the second says so.
  for (std::size_t i = 0; i < 6; ++i) CHECK(f.stays[i].sms.count() == (i % 2 == 1 ? 2 : 16));
  for (std::size_t i = 7; i < 24; ++i) CHECK(f.stays[i].sms.count() == 4);
}

// The pool may give a stream memory that another one is still to free: then the allocation holds
// the stream on the device, whatever lies on the part where its newest kernel ran.
TEST_CASE("a_blocking_stream_covers_the_legacy_stream_only_where_the_vendor_says_so") {
  for (const bool covers : {false, true}) {
    CAPTURE(covers);
    Fixture f({.blocking_covers_legacy = covers});
    runtime::Stream& blocking = f.stream(StreamKind::kBlocking);
    runtime::Stream& other = f.stream(StreamKind::kBlocking);
    runtime::Stream& free = f.stream();
    unsigned total = 0, one = 1;
    unsigned* address = &total;
    auto add = [&](runtime::Stream& stream) {
      return f.launch(stream, VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one});
    };
    // Nothing outstanding; then legacy work behind a held blocking stream.
    CHECK(f.context->query(blocking) == 0);
    soft::Gate* const gate = f.hold(other);
    CHECK(f.context->query(blocking) == 0);
    REQUIRE(add(f.context->legacy()) == 0);
    const hal::NativeStatus outstanding = f.context->device().errors().not_ready();
    CHECK(f.context->query(blocking) == (covers ? outstanding : hal::kNativeOk));
    CHECK(f.context->query(free) == 0);
    CHECK(f.context->synchronize(free) == 0);
    CHECK(f.context->idle(blocking));  // nothing of its own is outstanding
    // Behind its own newest operation a stream waits for no more than for that.
    REQUIRE(add(blocking) == 0);
    CHECK(f.context->query(blocking) == outstanding);
    f.engine->open_gate(gate);
    CHECK(f.context->synchronize(blocking) == 0);
    CHECK(total == 2);
    REQUIRE(add(f.context->legacy()) == 0);
    CHECK(f.context->synchronize(blocking) == 0);
    if (covers) CHECK(total == 3);
    CHECK(f.context->synchronize(f.context->legacy()) == 0);
    CHECK(total == 3);
    CHECK(f.context->query(blocking) == 0);
  }
}

TEST_CASE("A stream that is destroyed with deferred work still does it") {
  Fixture f;
  runtime::Stream& held = f.stream();
  soft::Gate* gate = f.hold(held);
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  for (unsigned i = 0; i < 5; ++i)
    REQUIRE(f.launch(held, VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) == 0);
  auto destroy = call([](void*) { return hal::kNativeOk; });
  CHECK(f.context->retire(held, destroy) == 0);
  f.engine->open_gate(gate);
  CHECK(f.context->call_for_context(runtime::Deferred::kAwait, [&] {
    f.engine->drain();
    return hal::kNativeOk;
  }) == 0);
  CHECK(total == 5);
}

TEST_CASE("Threads that launch at once on their own streams keep each stream's order") {
  Fixture f({.clock = soft::Clock::kReal});
  constexpr unsigned kThreads = 4, kLaunches = 300;
  unsigned totals[kThreads] = {};
  std::vector<runtime::Stream*> streams;
  for (unsigned t = 0; t < kThreads; ++t) streams.push_back(&f.stream());
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      unsigned* address = &totals[t];
      unsigned one = 1;
      for (unsigned i = 0; i < kLaunches; ++i) {
        if (f.launch(*streams[t], VITAMIN_SOFT_KERNEL(add_kernel), {&address, &one}) != 0) return;
        if (i % 50 == 0 && f.context->synchronize(*streams[t]) != 0) return;
      }
      f.context->synchronize(*streams[t]);
    });
  for (std::thread& thread : threads) thread.join();
  for (const unsigned total : totals) CHECK(total == kLaunches);
  CHECK(f.page.launches.bound.get() == kThreads * kLaunches);
}

}  // namespace
}  // namespace vitamin::tests
