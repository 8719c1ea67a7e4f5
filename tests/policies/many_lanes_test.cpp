// SPDX-License-Identifier: Apache-2.0
//
// What a decision looks at when there are many lanes: as much as has changed, where the policy
// plans for nobody; and nothing is forgotten for it.
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "policies/planner.h"
#include "runtime/scheduler.h"
#include "tests/policies/fixture.h"

namespace vitamin::policies {
namespace {

using runtime::Choice;
using runtime::ClientId;
using runtime::Decision;
using runtime::EntryId;
using runtime::kNoEntry;
using runtime::kWholeDevice;
using runtime::PoolLayout;
using runtime::PoolView;
using runtime::ReadyOperation;
using runtime::Scheduler;

ReadyOperation operation(ClientId client, runtime::LaneId lane = 0) {
  ReadyOperation result;
  result.client = client;
  result.lane = lane;
  result.kernel = client;
  return result;
}

// Plans while `plans_`: then odd clients stop and even ones have the entry `target_`.
class Switching final : public runtime::Policy {
 public:
  std::string_view name() const override { return "switching"; }
  bool plans() const override { return plans_; }
  Choice select(const ReadyOperation& operation, std::span<const EntryId> eligible,
                const PoolView& pool) override {
    told_ = pool.holdings.size() + pool.waiting.size() + pool.draining.size();
    if (plans_ && operation.client % 2 == 1) return {kNoEntry, 0};
    return {eligible.back(), runtime::kUntilChanged};
  }
  runtime::Plan prepare(const runtime::Hint& hint, const PoolView&) override {
    ++asked_;
    runtime::Plan plan;
    plan.stop = plans_ && hint.client % 2 == 1;
    if (plans_ && !plan.stop) plan.target = target_;
    return plan;
  }
  bool plans_ = false;
  EntryId target_ = kWholeDevice;
  unsigned asked_ = 0;
  std::size_t told_ = 0;
};

struct Many {
  Many() : layout(PoolLayout::build(h200())) {
    auto made = std::make_unique<Switching>();
    policy = made.get();
    scheduler = std::make_unique<Scheduler>(layout, std::move(made));
  }
  std::vector<Decision> decide(std::uint64_t now) {
    const auto decisions = scheduler->decide(now);
    return {decisions.begin(), decisions.end()};
  }
  PoolLayout layout;
  Switching* policy;
  std::unique_ptr<Scheduler> scheduler;
};

TEST_CASE("A policy that plans for nobody is asked about those only who want something new") {
  Many many;
  for (ClientId id = 1; id <= 200; ++id) many.scheduler->wants(operation(id), id);
  CHECK(many.decide(200).size() == 200);
  many.policy->asked_ = 0;
  for (ClientId id = 1; id <= 200; ++id) {
    const std::uint64_t now = 1000 + id;
    many.scheduler->idle(id, 0, now);
    many.scheduler->returned(id, 0, kWholeDevice, now);
    CHECK(many.decide(now).empty());
    many.scheduler->wants(operation(id), now);
    const auto decisions = many.decide(now);
    REQUIRE(decisions.size() == 1);
    CHECK(decisions[0].client == id);
    CHECK(many.policy->told_ == 1);
  }
  CHECK(many.policy->asked_ == 0);
}

TEST_CASE("What a policy planned is undone when it plans no longer, and made when it begins") {
  Many many;
  for (ClientId id = 1; id <= 10; ++id) many.scheduler->wants(operation(id), id);
  CHECK(many.decide(10).size() == 10);
  // Those that are at rest are stopped, too.
  many.policy->plans_ = true;
  many.scheduler->wants(operation(11), 11);
  std::set<ClientId> closed;
  for (const Decision& decision : many.decide(11)) {
    CHECK(decision.kind == Decision::Kind::kCloseGate);
    closed.insert(decision.client);
  }
  CHECK(closed == std::set<ClientId>{1, 3, 5, 7, 9});
  for (const ClientId id : closed) many.scheduler->returned(id, 0, kWholeDevice, 12);
  CHECK(many.decide(12).empty());
  CHECK(many.scheduler->waiting() == 6);
  many.policy->plans_ = false;
  many.scheduler->wants(operation(12), 13);
  CHECK(many.decide(13).size() == 7);
  CHECK(many.scheduler->waiting() == 0);
}

TEST_CASE("Lanes at rest move when their policy plans a part for them, and come back") {
  Many many;
  for (const ClientId id : {2U, 4U}) many.scheduler->wants(operation(id), id);
  CHECK(many.decide(5).size() == 2);
  many.policy->plans_ = true;
  many.policy->target_ = 1;
  many.scheduler->idle(4, 0, 6);
  many.scheduler->returned(4, 0, kWholeDevice, 6);
  auto decisions = many.decide(6);
  REQUIRE(decisions.size() == 2);
  CHECK(decisions[0].kind == Decision::Kind::kCloseGate);
  CHECK(decisions[1].entry == 1);
  many.scheduler->returned(2, 0, kWholeDevice, 7);
  many.policy->target_ = kWholeDevice;
  many.scheduler->wants(operation(4), 8);
  decisions = many.decide(8);
  REQUIRE(decisions.size() == 3);  // 2 leaves its part, and both have the whole device
  CHECK(many.scheduler->leases().state(1) != runtime::LeaseState::kLeased);
}

TEST_CASE("While somebody waits, lanes at rest are recalled at the quantum, all of them") {
  const PoolLayout layout = PoolLayout::build(h200());
  Many many;
  many.scheduler->set({.quantum_ns = 1000, .overdue_ns = runtime::kNever});
  for (const ClientId id : {2U, 4U, 6U}) many.scheduler->wants(operation(id), 0);
  CHECK(many.decide(0).size() == 3);
  CHECK(many.scheduler->wake_at() == runtime::kNever);
  // It is neither stopped nor served.
  class Deaf final : public runtime::Policy {
   public:
    std::string_view name() const override { return "deaf"; }
    bool plans() const override { return false; }
    Choice select(const ReadyOperation& asked, std::span<const EntryId> eligible,
                  const PoolView&) override {
      if (asked.client == 7) return {kNoEntry, 0};
      return {eligible.back(), runtime::kUntilChanged};
    }
  };
  Scheduler scheduler(layout, std::make_unique<Deaf>(),
                      {.quantum_ns = 1000, .overdue_ns = runtime::kNever});
  for (const ClientId id : {2U, 4U, 6U}) scheduler.wants(operation(id), 0);
  CHECK(scheduler.decide(0).size() == 3);
  scheduler.wants(operation(7), 10);
  CHECK(scheduler.decide(10).empty());
  CHECK(scheduler.wake_at() == 1000);
  CHECK(scheduler.decide(1000).size() == 3);
  CHECK(scheduler.counters().recalled == 3);
}

TEST_CASE("The order of a plan is each client's first lane by age, then its second, however many") {
  const PoolLayout layout = PoolLayout::build(h200());
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<ReadyOperation> waiting;
    std::vector<runtime::Holding> holdings;
    for (unsigned i = 0; i < 1 + random() % 60; ++i) {
      ReadyOperation each = operation(static_cast<ClientId>(1 + random() % 7), i);
      each.since_ns = random() % 20;
      if (random() % 3 == 0)
        holdings.push_back({each, kWholeDevice, 0});
      else
        waiting.push_back(each);
    }
    PoolView view;
    view.entries = layout.entries();
    view.waiting = waiting;
    view.holdings = holdings;
    view.epoch = 1;
    Planner planner;
    planner.begin(view);
    const auto lanes = planner.lanes();
    REQUIRE(lanes.size() == waiting.size() + holdings.size());
    std::map<ClientId, unsigned> seen;
    std::tuple<unsigned, bool, std::uint64_t> last{};
    for (const Planner::Lane& lane : lanes) {
      const bool waits = lane.held == kNoEntry;
      const std::tuple now{seen[lane.operation.client]++, waits, lane.operation.since_ns};
      CHECK(last <= now);
      last = now;
      CHECK(planner.find(lane.operation.client, lane.operation.lane) == &lane);
    }
    CHECK(planner.find(8, 0) == nullptr);
    CHECK(planner.find(1, 1000) == nullptr);
  }
}

}  // namespace
}  // namespace vitamin::policies
