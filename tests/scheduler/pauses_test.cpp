// SPDX-License-Identifier: Apache-2.0
//
// When rests of clients with a bound are planned for.
#include <doctest/doctest.h>

#include <cstdint>

#include "scheduler/scheduler.h"
#include "tests/scheduler/fixture.h"
#include "tests/scheduler/shorthand.h"

namespace vitamin::scheduler {
namespace {

using runtime::PoolLayout;

// Each active client shares the whole device; asked when clients with a bound rest.
Policy keeps_bounds() {
  PolicyDescription description;
  description.keeps_bounds = true;
  return policy(
      [](const Snapshot& snapshot, Allocation& out) {
        for (const Client& client : snapshot.clients)
          out.rows.push_back(row(client.id, kWholeDevice, Mode::kShared));
      },
      description);
}

TEST_CASE("a policy that keeps bounds is asked when a client with a bound rests and resumes") {
  const PoolLayout layout = h200();
  Scheduler scheduler(layout.partitions(), keeps_bounds());
  ClientTerms bounded;
  bounded.slo.latency_ns = 1;
  scheduler.attach(1, bounded, 1);
  for (const ClientId client : {1U, 2U}) scheduler.wants(client, demand(0), 1);
  decide(scheduler, 1);
  std::uint64_t plans = scheduler.counters().plans;
  for (const ClientId client : {1U, 2U}) {
    CAPTURE(client);
    const unsigned asked = client == 1 ? 1 : 0;
    const std::uint64_t at = client * 2 * SchedulerOptions().replan_least_ns;
    scheduler.idle(client, 0, at);
    decide(scheduler, at);
    CHECK(scheduler.counters().plans == plans + asked);
    scheduler.wants(client, demand(0), at + 1);  // before it counts as idle
    decide(scheduler, at + 1);
    CHECK(scheduler.counters().plans == plans + 2 * asked);
    plans = scheduler.counters().plans;
  }
}

TEST_CASE("a rest under a young plan is planned for when the plan is older, unless it has ended") {
  const PoolLayout layout = h200();
  Scheduler scheduler(layout.partitions(), keeps_bounds());
  ClientTerms bounded;
  bounded.slo.latency_ns = 1;
  for (const ClientId client : {1U, 2U}) {
    scheduler.attach(client, bounded, 1);
    scheduler.wants(client, demand(0), 1);
  }
  decide(scheduler, 1);
  const std::uint64_t plans = scheduler.counters().plans;
  const std::uint64_t due = 1 + SchedulerOptions().replan_least_ns;
  for (std::uint64_t at = 2; at < 20; at += 2) {
    scheduler.idle(1, 0, at);
    decide(scheduler, at);
    CHECK(scheduler.wake_at() == due);
    scheduler.wants(1, demand(0), at + 1);
    decide(scheduler, at + 1);
  }
  decide(scheduler, due);
  CHECK(scheduler.counters().plans == plans);
  scheduler.replan();
  decide(scheduler, due);
  REQUIRE(scheduler.counters().plans == plans + 1);

  // One that is over for good, and one that lasts.
  scheduler.idle(1, 0, due + 1);
  scheduler.idle(2, 0, due + 1);
  scheduler.forget(1, due + 1);
  decide(scheduler, due + 1);  // forget() asks
  REQUIRE(scheduler.counters().plans == plans + 2);
  const std::uint64_t newest = due + 1;
  scheduler.wants(2, demand(0), newest + 1);  // the plan knows of the rest
  decide(scheduler, newest + 1);
  CHECK(scheduler.counters().plans == plans + 3);
  scheduler.idle(2, 0, newest + 2);
  const std::uint64_t later = newest + 1 + SchedulerOptions().replan_least_ns;
  decide(scheduler, later - 1);
  CHECK(scheduler.counters().plans == plans + 3);
  CHECK(scheduler.wake_at() == later);
  decide(scheduler, later);
  CHECK(scheduler.counters().plans == plans + 4);
}

}  // namespace
}  // namespace vitamin::scheduler
