// SPDX-License-Identifier: Apache-2.0
//
// The scheduler under policies that are written for one test each.
#include "scheduler/scheduler.h"

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "scheduler/policies/builtin.h"
#include "tests/scheduler/fixture.h"
#include "tests/scheduler/shorthand.h"

namespace vitamin::scheduler {
namespace {

using hal::ComputeSet;
using runtime::PoolLayout;

constexpr auto kGrant = Decision::Kind::kGrant;
constexpr auto kRevoke = Decision::Kind::kRevoke;

// --- the fast path ---------------------------------------------------------------------------

TEST_CASE("a stream of a client that has a row is granted without a call of the policy") {
  const PoolLayout layout = h200();
  Scheduler scheduler(layout.partitions(), make_fifo());
  std::uint64_t now = 1;
  scheduler.wants(1, demand(0), now);
  auto decisions = decide(scheduler, now);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].kind == kGrant);
  CHECK(decisions[0].partition == kWholeDevice);
  CHECK(decisions[0].mode == Mode::kShared);
  CHECK(decisions[0].reason == Reason::kPolicy);
  CHECK(scheduler.counters().plans == 1);
  for (int i = 0; i < 100; ++i) {
    scheduler.idle(1, 0, ++now);
    scheduler.returned(1, 0, decisions[0].grant, now);
    CHECK(decide(scheduler, now).empty());
    scheduler.wants(1, demand(0), ++now);
    scheduler.wants(1, demand(static_cast<StreamId>(i + 1)), now);
    decisions = decide(scheduler, now);
    REQUIRE(decisions.size() == 2);
  }
  CHECK(scheduler.counters().plans == 1);
}

TEST_CASE("the policy is asked when the set of active clients changes, and not before") {
  const PoolLayout layout = h200();
  SchedulerOptions options;
  options.idle_after_ns = 1000;
  std::vector<std::vector<ClientId>> asked;
  Scheduler scheduler(layout.partitions(), policy([&](const Snapshot& snapshot, Allocation& out) {
                        auto& clients = asked.emplace_back();
                        for (const Client& client : snapshot.clients) {
                          clients.push_back(client.id);
                          out.rows.push_back(row(client.id, kWholeDevice, Mode::kShared));
                        }
                      }),
                      options);
  scheduler.wants(1, demand(0), 1);
  const GrantId first = decide(scheduler, 1).at(0).grant;
  scheduler.wants(2, demand(0), 2);
  decide(scheduler, 2);
  REQUIRE(asked.size() == 2);
  CHECK(asked[1] == std::vector<ClientId>{1, 2});
  scheduler.idle(1, 0, 10);
  scheduler.returned(1, 0, first, 10);
  decide(scheduler, 10);
  CHECK(asked.size() == 2);
  CHECK(scheduler.wake_at() == 1010);
  decide(scheduler, 1009);
  CHECK(asked.size() == 2);
  decide(scheduler, 1010);
  REQUIRE(asked.size() == 3);
  CHECK(asked[2] == std::vector<ClientId>{2});
}

TEST_CASE("only what differs from the allocation before is revoked") {
  const PoolLayout layout = h200();
  Allocation wish;
  Scheduler scheduler(layout.partitions(),
                      policy([&](const Snapshot&, Allocation& out) { out.rows = wish.rows; }));
  wish.rows = {row(1, part(layout, 0, 4), Mode::kExclusive),
               row(2, part(layout, 4, 4), Mode::kExclusive),
               row(3, part(layout, 8, 8), Mode::kExclusive)};
  for (ClientId id = 1; id <= 3; ++id) scheduler.wants(id, demand(0), 1);
  CHECK(decide(scheduler, 1).size() == 3);
  // Client 2 moves to units of client 3, which shrinks; client 1 hears nothing.
  wish.rows[1].partition = part(layout, 8, 4);
  wish.rows[2].partition = part(layout, 12, 4);
  scheduler.replan();
  const auto decisions = decide(scheduler, 2);
  for (const Decision& decision : decisions) CHECK(decision.client != 1);
  // Client 3 moves at once, inside of what it has; its old grant drains, and client 2 waits for it.
  REQUIRE(decisions.size() == 2);
  const Ledger& ledger = scheduler.ledger();
  std::size_t pending = 0;
  GrantId old = kNoGrant;
  for (const Grant& grant : ledger.grants()) {
    pending += grant.state == Grant::State::kPending;
    if (grant.client == 3 && grant.state == Grant::State::kRevoked) old = grant.id;
  }
  CHECK(pending == 1);
  scheduler.returned(3, 0, old, 3);
  const auto granted = decide(scheduler, 3);
  REQUIRE(granted.size() == 1);
  CHECK(granted[0].client == 2);
  CHECK(granted[0].partition == part(layout, 8, 4));
  CHECK(scheduler.counters().plans == 2);  // a return is no reason for a plan
}

TEST_CASE("a stream uses what is free inside its partition until the rest has drained") {
  const PoolLayout layout = h200();
  for (const unsigned held : {0U, 4U}) {
    CAPTURE(held);
    Allocation wish;
    Scheduler scheduler(layout.partitions(),
                        policy([&](const Snapshot&, Allocation& out) { out.rows = wish.rows; }));
    wish.rows = {row(1, part(layout, held, 4), Mode::kExclusive)};
    scheduler.wants(1, demand(0), 1);
    const GrantId first = decide(scheduler, 1).at(0).grant;
    wish.rows = {row(1, part(layout, 8, 8), Mode::kExclusive),
                 row(2, part(layout, 0, 8), Mode::kExclusive)};
    scheduler.wants(2, demand(0), 2);
    auto decisions = decide(scheduler, 2);
    REQUIRE(decisions.size() == 2);
    CHECK(decisions[0].client == 1);  // it moves
    CHECK(decisions[1].client == 2);
    CHECK(decisions[1].reason == Reason::kMeanwhile);
    CHECK(decisions[1].partition == part(layout, 4 - held, 4));
    // What is submitted there stays there when the rest is free.
    CHECK(decisions[1].run_ahead_ns == 2'000'000);
    scheduler.returned(1, 0, first, 3);
    decisions = decide(scheduler, 3);
    REQUIRE(decisions.size() == 1);
    CHECK(decisions[0].client == 2);
    CHECK(decisions[0].partition == part(layout, 0, 8));
    CHECK(decisions[0].reason == Reason::kPolicy);
  }
}

TEST_CASE("a stream keeps what it has inside a wider row until the rest has drained") {
  const PoolLayout layout = h200();
  Allocation wish;
  Scheduler scheduler(layout.partitions(),
                      policy([&](const Snapshot&, Allocation& out) { out.rows = wish.rows; }));
  wish.rows = {row(1, part(layout, 0, 4), Mode::kExclusive),
               row(2, part(layout, 4, 4), Mode::kExclusive)};
  scheduler.wants(1, demand(0), 1);
  scheduler.wants(2, demand(0), 1);
  auto decisions = decide(scheduler, 1);
  REQUIRE(decisions.size() == 2);
  const GrantId narrow = decisions[0].grant, in_the_way = decisions[1].grant;
  wish.rows = {row(1, part(layout, 0, 8), Mode::kExclusive),
               row(2, part(layout, 8, 8), Mode::kExclusive)};
  scheduler.replan();
  decisions = decide(scheduler, 2);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].client == 2);
  CHECK(scheduler.ledger().find(narrow)->state == Grant::State::kOpen);
  scheduler.returned(2, 0, in_the_way, 3);
  decisions = decide(scheduler, 3);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].client == 1);
  CHECK(decisions[0].kind == kGrant);
  CHECK(decisions[0].partition == part(layout, 0, 8));
  CHECK(scheduler.ledger().find(narrow)->state == Grant::State::kRevoked);
}

TEST_CASE("a stream whose units and own grants are freed at once is granted its row once") {
  const PoolLayout layout = h200();
  Allocation wish;
  SchedulerOptions options;
  options.grants_per_stream = 3;
  Scheduler scheduler(layout.partitions(),
                      policy([&](const Snapshot&, Allocation& out) { out.rows = wish.rows; }),
                      options);
  std::vector<GrantId> first;  // of client 1
  const auto plan = [&](PartitionId one, PartitionId two, std::uint64_t now) {
    wish.rows = {row(1, one, Mode::kExclusive), row(2, two, Mode::kExclusive)};
    wish.rows[0].run_ahead_ns = now;
    scheduler.replan();
    auto granted = decide(scheduler, now);
    std::erase_if(granted, [](const Decision& decision) {
      return decision.client != 1 || decision.kind != kGrant;
    });
    for (const Decision& decision : granted) first.push_back(decision.grant);
    return granted;
  };
  scheduler.wants(1, demand(0), 1);
  scheduler.wants(2, demand(0), 1);
  plan(part(layout, 0, 2), part(layout, 8, 4), 1);
  GrantId in_the_way = kNoGrant;
  for (const Grant& grant : scheduler.ledger().grants())
    if (grant.client == 2) in_the_way = grant.id;
  plan(part(layout, 2, 2), part(layout, 8, 4), 2);
  const auto inside = plan(part(layout, 8, 8), part(layout, 4, 4), 3);
  REQUIRE(inside.size() == 1);
  CHECK(inside[0].reason == Reason::kMeanwhile);  // its third grant
  scheduler.returned(2, 0, in_the_way, 4);
  CHECK(decide(scheduler, 4).empty());
  for (int i = 0; i < 2; ++i) scheduler.returned(1, 0, first[static_cast<std::size_t>(i)], 5);
  const auto granted = plan(part(layout, 8, 8), part(layout, 4, 4), 5);
  REQUIRE(granted.size() == 1);
  CHECK(granted[0].partition == part(layout, 8, 8));
  for (const Grant& grant : scheduler.ledger().grants())
    CHECK(grant.state != Grant::State::kPending);
}

TEST_CASE("a change from a shared device to parts waits for no drain") {
  const PoolLayout layout = h200();
  Allocation wish;
  Scheduler scheduler(layout.partitions(),
                      policy([&](const Snapshot&, Allocation& out) { out.rows = wish.rows; }));
  wish.rows = {row(1, kWholeDevice, Mode::kShared), row(2, kWholeDevice, Mode::kShared)};
  scheduler.wants(1, demand(0), 1);
  scheduler.wants(2, demand(0), 1);
  CHECK(decide(scheduler, 1).size() == 2);
  wish.rows = {row(1, part(layout, 0, 8), Mode::kExclusive),
               row(2, part(layout, 8, 8), Mode::kExclusive)};
  scheduler.replan();
  const auto decisions = decide(scheduler, 2);
  REQUIRE(decisions.size() == 2);
  for (const Decision& decision : decisions) {
    CHECK(decision.kind == kGrant);
    CHECK(decision.mode == Mode::kExclusive);
  }
}

TEST_CASE("a kernel that needs more than its row is planned for, and its grant is revoked") {
  const PoolLayout layout = h200();
  Scheduler scheduler(layout.partitions(), policy([&](const Snapshot& snapshot, Allocation& out) {
                        for (const Client& client : snapshot.clients)
                          out.rows.push_back(row(client.id, part(layout, client.id == 1 ? 0 : 8, 4),
                                                 Mode::kExclusive));
                      }));
  scheduler.wants(1, demand(0), 1);
  scheduler.wants(2, demand(0), 1);
  CHECK(decide(scheduler, 1).size() == 2);
  scheduler.wants(1, demand(0, 50), 2);
  auto decisions = decide(scheduler, 2);
  REQUIRE(decisions.size() == 2);
  CHECK(decisions[0].kind == kRevoke);
  CHECK(decisions[0].reason == Reason::kTooNarrow);
  CHECK(decisions[1].kind == kGrant);
  CHECK(decisions[1].reason == Reason::kNeedsWidth);
  CHECK(layout.at(decisions[1].partition).sms >= 50);
  // Only the whole device runs the next one: for one launch, beside the other client.
  scheduler.wants(1, demand(0, 132), 3);
  decisions = decide(scheduler, 3);
  const Decision& last = decisions.back();
  CHECK(last.kind == kGrant);
  CHECK(last.reason == Reason::kNeedsWhole);
  CHECK(last.partition == kWholeDevice);
  CHECK(last.mode == Mode::kShared);
  CHECK(last.launches == 1);
  CHECK(scheduler.counters().exceptions == 1);
  // Then it is back in its row.
  scheduler.returned(1, 0, last.grant, 4);
  scheduler.wants(1, demand(0), 4);
  decisions = decide(scheduler, 4);
  REQUIRE_FALSE(decisions.empty());
  CHECK(decisions.back().mode == Mode::kExclusive);
}

TEST_CASE("other terms for a grant that stays are told without a move") {
  const PoolLayout layout = h200();
  std::uint64_t ahead = kNever;
  Scheduler scheduler(layout.partitions(), policy([&](const Snapshot&, Allocation& out) {
                        out.rows.push_back(row(1, kWholeDevice, Mode::kShared));
                        out.rows.back().run_ahead_ns = ahead;
                      }));
  scheduler.wants(1, demand(0), 1);
  const GrantId grant = decide(scheduler, 1).at(0).grant;
  ahead = 500'000;
  scheduler.replan();
  const auto decisions = decide(scheduler, 2);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].kind == Decision::Kind::kAmend);
  CHECK(decisions[0].grant == grant);
  CHECK(decisions[0].run_ahead_ns == 500'000);
}

TEST_CASE("other terms are told of a grant whose stream waits no more for a wider row") {
  const PoolLayout layout = h200();
  Allocation wish;
  Scheduler scheduler(layout.partitions(),
                      policy([&](const Snapshot&, Allocation& out) { out.rows = wish.rows; }));
  const Row third = row(3, part(layout, 8, 2), Mode::kExclusive);
  wish.rows = {row(1, part(layout, 0, 4), Mode::kExclusive),
               row(2, part(layout, 4, 4), Mode::kExclusive), third};
  for (const ClientId client : {3U, 2U, 1U}) scheduler.wants(client, demand(0), 1);
  const auto first = decide(scheduler, 1);
  REQUIRE(first.size() == 3);
  wish.rows = {row(1, part(layout, 0, 8), Mode::kExclusive), third};
  scheduler.replan();
  REQUIRE(decide(scheduler, 2).size() == 1);  // client 2 is paused, and drains
  // The ledger's grants are in another order now.
  scheduler.idle(3, 0, 3);
  for (const Decision& decision : first)
    if (decision.client == 3) scheduler.returned(3, 0, decision.grant, 3);
  wish.rows = {row(1, part(layout, 0, 4), Mode::kExclusive), third};
  wish.rows[0].run_ahead_ns = 500'000;
  scheduler.replan();
  const auto amended = decide(scheduler, 4);
  REQUIRE(amended.size() == 1);
  CHECK(amended[0].kind == Decision::Kind::kAmend);
  CHECK(amended[0].client == 1);
  CHECK(amended[0].run_ahead_ns == 500'000);
}

TEST_CASE("the policy is asked again at its wake time and when a row ends, but not without end") {
  const PoolLayout layout = h200();
  Allocation wish;
  Scheduler scheduler(layout.partitions(), policy([&](const Snapshot&, Allocation& out) {
                        out.rows = wish.rows;
                        out.wake_ns = wish.wake_ns;
                      }));
  wish.rows = {row(1, kWholeDevice, Mode::kShared)};
  wish.rows[0].until_ns = 900'000;
  wish.wake_ns = 500'000;
  scheduler.wants(1, demand(0), 1);
  decide(scheduler, 1);
  CHECK(scheduler.wake_at() == 500'000);
  wish.wake_ns = kNever;
  decide(scheduler, 500'000);
  CHECK(scheduler.counters().plans == 2);
  CHECK(scheduler.wake_at() == 900'000);
  wish.wake_ns = 0;  // the past
  decide(scheduler, 900'000);
  CHECK(scheduler.counters().plans == 3);
  CHECK(scheduler.wake_at() > 900'000);
  CHECK(decide(scheduler, 900'000).empty());
  CHECK(scheduler.counters().plans == 3);
}

TEST_CASE("a row with launches is granted once for each plan") {
  const PoolLayout layout = h200();
  Scheduler scheduler(layout.partitions(), policy([&](const Snapshot& snapshot, Allocation& out) {
                        for (const Client& client : snapshot.clients)
                          out.rows.push_back(row(client.id, kWholeDevice, Mode::kShared, 1));
                      }));
  scheduler.wants(1, demand(0), 1);
  auto decisions = decide(scheduler, 1);
  for (std::uint64_t now = 2; now < 10; ++now) {
    REQUIRE(decisions.size() == 1);
    CHECK(decisions[0].launches == 1);
    scheduler.returned(1, 0, decisions[0].grant, now);
    scheduler.wants(1, demand(0), now);
    decisions = decide(scheduler, now);
    CHECK(scheduler.counters().plans == now);
  }
}

// --- faults ----------------------------------------------------------------------------------

TEST_CASE("a policy that throws or returns invalid rows is replaced by fifo, with a reason") {
  const PoolLayout layout = h200();
  const std::pair<FunctionPolicy::Call, std::string> faults[] = {
      {[](const Snapshot&, Allocation&) { throw std::runtime_error("no"); },
       "test: allocate() failed: no"},
      {[](const Snapshot&, Allocation& out) { out.rows = {row(1, 60'000, Mode::kShared)}; },
       "test: a row names a partition that the pool lacks"},
      {[](const Snapshot&, Allocation& out) { out.rows = {row(77, 0, Mode::kShared)}; },
       "test: a row names a client that the snapshot lacks"},
      {[](const Snapshot&, Allocation& out) {
         out.rows = {row(1, 0, Mode::kShared), row(1, 1, Mode::kShared)};
       },
       "test: two rows name the same client and stream"}};
  for (const auto& fault : faults) {
    CAPTURE(fault.second);
    const auto& [call, why] = fault;
    Scheduler scheduler(layout.partitions(), policy(call));
    scheduler.wants(1, demand(0), 1);
    const auto decisions = decide(scheduler, 1);
    REQUIRE(decisions.size() == 1);
    CHECK(decisions[0].kind == kGrant);
    CHECK(decisions[0].reason == Reason::kFallback);
    CHECK(scheduler.fault() == why);
    CHECK(scheduler.policy().name == "fifo");
    CHECK(scheduler.counters().faults == 1);
  }
}

// --- starvation ------------------------------------------------------------------------------

TEST_CASE("a stream without a row waits for starving_after, and then runs for a quantum") {
  const PoolLayout layout = h200();
  SchedulerOptions options;
  options.starving_after_ns = 100'000'000;
  options.quantum_ns = 4'000'000;
  Scheduler scheduler(layout.partitions(), policy([&](const Snapshot&, Allocation& out) {
                        out.rows = {row(1, kWholeDevice, Mode::kExclusive)};
                      }),
                      options);
  scheduler.wants(1, demand(0), 1);
  const GrantId whole = decide(scheduler, 1).at(0).grant;
  scheduler.wants(2, demand(0, 20), 1000);
  CHECK(decide(scheduler, 1000).empty());
  CHECK(scheduler.wake_at() == 1000 + 100'000'000);
  std::uint64_t now = 1000 + 100'000'000;
  auto decisions = decide(scheduler, now);
  REQUIRE(decisions.size() == 1);  // client 1 makes room, and client 2 waits for it
  CHECK(decisions[0].client == 1);
  CHECK(decisions[0].kind == kGrant);
  scheduler.returned(1, 0, whole, now += 1000);
  decisions = decide(scheduler, now);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].client == 2);
  CHECK(decisions[0].reason == Reason::kStarving);
  CHECK(layout.at(decisions[0].partition).sms >= 20);
  CHECK(scheduler.wake_at() == now + 4'000'000);
  CHECK(decide(scheduler, now + 3'999'999).empty());
  decisions = decide(scheduler, now + 4'000'000);
  REQUIRE_FALSE(decisions.empty());
  bool ended = false;
  for (const Decision& decision : decisions)
    ended = ended || (decision.client == 2 && decision.kind == kRevoke &&
                      decision.reason == Reason::kQuantumEnded);
  CHECK(ended);
}

TEST_CASE("a stream that gives up and comes back has waited all the while") {
  const PoolLayout layout = h200();
  SchedulerOptions options;
  options.starving_after_ns = 100'000'000;
  Scheduler scheduler(layout.partitions(), policy([&](const Snapshot&, Allocation& out) {
                        out.rows = {row(1, kWholeDevice, Mode::kExclusive)};
                      }),
                      options);
  scheduler.wants(1, demand(0), 1);
  decide(scheduler, 1);
  std::uint64_t now = 1000;
  for (; scheduler.counters().starving == 0 && now < 1'000'000'000; now += 1'000'000) {
    scheduler.wants(2, demand(0), now);
    decide(scheduler, now);
    scheduler.idle(2, 0, now + 500'000);
    decide(scheduler, now + 500'000);
    scheduler.wants(2, demand(0), now + 600'000);
    decide(scheduler, now + 600'000);
  }
  CHECK(now <= 110'000'000);
}

// --- another policy --------------------------------------------------------------------------

TEST_CASE("a policy that isolates streams takes over from one that does not, and back") {
  const PoolLayout layout = four_units();
  const auto exclusive = [&](bool isolate) {
    PolicyDescription description;
    description.name = "exclusive half";
    description.isolate_streams = isolate;
    return policy(
        [&](const Snapshot& snapshot, Allocation& out) {
          for (const Client& client : snapshot.clients)
            out.rows.push_back(row(client.id, part(layout, 0, 2), Mode::kExclusive));
        },
        description);
  };
  Scheduler scheduler(layout.partitions(), exclusive(false));
  scheduler.wants(1, demand(0), 1);
  scheduler.wants(1, demand(1), 1);
  auto decisions = decide(scheduler, 1);
  REQUIRE(decisions.size() == 2);  // of one client: they share its units
  const GrantId first = decisions[0].grant, second = decisions[1].grant;
  scheduler.replace_policy(exclusive(true), 2);
  CHECK(decide(scheduler, 2).empty());  // what is granted stays
  scheduler.returned(1, 1, second, 3);
  CHECK(decide(scheduler, 3).empty());  // stream 0 holds them
  CHECK(scheduler.waiting() == 1);
  scheduler.idle(1, 0, 4);
  scheduler.returned(1, 0, first, 4);
  decisions = decide(scheduler, 4);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].stream == 1);
  scheduler.replace_policy(exclusive(false), 5);
  scheduler.wants(1, demand(0), 5);
  CHECK(decide(scheduler, 5).size() == 1);
  scheduler.forget(1, 6);
  CHECK(scheduler.ledger().held().empty());
}

TEST_CASE("a client is distributed for a minute behind its newest collective") {
  const PoolLayout layout = h200();
  bool distributed = false;
  Scheduler scheduler(layout.partitions(), policy([&](const Snapshot& snapshot, Allocation& out) {
                        REQUIRE(snapshot.clients.size() == 1);
                        distributed = snapshot.clients.front().distributed;
                        out.rows.push_back(row(1, kWholeDevice, Mode::kShared));
                        out.wake_ns = snapshot.now_ns + 1'000'000'000;
                      }));
  std::uint64_t now = 1;
  std::uint64_t launches = 0;
  const auto run = [&](int seconds, std::uint64_t collectives) {
    for (int i = 0; i < seconds; ++i) {
      scheduler.progress(1, {++launches, launches, 0, launches, collectives});
      decide(scheduler, now += 1'000'000'000);
    }
    return distributed;
  };
  scheduler.wants(1, demand(0), now);
  decide(scheduler, now);
  CHECK_FALSE(run(3, 0));
  CHECK(run(2, 1));
  CHECK(run(57, 1));
  CHECK_FALSE(run(3, 1));
  CHECK(run(2, 2));
}

// --- bad input -------------------------------------------------------------------------------

TEST_CASE("messages about unknown clients, streams, grants and steps are ignored") {
  const PoolLayout layout = h200();
  Scheduler scheduler(layout.partitions(), make_fifo());
  scheduler.idle(1, 0, 1);
  scheduler.returned(1, 0, 5, 1);
  scheduler.step_end(1, 5, 1);
  scheduler.progress(1, {1, 1, 1, 1});
  scheduler.forget(1, 1);
  CHECK(scheduler.adopt(1, 0, 60'000, Mode::kShared, 1) == kNoGrant);
  scheduler.wants(kNoClient, demand(0), 1);
  scheduler.wants(1, demand(kAllStreams), 1);
  CHECK(decide(scheduler, 1).empty());
  CHECK(scheduler.wake_at() == kNever);
}

TEST_CASE("steps that never end are bounded, and a clock that goes back stops nothing") {
  const PoolLayout layout = h200();
  SchedulerOptions options;
  options.steps_per_client = 8;
  Scheduler scheduler(layout.partitions(), make_fifo(), options);
  for (std::uint64_t id = 1; id <= 100; ++id) {
    Step step;
    step.id = id;
    step.client = 1;
    step.due_ns = 1;  // impossible
    scheduler.step_expected(step, id);
  }
  CHECK(scheduler.counters().refused_steps == 92);
  scheduler.wants(1, demand(0), 1'000'000);
  CHECK(decide(scheduler, 1'000'000).size() == 1);
  scheduler.wants(2, demand(0), 5);
  CHECK(decide(scheduler, 5).size() == 1);
}

TEST_CASE("a forgotten client leaves nothing, and its units are granted to those that wait") {
  const PoolLayout layout = h200();
  Scheduler scheduler(layout.partitions(), policy([&](const Snapshot& snapshot, Allocation& out) {
                        for (const Client& client : snapshot.clients)
                          out.rows.push_back(row(client.id, part(layout, 0, 8), Mode::kExclusive));
                        if (out.rows.size() > 1) out.rows.resize(1);
                      }));
  scheduler.wants(1, demand(0), 1);
  scheduler.wants(1, demand(1), 1);
  scheduler.wants(2, demand(0), 1);
  CHECK(decide(scheduler, 1).size() == 2);
  CHECK(scheduler.waiting() == 1);
  scheduler.forget(1, 2);
  const auto decisions = decide(scheduler, 2);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].client == 2);
  CHECK(scheduler.ledger().grants().size() == 1);
  scheduler.forget(2, 3);
  CHECK(decide(scheduler, 3).empty());
  CHECK(scheduler.ledger().grants().empty());
  CHECK(scheduler.ledger().held().empty());
  CHECK(scheduler.waiting() == 0);
}

TEST_CASE("adopted work keeps others from its units until it is returned") {
  const PoolLayout layout = h200();
  Scheduler scheduler(layout.partitions(), policy([&](const Snapshot& snapshot, Allocation& out) {
                        for (const Client& client : snapshot.clients)
                          out.rows.push_back(row(client.id, part(layout, 0, 4), Mode::kExclusive));
                      }));
  const GrantId adopted = scheduler.adopt(1, 0, part(layout, 0, 8), Mode::kExclusive, 1);
  REQUIRE(adopted != kNoGrant);
  scheduler.wants(2, demand(0), 2);
  CHECK(decide(scheduler, 2).empty());
  scheduler.returned(1, 0, adopted, 3);
  CHECK(decide(scheduler, 3).size() == 1);
}

}  // namespace
}  // namespace vitamin::scheduler
