// SPDX-License-Identifier: Apache-2.0
//
// Executables of graphs are made by threads beside those that launch them: one at a time, before
// what they need is destroyed, and wherever launches ask for one. The vendor is a stand-in.
#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <set>
#include <shared_mutex>
#include <thread>

#include "tests/runtime/graph_fixture.h"
#include "tests/seed.h"
#include "tests/time_limit.h"

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
  runtime::Stream &first = f.stream(), &second = f.stream(), &third = f.stream();
  std::thread other;
  f.source->looking = [&] {
    // The worker is to look at it, too, and waits for this look.
    CHECK(f.replay(second) == hal::kNativeOk);
    other = std::thread([&] {
      CHECK(f.context->destroy(*f.graph, [] { return hal::kNativeOk; }) == hal::kNativeOk);
    });
    // Until that waits, too. What goes to the driver does so under the lock, which guards `gone`.
    CHECK(test::eventually([&] {
      bool gone = false;
      auto look = runtime::call(
          [&](void*) {
            gone = f.graph->gone;
            return hal::kNativeOk;
          },
          runtime::Keep::kNo);
      CHECK(f.context->bridge(third, look) == hal::kNativeOk);
      return gone;
    }));
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

// --- no wish is lost -----------------------------------------------------------------------------

// The parts for which a vendor was asked to make executables. Any thread.
class Parts {
 public:
  void add(const hal::PhysicalContext& part) {
    const std::lock_guard lock(mutex_);
    parts_.insert(&part);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    parts_.clear();
  }
  std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return parts_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::set<const hal::PhysicalContext*> parts_;
};

constexpr unsigned kUnits = 3;

// For how many parts of the fixture's device launches under `random` ask.
std::size_t parts_of_random() {
  GraphFixture f({.policy = "random", .units = kUnits});
  Parts parts;
  f.source->making = [&](hal::PhysicalContext& part) -> hal::Status {
    parts.add(part);
    return {};
  };
  runtime::Stream& stream = f.stream();
  for (int i = 0; i < 500; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
  CHECK(f.context->synchronize(stream) == hal::kNativeOk);
  return parts.count();
}

// One graph, which two threads launch while another one does whatever an application may.
class Disturbed {
 public:
  Disturbed(std::uint64_t graph_bytes, std::mt19937_64& random)
      : f_({.policy = "random",
            .units = kUnits,
            .clock = soft::Clock::kReal,
            .graph_bytes = graph_bytes}),
        random_(random) {
    f_.source->making = [this](hal::PhysicalContext& part) { return answer(part); };
  }
  ~Disturbed() { f_.context->forget(*other_); }

  void round() {
    const int changes = 1 + static_cast<int>(random_() % 4);
    std::vector<std::thread> threads;
    for (runtime::Stream* const stream : streams_)
      threads.emplace_back([this, stream] {
        for (int i = 0; i < 8; ++i) launch(*stream);
      });
    for (int i = 0; i < changes; ++i) disturb();
    for (std::thread& thread : threads) thread.join();
    f_.source->busy = false;
    refusals_ = 0;
  }
  // Whether the launches of this thread alone get executables for all `parts` of another graph.
  bool gets_all(std::size_t parts) {
    change(Followed::kReplaced);
    parts_.clear();
    return test::eventually([&] {
      for (int i = 0; i < 8; ++i) launch(*streams_[0]);
      CHECK(f_.context->synchronize(*streams_[0]) == hal::kNativeOk);
      return parts_.count() == parts;
    });
  }

 private:
  hal::Status answer(const hal::PhysicalContext& part) {
    if (const unsigned left = refusals_; left > 0) {
      refusals_ = left - 1;
      return hal::fail(hal::Errc::kInternal, "refused",
                       left % 2 == 0 ? soft::kClusterTooLarge : soft::kInvalidArgument);
    }
    parts_.add(part);
    return {};
  }
  void launch(runtime::Stream& stream) {
    const std::shared_lock lock(graph_);
    CHECK(f_.replay(stream) == hal::kNativeOk);
  }
  void change(Followed followed) {
    f_.context->change(
        *f_.graph, [] { return hal::kNativeOk; }, [&](hal::NativeStatus) { return followed; });
  }
  void hold() {
    f_.context->hold_graphs();
    f_.context->await_held_graphs();
    f_.context->release_graphs();
  }
  void disturb() {
    switch (random_() % 8) {
      case 0:  // the first is for other changes
        return change(static_cast<Followed>(random_() % 5));
      case 1:
        return change(Followed::kNodes);
      case 2:
        return hold();
      case 3:
        f_.source->busy = random_() % 2 == 0;
        return;
      case 4:  // a call of the application, which ends when code is unloaded at the latest
        f_.source->stuck = true;
        std::this_thread::yield();
        hold();
        f_.source->stuck = false;
        return;
      case 5:
        refusals_ = static_cast<unsigned>(random_() % 3);
        return;
      case 6: {  // makes room
        Operation operation(other_);
        CHECK(f_.context->launch_graph(*streams_[2], operation) == hal::kNativeOk);
        return;
      }
      default: {
        const std::unique_lock lock(graph_);
        CHECK(f_.context->destroy(*f_.graph, [] { return hal::kNativeOk; }) == hal::kNativeOk);
        f_.graph = std::make_shared<runtime::Graph>(f_.source);
      }
    }
  }

  Parts parts_;
  std::atomic<unsigned> refusals_{0};
  std::shared_mutex graph_;  // it is launched, or replaced by one of the same source
  std::shared_ptr<Source> other_source_ = std::make_shared<Source>();
  std::shared_ptr<runtime::Graph> other_ = std::make_shared<runtime::Graph>(other_source_);
  GraphFixture f_;  // its worker uses what is above
  runtime::Stream* streams_[3] = {&f_.stream(), &f_.stream(), &f_.stream()};
  std::mt19937_64& random_;
};

TEST_CASE("Launches get executables for all parts that they ask for, whatever happened before") {
  const std::size_t parts = parts_of_random();
  REQUIRE(parts > 3);
  std::mt19937_64 random(test::seed());
  const int devices = test::long_form() ? 200 : test::takes_a_sample() ? 4 : 16;
  for (int i = 0; i < devices; ++i) {
    CAPTURE(i);
    // Room for two executables of four nodes, or for all.
    Disturbed graph(i % 2 == 0 ? 60'000 : std::uint64_t{1} << 30, random);
    for (int round = 0; round < 25; ++round) {
      CAPTURE(round);
      graph.round();
      REQUIRE(graph.gets_all(parts));
    }
  }
}

}  // namespace
}  // namespace vitamin::tests
