// SPDX-License-Identifier: Apache-2.0
//
// No policy, whatever it returns, breaks a limit or starves a stream.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <random>
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

// Rows at random: any partition, mode, rank and end for any subset of clients and streams.
class Hostile final : public AllocationPolicy {
 public:
  explicit Hostile(std::uint64_t seed) : random_(seed) {}
  void allocate(const Snapshot& snapshot, Allocation& out) override {
    for (const Client& client : snapshot.clients) {
      if (below(4) == 0) continue;
      add(snapshot, client.id, kAllStreams, out);
      if (below(5) == 0 && !client.streams.empty())
        add(snapshot, client.id, client.streams[below(client.streams.size())].id, out);
    }
    std::shuffle(out.rows.begin(), out.rows.end(), random_);
    if (below(3) == 0) out.wake_ns = snapshot.now_ns + below(5'000'000);
  }

 private:
  std::size_t below(std::size_t n) { return random_() % n; }
  void add(const Snapshot& snapshot, ClientId client, StreamId stream, Allocation& out) {
    const auto partition = static_cast<PartitionId>(below(snapshot.pool.size()));
    const auto mode = static_cast<Mode>(below(3));
    Row wish = row(client, partition, mode);
    if (below(4) == 0) wish.launches = 1 + static_cast<std::uint32_t>(below(3));
    wish.stream = stream;
    wish.rank = static_cast<std::uint8_t>(below(3));
    wish.hold = below(4) == 0;
    if (below(4) == 0) wish.until_ns = snapshot.now_ns + below(3'000'000);
    out.rows.push_back(wish);
  }
  std::mt19937_64 random_;
};

TEST_CASE("whatever a policy returns, no limit breaks and every stream runs within the bound") {
  const PoolLayout layout = four_units();
  SchedulerOptions options;
  options.quantum_ns = 2'000'000;
  options.starving_after_ns = 20'000'000;
  options.idle_after_ns = 200'000;
  const std::uint64_t begin = test::seed();
  std::uint64_t slowest = 0;
  for (std::uint64_t seed = begin; seed < begin + 200; ++seed) {
    CAPTURE(seed);
    const auto clients = static_cast<unsigned>(2 + seed % 6);
    PolicyDescription description;
    description.name = "hostile";
    description.isolate_streams = seed % 7 == 0;
    description.uses_returns = seed % 5 == 0;
    World world(layout, {description, std::make_unique<Hostile>(seed), nullptr}, options);
    std::mt19937_64 random(seed);
    for (ClientId id = 1; id <= clients; ++id) {
      ClientTerms terms;
      if (random() % 3 == 0) terms.limits.max_sms = 8 + static_cast<std::uint32_t>(random() % 24);
      if (random() % 5 == 0) terms.limits.reserved_sms = 8;
      terms.limits.may_share = random() % 3 != 0;
      if (seed % 3 == 0) {  // all in one group, and some in another one, too
        terms.limits.group = 1;
        terms.limits.max_sms = seed % 2 == 0 ? 24 : 0;
        if (id % 2 == 0) terms.limits.outer[0] = {2, 16};
      }
      world.attach(id, terms);
    }
    world.run(random_work(seed, clients, 60, 32), 600'000'000'000);
    REQUIRE(world.complete());
    CHECK(world.scheduler().fault().empty());
    // Behind at most all other streams, each of which has a quantum and drains.
    const std::uint64_t streams = 2 * clients;
    const std::uint64_t bound =
        options.starving_after_ns + streams * (options.quantum_ns + 2 * world.longest_kernel());
    slowest = std::max(slowest, world.longest_wait());
    CHECK(world.longest_wait() <= bound);
  }
  MESSAGE("longest wait " << static_cast<double>(slowest) / 1e6 << " ms");
  CHECK(slowest >= options.starving_after_ns);  // the policy did try
}

TEST_CASE("a policy that gives no rows at all starves no stream") {
  const PoolLayout layout = four_units();
  SchedulerOptions options;
  options.quantum_ns = 2'000'000;
  options.starving_after_ns = 20'000'000;
  World world(layout, policy([](const Snapshot&, Allocation&) {}), options);
  world.run(random_work(3, 5, 60, 32), 600'000'000'000);
  REQUIRE(world.complete());
  CHECK(world.longest_wait() <=
        options.starving_after_ns + 10 * (options.quantum_ns + 2 * world.longest_kernel()));
}

Policy any_policy(std::mt19937_64& random) {
  PolicyDescription description;
  description.name = "hostile";
  switch (random() % 7) {
    case 0:
      return make_fifo();
    case 1:
      return make_static({ComputeSet(), 1 + static_cast<std::uint32_t>(random() % 4)});
    case 2:
      return make_temporal();
    case 3:
      return make_exclusive();
    case 4:
      return make_orion();
    case 5: {
      RandomOptions options;
      options.seed = random();
      return make_random(options);
    }
    default:
      return {description, std::make_unique<Hostile>(random()), nullptr};
  }
}

TEST_CASE("policies that replace each other while work runs break no limit and lose no stream") {
  const PoolLayout layout = four_units();
  SchedulerOptions options;
  options.starving_after_ns = 20'000'000;
  const std::uint64_t begin = test::seed();
  for (std::uint64_t seed = begin; seed < begin + 60; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    World world(layout, any_policy(random), options);
    auto work = random_work(seed, 2 + static_cast<unsigned>(seed % 5), 60, 32);
    for (Work& item : work) item.at_ns %= 1'000;
    world.run(work, 1'000'000);
    for (std::uint64_t now = 2'000'000; now < 60'000'000 && !world.complete(); now += 1'000'000) {
      world.run({}, now);
      world.scheduler().replace_policy(any_policy(random), world.now());
      world.obey_now();
    }
    world.scheduler().replace_policy(make_fifo(), world.now());
    world.obey_now();
    world.run({}, 600'000'000'000);
    REQUIRE(world.complete());
    CHECK(world.scheduler().fault().empty());
  }
}

}  // namespace
}  // namespace vitamin::scheduler
