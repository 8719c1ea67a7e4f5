// SPDX-License-Identifier: Apache-2.0
//
// The arbiter of one device: the effect of each record, and of stale, overdue and dying.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tests/daemon/device_arbiter_node.h"

namespace vitamin::daemon {

TEST_CASE("a lane that requests is granted a partition and its lease word equals the grant's") {
  Node node(0b11);
  node.arbiter.attach(1);
  node.wants(1);
  REQUIRE(node.grants.size() == 1);
  const protocol::Grant grant = node.grants[0].second;
  CHECK(node.words[0] == grant.word);
  CHECK(protocol::gate_of(grant.word) == GateState::kOpen);
  CHECK(protocol::epoch_of(grant.word) == 7);
  CHECK(node.layout.at(static_cast<PartitionId>(grant.partition)).compute.bits() == 0b11);
}

TEST_CASE("an announcement begins a step, which the next announcement or Idle ends") {
  struct KeepsSteps final : scheduler::AllocationPolicy {
    void allocate(const scheduler::Snapshot& snapshot, scheduler::Allocation& out) override {
      const scheduler::Client* const client = snapshot.find(1);
      seen.assign(client->steps.begin(), client->steps.end());
      out.rows.emplace_back().client = 1;
    }
    std::vector<scheduler::Step> seen;
  };
  auto policy = std::make_unique<KeepsSteps>();
  const KeepsSteps& policy_steps = *policy;
  Node node(replanned_always("keeps-steps", std::move(policy)));
  node.arbiter.attach(1);
  protocol::Ready ready;
  ready.kind = static_cast<std::uint8_t>(runtime::WorkKind::kDecode);
  ready.deadline_in_ns = 3'000'000;
  ready.queued_ns = 2'000'000;
  node.arbiter.request(1, ready, node.now);
  node.arbiter.step(node.now);
  REQUIRE(policy_steps.seen.size() == 1);
  const scheduler::Step first = policy_steps.seen[0];
  CHECK(first.kind == scheduler::StepKind::kDecode);
  CHECK(first.due_ns == node.now + 3'000'000);
  CHECK(first.work_ns == 2'000'000);
  CHECK(first.begin_ns != 0);
  protocol::HintRecord hint;  // the next token, while the grant stands
  hint.kind = ready.kind;
  hint.ready_in_ns = 500;
  hint.deadline_in_ns = 9'000'000;
  hint.sms = 4;
  node.arbiter.request(1, hint, node.now);
  node.arbiter.step(node.now);
  REQUIRE(policy_steps.seen.size() == 2);
  hint.ready_in_ns = 0;
  node.arbiter.request(1, hint, node.now += 1'000);
  node.arbiter.step(node.now);
  REQUIRE(policy_steps.seen.size() == 1);
  CHECK(policy_steps.seen[0].id != first.id);
  CHECK(policy_steps.seen[0].due_ns == node.now + 9'000'000);
  CHECK(policy_steps.seen[0].begin_ns == node.now);
  hint.ready_in_ns = 500;
  node.arbiter.request(1, hint, node.now);
  hint.cancelled = 1;
  node.arbiter.request(1, hint, node.now);
  node.arbiter.step(node.now);
  CHECK(policy_steps.seen.size() == 1);
  node.arbiter.request(1, protocol::Idle(), node.now);
  node.arbiter.step(node.now);
  CHECK(policy_steps.seen.empty());
}

TEST_CASE("a launch without an announcement ends the step that launches had announced") {
  struct KeepsSteps final : scheduler::AllocationPolicy {
    void allocate(const scheduler::Snapshot& snapshot, scheduler::Allocation& out) override {
      const scheduler::Client* const client = snapshot.find(1);
      seen.assign(client->steps.begin(), client->steps.end());
      out.rows.emplace_back().client = 1;
    }
    std::vector<scheduler::Step> seen;
  };
  auto policy = std::make_unique<KeepsSteps>();
  const KeepsSteps& policy_steps = *policy;
  Node node(replanned_always("keeps-steps", std::move(policy)));
  node.arbiter.attach(1);
  const auto launches = [&](runtime::WorkKind kind, bool iteration_end) {
    protocol::Ready ready;
    ready.kind = static_cast<std::uint8_t>(kind);
    ready.iteration_end = iteration_end ? 1 : 0;
    node.arbiter.request(1, ready, node.now += 1'000);
    node.arbiter.step(node.now);
  };
  using runtime::WorkKind;
  launches(WorkKind::kBestEffort, false);
  REQUIRE(policy_steps.seen.size() == 1);
  CHECK(policy_steps.seen[0].kind == scheduler::StepKind::kBestEffort);
  launches(WorkKind::kUnknown, false);
  CHECK(policy_steps.seen.empty());
  // Iterations last until the next one.
  launches(WorkKind::kUnknown, true);
  REQUIRE(policy_steps.seen.size() == 1);
  CHECK(policy_steps.seen[0].kind == scheduler::StepKind::kIteration);
  const std::uint64_t first = policy_steps.seen[0].id;
  launches(WorkKind::kUnknown, false);
  REQUIRE(policy_steps.seen.size() == 1);
  CHECK(policy_steps.seen[0].id == first);
  launches(WorkKind::kUnknown, true);
  REQUIRE(policy_steps.seen.size() == 1);
  CHECK(policy_steps.seen[0].id != first);
  // A step that was announced ahead of its launches stays.
  protocol::HintRecord hint;
  hint.kind = static_cast<std::uint8_t>(WorkKind::kDecode);
  hint.sms = 1;
  hint.deadline_in_ns = 9'000'000;
  node.arbiter.request(1, hint, node.now);
  launches(WorkKind::kUnknown, false);
  REQUIRE(policy_steps.seen.size() == 1);
  CHECK(policy_steps.seen[0].kind == scheduler::StepKind::kDecode);
}

TEST_CASE("units pass to the waiting client after the gate is closed and the grant returned") {
  Node node(0b1111);
  node.arbiter.attach(1);
  node.arbiter.attach(2);
  node.wants(1);
  REQUIRE(node.grants.size() == 1);
  const protocol::Grant first = node.grants[0].second;
  node.wants(2);
  CHECK(node.grants.size() == 1);
  node.now += 2000;  // the quantum is over
  node.arbiter.step(node.now);
  CHECK(node.closed == 1);
  CHECK(node.words[0] != first.word);
  node.returns(1, first);
  REQUIRE(node.grants.size() == 2);
  CHECK(node.grants[1].first == 2);
  CHECK(node.arbiter.counters().stale == 0);
}

TEST_CASE("a wait that begins with a revocation is measured like one that begins with a request") {
  for (const bool comes_back : {true, false}) {
    CAPTURE(comes_back);
    Node node(0b11);
    node.arbiter.attach(1);
    node.arbiter.attach(2);
    node.wants(1);
    node.wants(2);
    REQUIRE(node.grants.size() == 1);
    const auto partition = static_cast<PartitionId>(node.grants[0].second.partition);
    const auto at = [&](std::uint64_t now) {
      node.now = now;
      node.arbiter.step(now);
    };
    at(2'001);  // the quantum of client 1 ends
    node.now = 2'501;
    node.returns_closed(1, partition);
    REQUIRE(node.grants.size() == 2);
    CHECK(node.arbiter.waits().sum_ns() == 2'500);
    if (!comes_back) {  // it had nothing more to submit: that was no wait
      node.arbiter.request(1, protocol::Idle(), 3'001);
      CHECK(node.arbiter.usage(1, 9'000).totals(9'000).wait_ns == 0);
      continue;
    }
    at(4'001);
    node.now = 4'501;
    node.returns_closed(2, partition);
    REQUIRE(node.grants.size() == 3);  // client 1 did not ask again
    CHECK(node.arbiter.waits().sum_ns() == 5'000);
    CHECK(node.arbiter.usage(1, 4'501).totals(4'501).wait_ns == 2'500);
    at(6'001);
    node.now = 6'501;
    node.wants(1);  // a wait that was announced and goes on counts
    CHECK(node.arbiter.usage(1, 7'001).totals(7'001).wait_ns >= 2'500);
  }
}

TEST_CASE("a client that does not answer is overdue; one that reports draining is not") {
  for (const bool answers : {false, true}) {
    Node node(0b1111);
    node.arbiter.attach(1);
    node.arbiter.attach(2);
    node.wants(1);
    const protocol::Grant first = node.grants[0].second;
    node.wants(2);
    node.now += 2000;
    node.arbiter.step(node.now);
    for (int i = 0; i < 20; ++i) {
      node.now += 1000;
      protocol::Draining draining;
      draining.word = first.word;
      draining.partition = first.partition;
      draining.outstanding = 1;
      if (answers) node.arbiter.request(1, draining, node.now);
      node.arbiter.step(node.now);
    }
    CHECK(node.arbiter.counters().overdue == (answers ? 0 : 1));
    CHECK((node.grants.size() == 2) == !answers);
    if (!answers) {
      node.returns(1, first);  // too late: the grant has ended
      CHECK(node.arbiter.counters().stale == 1);
      CHECK(node.arbiter.held().size() == 1);
    }
  }
}

// A client that drains each grant for as long as it may leaves other clients as much time as it
// has.
TEST_CASE("a client that always drains for long has its drain time bounded") {
  Node node(0b1111);
  const ClientId hostile = 1, honest = 2;
  node.arbiter.attach(hostile);
  node.arbiter.attach(honest);
  node.wants(hostile);
  std::uint64_t turns = 0;
  const std::uint64_t end = node.now + 20 * node.settings.drain_within_ns;
  while (node.now < end) {
    node.now += 500;
    for (const DeviceArbiter::GrantStatus& held : node.arbiter.held()) {
      const auto grant = std::find_if(node.grants.rbegin(), node.grants.rend(),
                                      [&](const auto& one) { return one.first == held.client; });
      if (held.open) continue;
      if (held.client == honest) {
        ++turns;
        node.returns(honest, grant->second);
      } else {
        protocol::Draining draining;
        draining.word = grant->second.word;
        draining.partition = held.partition;
        node.arbiter.request(hostile, draining, node.now);
      }
    }
    node.wants(honest);
    node.wants(hostile);
  }
  // The hostile client can spend its credit once; then each drain lasts as long as an answer may
  // take. Without credit the honest client would have 20 turns.
  CHECK(turns > 19 * node.settings.drain_within_ns / (2 * node.settings.answer_within_ns));
}

TEST_CASE("a process that reconnects while it drains keeps what is left of its drain credit") {
  for (const bool reconnects : {false, true}) {
    CAPTURE(reconnects);
    Node node(0b1111);
    ClientId drains = 1;
    node.arbiter.attach(drains, {.process = 40});
    node.arbiter.attach(2, {.process = 50});
    node.wants(drains);
    // Beside the other client that waits, for so long at most; until its grant ends.
    const auto drain = [&](std::uint64_t at_most) {
      REQUIRE(node.grants.back().first == drains);
      const protocol::Grant lease = node.grants.back().second;
      node.wants(2);
      const std::size_t grants = node.grants.size();
      const std::uint64_t begin = node.now;
      while (node.grants.size() == grants && node.now < begin + at_most) {
        protocol::Draining draining;
        draining.word = lease.word;
        draining.partition = lease.partition;
        node.arbiter.request(drains, draining, node.now);
        node.arbiter.step(node.now += 500);
      }
      return node.now - begin;
    };
    const std::uint64_t most = node.settings.drain_within_ns;
    drain(most - node.settings.answer_within_ns);
    REQUIRE(node.grants.size() == 1);
    const protocol::Grant lease = node.grants[0].second;
    if (reconnects) {
      node.arbiter.attach(drains = 3, {.process = 40}, node.now);
      protocol::Holding holding;
      holding.word = lease.word;
      holding.partition = lease.partition;
      holding.outstanding = 1;
      node.arbiter.request(drains, holding, node.now);
      node.arbiter.forget(1, node.now);
    }
    node.returns(drains, lease);
    REQUIRE(node.grants.size() == 2);
    node.wants(drains);
    node.arbiter.step(node.now += 1'500);
    node.returns(2, node.grants[1].second);
    REQUIRE(node.grants.size() == 3);
    CHECK(drain(2 * most) < most / 2);
  }
}

TEST_CASE("times at SM counts of no partition are not kept") {
  Node node(std::string("fifo"));
  node.arbiter.attach(1);
  const std::uint64_t version = node.arbiter.profile().version();
  protocol::Timed timed;
  timed.mean_ns = 1000;
  timed.launches = 1;
  for (std::uint32_t width = 1; width <= 16; ++width) {
    const bool known = std::any_of(node.layout.partitions().begin(), node.layout.partitions().end(),
                                   [&](const auto& partition) { return partition.sms == width; });
    if (known) continue;
    timed.sms = width;
    node.arbiter.request(1, timed, node.now);
  }
  CHECK(node.arbiter.profile().version() == version);
  timed.sms = 16;
  node.arbiter.request(1, timed, node.now);
  CHECK(node.arbiter.profile().version() != version);
}

TEST_CASE("a grant that finds the ring full is withdrawn and can be requested again") {
  Node node(0b11);
  node.arbiter.attach(1);
  node.full = true;
  node.wants(1);
  CHECK(node.arbiter.held().empty());
  CHECK(protocol::gate_of(node.words[0]) != GateState::kOpen);
  node.full = false;
  node.wants(1);
  CHECK(node.grants.size() == 1);
}

TEST_CASE("a dying client holds its grants until it is forgotten") {
  Node node(0b1111);
  node.arbiter.attach(1);
  node.arbiter.attach(2);
  node.wants(1);
  node.arbiter.dying(1, node.now);
  CHECK(protocol::gate_of(node.words[0]) == GateState::kClosed);
  node.wants(2);
  node.now += 50'000;
  node.arbiter.step(node.now);
  CHECK(node.grants.size() == 1);  // not overdue: the driver may still run its work
  node.arbiter.forget(1, node.now);
  node.arbiter.step(node.now);
  CHECK(node.grants.size() == 2);
}

TEST_CASE("a client that pretends to die holds its grants for the drain time-out at most") {
  Node node(0b1111);
  node.arbiter.attach(1);
  node.arbiter.attach(2);
  node.wants(1);
  node.wants(2);
  node.arbiter.dying(1, node.now);
  const std::uint64_t end = node.now + node.settings.drain_within_ns;
  node.arbiter.step(end - 1);
  CHECK(node.grants.size() == 1);
  const std::uint64_t slack = node.settings.answer_within_ns / 256;  // between two checks
  CHECK(node.arbiter.wake_at() <= end + slack);
  node.arbiter.step(end + slack);
  REQUIRE(node.grants.size() == 2);
  CHECK(node.grants[1].first == 2);
  CHECK(node.arbiter.counters().overdue == 1);
}

TEST_CASE("fallback partitions are disjoint for as many clients as there are units, then shared") {
  Node node(0b1);
  hal::ComputeSet taken;
  for (ClientId id = 1; id <= 4; ++id) {
    const auto fallback = node.arbiter.attach(id);
    CHECK_FALSE(fallback.shared);
    CHECK_FALSE(node.layout.at(fallback.partition).compute.overlaps(taken));
    taken |= node.layout.at(fallback.partition).compute;
  }
  CHECK(node.arbiter.attach(5).shared);
  node.arbiter.forget(2, 1);
  CHECK_FALSE(node.arbiter.attach(6).shared);
}

TEST_CASE("holds_partition is called once before the first grant and once after the last one") {
  class Recording : public Node {
   public:
    using Node::Node;
    bool grant(ClientId client, const protocol::Grant& grant) override {
      CHECK(has.contains({client, static_cast<PartitionId>(grant.partition)}));
      return Node::grant(client, grant);
    }
    void holds_partition(ClientId client, PartitionId partition, bool held) override {
      if (held)
        CHECK(has.insert({client, partition}).second);
      else
        CHECK(has.erase({client, partition}) == 1);
      if (has.empty()) ++gaps;
    }
    int gaps = 0;
    std::set<std::pair<ClientId, PartitionId>> has;
  };
  Recording node(0b0011);
  const PartitionId partition = node.layout.find(hal::ComputeSet(0b0011));
  const auto asks = [&](LaneId lane) {
    protocol::Ready ready;
    ready.head.lane = lane;
    node.arbiter.request(1, ready, node.now);
    node.arbiter.step(node.now);
  };
  node.arbiter.attach(1, {.process = 40});
  asks(0);
  asks(1);  // two lanes of the client on one partition
  REQUIRE(node.grants.size() == 2);
  CHECK(node.has.size() == 1);
  for (const LaneId lane : {0, 1}) {
    CHECK(node.has.contains({1, partition}));
    protocol::Idle idle;
    idle.head.lane = lane;
    node.arbiter.request(1, idle, node.now);
    protocol::Returned returned;
    returned.head.lane = lane;
    returned.word = node.grants[lane].second.word;
    returned.partition = partition;
    node.arbiter.request(1, returned, node.now);
  }
  CHECK(node.has.empty());
  SUBCASE("a grant that was not delivered") {
    node.full = true;
    asks(2);
    CHECK(node.has.empty());
  }
  SUBCASE("an overdue grant") {
    asks(2);
    protocol::Idle idle;
    idle.head.lane = 2;
    node.arbiter.request(1, idle, node.now);
    CHECK(node.has.size() == 1);
    node.arbiter.step(node.now += 20'000);
    CHECK(node.has.empty());
  }
  SUBCASE("a grant that another session of the process takes over") {
    asks(2);
    node.gaps = 0;  // a daemon that is killed meanwhile leaves a record of it
    node.arbiter.attach(2, {.process = 40});
    protocol::Holding holding;
    holding.head.lane = 2;
    holding.word = node.grants.back().second.word;
    holding.partition = partition;
    node.arbiter.request(2, holding, node.now);
    CHECK(node.has == std::set<std::pair<ClientId, PartitionId>>{{2, partition}});
    CHECK(node.gaps == 0);
  }
}

TEST_CASE("a client is held to the bound that it was told when it connected") {
  Node node(0b1111);
  node.arbiter.attach(1);
  node.wants(1);
  auto settings = node.settings;
  settings.answer_within_ns = 1'000;
  node.arbiter.set(settings);
  node.arbiter.attach(2);
  node.wants(2);
  node.now += 2'000;
  node.arbiter.step(node.now);
  REQUIRE(node.closed == 1);
  node.now += 9'000;
  node.arbiter.step(node.now);
  CHECK(node.arbiter.counters().overdue == 0);
  node.now += 1'000;
  node.arbiter.step(node.now);
  CHECK(node.arbiter.counters().overdue == 1);
  REQUIRE(node.grants.size() == 2);
  node.wants(1);
  node.now += 2'000;
  node.arbiter.step(node.now);
  node.now += 1'000;  // client 2's is the new one
  node.arbiter.step(node.now);
  CHECK(node.arbiter.counters().overdue == 2);
}

TEST_CASE(
    "an amendment that cannot be delivered closes the grant and keeps its units until returned") {
  // Changes the run-ahead of the grant.
  struct Amends final : scheduler::AllocationPolicy {
    void allocate(const scheduler::Snapshot& snapshot, scheduler::Allocation& out) override {
      const scheduler::Client* const first = snapshot.find(1);
      scheduler::Row& row = out.rows.emplace_back();
      row.client = first != nullptr && !first->streams.empty() ? 1 : 2;
      row.mode = scheduler::Mode::kExclusive;
      row.partition = snapshot.pool.back().id;
      row.run_ahead_ns = ahead_ns;
    }
    std::uint64_t ahead_ns = kNever;
  };
  auto policy = std::make_unique<Amends>();
  Amends& amends = *policy;
  Node node(replanned_always("amends", std::move(policy)));
  node.arbiter.attach(1);
  node.arbiter.attach(2);
  node.wants(1);
  REQUIRE(node.grants.size() == 1);
  const protocol::Grant first = node.grants[0].second;
  node.full = true;  // the client does not read
  amends.ahead_ns = 500'000;
  node.wants(2);
  REQUIRE(node.arbiter.counters().undelivered == 1);
  node.full = false;
  node.wants(2);
  CHECK(node.grants.size() == 1);  // not granted to client 2
  REQUIRE(node.arbiter.held().size() == 1);
  CHECK_FALSE(node.arbiter.held()[0].open);
  CHECK(protocol::gate_of(node.words[0]) == GateState::kClosed);
  CHECK(node.closed == 1);
  node.returns(1, first);  // by the word that it knows
  CHECK(node.arbiter.counters().stale == 0);
  REQUIRE(node.grants.size() == 2);
  CHECK(node.grants[1].first == 2);
}

TEST_CASE(
    "lanes that always move on have a bounded number of grants, and other clients get theirs") {
  for (const char* policy : {"random", "fifo", "throughput", "throughput:model=algorithm1"}) {
    CAPTURE(policy);
    Moving node{std::string(policy)};
    node.arbiter.attach(1);
    node.arbiter.attach(2);
    for (int i = 0; i < 100; ++i)
      for (LaneId lane = 0; lane < protocol::kLanes; ++lane) node.moves_on(2, lane);
    const auto lanes = node.lanes_of(2);
    REQUIRE_FALSE(lanes.empty());
    for (const auto& [lane, grants] : lanes) CHECK(grants <= node.most);
    node.grants.clear();
    node.wants(1);
    for (int i = 0; i < 3 && node.grants.empty(); ++i) node.arbiter.step(node.now += 10'000);
    CHECK_FALSE(node.grants.empty());  // client 2's unanswered grants have become overdue
  }
}

TEST_CASE("a lane with the most grants waits for its own work without delaying other clients") {
  // Gives client 1 the narrowest partition, other clients what does not overlap it.
  struct Beside final : scheduler::PlacementPolicy {
    scheduler::Placement place(const scheduler::PlacementRequest& launch,
                               std::span<const scheduler::PartitionId> eligible) override {
      for (const scheduler::PartitionId id : eligible)
        if (launch.client == 1 || !launch.pool[id].compute.has(0)) return {id, 0};
      return {};
    }
  };
  scheduler::Policy policy;
  policy.description.name = "beside";
  policy.placement = std::make_unique<Beside>();
  Moving node(std::move(policy));
  node.settings.answer_within_ns = node.settings.drain_within_ns = kNever / 4;
  node.arbiter.set(node.settings);
  node.arbiter.attach(1);
  node.arbiter.attach(2);
  node.wants(1);
  for (int i = 0; i < 100; ++i) node.moves_on(2, 0);
  REQUIRE(node.lanes_of(2)[0] == node.most);
  CHECK(node.arbiter.scheduler().waiting() == 1);
  // Past the quantum and the starvation bound.
  node.closed = 0;
  node.grants.clear();
  for (int i = 0; i < 5; ++i) {
    node.arbiter.step(node.now += 1'000'000'000);
    node.moves_on(2, 0);
  }
  CHECK(node.closed == 0);
  CHECK(node.grants.empty());
  CHECK(node.arbiter.scheduler().counters().revoked == 0);
  CHECK(node.arbiter.scheduler().counters().starving == 0);
  // Some of its work ends.
  const auto held = node.arbiter.held();
  const auto drains =
      std::find_if(held.rbegin(), held.rend(), [](const auto& one) { return one.client == 2; });
  node.returns_closed(2, drains->partition);
  REQUIRE(node.grants.size() == 1);
  CHECK(node.grants[0].first == 2);
  CHECK(node.lanes_of(2)[0] == node.most);
  CHECK(node.arbiter.counters().stale == 0);
  node.moves_on(2, 0);
  CHECK(node.grants.size() == 1);
  node.arbiter.forget(2, node.now);
  CHECK(node.arbiter.held().size() == 1);
}

TEST_CASE("a lane that answers for none of its grants gets new ones when those are overdue") {
  Moving node;
  node.arbiter.attach(1);
  for (int i = 0; i < 100; ++i) node.moves_on(1, 0);
  REQUIRE(node.lanes_of(1)[0] == node.most);
  node.grants.clear();
  node.arbiter.step(node.now += node.settings.answer_within_ns);
  CHECK(node.arbiter.counters().overdue == node.most);
  node.wants(1);
  CHECK(node.grants.size() == 1);
}

}  // namespace vitamin::daemon
