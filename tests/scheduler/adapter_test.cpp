// SPDX-License-Identifier: Apache-2.0
//
// A policy that is written as the paper's three callbacks, over the new interface.
#include "scheduler/policies/adapter.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/scheduler/fixture.h"
#include "tests/scheduler/shorthand.h"
#include "tests/scheduler/world.h"
#include "tests/seed.h"

namespace vitamin::scheduler {
namespace {

using hal::ComputeSet;
using runtime::PoolLayout;

Policy adapted(std::unique_ptr<CallbackPolicy> policy) {
  PolicyDescription description;
  description.name = "callbacks";
  return adapt(std::move(policy), description);
}

// Clients in turn, on a fifth of the device each at least.
class RoundRobin final : public CallbackPolicy {
 public:
  explicit RoundRobin(std::uint32_t launches) : launches_(launches) {}
  std::optional<std::size_t> pick(std::span<const Operation> ready, const State&) override {
    std::size_t best = 0;
    for (std::size_t i = 1; i < ready.size(); ++i)
      if (ready[i].client - last_ - 1 < ready[best].client - last_ - 1) best = i;
    last_ = ready[best].client;
    order.push_back(last_);
    return best;
  }
  Selection select(const Operation&, std::span<const PartitionId> eligible,
                   const State& state) override {
    const std::uint32_t wanted = state.snapshot.pool.front().sms / 5;
    for (const PartitionId id : eligible)
      if (state.snapshot.pool[id].sms >= wanted) return {id, launches_};
    return {eligible.back(), launches_};
  }
  std::vector<ClientId> order;

 private:
  std::uint32_t launches_;
  ClientId last_ = 0;
};

// Keeps half of the device for announced decodes; best effort gets whatever is eligible.
class Preparer final : public CallbackPolicy {
 public:
  Preparer(PartitionId target, bool revoke) : target_(target), revoke_(revoke) {}
  Selection select(const Operation&, std::span<const PartitionId> eligible,
                   const State& state) override {
    for (std::size_t i = eligible.size(); i-- > 0;)
      if (eligible[i] != kWholeDevice) return {eligible[i], 0};
    return {eligible.back(), state.snapshot.pool.empty() ? 1U : 0U};
  }
  Plan prepare(const Step& step, const State&) override {
    if (step.kind != StepKind::kDecode) return {};
    return {target_, revoke_, step.due_ns};
  }

 private:
  PartitionId target_;
  bool revoke_;
};

TEST_CASE("Pick orders, and Select places on partitions that conflict with no other client") {
  const PoolLayout layout = h200();
  auto owned = std::make_unique<RoundRobin>(0);
  RoundRobin& policy = *owned;
  Scheduler scheduler(layout.partitions(), adapted(std::move(owned)));
  for (const ClientId client : {3U, 1U, 2U}) scheduler.wants(client, demand(0), 1);
  const auto decisions = decide(scheduler, 1);
  REQUIRE(decisions.size() == 3);
  CHECK(policy.order == std::vector<ClientId>{1, 2, 3});
  ComputeSet used;
  for (const Decision& decision : decisions) {
    CHECK(decision.mode == Mode::kExclusive);
    CHECK(layout.at(decision.partition).sms >= 32);
    CHECK_FALSE(layout.at(decision.partition).compute.overlaps(used));
    used |= layout.at(decision.partition).compute;
  }
  // What stands is not asked for again, and does not move.
  scheduler.wants(4, demand(0), 2);
  const auto last = decide(scheduler, 2);
  REQUIRE(last.size() == 1);
  CHECK(last[0].client == 4);
}

TEST_CASE("a grant of so many launches comes back, and Pick decides who is next") {
  const PoolLayout layout = four_units();
  // With 104, 133, 171 and 184 starving streams once changed their mode with every plan.
  std::vector<std::uint64_t> seeds{104, 133, 171, 184};
  const std::uint64_t begin = test::seed();
  for (std::uint64_t i = 0; i < 20; ++i) seeds.push_back(begin + i);
  for (const std::uint64_t seed : seeds) {
    CAPTURE(seed);
    SchedulerOptions options;
    options.starving_after_ns = 20'000'000;
    options.quantum_ns = 2'000'000;
    World world(layout, adapted(std::make_unique<RoundRobin>(1 + seed % 4)), options);
    world.run(random_work(seed, 6, 60, 32), 600'000'000'000);
    REQUIRE(world.complete());
    CHECK(world.scheduler().fault().empty());
    CHECK(world.longest_wait() <=
          options.starving_after_ns + 12 * (options.quantum_ns + 2 * world.longest_kernel()));
  }
}

TEST_CASE("a starving stream has its quantum, and the next grant is Select's again") {
  // Four clients whose grants have no end: two fit, the others are served only when they starve.
  class Halves final : public CallbackPolicy {
   public:
    Selection select(const Operation&, std::span<const PartitionId> eligible,
                     const State& state) override {
      for (const PartitionId id : eligible)
        if (2 * state.snapshot.pool[id].sms >= state.snapshot.pool.front().sms) return {id, 0};
      return {};
    }
  };
  const PoolLayout layout = four_units();
  SchedulerOptions options;
  options.starving_after_ns = 20'000'000;
  options.quantum_ns = 4'000'000;
  World world(layout, adapted(std::make_unique<Halves>()), options);
  std::vector<Work> work(4);
  for (ClientId client = 1; client <= 4; ++client) {
    work[client - 1].client = client;
    work[client - 1].kernels = 10'000;
    work[client - 1].kernel_ns = 100'000;
  }
  world.run(work, 300'000'000);
  CHECK(world.scheduler().counters().starving >= 4);
  std::uint32_t granted = 0;
  for (const Planned& planned : world.scheduler().plan()) {
    if (planned.row.mode == Mode::kPaused || planned.reason == Reason::kStarving) continue;
    CHECK(layout.at(planned.row.partition).sms >= 16);
    ++granted;
  }
  CHECK(granted > 0);
  for (ClientId client = 1; client <= 4; ++client) CHECK(world.ran_ns(client) > 10'000'000);
}

TEST_CASE("a stream inside of what is kept for it gets all of it when that is free") {
  const PoolLayout layout = h200();
  const PartitionId half = layout.find(ComputeSet::range(0, 8));
  Scheduler scheduler(layout.partitions(), adapted(std::make_unique<Preparer>(half, true)));
  // Earlier work of client 1 runs on a quarter.
  const GrantId earlier = scheduler.adopt(1, 0, part(layout, 0, 4), Mode::kExclusive, 1);
  REQUIRE(earlier != kNoGrant);
  const Step step = decode_step(2, 50'000'000);
  scheduler.step_expected(step, 10);
  scheduler.wants(2, demand(0), 20);
  auto decisions = decide(scheduler, 20);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].reason == Reason::kMeanwhile);
  // The step begins, and the policy is asked again.
  scheduler.step_begin(step, 30);
  decide(scheduler, 30);
  scheduler.returned(1, 0, earlier, 40);
  decisions = decide(scheduler, 40);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].client == 2);
  CHECK(decisions[0].partition == half);
}

TEST_CASE("streams that come and go are picked without a wait for their age") {
  const PoolLayout layout = h200();
  World world(layout, adapted(std::make_unique<RoundRobin>(2)));
  std::vector<Work> all;
  std::mt19937_64 random(test::seed());
  for (int i = 0; i < 300; ++i) {
    Work work;
    work.at_ns = random() % 20'000'000;
    work.client = 1 + static_cast<ClientId>(random() % 5);
    work.stream = static_cast<StreamId>(random() % 3);
    work.kernels = 1 + static_cast<unsigned>(random() % 5);
    work.kernel_ns = 100'000;
    all.push_back(work);
  }
  world.run(all);
  REQUIRE(world.complete());
  CHECK(world.scheduler().counters().starving == 0);
  CHECK(world.longest_wait() < 1'000'000);
}

TEST_CASE("Pick that defers, and Select that answers nothing, starve no stream") {
  class Deferring final : public CallbackPolicy {
   public:
    explicit Deferring(bool picks) : picks_(picks) {}
    std::optional<std::size_t> pick(std::span<const Operation>, const State&) override {
      if (picks_) return 0;
      return std::nullopt;
    }
    Selection select(const Operation&, std::span<const PartitionId>, const State&) override {
      return {};
    }

   private:
    bool picks_;
  };
  const PoolLayout layout = four_units();
  for (const bool picks : {true, false}) {
    SchedulerOptions options;
    options.starving_after_ns = 5'000'000;
    World world(layout, adapted(std::make_unique<Deferring>(picks)), options);
    std::vector<Work> all(3);
    for (ClientId client = 1; client <= 3; ++client) all[client - 1].client = client;
    world.run(all);
    REQUIRE(world.complete());
    CHECK(world.longest_wait() >= options.starving_after_ns);
    CHECK(world.longest_wait() <= options.starving_after_ns + 3 * options.quantum_ns);
  }
}

TEST_CASE(
    "Prepare drains what is in the way before the step comes, which is then granted at once") {
  const PoolLayout layout = h200();
  const PartitionId half = layout.find(ComputeSet::range(0, 8));
  Scheduler scheduler(layout.partitions(), adapted(std::make_unique<Preparer>(half, true)));
  scheduler.wants(1, demand(0), 1);
  auto decisions = decide(scheduler, 1);
  REQUIRE(decisions.size() == 1);
  CHECK(layout.at(decisions[0].partition).sms == 132);
  const GrantId first = decisions[0].grant;
  const Step step = decode_step(2, 50'000'000);
  scheduler.step_expected(step, 10);
  decisions = decide(scheduler, 10);
  // It moves to what is not kept, and its old work drains.
  REQUIRE(decisions.size() == 2);
  CHECK(decisions[0].kind == Decision::Kind::kRevoke);
  CHECK(decisions[0].grant == first);
  CHECK(decisions[1].kind == Decision::Kind::kGrant);
  CHECK(decisions[1].client == 1);
  CHECK_FALSE(layout.at(decisions[1].partition).compute.overlaps(layout.at(half).compute));
  scheduler.returned(1, 0, first, 20);
  CHECK(decide(scheduler, 20).empty());
  const std::uint64_t plans = scheduler.counters().plans;
  scheduler.wants(2, demand(0), 30);
  decisions = decide(scheduler, 30);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].client == 2);
  CHECK(decisions[0].partition == half);
  CHECK(decisions[0].mode == Mode::kExclusive);
  CHECK(scheduler.counters().plans <= plans + 1);
}

TEST_CASE("Prepare that revokes nothing leaves exclusive grants of others as they are") {
  const PoolLayout layout = h200();
  const PartitionId half = layout.find(ComputeSet::range(0, 8));
  for (const bool revoke : {false, true}) {
    CAPTURE(revoke);
    Scheduler scheduler(layout.partitions(), adapted(std::make_unique<Preparer>(half, revoke)));
    // Client 2, which announces the step, has been active for longer.
    scheduler.wants(2, demand(0), 1);
    const GrantId before = decide(scheduler, 1).at(0).grant;
    scheduler.idle(2, 0, 2);
    scheduler.returned(2, 0, before, 2);
    scheduler.wants(1, demand(0), 3);
    const auto decisions = decide(scheduler, 3);
    REQUIRE(decisions.size() == 1);
    CHECK(layout.at(decisions[0].partition).sms == 132);
    scheduler.step_expected(decode_step(2, 50'000'000), 4);
    CHECK(decide(scheduler, 4).empty() == !revoke);
    const Grant* const grant = scheduler.ledger().find(decisions[0].grant);
    CHECK(grant->state == (revoke ? Grant::State::kRevoked : Grant::State::kOpen));
  }
}

TEST_CASE("under isolation streams of one client are offered different partitions") {
  const PoolLayout layout = h200();
  for (const bool isolate : {false, true}) {
    CAPTURE(isolate);
    PolicyDescription description;
    description.name = "callbacks";
    description.isolate_streams = isolate;
    Scheduler scheduler(layout.partitions(), adapt(std::make_unique<RoundRobin>(0), description));
    for (const StreamId stream : {0U, 1U}) scheduler.wants(1, demand(stream), 1);
    const auto decisions = decide(scheduler, 1);
    REQUIRE(decisions.size() == 2);
    CHECK((decisions[0].partition == decisions[1].partition) == !isolate);
    CHECK(scheduler.corrections().overlap == 0);
    for (const Decision& decision : decisions) CHECK(layout.at(decision.partition).sms >= 32);
  }
}

TEST_CASE("what was prepared for a step that does not come is free when its time ends") {
  const PoolLayout layout = h200();
  const PartitionId half = layout.find(ComputeSet::range(0, 8));
  Scheduler scheduler(layout.partitions(), adapted(std::make_unique<Preparer>(half, true)));
  const Step step = decode_step(2, 1'000'000);
  scheduler.step_expected(step, 10);
  scheduler.wants(1, demand(0), 10);
  auto decisions = decide(scheduler, 10);
  REQUIRE(decisions.size() == 1);
  CHECK_FALSE(layout.at(decisions[0].partition).compute.overlaps(layout.at(half).compute));
  CHECK(scheduler.wake_at() == 1'000'000);
  decide(scheduler, 1'000'000);
  scheduler.wants(3, demand(0), 1'000'001);
  decisions = decide(scheduler, 1'000'001);
  REQUIRE(decisions.size() == 1);
  CHECK(layout.at(decisions[0].partition).compute.overlaps(layout.at(half).compute));
}

}  // namespace
}  // namespace vitamin::scheduler
