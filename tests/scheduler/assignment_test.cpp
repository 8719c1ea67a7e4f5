// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policies/assignment.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "tests/cost.h"
#include "tests/scheduler/fixture.h"

namespace vitamin::scheduler {
namespace {

using hal::ComputeSet;
using runtime::PoolLayout;
using Relative = Assigner::Relative;

struct Problem {
  PoolLayout layout;
  std::vector<std::vector<float>> curves;
  std::vector<Assignable> wishes;
  ComputeSet available;

  Problem(const hal::DeviceInfo& info, unsigned operations, std::mt19937& random)
      : layout(PoolLayout::build(info)), available(layout.all()) {
    fill(operations, random);
  }

  void fill(unsigned operations, std::mt19937& random) {
    const std::uint32_t sms = layout.at(0).sms;
    std::uniform_real_distribution<float> uniform(0, 1);
    for (unsigned i = 0; i < operations; ++i) {
      const float latency = uniform(random), shared = 100 * uniform(random);
      const auto useful = static_cast<float>(1 + random() % sms);
      std::vector<float>& curve = curves.emplace_back();
      for (const Partition& partition : layout.partitions())
        curve.push_back(latency + shared / std::min(useful, static_cast<float>(partition.sms)));
    }
    for (unsigned i = 0; i < operations; ++i) {
      Assignable wish;
      wish.min_sms = random() % 3 == 0 ? 1 + static_cast<std::uint32_t>(random()) % (sms / 2) : 1;
      wish.curve = curves[i];
      wishes.push_back(wish);
    }
  }

  void check(std::span<const PartitionId> plan) const {
    ComputeSet used;
    for (std::size_t i = 0; i < plan.size(); ++i) {
      if (plan[i] == kNoPartition) continue;
      const Partition& partition = layout.at(plan[i]);
      REQUIRE(!partition.whole());
      REQUIRE(partition.sms >= wishes[i].min_sms);
      REQUIRE(available.contains(partition.compute));
      REQUIRE(!partition.compute.overlaps(used));
      used |= partition.compute;
    }
  }
};

struct Best {
  std::size_t assigned = 0;
  double progress = 0;
};

// Every feasible plan.
void search(const Assigner& assignment, const Problem& problem, std::size_t index, ComputeSet used,
            std::vector<PartitionId>& plan, Best& best) {
  if (index == problem.wishes.size()) {
    const auto assigned = static_cast<std::size_t>(
        std::count_if(plan.begin(), plan.end(), [](PartitionId id) { return id != kNoPartition; }));
    const double progress = assignment.progress(problem.wishes, problem.layout.partitions(), plan);
    if (assigned > best.assigned || (assigned == best.assigned && progress > best.progress))
      best = {assigned, progress};
    return;
  }
  plan[index] = kNoPartition;
  search(assignment, problem, index + 1, used, plan, best);
  for (const Partition& partition : problem.layout.partitions()) {
    if (partition.whole() || partition.sms < problem.wishes[index].min_sms) continue;
    if (!problem.available.contains(partition.compute) || partition.compute.overlaps(used))
      continue;
    plan[index] = partition.id;
    search(assignment, problem, index + 1, used | partition.compute, plan, best);
  }
  plan[index] = kNoPartition;
}

TEST_CASE(
    "Algorithm 1 assigns as many operations as the best plan of small pools, at 96 % of its "
    "progress") {
  Relative relative = Relative::kWhole;
  SUBCASE("against each alone") {}
  SUBCASE("as in the paper") { relative = Relative::kNarrowest; }
  std::mt19937 random(7);
  double worst = 1, sum = 0;
  unsigned fewer = 0, problems = 0;
  for (const unsigned units : {2U, 3U, 4U, 5U, 6U})
    for (unsigned operations = 1; operations <= 4; ++operations)
      for (int round = 0; round < 12; ++round) {
        Problem problem(device(units, 8, round % 2 == 0 ? 8 : 12), operations, random);
        Assigner assignment(relative);
        const std::span<const PartitionId> plan =
            assignment.plan(problem.wishes, problem.layout.partitions(), problem.available);
        problem.check(plan);
        std::vector<PartitionId> scratch(operations, kNoPartition);
        Best best;
        search(assignment, problem, 0, {}, scratch, best);
        const auto assigned = static_cast<std::size_t>(std::count_if(
            plan.begin(), plan.end(), [](PartitionId id) { return id != kNoPartition; }));
        ++problems;
        if (assigned < best.assigned) {
          ++fewer;
          continue;
        }
        const double ratio =
            best.progress == 0
                ? 1
                : assignment.progress(problem.wishes, problem.layout.partitions(), plan) /
                      best.progress;
        worst = std::min(worst, ratio);
        sum += ratio;
      }
  MESSAGE("problems " << problems << ", fewer operations than possible in " << fewer
                      << ", progress of the best plan: mean " << sum / (problems - fewer)
                      << ", worst " << worst);
  CHECK(fewer == 0);
  CHECK(worst > 0.6);
  CHECK(sum / (problems - fewer) > 0.96);
}

TEST_CASE("Units that are not available are not assigned") {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Problem problem(device(16, 8, 12), 1 + static_cast<unsigned>(random() % 20), random);
    problem.available = ComputeSet(random() & problem.layout.all().bits());
    Assigner assignment;
    problem.check(assignment.plan(problem.wishes, problem.layout.partitions(), problem.available));
  }
}

TEST_CASE("Without operations or without units nothing is assigned") {
  std::mt19937 random(5);
  Problem problem(device(16, 8, 12), 8, random);
  Assigner assignment;
  assignment.plan(problem.wishes, problem.layout.partitions(), problem.available);
  CHECK(assignment.plan({}, problem.layout.partitions(), problem.available).empty());
  assignment.plan(problem.wishes, problem.layout.partitions(), problem.available);
  const auto none = assignment.plan({problem.wishes.data(), 3}, problem.layout.partitions(), {});
  REQUIRE(none.size() == 3);
  for (const PartitionId id : none) CHECK(id == kNoPartition);
}

TEST_CASE("A kernel that gains nothing from more SMs stays narrow") {
  const PoolLayout layout = h200();
  std::vector<float> flat, scales;
  for (const Partition& partition : layout.partitions()) {
    flat.push_back(1000);
    scales.push_back(1e6F / static_cast<float>(partition.sms));
  }
  const Assignable wishes[] = {{1, flat, kNoPartition}, {1, scales, kNoPartition}};
  Assigner assignment;
  const auto plan = assignment.plan(wishes, layout.partitions(), layout.all());
  CHECK(layout.at(plan[0]).sms == 8);
  CHECK(layout.at(plan[1]).sms == 124);
}

// Two jobs that do best on halves, one of them far slower on few SMs than the other: against
// the narrowest part the other one gets nearly everything.
TEST_CASE(
    "Progress is relative to each operation alone, or to its narrowest partition on request") {
  const PoolLayout layout = h200();
  std::vector<float> steep, shallow;
  for (const Partition& partition : layout.partitions()) {
    const auto m = static_cast<float>(partition.sms);
    steep.push_back(1e6F / m);
    shallow.push_back(20e3F + 1.5e6F / std::min(m, 64.0F));
  }
  const Assignable wishes[] = {{1, steep, kNoPartition}, {1, shallow, kNoPartition}};
  const auto width = [&](Relative relative, std::size_t of) {
    Assigner assignment(relative);
    return layout.at(assignment.plan(wishes, layout.partitions(), layout.all())[of]).sms;
  };
  CHECK(width(Relative::kNarrowest, 0) > 100);
  CHECK(width(Relative::kWhole, 1) >= 32);
  Assigner paper(Relative::kNarrowest), alone;
  const auto plan = [&](Assigner& assignment) {
    const auto made = assignment.plan(wishes, layout.partitions(), layout.all());
    return std::vector<PartitionId>(made.begin(), made.end());
  };
  CHECK(alone.progress(wishes, layout.partitions(), plan(alone)) >
        1.05 * alone.progress(wishes, layout.partitions(), plan(paper)));
}

TEST_CASE("A plan for 64 ready operations takes at most 20 us") {
  std::mt19937 random(11);
  double slowest = 0;
  for (const unsigned operations : {1U, 2U, 4U, 6U, 8U, 12U, 16U, 64U}) {
    Problem problem(device(16, 8, 12), operations, random);
    for (Assignable& wish : problem.wishes) wish.min_sms = 1;
    Assigner assignment;
    const double fastest = test::lowest(20, [&] {
      double least = std::numeric_limits<double>::infinity();
      for (int i = 0; i < 300; ++i)
        least = std::min(least, 1e6 * test::seconds([&] {
                                  assignment.plan(problem.wishes, problem.layout.partitions(),
                                                  problem.available);
                                }));
      return least;
    });
    MESSAGE(operations << " operations: " << fastest << " us");
    slowest = std::max(slowest, fastest);
  }
#ifdef NDEBUG
  CHECK(slowest <= 20);
#endif
}

}  // namespace
}  // namespace vitamin::scheduler
