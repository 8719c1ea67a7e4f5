// SPDX-License-Identifier: Apache-2.0
#include "policies/guarded.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <stdexcept>
#include <thread>

#include "policies/loadable.h"
#include "tests/figure.h"
#include "tests/policies/fixture.h"
#include "tests/policies/world.h"

namespace vitamin::policies {
namespace {

using runtime::Choice;
using runtime::EntryId;
using runtime::PoolLayout;
using runtime::PoolView;
using runtime::ReadyOperation;

enum class Fault { kNone, kThrowString, kThrow, kIndex, kEntry, kLaunches, kPlan, kWhole };

class Faulty final : public runtime::Policy {
 public:
  explicit Faulty(Fault fault) : fault_(fault) {}
  std::string_view name() const override { return "faulty"; }
  std::optional<std::size_t> pick(std::span<const ReadyOperation> ready, const PoolView&) override {
    if (fault_ == Fault::kThrow) throw std::runtime_error("planted");
    if (fault_ == Fault::kThrowString) throw "planted";
    return fault_ == Fault::kIndex ? ready.size() : 0;
  }
  Choice select(const ReadyOperation&, std::span<const EntryId> eligible,
                const PoolView&) override {
    if (fault_ == Fault::kEntry) return {5, 1};
    return {eligible.front(), fault_ == Fault::kLaunches ? 0U : 1U};
  }
  runtime::Plan prepare(const runtime::Hint&, const PoolView& pool) override {
    if (fault_ == Fault::kPlan) return {static_cast<EntryId>(pool.entries.size()), true, 0};
    if (fault_ == Fault::kWhole) return {runtime::kNoEntry, true, 0, runtime::kWholeDevice};
    return {};
  }

 private:
  Fault fault_;
};

struct Ask {
  PoolLayout layout = PoolLayout::build(h200());
  ReadyOperation operation;
  EntryId eligible[2] = {1, 0};
  PoolView view;
  Ask() {
    operation.client = 1;
    view.entries = layout.entries();
    view.waiting = {&operation, 1};
    view.epoch = 1;
  }
  // All three callbacks; the milliseconds that they took.
  double operator()(runtime::Policy& policy) {
    const auto start = std::chrono::steady_clock::now();
    runtime::Hint hint;
    hint.client = 1;
    policy.prepare(hint, view);
    policy.pick({&operation, 1}, view);
    choice = policy.select(operation, eligible, view);
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  }
  Choice choice;
};

TEST_CASE("A policy that throws or answers nonsense is replaced by fifo, once, with one line") {
  for (const Fault fault : {Fault::kThrowString, Fault::kThrow, Fault::kIndex, Fault::kEntry,
                            Fault::kLaunches, Fault::kPlan, Fault::kWhole}) {
    CAPTURE(static_cast<int>(fault));
    std::vector<std::string> lines;
    Ask ask;
    CHECK(test::lowest(10, [&] {
            Guarded another(std::make_unique<Faulty>(fault));
            return ask(another);
          }) < 10);
    Guarded guarded(std::make_unique<Faulty>(fault),
                    [&](const std::string& line) { lines.push_back(line); });
    ask(guarded);
    ask(guarded);
    CHECK(guarded.replaced());
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].find("policy faulty ") == 0);
    CHECK(lines[0].find("fifo decides from now on") != std::string::npos);
    CHECK(ask.choice.entry == runtime::kWholeDevice);
    CHECK(guarded.name() == "faulty");
  }
}

TEST_CASE("A policy that behaves is not replaced, and may decline") {
  Guarded guarded(std::make_unique<Faulty>(Fault::kNone));
  Ask ask;
  ask(guarded);
  CHECK(!guarded.replaced());
  CHECK(ask.choice.entry == 1);
  CHECK(guarded.why().empty());
}

using Outcome = TimedThread::Outcome;
using std::chrono::milliseconds;

double processor_ms(clockid_t clock = CLOCK_PROCESS_CPUTIME_ID) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}
double processor_ms_of_thread() { return processor_ms(CLOCK_THREAD_CPUTIME_ID); }

TEST_CASE("A thread that loops is given up after 8 ms of processor time") {
  const Limits patient{milliseconds(8), milliseconds(60'000)};
  TimedThread thread;
  int answer = 0;
  CHECK(thread.run([&] { answer = 42; }, patient) == Outcome::kReturned);
  CHECK(answer == 42);
  CHECK_THROWS_AS(thread.run([] { throw std::runtime_error("x"); }, patient), std::runtime_error);
  // Whoever waits for it may be woken late on a busy machine: more often than not, at worst, and so
  // not sixty times in a row.
  double least = 1e9;  // both threads', however busy the machine is
  for (int i = 0; i < 60 && least >= 12; ++i) {
    TimedThread fresh;
    auto stop = std::make_shared<std::atomic<bool>>(false);
    const double before = processor_ms();
    CHECK(fresh.run(
              [stop] {
                while (!stop->load()) {
                }
              },
              patient) == Outcome::kProcessorTime);
    const double used = processor_ms() - before;
    CHECK(used >= 8);
    least = std::min(least, used);
    CHECK(fresh.run([] {}, patient) == Outcome::kStopped);
    stop->store(true);
  }
  CHECK(least < 12);
}

TEST_CASE("A thread that sleeps is given up by the clock") {
  TimedThread thread;
  auto awake = std::make_shared<std::atomic<bool>>(false);
  const auto start = std::chrono::steady_clock::now();
  CHECK(thread.run(
            [awake] {
              while (!awake->load()) std::this_thread::sleep_for(milliseconds(1));
            },
            {milliseconds(1000), milliseconds(30)}) == Outcome::kClock);
  CHECK(std::chrono::steady_clock::now() - start >= milliseconds(30));
  awake->store(true);
}

// On one processor with a thread that never gives it up, at the lowest priority.
TEST_CASE("A thread that is starved of processor time is waited for") {
  cpu_set_t allowed, one;
  REQUIRE(::sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i)
    if (CPU_ISSET(i, &allowed)) CPU_SET(i, &one);
  std::atomic<bool> stop{false};
  std::thread hog([&] {
    ::sched_setaffinity(0, sizeof one, &one);
    while (!stop) {
    }
  });
  TimedThread thread;
  bool starved = false;  // not before the other one runs
  for (int attempt = 0; attempt < 500 && !starved; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    const Outcome outcome = thread.run(
        [&] {
          ::sched_setaffinity(0, sizeof one, &one);
          sched_param lowest{};
          ::sched_setscheduler(0, SCHED_IDLE, &lowest);
          for (const double until = processor_ms_of_thread() + 1;
               processor_ms_of_thread() < until;) {
          }
        },
        {milliseconds(8), milliseconds(60'000)});
    starved = std::chrono::steady_clock::now() - start > milliseconds(8);
    REQUIRE(outcome == Outcome::kReturned);
  }
  stop = true;
  hog.join();
  CHECK(starved);
}

// --- shared objects --------------------------------------------------------------------------

std::string plugin(const char* name) { return std::string(PLUGINS) + "/" + name + ".so"; }

std::string problem(const std::string& specification) {
  const auto made = make(specification, 0);
  return made ? "" : made.error().message;
}

TEST_CASE("A library that misbehaves is replaced; a looping one for its processor time") {
  for (const char* how : {"throw", "loop", "loop-select", "beyond", "entry", "launches", "plan"}) {
    const std::string what = how;
    CAPTURE(what);
    std::vector<std::string> lines;
    auto loaded =
        load(plugin("bad_policy"), what, [&](const std::string& line) { lines.push_back(line); },
             {milliseconds(8), milliseconds(60'000)});
    REQUIRE(loaded.has_value());
    Ask ask;
    ask(**loaded);
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].find("policy bad ") == 0);
    CHECK((*loaded)->replaced());
    CHECK(ask.choice.entry == runtime::kWholeDevice);
    CHECK((lines[0].find("within 8 ms of processor time") != std::string::npos) ==
          what.starts_with("loop"));
  }
}

TEST_CASE("Libraries that cannot be used: one sentence each") {
  CHECK(problem("./no/such/file.so").find("policy library ./no/such/file.so: ") == 0);
  CHECK(problem(plugin("no_policy")).find("exports no function vitamin_policy") !=
        std::string::npos);
  CHECK(problem(plugin("old_policy")).find("compiled for policy ABI 77, this Vitamin has 1") !=
        std::string::npos);
  CHECK(problem(plugin("bad_policy") + ":refuse").find("I do not like these parameters") !=
        std::string::npos);
  CHECK(problem(std::string(EXAMPLES) + "/policy_round_robin.so:share=x").find("not share=N") !=
        std::string::npos);
}

TEST_CASE("The examples decide for clients that run, and are never replaced") {
  for (const char* name : {"policy_round_robin", "policy_narrow_first"}) {
    const std::string what = name;
    CAPTURE(what);
    const PoolLayout layout = PoolLayout::build(h200());
    auto loaded = load(std::string(EXAMPLES) + "/" + what + ".so", "", {},
                       {milliseconds(8), milliseconds(60'000)});
    REQUIRE(loaded.has_value());
    Guarded* guarded = loaded->get();
    World world(layout, std::move(*loaded));
    std::vector<Work> work;
    for (unsigned i = 0; i < 60; ++i) {
      Work item;
      item.at_ns = i * 50'000;
      item.operation.client = 1 + i % 5;
      item.operation.kernel = i;
      item.kernels = 5;
      work.push_back(item);
    }
    world.run(work);
    CHECK(world.complete());
    CHECK_MESSAGE(!guarded->replaced(), guarded->why());
    CHECK(world.scheduler().counters().refused == 0);
  }
}

}  // namespace
}  // namespace vitamin::policies
