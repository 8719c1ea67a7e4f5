// SPDX-License-Identifier: Apache-2.0
//
// Quotas of groups of clients, under every policy, at every moment: what drains counts.
#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "scheduler/policies/registry.h"
#include "tests/scheduler/fixture.h"
#include "tests/scheduler/shorthand.h"
#include "tests/scheduler/world.h"
#include "tests/seed.h"

namespace vitamin::scheduler {
namespace {

using runtime::PoolLayout;

constexpr std::uint32_t kUser = 7, kJob = 8;
constexpr std::uint32_t kQuarter = 33;  // of 132 SMs
constexpr ClientId kProcesses = 10;     // of the user; two more clients are of another one

std::vector<Work> many_kernels(std::mt19937_64& random) {
  std::vector<Work> all;
  for (int i = 0; i < 300; ++i) {
    Work work;
    work.at_ns = random() % 30'000'000;
    work.client = 1 + static_cast<ClientId>(random() % (kProcesses + 2));
    work.stream = static_cast<StreamId>(random() % 3);
    work.min_sms = 1 + static_cast<std::uint32_t>(random() % 8);
    work.kernels = 1 + static_cast<unsigned>(random() % 8);
    // Some last for longer than their process waits for them.
    work.kernel_ns = i % 16 == 0 ? 40'000'000 : 1'000 + random() % 2'000'000;
    all.push_back(work);
  }
  return all;
}

std::vector<std::string> policies() {
  std::vector<std::string> all;
  for (const PolicyDescription& description : list()) all.emplace_back(description.name);
  all.insert(all.end(), {"static:parts=2", "static:parts=8"});
  return all;
}

struct Run {
  std::uint32_t user_sms, job_sms;
  bool complete;
};

Run run(const std::string& policy, std::uint64_t seed, std::uint32_t most) {
  const PoolLayout layout = h200();
  Estimator estimator(layout.partitions());
  runtime::Profile profile;
  auto made = make(policy, {layout.partitions(), estimator, &profile, seed});
  REQUIRE_MESSAGE(made, policy);
  SchedulerOptions options;
  options.starving_after_ns = 20'000'000;
  World world(layout, std::move(*made), options);
  std::mt19937_64 random(seed);
  for (ClientId id = 1; id <= kProcesses + 2; ++id) {
    ClientTerms terms;
    if (id <= kProcesses && most != 0) {
      terms.limits.group = kUser;
      terms.limits.max_sms = most;
      if (id <= 3) terms.limits.outer[0] = {kJob, 16};  // three of them are of one job
    }
    world.attach(id, terms);
  }
  world.run(many_kernels(random), 600'000'000'000);
  CHECK(world.scheduler().fault().empty());
  return {world.most_sms(kUser), world.most_sms(kJob), world.complete()};
}

TEST_CASE("ten processes of a user with a quarter of the SMs hold no more, under every policy") {
  const std::uint64_t begin = test::seed();
  for (const std::string& policy : policies())
    for (std::uint64_t seed = begin; seed < begin + 3; ++seed) {
      CAPTURE(policy);
      CAPTURE(seed);
      const Run ran = run(policy, seed, kQuarter);  // the world checks every moment
      CHECK(ran.complete);
      CHECK(ran.user_sms <= kQuarter);
      CHECK(ran.user_sms >= 16);  // and may have that
      CHECK(ran.job_sms <= 16);
    }
}

TEST_CASE("a grant of a group waits until what another member drains is within the quota") {
  const PoolLayout layout = h200();
  Ledger ledger(layout.partitions());
  const auto part = [&](unsigned first, unsigned count) {
    return layout.find(hal::ComputeSet::range(first, count));
  };
  const Ledger::QuotaTerms quota{7, 33};
  const auto stream = [&](ClientId client) {
    const auto index = ledger.add_stream(ledger.add_holder(), client, 0);
    ledger.set_quotas(index, std::span(&quota, 1));
    return index;
  };
  const auto a = stream(1), b = stream(2), other = ledger.add_stream(ledger.add_holder(), 3, 0);
  const auto terms = [](PartitionId partition, Mode mode, Reason reason = Reason::kPolicy) {
    Ledger::Terms made;
    made.partition = partition;
    made.mode = mode;
    made.reason = reason;
    return made;
  };
  const GrantId first = ledger.open(a, terms(part(0, 4), Mode::kShared), 1);
  REQUIRE(first != kNoGrant);
  CHECK(ledger.open(b, terms(part(4, 4), Mode::kShared), 2) == kNoGrant);
  CHECK(ledger.within_quotas(b, part(0, 2)));  // where the group is
  CHECK(ledger.open(other, terms(part(4, 4), Mode::kShared), 2) != kNoGrant);
  // What only the whole device can run is not counted.
  const GrantId whole = ledger.open(b, terms(kWholeDevice, Mode::kShared, Reason::kNeedsWhole), 3);
  REQUIRE(whole != kNoGrant);
  CHECK(ledger.returned(b, whole));
  ledger.take_quota_freed();
  ledger.revoke(a, Reason::kRowChanged, 4);
  CHECK(ledger.open(b, terms(part(4, 4), Mode::kShared), 5) == kNoGrant);  // it still drains
  CHECK_FALSE(ledger.take_quota_freed());
  CHECK(ledger.returned(a, first));
  CHECK(ledger.take_quota_freed());
  CHECK(ledger.open(b, terms(part(4, 4), Mode::kShared), 6) != kNoGrant);
  // A smaller quota holds of what is opened from now on.
  const Ledger::QuotaTerms smaller{7, 16};
  ledger.set_quotas(a, std::span(&smaller, 1));
  CHECK(ledger.open(a, terms(part(8, 1), Mode::kShared), 7) == kNoGrant);
  CHECK(ledger.open(a, terms(part(4, 2), Mode::kShared), 7) != kNoGrant);
}

class Widest final : public PlacementPolicy {
  Placement place(const PlacementRequest&, std::span<const PartitionId> eligible) override {
    return {eligible.back()};
  }
};

TEST_CASE("a member that keeps the quota of its group makes way for one that waits for too long") {
  const PoolLayout layout = h200();
  SchedulerOptions options;
  options.starving_after_ns = 20'000'000;
  PolicyDescription description;
  description.name = "widest";
  Scheduler scheduler(layout.partitions(), {description, nullptr, std::make_unique<Widest>()},
                      options);
  ClientTerms terms;
  terms.limits.group = kUser;
  terms.limits.max_sms = kQuarter;
  for (const ClientId client : {1U, 2U}) {
    scheduler.attach(client, terms, 1);
    scheduler.wants(client, demand(0, 16), 1);
  }
  const auto first = decide(scheduler, 1);
  REQUIRE(first.size() == 1);
  const auto made_way = decide(scheduler, 30'000'000);
  REQUIRE(made_way.size() == 1);
  CHECK(made_way[0].grant == first[0].grant);
  CHECK(made_way[0].reason == Reason::kMadeWay);
  scheduler.returned(first[0].client, 0, first[0].grant, 31'000'000);
  const auto starving = decide(scheduler, 31'000'000);
  REQUIRE(starving.size() == 1);  // and nothing beside it for the first one
  CHECK(starving[0].client != first[0].client);
  CHECK(starving[0].reason == Reason::kStarving);
}

// A process whose row moves, with a quota that has no room for both places.
struct Moving {
  explicit Moving(Mode row_mode)
      : mode(row_mode),
        scheduler(layout.partitions(), policy([this](const Snapshot&, Allocation& out) {
                    out.rows = {row(1, place, mode)};
                    if (other) out.rows.push_back(row(2, part(layout, 0, 4), Mode::kExclusive));
                  })) {
    ClientTerms terms;
    terms.limits.max_sms = kQuarter;
    scheduler.attach(1, terms, 1);
    for (StreamId stream = 0; stream < 2; ++stream) scheduler.wants(1, demand(stream), 1);
    for (const Decision& decision : decide(scheduler, 1)) first.push_back(decision.grant);
    REQUIRE(first.size() == 2);
    place = part(layout, 8, 4);
    scheduler.replan();
    CHECK(decide(scheduler, 2).size() == 2);  // both are revoked
  }
  const Grant* open(StreamId stream) const {
    for (const Grant& grant : scheduler.ledger().grants())
      if (grant.client == 1 && grant.stream == stream && grant.state == Grant::State::kOpen)
        return &grant;
    return nullptr;
  }

  const PoolLayout layout = h200();
  Mode mode;
  PartitionId place = part(layout, 0, 4);
  bool other = false;
  Scheduler scheduler;
  std::vector<GrantId> first;
};

TEST_CASE("a stream waits for what another stream of its process drains 10 ms at most") {
  for (const Mode mode : {Mode::kExclusive, Mode::kShared}) {
    CAPTURE(static_cast<int>(mode));
    Moving world(mode);
    Scheduler& scheduler = world.scheduler;
    scheduler.returned(1, 1, world.first[1], 3);  // a kernel of stream 0 runs on
    decide(scheduler, 3);
    CHECK(world.open(1) == nullptr);
    REQUIRE(scheduler.wake_at() <= 20'000'000);
    decide(scheduler, 20'000'000);
    REQUIRE(world.open(1) != nullptr);
    CHECK(world.open(1)->partition == part(world.layout, 0, 4));
    CHECK(world.open(1)->reason == Reason::kBesideOwnDrain);
    CHECK(world.open(0) == nullptr);  // its next kernel is behind the first one anyway
    // The kernel has ended: both leave for the new row, which is within the quota then.
    const GrantId beside = world.open(1)->id;
    scheduler.returned(1, 0, world.first[0], 30'000'000);
    decide(scheduler, 30'000'000);
    CHECK(world.open(0) == nullptr);
    CHECK(world.open(1) == nullptr);
    decide(scheduler, 60'000'000);  // and no stream runs beside a stream that ran beside another
    CHECK(world.open(0) == nullptr);
    scheduler.returned(1, 1, beside, 70'000'000);
    decide(scheduler, 70'000'000);
    for (const StreamId stream : {0U, 1U}) {
      REQUIRE(world.open(stream) != nullptr);
      CHECK(world.open(stream)->partition == world.place);
    }
  }
}

TEST_CASE("what waited for a quota opens at once when the quota is raised or ends") {
  for (const Mode mode : {Mode::kExclusive, Mode::kShared})
    for (const std::uint32_t most : {2 * kQuarter, 0U}) {
      CAPTURE(static_cast<int>(mode));
      CAPTURE(most);
      Moving world(mode);
      decide(world.scheduler, 3);
      CHECK(world.open(0) == nullptr);
      ClientTerms terms;
      terms.limits.max_sms = most;
      world.scheduler.attach(1, terms, 4);
      decide(world.scheduler, 4);
      for (const StreamId stream : {0U, 1U}) {
        REQUIRE(world.open(stream) != nullptr);
        CHECK(world.open(stream)->partition == world.place);
      }
    }
}

TEST_CASE("a stream beside a kernel of its process stays there when their row moves again") {
  Moving world(Mode::kExclusive);
  Scheduler& scheduler = world.scheduler;
  scheduler.returned(1, 1, world.first[1], 3);
  decide(scheduler, 3);
  decide(scheduler, 20'000'000);
  REQUIRE(world.open(1) != nullptr);
  const GrantId beside = world.open(1)->id;
  for (const unsigned first : {4U, 8U}) {
    world.place = part(world.layout, first, 4);
    scheduler.replan();
    CHECK(decide(scheduler, 21'000'000).empty());
    REQUIRE(world.open(1) != nullptr);
    CHECK(world.open(1)->id == beside);
  }
}

TEST_CASE("a client that gets these units has them when the kernel and its company have ended") {
  Moving world(Mode::kExclusive);
  Scheduler& scheduler = world.scheduler;
  scheduler.returned(1, 1, world.first[1], 3);
  decide(scheduler, 3);
  decide(scheduler, 20'000'000);
  REQUIRE(world.open(1) != nullptr);
  const GrantId beside = world.open(1)->id;
  world.other = true;
  scheduler.wants(2, demand(0), 21'000'000);
  CHECK(decide(scheduler, 21'000'000).empty());
  scheduler.returned(1, 0, world.first[0], 22'000'000);
  const auto revoked = decide(scheduler, 22'000'000);
  REQUIRE(revoked.size() == 1);
  CHECK(revoked[0].grant == beside);
  scheduler.returned(1, 1, beside, 23'000'000);
  const auto granted = decide(scheduler, 23'000'000);
  REQUIRE(granted.size() == 3);  // to it, and to both streams where their row is
  for (const Decision& decision : granted)
    CHECK(decision.partition == (decision.client == 2 ? part(world.layout, 0, 4) : world.place));
}

}  // namespace
}  // namespace vitamin::scheduler
