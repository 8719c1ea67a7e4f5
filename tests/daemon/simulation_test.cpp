// SPDX-License-Identifier: Apache-2.0
//
// Many seeds of the simulated node, from that of tests/seed.h on. VITAMIN_TEST_SEEDS=n: how many
// (default 400; CI: 10,000); one: with its trace.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>

#include "daemon/protocol/segment.h"
#include "tests/cost.h"
#include "tests/daemon/simulation.h"
#include "tests/seed.h"

using vitamin::tests::simulate;
using vitamin::tests::SimulationOptions;
using vitamin::tests::SimulationResult;

namespace {

std::uint64_t from_environment(const char* name, std::uint64_t fallback) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : fallback;
}

constexpr bool kTinyRings = vitamin::protocol::kRequests < 16;

// `rate`: events a second of the machine that tests/cost.h speaks of; that of the best hundred.
SimulationResult total_of(std::uint64_t seeds, SimulationOptions options, double& rate) {
  SimulationResult total;
  const std::uint64_t first = vitamin::test::seed();
  options.trace = seeds == 1;
  double seconds = 0, events = 0, slowness = vitamin::test::slowness();
  rate = 0;
  for (std::uint64_t seed = first; seed - first < seeds; ++seed) {
    options.seed = seed;
    SimulationResult one;
    seconds += vitamin::test::seconds([&] { one = simulate(options); });
    events += static_cast<double>(one.events);
    if ((seed - first) % 100 == 99) {
      const double before = slowness;
      slowness = vitamin::test::slowness();
      rate = std::max(rate, events / seconds * std::max(1.0, std::min(before, slowness)));
      seconds = events = 0;
    }
    if (options.trace) MESSAGE(one.trace);
    total.events += one.events;
    total.submitted += one.submitted;
    total.in_fallback += one.in_fallback;
    total.kills += one.kills;
    total.stops += one.stops;
    total.restarts += one.restarts;
    total.lies += one.lies;
    total.losses += one.losses;
    total.overdue += one.overdue;
    total.full += one.full;
    total.adopted += one.adopted;
    total.ring_full += one.ring_full;
    if (total.violation.empty() && !one.violation.empty()) {
      total.violation = one.violation;
      MESSAGE("this program, without ctest: VITAMIN_TEST_SEED=" << seed << " VITAMIN_TEST_SEEDS=1");
    }
    if ((!options.faults || options.restarts_only) && one.overdue > 0)
      MESSAGE("overdue without a fault of its own: seed " << seed);
  }
  MESSAGE(seeds << " seeds, " << total.events << " events, " << rate / 1e6 << " million a second; "
                << total.submitted << " operations, " << total.in_fallback << " in fallback, "
                << total.kills << " kills, " << total.stops << " stops, " << total.restarts
                << " daemon ends and starts, " << total.losses << " given up while it was there, "
                << total.lies << " lies, " << total.overdue << " overdue, " << total.ring_full
                << " rings found full");
  return total;
}

// A quarter of the seeds; if there is one seed, that one.
std::uint64_t fewer_seeds() {
  return std::max<std::uint64_t>(from_environment("VITAMIN_TEST_SEEDS", 400) / 4, 1);
}

}  // namespace

TEST_CASE("no seed with faults breaks an invariant, and all work ends once they stop") {
  double rate = 0;
  const std::uint64_t seeds = from_environment("VITAMIN_TEST_SEEDS", 400);
  const SimulationResult total = total_of(seeds, {}, rate);
  CHECK(total.violation == "");
  if (seeds < 400) return;
  // Otherwise the test has not exercised the faults.
  CHECK(total.submitted > 10'000);
  CHECK(total.in_fallback > 100);
  CHECK(total.kills > 100);
  CHECK(total.restarts > 100);
  CHECK(total.lies > 100);
  CHECK(total.losses > 100);
  CHECK(total.overdue > 0);
  CHECK(total.full > 1000);
  CHECK(total.adopted > 100);
  CHECK((total.ring_full > 1000) == kTinyRings);
#ifdef __OPTIMIZE__
  CHECK(rate > 1e6);
#endif
}

TEST_CASE("no seed without faults breaks an invariant") {
  double rate = 0;
  const SimulationResult total = total_of(fewer_seeds(), {.faults = false}, rate);
  CHECK(total.violation == "");
  CHECK(total.overdue == 0);
}

// Clients that only lost their daemon answer in time for grants of the former daemon and for work
// in the fallback partition.
TEST_CASE("restarts of the daemon make no grant overdue") {
  double rate = 0;
  const SimulationResult total = total_of(fewer_seeds(), {.restarts_only = true}, rate);
  CHECK(total.violation == "");
  CHECK(total.restarts > 100);
  CHECK(total.in_fallback > 100);
  CHECK(total.overdue == 0);
}

TEST_CASE("seeds that have found errors") {
  // A client that reported Idle while a grant was in its ring held that grant for ever.
  for (const std::uint64_t seed : {1820, 1889}) {
    const SimulationResult one = simulate({.seed = seed, .faults = false});
    CHECK(one.violation == "");
    CHECK(one.overdue == 0);
  }
  // The property was wrong: it demanded that a daemon adopt work whose grant its predecessor had
  // taken back as overdue.
  CHECK(simulate({.seed = 14542147715839427571U}).violation == "");
}

TEST_CASE("a seed gives the same run, byte for byte of its trace") {
  for (const std::uint64_t seed : {3, 17, 2026}) {
    const SimulationResult a = simulate({.seed = seed, .trace = true});
    const SimulationResult b = simulate({.seed = seed, .trace = true});
    CHECK(a.trace.size() > 1000);
    CHECK(a.trace == b.trace);
    CHECK(a.hash == b.hash);
  }
  CHECK(simulate({.seed = 1}).hash != simulate({.seed = 2}).hash);
}
