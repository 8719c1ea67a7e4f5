// SPDX-License-Identifier: Apache-2.0
//
// Executables of graphs are made by threads beside those that launch them: one at a time, before
// what they need is destroyed, and with pauses. The vendor is a stand-in.
#include <atomic>
#include <chrono>
#include <ctime>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/graph_fixture.h"

namespace vitamin::tests {
namespace {

using namespace std::chrono_literals;

TEST_CASE("One thread at a time makes an executable, others launch the application's meanwhile") {
  GraphFixture f({.policy = "static:units=0-0", .clock = soft::Clock::kReal});
  runtime::Stream &first = f.stream(), &second = f.stream();
  f.source->meanwhile = [&] { CHECK(f.replay(second) == hal::kNativeOk); };
  CHECK(f.replay(first) == hal::kNativeOk);
  CHECK_FALSE(f.source->overlapped);
  CHECK(f.whole(runtime::stats::GraphReason::kNotMade) == 1);
  CHECK(f.page.graphs.bound.get() == 1);
  for (int i = 0; i < 10; ++i) CHECK(f.replay(second) == hal::kNativeOk);
  for (runtime::Stream* stream : {&first, &second})
    CHECK(f.context->synchronize(*stream) == hal::kNativeOk);
  CHECK_FALSE(f.source->overlapped);
  CHECK(f.source->makes == 1);
  CHECK(f.page.graphs.made.get() == 1);
}

// Runs `call` in another thread while an executable is made: it must end behind that.
template <class Call>
void ends_behind_the_making(GraphFixture& f, Call call) {
  std::atomic<bool> made{false}, too_soon{false};
  std::thread other;
  f.source->meanwhile = [&] {
    other = std::thread([&] {
      call();
      too_soon = !made;
    });
    std::this_thread::sleep_for(20ms);
    made = true;
  };
  CHECK(f.replay(f.stream()) == hal::kNativeOk);
  other.join();
  CHECK_FALSE(too_soon);
  CHECK(f.source->makes == 1);
}

TEST_CASE("A graph is destroyed when no thread works at it any more") {
  GraphFixture f({.policy = "static", .clock = soft::Clock::kReal});
  ends_behind_the_making(f, [&] {
    CHECK(f.context->destroy(*f.graph, [] { return hal::kNativeOk; }) == hal::kNativeOk);
  });
  CHECK(f.source->alive == 0);
}

TEST_CASE("Memory and code go when no executable is being made any more") {
  GraphFixture f({.policy = "static", .clock = soft::Clock::kReal});
  ends_behind_the_making(f, [&] {
    f.context->hold_graphs();
    f.context->await_held_graphs();
    f.context->release_graphs();
  });
}

TEST_CASE("The worker gives up a wait that another thread waits for, and makes it when it can") {
  GraphFixture f({.policy = "static", .clock = soft::Clock::kReal});
  f.source->busy = f.source->stuck = true;
  runtime::Stream& stream = f.stream();
  CHECK(f.replay(stream) == hal::kNativeOk);
  f.context->hold_graphs();
  f.context->await_held_graphs();
  CHECK(f.replay(stream) == hal::kNativeOk);  // none is made meanwhile
  f.context->release_graphs();
  const auto other = std::make_shared<runtime::Graph>(f.source);
  Operation operation(other);
  CHECK(f.context->launch_graph(stream, operation) == hal::kNativeOk);
  CHECK(f.context->destroy(*other, [] { return hal::kNativeOk; }) == hal::kNativeOk);
  CHECK(f.source->makes == 0);
  f.source->stuck = false;
  while (f.page.graphs.bound.get() == 0) CHECK(f.replay(stream) == hal::kNativeOk);
  CHECK(f.context->synchronize(stream) == hal::kNativeOk);
}

TEST_CASE("The worker rests between executables that launches do without") {
  struct Made {
    std::chrono::steady_clock::time_point began, ended;
    std::chrono::nanoseconds worked;  // at least
  };
  const auto worked = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  std::mutex mutex;
  std::vector<Made> made;
  GraphFixture f({.policy = "random", .clock = soft::Clock::kReal});
  f.source->making = [&] {
    const auto began = std::chrono::steady_clock::now();
    const std::chrono::nanoseconds before = worked();
    while (worked() - before < 1ms) continue;
    const std::lock_guard lock(mutex);
    made.push_back({began, std::chrono::steady_clock::now(), worked() - before});
  };
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return made.size();
  };
  runtime::Stream& stream = f.stream();
  while (count() < 4) {
    CHECK(f.replay(stream) == hal::kNativeOk);
    CHECK(f.context->synchronize(stream) == hal::kNativeOk);
  }
  f.context->hold_graphs();
  f.context->await_held_graphs();
  f.context->release_graphs();
  for (std::size_t i = 1; i < made.size(); ++i)
    CHECK(made[i].began - made[i - 1].ended >= 15 * made[i - 1].worked);
  CHECK(f.page.graphs.bound.get() == f.page.other.graph_launches.get());
}

TEST_CASE("The worker makes what a launch cannot do without before what launches do without") {
  std::mutex mutex;
  std::string made;
  GraphFixture f({.policy = "random", .clock = soft::Clock::kReal});
  const auto needed = std::make_shared<Source>();
  const auto other = std::make_shared<runtime::Graph>(needed);
  runtime::Stream &stream = f.stream(), &second = f.stream();
  const auto note = [&](char which) {
    const std::lock_guard lock(mutex);
    made += which;
    return made.size();
  };
  needed->busy = true;  // the launching thread cannot make its executable
  needed->making = [&] { note('n'); };
  f.source->making = [&] {
    if (note('s') > 1) return;
    for (int i = 0; i < 20; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
    Operation operation(other);
    CHECK(f.context->launch_graph(second, operation) == hal::kNativeOk);
  };
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return made.size();
  };
  while (count() < 1) CHECK(f.replay(stream) == hal::kNativeOk);
  while (count() < 2) std::this_thread::sleep_for(1ms);
  {
    const std::lock_guard lock(mutex);
    CHECK(made.substr(0, 2) == "sn");
  }
  for (runtime::Stream* one : {&stream, &second})
    CHECK(f.context->synchronize(*one) == hal::kNativeOk);
  f.context->forget(*other);
}

}  // namespace
}  // namespace vitamin::tests
