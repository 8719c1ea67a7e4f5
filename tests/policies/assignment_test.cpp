// SPDX-License-Identifier: Apache-2.0
#include "policies/assignment.h"

#include <algorithm>
#include <limits>
#include <random>

#include "tests/figure.h"
#include "tests/policies/fixture.h"

namespace vitamin::policies {
namespace {

using hal::ComputeSet;
using runtime::EntryId;
using runtime::kNoEntry;
using runtime::PoolEntry;
using runtime::PoolLayout;

struct Problem {
  PoolLayout layout;
  std::vector<std::vector<float>> curves;
  std::vector<Candidate> candidates;
  ComputeSet available;

  Problem(const hal::DeviceInfo& info, unsigned operations, std::mt19937& random)
      : layout(PoolLayout::build(info)), available(layout.all()) {
    fill(operations, random);
  }

  void fill(unsigned operations, std::mt19937& random) {
    const std::uint32_t processors = layout.at(0).processors;
    std::uniform_real_distribution<float> uniform(0, 1);
    for (unsigned i = 0; i < operations; ++i) {
      const float latency = uniform(random), shared = 100 * uniform(random);
      const auto useful = static_cast<float>(1 + random() % processors);
      std::vector<float>& curve = curves.emplace_back();
      for (const PoolEntry& entry : layout.entries())
        curve.push_back(latency + shared / std::min(useful, static_cast<float>(entry.processors)));
    }
    for (unsigned i = 0; i < operations; ++i) {
      Candidate candidate;
      candidate.processors =
          random() % 3 == 0 ? 1 + static_cast<std::uint32_t>(random()) % (processors / 2) : 1;
      candidate.curve = curves[i];
      candidates.push_back(candidate);
    }
  }

  void check(std::span<const EntryId> plan) const {
    ComputeSet used;
    for (std::size_t i = 0; i < plan.size(); ++i) {
      if (plan[i] == kNoEntry) continue;
      const PoolEntry& entry = layout.at(plan[i]);
      REQUIRE(!entry.whole());
      REQUIRE(entry.processors >= candidates[i].processors);
      REQUIRE(available.contains(entry.compute));
      REQUIRE(!entry.compute.overlaps(used));
      used |= entry.compute;
    }
  }
};

struct Best {
  std::size_t assigned = 0;
  double progress = 0;
};

// Every feasible plan.
void search(const Assignment& assignment, const Problem& problem, std::size_t index,
            ComputeSet used, std::vector<EntryId>& plan, Best& best) {
  if (index == problem.candidates.size()) {
    const auto assigned = static_cast<std::size_t>(
        std::count_if(plan.begin(), plan.end(), [](EntryId id) { return id != kNoEntry; }));
    const double progress = assignment.progress(problem.candidates, problem.layout.entries(), plan);
    if (assigned > best.assigned || (assigned == best.assigned && progress > best.progress))
      best = {assigned, progress};
    return;
  }
  plan[index] = kNoEntry;
  search(assignment, problem, index + 1, used, plan, best);
  for (const PoolEntry& entry : problem.layout.entries()) {
    if (entry.whole() || entry.processors < problem.candidates[index].processors) continue;
    if (!problem.available.contains(entry.compute) || entry.compute.overlaps(used)) continue;
    plan[index] = entry.id;
    search(assignment, problem, index + 1, used | entry.compute, plan, best);
  }
  plan[index] = kNoEntry;
}

TEST_CASE("Algorithm 1 against every plan of small pools: as many, with nearly the progress") {
  Objective objective = Objective::kAlone;
  SUBCASE("against each alone") {}
  SUBCASE("as in the paper") { objective = Objective::kPaper; }
  std::mt19937 random(7);
  double worst = 1, sum = 0;
  unsigned fewer = 0, problems = 0;
  for (const unsigned units : {2U, 3U, 4U, 5U, 6U})
    for (unsigned operations = 1; operations <= 4; ++operations)
      for (int round = 0; round < 12; ++round) {
        Problem problem(device(units, 8, round % 2 == 0 ? 8 : 12), operations, random);
        Assignment assignment(objective);
        const std::span<const EntryId> plan =
            assignment.plan(problem.candidates, problem.layout.entries(), problem.available);
        problem.check(plan);
        std::vector<EntryId> scratch(operations, kNoEntry);
        Best best;
        search(assignment, problem, 0, {}, scratch, best);
        const auto assigned = static_cast<std::size_t>(
            std::count_if(plan.begin(), plan.end(), [](EntryId id) { return id != kNoEntry; }));
        ++problems;
        if (assigned < best.assigned) {
          ++fewer;
          continue;
        }
        const double ratio =
            best.progress == 0
                ? 1
                : assignment.progress(problem.candidates, problem.layout.entries(), plan) /
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

TEST_CASE("What is not available is not planned with") {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Problem problem(h200(), 1 + static_cast<unsigned>(random() % 20), random);
    problem.available = ComputeSet(random() & problem.layout.all().bits());
    Assignment assignment;
    problem.check(assignment.plan(problem.candidates, problem.layout.entries(), problem.available));
  }
}

TEST_CASE("Nothing to assign, and no room, after a plan for many: nobody is assigned") {
  std::mt19937 random(5);
  Problem problem(h200(), 8, random);
  Assignment assignment;
  assignment.plan(problem.candidates, problem.layout.entries(), problem.available);
  CHECK(assignment.plan({}, problem.layout.entries(), problem.available).empty());
  assignment.plan(problem.candidates, problem.layout.entries(), problem.available);
  const auto none = assignment.plan({problem.candidates.data(), 3}, problem.layout.entries(), {});
  REQUIRE(none.size() == 3);
  for (const EntryId id : none) CHECK(id == kNoEntry);
}

TEST_CASE("A kernel that gains nothing from more processors stays narrow") {
  const PoolLayout layout = PoolLayout::build(h200());
  runtime::Profile profile;
  std::vector<float> flat, scales;
  for (const PoolEntry& entry : layout.entries()) {
    flat.push_back(1000);
    scales.push_back(1e6F / static_cast<float>(entry.processors));
  }
  const Candidate candidates[] = {{1, flat, kNoEntry}, {1, scales, kNoEntry}};
  Assignment assignment;
  const auto plan = assignment.plan(candidates, layout.entries(), layout.all());
  CHECK(layout.at(plan[0]).processors == 8);
  CHECK(layout.at(plan[1]).processors == 124);
}

// Two jobs that do best on halves, one of them far slower on few processors than the other: against
// the narrowest part it is the one that progresses.
TEST_CASE("What each gains is counted against itself alone, not against the narrowest part") {
  const PoolLayout layout = PoolLayout::build(h200());
  std::vector<float> steep, shallow;
  for (const PoolEntry& entry : layout.entries()) {
    const auto m = static_cast<float>(entry.processors);
    steep.push_back(1e6F / m);
    shallow.push_back(20e3F + 1.5e6F / std::min(m, 64.0F));
  }
  const Candidate candidates[] = {{1, steep, kNoEntry}, {1, shallow, kNoEntry}};
  const auto width = [&](Objective objective, std::size_t of) {
    Assignment assignment(objective);
    return layout.at(assignment.plan(candidates, layout.entries(), layout.all())[of]).processors;
  };
  CHECK(width(Objective::kPaper, 0) > 100);
  CHECK(width(Objective::kAlone, 1) >= 32);
  Assignment paper(Objective::kPaper), alone;
  const auto plan = [&](Assignment& assignment) {
    const auto made = assignment.plan(candidates, layout.entries(), layout.all());
    return std::vector<EntryId>(made.begin(), made.end());
  };
  CHECK(alone.progress(candidates, layout.entries(), plan(alone)) >
        1.05 * alone.progress(candidates, layout.entries(), plan(paper)));
}

TEST_CASE("A plan for 64 ready operations takes 20 us at most") {
  std::mt19937 random(11);
  double slowest = 0;
  for (const unsigned operations : {1U, 2U, 4U, 6U, 8U, 12U, 16U, 64U}) {
    Problem problem(h200(), operations, random);
    for (Candidate& candidate : problem.candidates) candidate.processors = 1;
    Assignment assignment;
    const double fastest = test::lowest(20, [&] {
      double least = std::numeric_limits<double>::infinity();
      for (int i = 0; i < 300; ++i)
        least = std::min(least, 1e6 * test::seconds([&] {
                                  assignment.plan(problem.candidates, problem.layout.entries(),
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
}  // namespace vitamin::policies
