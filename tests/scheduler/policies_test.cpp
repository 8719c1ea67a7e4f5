// SPDX-License-Identifier: Apache-2.0
//
// Each built-in policy does what its description says, in virtual time.
#include <doctest/doctest.h>

#include <functional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "scheduler/policies/builtin.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/fixture.h"
#include "tests/scheduler/shorthand.h"
#include "tests/scheduler/world.h"
#include "tests/seed.h"

namespace vitamin::scheduler {
namespace {

using hal::ComputeSet;
using runtime::PoolLayout;

std::vector<Policy> every_policy(std::uint64_t seed) {
  std::vector<Policy> all;
  all.push_back(make_fifo());
  all.push_back(make_static());
  all.push_back(make_static({ComputeSet::range(0, 2), 1}));
  all.push_back(make_exclusive());
  all.push_back(make_temporal());
  all.push_back(make_salus());
  all.push_back(make_orion());
  RandomOptions random;
  random.seed = seed;
  all.push_back(make_random(random));
  random.every = 3;
  random.isolate_streams = true;
  all.push_back(make_random(random));
  all.push_back(make_extremes());
  all.push_back(make_extremes({true, false}));
  return all;
}

Step iteration(ClientId client, std::uint64_t id) {
  Step step;
  step.id = id;
  step.client = client;
  step.kind = StepKind::kIteration;
  return step;
}

// A client that has `kernels` kernels from the beginning.
Work job(ClientId client, unsigned kernels, std::uint64_t kernel_ns = 800'000) {
  Work work;
  work.client = client;
  work.kernels = kernels;
  work.kernel_ns = kernel_ns;
  return work;
}

TEST_CASE("every policy runs any work to its end, and no two clients overlap unless they share") {
  const PoolLayout layout = four_units();
  const std::uint64_t begin = test::seed();
  for (std::uint64_t seed = begin; seed < begin + 20; ++seed) {
    for (Policy& policy : every_policy(seed)) {
      const std::string name(policy.description.name);
      CAPTURE(name);
      CAPTURE(seed);
      World world(layout, std::move(policy));
      world.run(random_work(seed, 2 + static_cast<unsigned>(seed % 5), 60, 32), 600'000'000'000);
      REQUIRE(world.complete());
      CHECK(world.scheduler().fault().empty());
    }
  }
}

TEST_CASE("one client alone has the whole device under every policy that is not the verifier's") {
  const PoolLayout layout = h200();
  for (Policy& policy : every_policy(1)) {
    const std::string name(policy.description.name);
    CAPTURE(name);
    if (policy.placement != nullptr || name == "static") continue;
    Scheduler scheduler(layout.partitions(), std::move(policy));
    scheduler.wants(1, demand(0), 1);
    const auto decisions = decide(scheduler, 1);
    REQUIRE(decisions.size() == 1);
    CHECK(decisions[0].partition == kWholeDevice);
  }
}

TEST_CASE("static gives parts of equal size in order of arrival, and a full part is shared") {
  const PoolLayout layout = h200();
  Scheduler scheduler(layout.partitions(), make_static());
  scheduler.wants(1, demand(0), 1);
  scheduler.wants(2, demand(0), 1);
  auto decisions = decide(scheduler, 1);
  REQUIRE(decisions.size() == 2);
  CHECK(layout.at(decisions[0].partition).compute == ComputeSet::range(0, 8));
  CHECK(layout.at(decisions[1].partition).compute == ComputeSet::range(8, 8));
  CHECK(decisions[0].mode == Mode::kExclusive);
  scheduler.wants(3, demand(0), 2);
  decisions = decide(scheduler, 2);
  REQUIRE(decisions.size() == 2);
  for (const Decision& decision : decisions) {
    CHECK(decision.client != 2);
    CHECK(decision.mode == Mode::kShared);
    CHECK(layout.at(decision.partition).compute == ComputeSet::range(0, 8));
  }
  // The place of one that has gone is the next one's.
  scheduler.forget(2, 3);
  scheduler.wants(4, demand(0), 4);
  decisions = decide(scheduler, 4);
  REQUIRE(decisions.size() == 1);
  CHECK(layout.at(decisions[0].partition).compute == ComputeSet::range(8, 8));
}

TEST_CASE("static cuts a device that no number of units divides into parts of an equal number") {
  const PoolLayout layout = h200();
  for (const unsigned parts : {1U, 2U, 3U, 4U, 5U, 8U, 9U, 16U, 20U}) {
    CAPTURE(parts);
    Scheduler scheduler(layout.partitions(), make_static({ComputeSet(), parts}));
    for (ClientId client = 1; client <= parts; ++client) scheduler.wants(client, demand(0), 1);
    const unsigned there = std::min(parts, 16U);
    ComputeSet used;
    std::set<PartitionId> all;
    for (const Decision& decision : decide(scheduler, 1)) {
      const ComputeSet units = layout.at(decision.partition).compute;
      // The pool has partitions of 1, 2, 4, 8 and 16 units, and what they leave.
      CHECK(units.count() == (parts <= 2 ? 16 / parts : parts <= 4 ? 4 : parts <= 8 ? 2 : 1));
      if (all.insert(decision.partition).second) {
        CHECK_FALSE(units.overlaps(used));
        used |= units;
      }
    }
    CHECK(all.size() == there);
  }
}

TEST_CASE("static with one part lets its clients share instead of waiting for each other") {
  // Two exclusive grants on one part stood for ever under the scheduler before this one.
  const PoolLayout layout = four_units();
  World world(layout, make_static({ComputeSet(), 1}));
  world.run({job(1, 50), job(2, 50), job(3, 50)});
  REQUIRE(world.complete());
  CHECK(world.longest_wait() == 0);
}

TEST_CASE("temporal gives clients that never pause equal time, one at a time") {
  const PoolLayout layout = four_units();
  World world(layout, make_temporal());
  std::vector<Work> work;
  for (ClientId client = 1; client <= 3; ++client) work.push_back(job(client, 400, 400'000));
  world.run(work, 90'000'000);
  CHECK_FALSE(world.complete());
  for (ClientId client = 1; client <= 3; ++client) {
    CHECK(world.ran_ns(client) >= 27'000'000);
    CHECK(world.ran_ns(client) <= 33'000'000);
  }
}

// A turn that were counted from the plan would be over before the drain of the one before it.
TEST_CASE("temporal gives turns to clients whose kernels are longer than a quantum") {
  const PoolLayout layout = four_units();
  World world(layout, make_temporal());
  world.run({job(1, 400, 20'000'000), job(2, 400, 20'000'000)}, 400'000'000);  // 5 ms each
  CHECK_FALSE(world.complete());
  for (ClientId client = 1; client <= 2; ++client) CHECK(world.ran_ns(client) >= 180'000'000);
}

TEST_CASE("exclusive hands over when the client has been idle for a while, and not before") {
  const PoolLayout layout = h200();
  TurnOptions options;
  options.quiet_ns = 20'000'000;
  Scheduler scheduler(layout.partitions(), make_exclusive(options));
  scheduler.wants(1, demand(0), 1);
  const GrantId first = decide(scheduler, 1).at(0).grant;
  scheduler.wants(2, demand(0), 2);
  CHECK(decide(scheduler, 2).empty());
  scheduler.idle(1, 0, 1'000'000);
  scheduler.returned(1, 0, first, 1'000'000);
  CHECK(decide(scheduler, 1'000'000).empty());
  // It comes back soon: its turn goes on.
  scheduler.wants(1, demand(0), 2'000'000);
  const auto again = decide(scheduler, 2'000'000);
  REQUIRE(again.size() == 1);
  CHECK(again[0].client == 1);
  scheduler.idle(1, 0, 3'000'000);
  scheduler.returned(1, 0, again[0].grant, 3'000'000);
  std::uint64_t now = 3'000'000;
  std::vector<Decision> decisions;
  while (decisions.empty() && now < 1'000'000'000) {
    REQUIRE(scheduler.wake_at() != kNever);
    now = std::max(now, scheduler.wake_at());
    decisions = decide(scheduler, now);
  }
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].client == 2);
  CHECK(decisions[0].mode == Mode::kExclusive);
  CHECK(now >= 3'000'000 + options.quiet_ns);
  CHECK(now <= 3'000'000 + options.quiet_ns + SchedulerOptions().idle_after_ns);
}

TEST_CASE("salus hands over when a step ends") {
  const PoolLayout layout = h200();
  Scheduler scheduler(layout.partitions(), make_salus());
  scheduler.wants(1, demand(0), 1);
  scheduler.step_begin(iteration(1, 7), 1);
  const GrantId first = decide(scheduler, 1).at(0).grant;
  scheduler.wants(2, demand(0), 2);
  CHECK(decide(scheduler, 2).empty());
  scheduler.step_end(1, 7, 3);
  scheduler.step_begin(iteration(1, 8), 3);
  auto decisions = decide(scheduler, 3);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].kind == Decision::Kind::kRevoke);
  CHECK(decisions[0].client == 1);
  scheduler.returned(1, 0, first, 4);
  decisions = decide(scheduler, 4);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].client == 2);
}

TEST_CASE("random draws every part in its range, the same for the same seed") {
  const PoolLayout layout = h200();
  const auto draw = [&](std::uint64_t seed) {
    RandomOptions options;
    options.seed = seed;
    options.min_sms = 16;
    options.max_sms = 64;
    Scheduler scheduler(layout.partitions(), make_random(options));
    std::vector<PartitionId> drawn;
    std::uint64_t now = 1;
    for (int i = 0; i < 2000; ++i) {
      scheduler.wants(1, demand(0), now);
      const auto decisions = decide(scheduler, now);
      REQUIRE(decisions.size() == 1);
      CHECK(decisions[0].launches == 1);
      drawn.push_back(decisions[0].partition);
      scheduler.returned(1, 0, decisions[0].grant, ++now);
    }
    return drawn;
  };
  const auto drawn = draw(5);
  CHECK(drawn == draw(5));
  CHECK(drawn != draw(6));
  std::set<PartitionId> seen(drawn.begin(), drawn.end()), expected;
  for (const Partition& partition : layout.partitions())
    if (partition.sms >= 16 && partition.sms <= 64) expected.insert(partition.id);
  CHECK(seen == expected);
}

TEST_CASE("random below the narrowest part draws narrowest parts, and launches move") {
  const PoolLayout layout = h200();
  struct Case {
    std::uint32_t low, high, expected;
  };
  for (const Case& of : {Case{1, 4, 8}, Case{10, 12, 12}, Case{17, 19, 20}}) {
    const std::uint32_t expected = of.expected;
    CAPTURE(of.low);
    RandomOptions options;
    options.min_sms = of.low;
    options.max_sms = of.high;
    Scheduler scheduler(layout.partitions(), make_random(options));
    std::set<PartitionId> seen;
    std::uint64_t now = 1;
    for (int i = 0; i < 100; ++i) {
      scheduler.wants(1, demand(0), now);
      const auto decisions = decide(scheduler, now);
      REQUIRE(decisions.size() == 1);
      CHECK(layout.at(decisions[0].partition).sms == expected);
      seen.insert(decisions[0].partition);
      scheduler.returned(1, 0, decisions[0].grant, ++now);
    }
    if (expected == 8) CHECK(seen.size() > 5);
  }
}

TEST_CASE("extremes alternates between a narrowest part and the widest one") {
  const PoolLayout layout = h200();
  Scheduler scheduler(layout.partitions(), make_extremes());
  std::set<PartitionId> narrow;
  std::uint64_t now = 1;
  for (int i = 0; i < 40; ++i) {
    scheduler.wants(1, demand(0), now);
    const auto decisions = decide(scheduler, now);
    REQUIRE(decisions.size() == 1);
    const std::uint32_t sms = layout.at(decisions[0].partition).sms;
    CHECK(decisions[0].partition != kWholeDevice);
    CHECK(sms == (i % 2 == 0 ? 132U : 8U));
    if (sms == 8) narrow.insert(decisions[0].partition);
    scheduler.returned(1, 0, decisions[0].grant, ++now);
  }
  CHECK(narrow.size() > 5);
}

TEST_CASE("a placement that throws or is not eligible is replaced by fifo") {
  class Bad final : public PlacementPolicy {
   public:
    explicit Bad(bool throws) : throws_(throws) {}
    Placement place(const PlacementRequest&, std::span<const PartitionId>) override {
      if (throws_) throw 1;
      return {30'000, 1};
    }

   private:
    bool throws_;
  };
  const PoolLayout layout = h200();
  for (const bool throws : {true, false}) {
    PolicyDescription description;
    description.name = "bad";
    Scheduler scheduler(layout.partitions(), {description, nullptr, std::make_unique<Bad>(throws)});
    scheduler.wants(1, demand(0), 1);
    const auto decisions = decide(scheduler, 1);
    REQUIRE(decisions.size() == 1);
    CHECK(decisions[0].reason == Reason::kFallback);
    CHECK(scheduler.fault() == (throws ? "bad: place() threw an exception"
                                       : "bad: place() returned a partition that is not eligible"));
  }
}

TEST_CASE("under placement quotas and reservations hold, and a wide launch waits for no longer") {
  const PoolLayout layout = four_units();
  SchedulerOptions options;
  options.starving_after_ns = 10'000'000;
  World world(layout, make_random(), options);
  ClientTerms terms;
  terms.limits.max_sms = 8;
  world.scheduler().attach(1, terms, 0);
  std::vector<Work> work;
  // Of different times, so that there are never three units free at once.
  for (ClientId client = 1; client <= 4; ++client)
    work.push_back(job(client, 2'000, 70'000 + 17'000 * client));
  work.push_back(job(5, 3, 100'000));
  work.back().min_sms = 24;
  work.back().at_ns = 1'000;
  world.run(work);
  REQUIRE(world.complete());
  CHECK(world.longest_wait() <= options.starving_after_ns + 5 * options.quantum_ns);
  CHECK(world.scheduler().counters().starving > 0);

  Scheduler scheduler(layout.partitions(), make_random());
  scheduler.attach(1, terms, 0);
  ClientTerms reserved;
  reserved.limits.reserved_sms = 16;
  scheduler.attach(2, reserved, 0);
  std::uint64_t now = 1;
  for (int i = 0; i < 200; ++i) {
    for (const ClientId client : {1U, 3U}) {
      scheduler.wants(client, demand(0), now);
      const auto decisions = decide(scheduler, now);
      REQUIRE(decisions.size() == 1);
      CHECK(layout.at(decisions[0].partition).sms <= (client == 1 ? 8U : 16U));
      scheduler.returned(client, 0, decisions[0].grant, ++now);
      scheduler.idle(client, 0, now);
    }
  }
}

TEST_CASE("orion lets best effort run one launch at a time, and not beside what scales alike") {
  // Client 1 is latency-critical and compute-bound, 2 compute-bound, 3 memory-bound and narrow.
  class Curves final : public Estimates {
   public:
    Speed speed(ClientId client, Assignments configuration) const override {
      const auto share = static_cast<float>(layout.at(configuration[0].partition).sms) / 132;
      return {client == 3 ? 1 : share, 0.01F};
    }
    PoolLayout layout = h200();
  };
  const Curves curves;
  Scheduler scheduler(curves.layout.partitions(), make_orion(), {}, &curves);
  ClientTerms critical;
  critical.slo.latency_ns = 1;
  scheduler.attach(1, critical, 0);
  for (ClientId client = 1; client <= 3; ++client) scheduler.wants(client, demand(0), 1);
  auto decisions = decide(scheduler, 1);
  REQUIRE(decisions.size() == 2);
  const Decision *first = nullptr, *narrow = nullptr;
  for (const Decision& decision : decisions) (decision.client == 1 ? first : narrow) = &decision;
  REQUIRE(first != nullptr);
  REQUIRE(narrow != nullptr);
  CHECK(first->launches == 0);
  CHECK(narrow->client == 3);
  CHECK(narrow->launches == 1);
  const GrantId grant = first->grant;
  // The critical one has ended: the other compute-bound client goes.
  scheduler.idle(1, 0, 10);
  scheduler.returned(1, 0, grant, 10);
  decisions = decide(scheduler, 10);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].client == 2);
  CHECK(decisions[0].launches == 1);
}

// As a client of vitamind does it: it asks for the next launch while the one before it runs.
TEST_CASE("orion counts a launch as in flight until its grant is returned") {
  class Narrow final : public Estimates {  // client 1 compute-bound, the others memory-bound
   public:
    Speed speed(ClientId client, Assignments configuration) const override {
      const auto share = static_cast<float>(layout.at(configuration[0].partition).sms) / 132;
      return {client == 1 ? share : 1, 0.01F};
    }
    PoolLayout layout = h200();
  };
  const Narrow curves;
  OrionOptions options;
  options.duration_ns = 250'000;
  for (const std::uint64_t predicted_ns : {100'000U, 0U}) {  // 0: unknown
    CAPTURE(predicted_ns);
    Scheduler scheduler(curves.layout.partitions(), make_orion(options), {}, &curves);
    ClientTerms critical;
    critical.slo.latency_ns = 1;
    scheduler.attach(1, critical, 0);
    scheduler.wants(1, demand(0), 1);
    StreamDemand launch = demand(0);
    launch.predicted_ns = predicted_ns;
    std::vector<GrantId> in_flight;
    std::uint64_t now = 1;
    const auto ask = [&](ClientId client) {
      scheduler.wants(client, launch, ++now);
      for (const Decision& decision : decide(scheduler, now)) {
        if (decision.client != client) continue;
        in_flight.push_back(decision.grant);
        scheduler.idle(client, 0, now);  // used up
        return true;
      }
      return false;
    };
    const std::size_t fit = predicted_ns == 0 ? 1 : 3;
    for (std::size_t i = 0; i < fit; ++i) CHECK(ask(2));
    CHECK_FALSE(ask(2));
    CHECK_FALSE(ask(3));
    scheduler.returned(2, 0, in_flight.front(), ++now);
    const auto next = decide(scheduler, now);
    REQUIRE(next.size() == 1);
    CHECK(next[0].client == 2);
  }
}

}  // namespace
}  // namespace vitamin::scheduler
