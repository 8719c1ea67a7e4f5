// SPDX-License-Identifier: Apache-2.0
//
// What the scheduler says of each client's allocation.
#include <doctest/doctest.h>

#include <vector>

#include "scheduler/scheduler.h"
#include "tests/scheduler/fixture.h"
#include "tests/scheduler/shorthand.h"

namespace vitamin::scheduler {
namespace {

using runtime::PoolLayout;

TEST_CASE("explain says for each client what it has, why and since when") {
  const PoolLayout layout = h200();
  Scheduler scheduler(layout.partitions(), policy([&](const Snapshot&, Allocation& out) {
                        out.rows = {row(1, part(layout, 0, 8), Mode::kExclusive),
                                    row(2, kWholeDevice, Mode::kShared)};
                      }));
  ClientTerms terms;
  terms.limits.max_sms = 40;
  scheduler.attach(1, terms, 1);
  scheduler.attach(3, {}, 1);
  for (ClientId id = 1; id <= 3; ++id) scheduler.wants(id, demand(0), 5);
  decide(scheduler, 5);
  std::vector<Explanation> all;
  scheduler.explain(all, 25);
  REQUIRE(all.size() == 3);
  CHECK(all[0].planned.reason == Reason::kQuota);
  CHECK(all[0].planned.wished == part(layout, 0, 8));
  CHECK(layout.at(all[0].planned.row.partition).sms <= 40);
  CHECK(all[0].open == 1);
  CHECK(all[0].since_ns == 5);
  CHECK(all[1].planned.reason == Reason::kOverlap);
  CHECK(all[1].planned.row.mode == Mode::kShared);
  CHECK(all[2].planned.reason == Reason::kPaused);
  CHECK(all[2].waiting == 1);
  CHECK(all[2].longest_wait_ns == 20);
  CHECK(to_string(all[2].planned.reason) == "paused");
}

TEST_CASE("explain names the rows of single streams, and whether a client ever had work") {
  const PoolLayout layout = h200();
  Scheduler scheduler(layout.partitions(), policy([&](const Snapshot&, Allocation& out) {
                        out.rows = {row(1, kWholeDevice, Mode::kShared)};
                        Row& own = out.rows.emplace_back(row(1, part(layout, 0, 4), Mode::kShared));
                        own.stream = 7;
                      }));
  scheduler.attach(2, {}, 1);
  scheduler.wants(1, demand(0), 5);
  scheduler.wants(1, demand(7), 5);
  decide(scheduler, 5);
  std::vector<Explanation> all;
  scheduler.explain(all, 6);
  REQUIRE(all.size() == 2);
  CHECK(all[0].planned.row.stream == kAllStreams);
  REQUIRE(all[0].streams.size() == 1);
  CHECK(all[0].streams[0].row.stream == 7);
  CHECK(all[0].streams[0].reason == Reason::kPolicy);
  CHECK(all[0].busy_ns == 6);
  CHECK(all[1].busy_ns == 0);
}

}  // namespace
}  // namespace vitamin::scheduler
