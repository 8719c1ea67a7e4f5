// SPDX-License-Identifier: Apache-2.0
#include "policies/guarded.h"

#include <chrono>
#include <stdexcept>

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
    if (fault_ == Fault::kWhole) return {runtime::kWholeDevice, true, 0};
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

TEST_CASE("A thread that does not come back is given up in time") {
  TimedThread thread;
  int answer = 0;
  CHECK(thread.run([&] { answer = 42; }, std::chrono::milliseconds(1000)));
  CHECK(answer == 42);
  const std::chrono::milliseconds second(1000);
  CHECK_THROWS_AS(thread.run([] { throw std::runtime_error("x"); }, second), std::runtime_error);
  auto stop = std::make_shared<std::atomic<bool>>(false);
  const auto start = std::chrono::steady_clock::now();
  CHECK(!thread.run(
      [stop] {
        while (!stop->load()) {
        }
      },
      std::chrono::milliseconds(8)));
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  CHECK(took.count() >= 7);
  CHECK(!thread.run([] {}, std::chrono::milliseconds(8)));
  stop->store(true);
}

// --- shared objects --------------------------------------------------------------------------

std::string plugin(const char* name) { return std::string(PLUGINS) + "/" + name + ".so"; }

std::string problem(const std::string& specification) {
  const auto made = make(specification, 0);
  return made ? "" : made.error().message;
}

TEST_CASE("A library that misbehaves is replaced; a looping one within 10 ms") {
  for (const char* how : {"throw", "loop", "loop-select", "beyond", "entry", "launches", "plan"}) {
    const std::string what = how;
    CAPTURE(what);
    // Undisturbed at least once: tests share their cores.
    double ms = 1e9;
    for (int attempt = 0; attempt < 20 && ms >= 10; ++attempt) {
      std::vector<std::string> lines;
      auto loaded =
          load(plugin("bad_policy"), what, [&](const std::string& line) { lines.push_back(line); });
      REQUIRE(loaded.has_value());
      Ask ask;
      ms = std::min(ms, ask(**loaded));
      REQUIRE(lines.size() == 1);
      CHECK(lines[0].find("policy bad ") == 0);
      CHECK((*loaded)->replaced());
      CHECK(ask.choice.entry == runtime::kWholeDevice);
    }
    CHECK(ms < 10);
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
    auto loaded = load(std::string(EXAMPLES) + "/" + what + ".so", "", {}, std::chrono::seconds(5));
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
