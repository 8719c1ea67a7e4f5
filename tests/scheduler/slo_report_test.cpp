// SPDX-License-Identifier: Apache-2.0
//
// What slo can be asked for: what becomes of each bound, and among which configurations it chooses.
#include <doctest/doctest.h>

#include <cmath>

#include "scheduler/policies/slo.h"
#include "tests/scheduler/fixture.h"

namespace vitamin::scheduler {
namespace {

constexpr std::uint64_t kMs = 1'000'000;

// Client 1 has bounds, client 2 has none; both work.
struct World {
  explicit World(const Slo& slo) {
    for (ClientId id = 1; id <= 2; ++id) {
      Client& client = clients.emplace_back();
      client.id = id;
      client.active = true;
      client.reports_progress = true;
      client.streams = {&demand, 1};
      estimator.identify(id, 100 + id);
    }
    clients[0].slo = slo;
    demand.state = StreamDemand::State::kRunning;
  }

  // Steps of client 1, or its busy periods, take so long alone.
  void took(StepKind kind, double ms, Quantity what = Quantity::kStep) {
    for (int i = 0; i < 50; ++i)
      estimator.store().add({101, kByItself, 0, kind, what}, std::log(ms * 1e6 + i), 1, 1);
  }

  std::vector<SloStatus> slo_statuses() {
    Snapshot snapshot;
    snapshot.now_ns = now_ns += kMs;
    snapshot.pool = pool.partitions();
    snapshot.clients = clients;
    Allocation out;
    policy.allocate(snapshot, out);
    std::vector<SloStatus> all;
    policy.slo_statuses(all);
    return all;
  }

  runtime::PoolLayout pool = h200();
  StreamDemand demand;
  std::vector<Client> clients;
  Estimator estimator{pool.partitions()};
  SloPolicy policy{{}, estimator, pool.partitions()};
  std::uint64_t now_ns = 1000 * kMs;
};

TEST_CASE("each bound of a client is judged by what its own steps take alone") {
  Slo slo;
  slo.ttft_ns = 200 * kMs;
  slo.tpot_ns = slo.latency_ns = 5 * kMs;
  World world(slo);
  world.took(StepKind::kPrefill, 90);
  world.took(StepKind::kDecode, 8);
  const std::vector<SloStatus> all = world.slo_statuses();
  REQUIRE(all.size() == 2);  // every step is announced: there are no other requests
  CHECK(all[0].kind == StepKind::kPrefill);
  CHECK(all[0].bound_ns == 200 * kMs);
  CHECK(all[0].alone_ns == doctest::Approx(90e6).epsilon(0.2));
  CHECK(all[0].feasible);
  CHECK(all[1].kind == StepKind::kDecode);
  CHECK(all[1].alone_ns == doctest::Approx(8e6).epsilon(0.2));
  CHECK_FALSE(all[1].feasible);
}

TEST_CASE("a bound of requests that are not announced is judged by busy periods") {
  Slo slo;
  slo.step_ns = slo.latency_ns = 5 * kMs;
  World world(slo);
  world.took(StepKind::kUnknown, 3, Quantity::kBusy);
  const std::vector<SloStatus> all = world.slo_statuses();
  REQUIRE(all.size() == 2);
  CHECK(all[0].kind == StepKind::kIteration);
  CHECK(all[0].alone_ns == 0);  // no iteration was seen
  CHECK(all[0].feasible);
  CHECK(all[1].kind == StepKind::kUnknown);
  CHECK(all[1].alone_ns == doctest::Approx(3e6).epsilon(0.2));
  CHECK(all[1].feasible);
}

TEST_CASE("a client that asks for latencies as alone has no bound that could be refused") {
  Slo slo;
  slo.latency_ns = 1;
  World world(slo);
  world.took(StepKind::kUnknown, 3, Quantity::kBusy);
  const std::vector<SloStatus> all = world.slo_statuses();
  REQUIRE(all.size() == 1);
  CHECK(all[0].bound_ns == 0);
  CHECK(all[0].feasible);
}

TEST_CASE("the configurations among which slo chooses are told, with the bounds that each keeps") {
  Slo slo;
  slo.latency_ns = 9 * kMs;
  World world(slo);
  world.took(StepKind::kUnknown, 7, Quantity::kBusy);
  world.slo_statuses();
  Findings found;
  REQUIRE(world.policy.explain(found));
  CHECK(found.objective == "others");
  CHECK(found.candidates.size() > 3);
  unsigned chosen = 0;
  bool paused = false;
  for (const CandidateReport& candidate : found.candidates) {
    chosen += candidate.chosen;
    REQUIRE(candidate.clients.size() == candidate.assignments.size());
    for (const ClientReport& client : candidate.clients) {
      const bool alone = candidate.clients.size() == 1;
      CHECK(client.measured == alone);  // nothing ran beside it yet
      CHECK(client.speed == (alone ? 1 : 0));
    }
    if (candidate.clients.size() == 1) {  // the other one is paused
      paused = true;
      CHECK(candidate.keeps_bounds);
      CHECK((candidate.chosen || candidate.predicted == -1));
    }
    if (candidate.chosen) CHECK(candidate.keeps_bounds);
  }
  CHECK(chosen == 1);
  CHECK(paused);
  CHECK(found.choice == ChoiceReason::kTried);  // what the service does alone is learned
  // While the client with the bound has nothing to do, the estimator's are the alternatives.
  world.clients[0].active = false;
  world.clients[0].streams = {};
  world.slo_statuses();
  CHECK_FALSE(world.policy.explain(found));
}

TEST_CASE("of services with different bounds each configuration says which part each has") {
  Slo slo;
  slo.latency_ns = 9 * kMs;
  World world(slo);
  world.clients[1].slo.latency_ns = 200 * kMs;
  world.slo_statuses();
  Findings found;
  REQUIRE(world.policy.explain(found));
  CHECK(found.choice == ChoiceReason::kTried);
  unsigned parts = 0;
  for (const CandidateReport& candidate : found.candidates) {
    if (candidate.chosen) {  // of neither is known what it does alone
      REQUIRE(candidate.assignments.size() == 1);
      CHECK(candidate.assignments[0].client == 1);
    } else if (candidate.assignments[0].partition != kWholeDevice) {
      REQUIRE(candidate.assignments.size() == 2);
      const Assignment &left = candidate.assignments[0], &right = candidate.assignments[1];
      CHECK(left.mode == Mode::kExclusive);
      CHECK(right.mode == Mode::kExclusive);
      CHECK(!h200().at(left.partition).compute.overlaps(h200().at(right.partition).compute));
      CHECK(!candidate.clients[1].measured);
      ++parts;
    }
  }
  CHECK(parts == 3);
}

// A period of any phase has the bound of requests; a service without a bound for what it does gives
// way to those that have one.
TEST_CASE("a service is on the side of the bound that applies to what it does") {
  for (const std::uint64_t latency_ns : {200 * kMs, std::uint64_t{0}}) {
    Slo slo;
    slo.latency_ns = 9 * kMs;
    World world(slo);
    world.clients[1].slo.ttft_ns = 5 * kMs;
    world.clients[1].slo.latency_ns = latency_ns;
    world.clients[1].phase = StepKind::kDecode;
    world.slo_statuses();
    Findings found;
    REQUIRE(world.policy.explain(found));
    for (const CandidateReport& candidate : found.candidates) {
      if (!candidate.chosen) continue;  // what the side of the shortest bound does alone is learned
      REQUIRE(candidate.assignments.size() == 1);
      CHECK(candidate.assignments[0].client == 1);
    }
  }
}

}  // namespace
}  // namespace vitamin::scheduler
