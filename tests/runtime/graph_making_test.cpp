// SPDX-License-Identifier: Apache-2.0
//
// Executables of graphs are made by threads beside those that launch them: one at a time, and
// before what they need is destroyed. The vendor is a stand-in.
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/runtime/graph_fixture.h"

namespace vitamin::tests {
namespace {

using namespace std::chrono_literals;
using hal::Followed;

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

TEST_CASE("A graph that is gone is not looked at by a thread that waited for it") {
  GraphFixture f({.policy = "static", .clock = soft::Clock::kReal});
  runtime::Stream &first = f.stream(), &second = f.stream();
  std::thread other;
  f.source->looking = [&] {
    // The worker is to look at it, too, and waits for this look.
    CHECK(f.replay(second) == hal::kNativeOk);
    other = std::thread([&] {
      CHECK(f.context->destroy(*f.graph, [] { return hal::kNativeOk; }) == hal::kNativeOk);
    });
    std::this_thread::sleep_for(20ms);
  };
  CHECK(f.replay(first) == hal::kNativeOk);
  other.join();
  f.context->hold_graphs();
  f.context->await_held_graphs();
  f.context->release_graphs();
  CHECK(f.source->looks == 1);
  CHECK(f.source->makes == 0);
}

TEST_CASE("A part that refused a graph is asked again when another graph replaces it") {
  GraphFixture f({.policy = "static"});
  f.source->making = [](hal::PhysicalContext&) -> hal::Status {
    return hal::fail(hal::Errc::kInternal, "a cluster is too large", soft::kClusterTooLarge);
  };
  runtime::Stream& stream = f.stream();
  for (int i = 0; i < 4; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
  CHECK(f.page.graphs.bound.get() == 0);
  f.source->making = {};
  for (const Followed followed : {Followed::kNodes, Followed::kReplaced}) {
    f.context->change(
        *f.graph, [] { return hal::kNativeOk; }, [&](hal::NativeStatus) { return followed; });
    for (int i = 0; i < 4; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
    // The first launch behind the change stays.
    CHECK(f.page.graphs.bound.get() == (followed == Followed::kReplaced ? 3 : 0));
  }
  CHECK(f.context->synchronize(stream) == hal::kNativeOk);
}

}  // namespace
}  // namespace vitamin::tests
