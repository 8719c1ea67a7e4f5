// SPDX-License-Identifier: Apache-2.0
//
// Many seeds of the simulated node. VITAMIN_TEST_SEEDS=n: how many (default 400; CI: 10,000).
// VITAMIN_TEST_SEED=n: that one only, with its trace (VITAMIN_TEST_FAULTS=0: without faults).
#include <doctest/doctest.h>

#include <cstdlib>
#include <ctime>

#include "protocol/segment.h"
#include "tests/daemon/simulation.h"

using vitamin::tests::simulate;
using vitamin::tests::SimulationOptions;
using vitamin::tests::SimulationResult;

namespace {

std::uint64_t from_environment(const char* name, std::uint64_t fallback) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : fallback;
}

constexpr bool kTinyRings = vitamin::protocol::kRequests < 16;

// Of this process, however busy the machine is.
double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// `rate`: events a second.
SimulationResult total_of(std::uint64_t seeds, SimulationOptions options, double& rate) {
  SimulationResult total;
  const double begin = processor_seconds();
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    options.seed = seed;
    const SimulationResult one = simulate(options);
    total.events += one.events;
    total.submitted += one.submitted;
    total.at_home += one.at_home;
    total.kills += one.kills;
    total.stops += one.stops;
    total.restarts += one.restarts;
    total.lies += one.lies;
    total.silences += one.silences;
    total.overdue += one.overdue;
    total.full += one.full;
    total.adopted += one.adopted;
    total.ring_full += one.ring_full;
    if (total.violation.empty()) total.violation = one.violation;
    if ((!options.faults || options.restarts_only) && one.overdue > 0)
      MESSAGE("overdue without a fault of its own: seed " << seed);
  }
  const double seconds = processor_seconds() - begin;
  rate = static_cast<double>(total.events) / seconds;
  MESSAGE(seeds << " seeds, " << total.events << " events in " << seconds << " s, " << rate / 1e6
                << " million a second; " << total.submitted << " operations, " << total.at_home
                << " at home, " << total.kills << " kills, " << total.stops << " stops, "
                << total.restarts << " daemon ends and starts, " << total.silences
                << " given up while it was there, " << total.lies << " lies, " << total.overdue
                << " overdue, " << total.ring_full << " rings found full");
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
  double rate = 0;
  const SimulationResult total = total_of(from_environment("VITAMIN_TEST_SEEDS", 400), {}, rate);
  CHECK(total.violation == "");
  // Else nothing was tested.
  CHECK(total.submitted > 10'000);
  CHECK(total.at_home > 100);
  CHECK(total.kills > 100);
  CHECK(total.restarts > 100);
  CHECK(total.lies > 100);
  CHECK(total.silences > 100);
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
  const SimulationResult total =
      total_of(from_environment("VITAMIN_TEST_SEEDS", 400) / 4, {.faults = false}, rate);
  CHECK(total.violation == "");
  CHECK(total.overdue == 0);
}

// Clients that only lost their daemon answer in time, with what they hold from before it and from
// home.
TEST_CASE("a daemon that ends and starts leaves nobody overdue") {
  double rate = 0;
  const SimulationResult total =
      total_of(from_environment("VITAMIN_TEST_SEEDS", 400) / 4, {.restarts_only = true}, rate);
  CHECK(total.violation == "");
  CHECK(total.restarts > 100);
  CHECK(total.at_home > 100);
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
