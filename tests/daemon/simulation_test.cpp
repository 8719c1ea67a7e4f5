// SPDX-License-Identifier: Apache-2.0
//
// Many seeds of the simulated node. VITAMIN_TEST_SEEDS=n: how many (default 400; 10,000 take about
// two minutes). VITAMIN_TEST_SEED=n: that one only, with its trace
// (VITAMIN_TEST_FAULTS=0: without faults).
#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>

#include "tests/daemon/simulation.h"

using vitamin::tests::simulate;
using vitamin::tests::SimulationOptions;
using vitamin::tests::SimulationResult;

namespace {

std::uint64_t from_environment(const char* name, std::uint64_t fallback) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : fallback;
}

SimulationResult total_of(std::uint64_t seeds, bool faults) {
  SimulationResult total;
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const SimulationResult one = simulate({.seed = seed, .faults = faults});
    total.events += one.events;
    total.submitted += one.submitted;
    total.at_home += one.at_home;
    total.kills += one.kills;
    total.stops += one.stops;
    total.restarts += one.restarts;
    total.lies += one.lies;
    total.overdue += one.overdue;
    if (total.violation.empty()) total.violation = one.violation;
    if (!faults && one.overdue > 0) MESSAGE("overdue without a fault: seed " << seed);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  MESSAGE(seeds << " seeds, " << total.events << " events in " << seconds << " s, "
                << static_cast<double>(total.events) / seconds / 1e6 << " million a second; "
                << total.submitted << " operations, " << total.at_home << " at home, "
                << total.kills << " kills, " << total.stops << " stops, " << total.restarts
                << " daemon ends and starts, " << total.lies << " lies, " << total.overdue
                << " overdue");
  return total;
}

}  // namespace

TEST_CASE("no seed with faults breaks an invariant, and all work ends once they stop") {
  if (const auto seed = from_environment("VITAMIN_TEST_SEED", 0); seed != 0) {
    const SimulationResult one = simulate(
        {.seed = seed, .faults = from_environment("VITAMIN_TEST_FAULTS", 1) != 0, .trace = true});
    MESSAGE(one.trace);
    CHECK(one.violation == "");
    return;
  }
  const SimulationResult total = total_of(from_environment("VITAMIN_TEST_SEEDS", 400), true);
  CHECK(total.violation == "");
  // Else nothing was tested.
  CHECK(total.submitted > 10'000);
  CHECK(total.at_home > 100);
  CHECK(total.kills > 100);
  CHECK(total.restarts > 100);
  CHECK(total.lies > 100);
  CHECK(total.overdue > 0);
}

TEST_CASE("no seed without faults breaks an invariant") {
  const SimulationResult total = total_of(from_environment("VITAMIN_TEST_SEEDS", 400) / 4, false);
  CHECK(total.violation == "");
  CHECK(total.overdue == 0);
}

TEST_CASE("seeds that once broke something") {
  // A client that said that it was idle while a grant was under way held it for ever.
  for (const std::uint64_t seed : {1820, 1889}) {
    const SimulationResult one = simulate({.seed = seed, .faults = false});
    CHECK(one.violation == "");
    CHECK(one.overdue == 0);
  }
}

TEST_CASE("a seed gives the same run, to the byte of its trace") {
  for (const std::uint64_t seed : {3, 17, 2026}) {
    const SimulationResult a = simulate({.seed = seed, .trace = true});
    const SimulationResult b = simulate({.seed = seed, .trace = true});
    CHECK(a.trace.size() > 1000);
    CHECK(a.trace == b.trace);
    CHECK(a.hash == b.hash);
  }
  CHECK(simulate({.seed = 1}).hash != simulate({.seed = 2}).hash);
}
