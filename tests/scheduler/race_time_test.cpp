// SPDX-License-Identifier: Apache-2.0
//
// What counts as time of a race of the estimator, in a synthetic world (synthetic_world.h).
#include <doctest/doctest.h>

#include <span>
#include <vector>

#include "scheduler/estimator/estimator.h"
#include "tests/scheduler/synthetic_world.h"

namespace vitamin::test {
namespace {

using scheduler::Aim;

TEST_CASE("Blocks of clients alone take nothing of the time of a race") {
  const World::Speeds evenly = [](std::size_t, std::span<const Assignment> configuration) {
    return 1.0 / static_cast<double>(configuration.size());
  };
  World world(std::vector<Job>(8), evenly, 1);
  world.settle_ms = 50;  // all blocks alone take 2.4 s
  world.objective = {Aim::kSum, 0.5};
  world.run(6);
  scheduler::Findings findings;
  world.estimator.explain(findings);
  REQUIRE(findings.candidates.size() >= 4);
  unsigned measured = 0;
  for (const scheduler::CandidateReport& candidate : findings.candidates)
    measured += candidate.blocks > 0 ? 1U : 0U;
  CHECK(measured >= 4);
}

}  // namespace
}  // namespace vitamin::test
