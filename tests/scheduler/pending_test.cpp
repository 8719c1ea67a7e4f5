// SPDX-License-Identifier: Apache-2.0
//
// Grants that wait for units, while what they are to be changes; rows that are held.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/scheduler/fixture.h"
#include "tests/scheduler/shorthand.h"

namespace vitamin::scheduler {
namespace {

using runtime::PoolLayout;

// Each launch goes to the narrowest partition that is free.
class Narrowest final : public PlacementPolicy {
  Placement place(const PlacementRequest&, std::span<const PartitionId> eligible) override {
    return {eligible.front(), kNoLaunchBound};
  }
};

// One stream a client. What is revoked, or replaced by another grant, is returned 10 ns later.
class ObedientClients {
 public:
  explicit ObedientClients(Scheduler& scheduler) : scheduler_(scheduler) {}
  void decide_at(std::uint64_t now_ns) {
    now_ns_ = now_ns;
    back_.clear();
    for (const Decision& decision : decide(scheduler_, now_ns)) {
      GrantId& open = open_[decision.client];
      if (decision.kind == Decision::Kind::kGrant) {
        if (open != kNoGrant) back_.emplace_back(decision.client, open);
        open = decision.grant;
        newest_[decision.client] = decision.partition;
      } else if (decision.kind == Decision::Kind::kRevoke) {
        back_.emplace_back(decision.client, decision.grant);
        if (open == decision.grant) open = kNoGrant;
      }
    }
  }
  void run_until(std::uint64_t until_ns) {
    while (!back_.empty() || scheduler_.wake_at() <= until_ns) {
      const std::uint64_t at = back_.empty() ? scheduler_.wake_at() : now_ns_ + 10;
      for (const auto& [client, grant] : back_) scheduler_.returned(client, 0, grant, at);
      decide_at(std::max(now_ns_, at));
    }
  }
  void leave(ClientId client, std::uint64_t now_ns) {
    scheduler_.idle(client, 0, now_ns);
    scheduler_.returned(client, 0, std::exchange(open_[client], kNoGrant), now_ns);
  }
  PartitionId newest(ClientId client) { return newest_.at(client); }

 private:
  static constexpr GrantId kNoGrant = 0;
  Scheduler& scheduler_;
  std::uint64_t now_ns_ = 0;
  std::map<ClientId, GrantId> open_;
  std::map<ClientId, PartitionId> newest_;
  std::vector<std::pair<ClientId, GrantId>> back_;
};

TEST_CASE("a stream for which its starving row is too narrow starves again while all is held") {
  runtime::PoolLimits limits;
  limits.all_runs = true;
  const PoolLayout layout = PoolLayout::build(device(4, 8, 8), limits);
  SchedulerOptions options;
  options.starving_after_ns = 1000;
  options.quantum_ns = 500;
  PolicyDescription description;
  description.name = "narrowest";
  Scheduler scheduler(layout.partitions(), {description, nullptr, std::make_unique<Narrowest>()},
                      options);
  ObedientClients clients(scheduler);
  const auto wants = [&](ClientId client, std::uint32_t sms, std::uint64_t now_ns) {
    scheduler.wants(client, demand(0, sms), now_ns);
  };
  wants(1, 16, 1), clients.decide_at(1);
  wants(2, 16, 1), clients.decide_at(1);
  wants(3, 24, 2), clients.decide_at(2);
  wants(4, 8, 3), clients.decide_at(3);
  clients.leave(2, 1003);
  wants(1, 8, 1003), clients.decide_at(1003);
  clients.run_until(1100);
  wants(4, 16, 1100), clients.decide_at(1100);  // its next launch needs more than its row has
  clients.run_until(50'000);
  CHECK(layout.at(clients.newest(4)).sms >= 16);
}

std::vector<Grant> pending_of(const Scheduler& scheduler) {
  std::vector<Grant> pending;
  for (const Grant& grant : scheduler.ledger().grants())
    if (grant.state == Grant::State::kPending) pending.push_back(grant);
  return pending;
}

TEST_CASE("a grant that waits for its units opens with the terms of the last plan") {
  const PoolLayout layout = h200();
  Allocation wish;
  Scheduler scheduler(layout.partitions(),
                      policy([&](const Snapshot&, Allocation& out) { out.rows = wish.rows; }));
  wish.rows = {row(1, part(layout, 0, 8), Mode::kExclusive)};
  scheduler.wants(1, demand(0), 1);
  const GrantId first = decide(scheduler, 1).at(0).grant;
  wish.rows = {row(1, part(layout, 8, 8), Mode::kExclusive),
               row(2, part(layout, 0, 8), Mode::kExclusive)};
  wish.rows[1].run_ahead_ns = 1'000'000;
  scheduler.wants(2, demand(0), 2);
  decide(scheduler, 2);
  REQUIRE(pending_of(scheduler).size() == 1);
  CHECK(scheduler.counters().pending == 1);
  wish.rows[1].run_ahead_ns = 3'000'000;
  wish.rows[1].launches = 7;
  scheduler.replan();
  decide(scheduler, 3);
  REQUIRE(pending_of(scheduler).size() == 1);
  CHECK(pending_of(scheduler)[0].requested_ns == 2);
  CHECK(scheduler.counters().pending == 1);
  scheduler.returned(1, 0, first, 4);
  const auto decisions = decide(scheduler, 4);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].client == 2);
  CHECK(decisions[0].run_ahead_ns == 3'000'000);
  CHECK(decisions[0].launches == 7);
}

TEST_CASE("a grant that waits for its units says that its stream starves, once it does") {
  const PoolLayout layout = h200();
  SchedulerOptions options;
  options.starving_after_ns = 1'000'000;
  Allocation wish;
  Scheduler scheduler(layout.partitions(),
                      policy([&](const Snapshot&, Allocation& out) { out.rows = wish.rows; }),
                      options);
  wish.rows = {row(1, kWholeDevice, Mode::kExclusive)};
  scheduler.wants(1, demand(0), 1);
  const GrantId first = decide(scheduler, 1).at(0).grant;
  wish.rows = {row(1, part(layout, 8, 8), Mode::kExclusive), row(2, 1, Mode::kExclusive)};
  wish.rows[1].stream = 0;
  scheduler.wants(2, demand(0), 2);
  decide(scheduler, 2);
  REQUIRE(pending_of(scheduler).size() == 1);
  CHECK(pending_of(scheduler)[0].reason == Reason::kPolicy);
  decide(scheduler, 2 + options.starving_after_ns);
  REQUIRE(pending_of(scheduler).size() == 1);
  CHECK(pending_of(scheduler)[0].partition == 1);
  CHECK(scheduler.counters().pending == 1);
  scheduler.returned(1, 0, first, 2'000'000);
  const auto decisions = decide(scheduler, 2'000'000);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].client == 2);
  CHECK(decisions[0].reason == Reason::kStarving);
}

// The first partition that is free.
class First final : public PlacementPolicy {
 public:
  Placement place(const PlacementRequest&, std::span<const PartitionId> eligible) override {
    return {eligible.front(), 1};
  }
};

TEST_CASE("a client that returns units and asks again at once does not get them for ever") {
  const PoolLayout layout = h200();
  SchedulerOptions options;
  options.starving_after_ns = kNever;
  Policy first;
  first.description.name = "first";
  first.placement = std::make_unique<First>();
  Scheduler scheduler(layout.partitions(), std::move(first), options);
  std::vector<GrantId> held(3, kNoGrant);
  std::vector<std::uint64_t> grants(3);
  const auto want = [&](ClientId client, std::uint64_t now_ns) {
    scheduler.wants(client, demand(0, 120), now_ns);  // nothing else fits beside it
  };
  for (const ClientId client : {1U, 2U}) want(client, 1);
  for (std::uint64_t now_ns = 1; now_ns < 100; ++now_ns) {
    for (const Decision& decision : decide(scheduler, now_ns)) {
      if (decision.kind != Decision::Kind::kGrant) continue;
      held[decision.client] = decision.grant;
      ++grants[decision.client];
    }
    for (const ClientId client : {1U, 2U}) {
      if (held[client] == kNoGrant) continue;
      scheduler.returned(client, 0, std::exchange(held[client], kNoGrant), now_ns);
      want(client, now_ns);
    }
  }
  CHECK(grants[1] >= 49);
  CHECK(grants[2] >= 49);
}

TEST_CASE("a client that has a row with `hold`, of one stream too, stays in the snapshot") {
  const PoolLayout layout = h200();
  for (const StreamId stream : {kAllStreams, StreamId{0}})
    for (const bool hold : {true, false}) {
      CAPTURE(stream);
      CAPTURE(hold);
      std::size_t seen = 0;
      Scheduler scheduler(
          layout.partitions(), policy([&](const Snapshot& snapshot, Allocation& out) {
            seen = snapshot.clients.size();
            if (snapshot.find(1) == nullptr) return;
            Row& kept = out.rows.emplace_back(row(1, part(layout, 0, 4), Mode::kExclusive));
            kept.stream = stream;
            kept.hold = hold;
          }));
      scheduler.wants(1, demand(0), 1);
      const GrantId grant = decide(scheduler, 1).at(0).grant;
      scheduler.idle(1, 0, 2);
      scheduler.returned(1, 0, grant, 2);
      const std::uint64_t later = 10 * SchedulerOptions().idle_after_ns;
      for (std::uint64_t i = 0; i < 3; ++i) {
        decide(scheduler, later + i);
        scheduler.replan();
      }
      decide(scheduler, later + 3);
      CHECK(seen == (hold ? 1 : 0));
      std::size_t rows = 0;
      for (const Planned& planned : scheduler.plan())
        rows += planned.row.mode == Mode::kExclusive ? 1U : 0U;
      CHECK(rows == (hold ? 1 : 0));
      scheduler.forget(1, later + 4);
      scheduler.replan();
      decide(scheduler, later + 4);
      CHECK(seen == 0);
    }
}

}  // namespace
}  // namespace vitamin::scheduler
