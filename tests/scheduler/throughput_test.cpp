// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policies/throughput.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "scheduler/policies/slo.h"
#include "tests/cost.h"
#include "tests/scheduler/allocations.h"
#include "tests/scheduler/synthetic_world.h"

namespace vitamin::scheduler {
namespace {

using test::kMs;

// Clients that always have work, without a model of speeds: counters grow with time.
struct Clients {
  Clients(std::size_t count, std::size_t streams_each) : values(count), demands(count) {
    for (std::size_t i = 0; i < count; ++i) {
      values[i].id = static_cast<ClientId>(i + 1);
      values[i].active = true;
      values[i].reports_progress = true;
      demands[i].resize(streams_each);
      for (std::size_t s = 0; s < streams_each; ++s) {
        demands[i][s].id = static_cast<StreamId>(s);
        demands[i][s].state = StreamDemand::State::kRunning;
        demands[i][s].profile_key = 1 + s;
      }
      values[i].streams = demands[i];
    }
  }
  void advance(std::uint64_t ns) {
    now_ns += ns;
    for (Client& client : values) {
      client.progress.work += ns / 2;
      client.progress.busy_ns += ns;
      client.progress.launches += ns / 20'000;
    }
  }
  Snapshot snapshot(const runtime::PoolLayout& pool) const {
    Snapshot made;
    made.now_ns = now_ns;
    made.pool = pool.partitions();
    made.clients = values;
    return made;
  }
  std::vector<Client> values;
  std::vector<std::vector<StreamDemand>> demands;
  std::uint64_t now_ns = 1000;
};

TEST_CASE("throughput gives every active client a row, and asks again at the end of a block") {
  const runtime::PoolLayout pool = h200();
  Estimator estimator(pool.partitions());
  const Policy policy = make_throughput({}, estimator, pool.partitions());
  Clients clients(3, 1);
  clients.values[2].active = false;
  Allocation out;
  for (int i = 0; i < 100; ++i) {
    out.rows.clear();
    policy.allocation->allocate(clients.snapshot(pool), out);
    REQUIRE(out.rows.size() == 2);
    CHECK(out.rows[0].client == 1);
    CHECK(out.rows[1].client == 2);
    CHECK(out.rows[0].mode != Mode::kPaused);
    CHECK(out.rows[0].run_ahead_ns == kRunAheadNs);
    REQUIRE(out.wake_ns > clients.now_ns);
    REQUIRE(out.wake_ns <= clients.now_ns + 300 * kMs);
    clients.advance(out.wake_ns - clients.now_ns);
  }
}

TEST_CASE("throughput shares the whole device with a distributed client, and bounds nothing") {
  const runtime::PoolLayout pool = h200();
  Estimator estimator(pool.partitions());
  const Policy policy = make_throughput({}, estimator, pool.partitions());
  Clients clients(2, 1);
  bool parts = false;
  const auto run = [&](std::uint64_t seconds) {
    parts = false;
    for (const std::uint64_t end = clients.now_ns + seconds * test::kSecond;
         clients.now_ns < end;) {
      Allocation out;
      policy.allocation->allocate(clients.snapshot(pool), out);
      REQUIRE(out.rows.size() == 2);
      for (const Row& row : out.rows) {
        parts = parts || row.mode != Mode::kShared || row.partition != kWholeDevice;
        CHECK(row.run_ahead_ns == (clients.values[0].distributed ? kNever : kRunAheadNs));
      }
      clients.advance(out.wake_ns - clients.now_ns);
    }
  };
  run(3);
  CHECK(parts);
  clients.values[0].distributed = true;
  run(20);
  CHECK_FALSE(parts);
  clients.values[0].distributed = false;  // it has ended its collectives
  run(3);
  CHECK(parts);
}

TEST_CASE("Beside a distributed client a quota holds, and so does the bound of what runs ahead") {
  const runtime::PoolLayout pool = h200();
  Estimator estimator(pool.partitions());
  const Policy policy = make_throughput({}, estimator, pool.partitions());
  Clients clients(2, 1);
  clients.values[0].distributed = true;
  clients.values[1].limits.max_sms = 40;
  clients.values[1].limits.may_share = false;
  for (int i = 0; i < 100; ++i) {
    Allocation out;
    policy.allocation->allocate(clients.snapshot(pool), out);
    REQUIRE(out.rows.size() == 2);
    CHECK(out.rows[1].mode == Mode::kExclusive);
    CHECK(pool.at(out.rows[1].partition).sms <= 40);
    CHECK(out.rows[1].run_ahead_ns == kRunAheadNs);
    clients.advance(out.wake_ns - clients.now_ns);
  }
}

TEST_CASE("Beside a distributed client whose neighbor fits nowhere what runs ahead stays bounded") {
  const runtime::PoolLayout pool = h200();
  Estimator estimator(pool.partitions());
  const Policy policy = make_throughput({}, estimator, pool.partitions());
  Clients clients(2, 1);
  clients.values[0].distributed = true;
  clients.values[1].limits.max_sms = 40;
  clients.demands[1][0].min_sms = 80;
  Allocation out;
  policy.allocation->allocate(clients.snapshot(pool), out);
  REQUIRE(out.rows.size() == 2);
  for (const Row& row : out.rows) CHECK(row.run_ahead_ns == kRunAheadNs);
}

// Two jobs with a rank on each of four devices: a job is as fast as its slowest rank. Splits are
// worse for both, but one device alone gains nothing by leaving its split.
TEST_CASE("Four devices of two distributed jobs do not keep each other in splits") {
  constexpr std::size_t kDevices = 4;
  const auto split = [](bool distributed) {
    std::vector<std::unique_ptr<test::World>> devices;
    const auto local = [](std::size_t, std::span<const Assignment> has) {
      return has.front().mode == Mode::kShared ? 0.53 : 0.42;
    };
    const auto slowest = [&](std::size_t job, std::span<const Assignment> has) {
      double least = local(job, has);
      for (const auto& device : devices)
        if (!device->applied().empty()) least = std::min(least, local(job, device->applied()));
      return least;
    };
    for (std::size_t i = 0; i < kDevices; ++i) {
      std::vector<test::Job> jobs(2);
      devices.push_back(std::make_unique<test::World>(jobs, slowest, 7 + i));
      for (std::size_t job = 0; job < 2; ++job) devices[i]->client(job).distributed = distributed;
    }
    constexpr double kSeconds = 20;
    double split_s = 0;
    for (double t = 0; t < kSeconds; t += 0.005) {
      for (const auto& device : devices) device->run(t + 0.005);
      const bool any = std::any_of(devices.begin(), devices.end(), [](const auto& device) {
        return device->applied().front().mode != Mode::kShared;
      });
      split_s += any ? 0.005 : 0;
    }
    return split_s / kSeconds;
  };
  CHECK(split(true) == 0);
  const double alone = split(false);
  MESSAGE("each device deciding alone, some device splits ", 100 * alone, " % of the time");
  CHECK(alone > 0.05);
}

TEST_CASE("A client that is alone has the whole device, and may run ahead") {
  const runtime::PoolLayout pool = h200();
  Estimator estimator(pool.partitions());
  const Policy policy = make_throughput({}, estimator, pool.partitions());
  Clients clients(1, 4);
  Allocation out;
  policy.allocation->allocate(clients.snapshot(pool), out);
  REQUIRE(out.rows.size() == 1);
  CHECK(out.rows[0].partition == kWholeDevice);
  CHECK(out.rows[0].mode == Mode::kShared);
  CHECK(out.rows[0].run_ahead_ns == kNever);
}

TEST_CASE("A block does not count while an exclusive grant is pending or revoked") {
  const runtime::PoolLayout pool = h200();
  Estimator estimator(pool.partitions());
  const Policy policy = make_throughput({}, estimator, pool.partitions());
  Clients clients(2, 1);
  Grant grant;
  grant.mode = Mode::kExclusive;
  grant.state = Grant::State::kRevoked;
  Allocation out;
  Snapshot snapshot = clients.snapshot(pool);
  policy.allocation->allocate(snapshot, out);
  const std::uint64_t first = out.wake_ns;
  clients.advance(first - clients.now_ns);
  out.rows.clear();
  snapshot = clients.snapshot(pool);
  snapshot.grants = {&grant, 1};
  policy.allocation->allocate(snapshot, out);
  CHECK(out.wake_ns < clients.now_ns + 50 * kMs);  // looks again soon: nothing is measured yet
  clients.advance(out.wake_ns - clients.now_ns);
  out.rows.clear();
  policy.allocation->allocate(clients.snapshot(pool), out);
  CHECK(out.wake_ns >= clients.now_ns + 90 * kMs);  // now a block counts
}

TEST_CASE("algorithm1 gives streams exclusive partitions that do not overlap") {
  const runtime::PoolLayout pool = h200();
  Estimator estimator(pool.partitions());
  ThroughputOptions options;
  options.model = ThroughputOptions::Model::kAlgorithm1;
  const Policy policy = make_throughput(options, estimator, pool.partitions());
  Clients clients(3, 2);
  clients.demands[1][0].min_sms = 60;
  clients.demands[2][1].min_sms = 200;  // no part is as wide
  Allocation out, again;
  policy.allocation->allocate(clients.snapshot(pool), out);
  REQUIRE(out.rows.size() == 6);
  hal::ComputeSet used;
  for (const Row& row : out.rows) {
    if (row.client == 3 && row.stream == 1) {
      CHECK(row.mode == Mode::kShared);
      CHECK(row.partition == kWholeDevice);
      continue;
    }
    REQUIRE(row.mode == Mode::kExclusive);
    CHECK(!pool.at(row.partition).compute.overlaps(used));
    used |= pool.at(row.partition).compute;
    if (row.client == 2 && row.stream == 0) CHECK(pool.at(row.partition).sms >= 60);
  }
  policy.allocation->allocate(clients.snapshot(pool), again);
  CHECK(again.rows == out.rows);  // what is as good as before stays
}

// A plan within a block, a plan that closes one, each with 64 clients and with 64 streams.
double slowest_plan_us(AllocationPolicy& policy, const runtime::PoolLayout& pool, Clients& clients,
                       std::uint64_t* allocated) {
  Allocation out;
  const auto plan = [&] {
    out.rows.clear();
    out.wake_ns = kNever;
    policy.allocate(clients.snapshot(pool), out);
  };
  for (int i = 0; i < 200; ++i) plan(), clients.advance(15 * kMs);
  const std::uint64_t before = test::allocations();
  for (int i = 0; i < 200; ++i) plan(), clients.advance(15 * kMs);
  *allocated = test::allocations() - before;
  return test::lowest(20, [&] {
    double slowest = 0;
    for (int block = 0; block < 10; ++block) {
      double least = std::numeric_limits<double>::infinity();
      for (int i = 0; i < 10; ++i) least = std::min(least, 1e6 * test::seconds(plan));
      slowest = std::max(slowest, least);
      clients.advance(25 * kMs);
    }
    return slowest;
  });
}

TEST_CASE("A full plan for 64 streams takes at most 20 us, and allocates nothing") {
  const runtime::PoolLayout pool = h200();
  struct Case {
    const char* name;
    std::size_t clients, streams;
    int policy;
  };
  for (const Case& c : {Case{"throughput, 2 clients", 2, 32, 0},
                        {"throughput, 64 clients", 64, 1, 0},
                        {"algorithm1, 2 clients", 2, 32, 1},
                        {"slo, 2 clients", 2, 32, 2}}) {
    Estimator estimator(pool.partitions());
    ThroughputOptions options;
    if (c.policy == 1) options.model = ThroughputOptions::Model::kAlgorithm1;
    const Policy policy = c.policy == 2 ? make_slo({}, estimator, pool.partitions())
                                        : make_throughput(options, estimator, pool.partitions());
    Clients clients(c.clients, c.streams);
    if (c.policy == 2) clients.values[0].slo.latency_ns = 100 * kMs;
    std::uint64_t allocated = 0;
    const double us = slowest_plan_us(*policy.allocation, pool, clients, &allocated);
    MESSAGE(std::string(c.name) << ": " << us << " us, " << allocated
                                << " allocations in 200 plans");
    CHECK(allocated == 0);
#ifdef NDEBUG
    CHECK(us <= 20);
#endif
  }
}

TEST_CASE("clients beyond those that configurations list share the last group's part") {
  const runtime::PoolLayout layout = h200();
  Estimator estimator(layout.partitions());
  std::vector<Client> clients(Configurations::kClients + 40);
  StreamDemand demand;
  demand.state = StreamDemand::State::kRunning;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    clients[i].id = static_cast<ClientId>(i + 1);
    clients[i].active = clients[i].reports_progress = true;
    clients[i].streams = {&demand, 1};
    if (i < 100) clients[i].phase = StepKind::kDecode;
  }
  Configurations configurations(layout.partitions());
  estimator.enter(clients, {}, 1);
  const auto candidates = configurations.generate(clients, {}, estimator);
  REQUIRE(candidates.size() > 1);
  for (const Candidate& candidate : candidates) {
    REQUIRE(candidate.assignments.size() == clients.size());
    for (std::size_t i = 0; i < clients.size(); ++i)
      CHECK(candidate.assignments[i].client == clients[i].id);
    const PartitionId last = candidate.assignments[Configurations::kClients].partition;
    bool listed = false;  // another client has that part
    for (std::size_t i = 0; i < clients.size(); ++i) {
      const Assignment& has = candidate.assignments[i];
      if (i >= Configurations::kClients) CHECK(has.partition == last);
      if (i >= Configurations::kClients) CHECK(has.mode == Mode::kShared);
      listed = listed || (i < Configurations::kClients && has.partition == last);
      if (has.partition == last) CHECK(has.mode == Mode::kShared);
    }
    CHECK(listed);
  }
}

}  // namespace
}  // namespace vitamin::scheduler
