// SPDX-License-Identifier: Apache-2.0
//
// Quotas of groups of clients, under every policy, at every moment: what drains counts.
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "scheduler/policies/registry.h"
#include "tests/scheduler/fixture.h"
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
    work.kernel_ns = 1'000 + random() % 2'000'000;
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
  Estimator estimator(layout.entries());
  runtime::Profile profile;
  auto made = make(policy, {layout.entries(), estimator, &profile, seed});
  REQUIRE_MESSAGE(made, policy);
  SchedulerOptions options;
  options.overdue_after_ns = 20'000'000;
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
  Ledger ledger(layout.entries());
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

}  // namespace
}  // namespace vitamin::scheduler
