// SPDX-License-Identifier: Apache-2.0
//
// Random programs under every policy and window: submission order extends H, descriptors arrive
// unchanged, everything ends.
#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/runtime/random_program.h"

namespace vitamin::tests {
namespace {

// Programs a test case; VITAMIN_TEST_PROGRAMS scales all of them (a sanitised build takes fewer).
std::uint64_t programs(std::uint64_t count) {
  const char* percent = std::getenv("VITAMIN_TEST_PROGRAMS_PERCENT");
  return percent != nullptr ? count * std::strtoull(percent, nullptr, 10) / 100 : count;
}

struct Totals {
  std::uint64_t launches = 0, moved = 0, deferred = 0, retried = 0;
};

Totals run_many(std::uint64_t first, std::uint64_t count, const Setting& setting,
                const Shape& shape) {
  Totals totals;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Program program = random_program(seed, shape);
    Setting seeded = setting;
    seeded.seed = seed;
    const Outcome outcome = run(program, seeded);
    totals.launches += outcome.launches;
    totals.moved += outcome.moved;
    totals.deferred += outcome.deferred;
    totals.retried += outcome.retried;
    if (outcome.error.empty()) continue;
    FAIL_CHECK("seed " << seed << ", policy " << setting.policy << ", window "
                       << setting.window_ns << ": " << outcome.error << "\n"
                       << text(program));
    return totals;
  }
  return totals;
}

const std::string kPolicies[] = {"fifo", "static", "static:units=3-5", "random",
                                 "random:every=3", "random:exclusive=1"};

TEST_CASE("Random programs keep their order and descriptors with an unbounded window") {
  for (const std::string& policy : kPolicies) {
    const Totals totals = run_many(1, programs(8000), {.policy = policy}, {});
    if (policy == "random") CHECK(totals.moved * 2 > totals.launches);
  }
}

TEST_CASE("Random programs keep their order and descriptors under the strict rule") {
  for (const std::string& policy : kPolicies) {
    const Totals totals =
        run_many(100'000, programs(5000), {.policy = policy, .window_ns = 0}, {});
    CHECK(totals.deferred > 0);
  }
}

TEST_CASE("Random programs keep their order and descriptors with a window of three kernels") {
  for (const std::string& policy : kPolicies)
    run_many(200'000, programs(4000), {.policy = policy, .window_ns = 30'000}, {});
}

TEST_CASE("Long random programs keep their order and descriptors") {
  for (const std::string& policy : kPolicies)
    run_many(300'000, programs(250), {.policy = policy}, {.steps = 300});
}

TEST_CASE("Random programs survive refusals of single entries") {
  const Totals totals = run_many(400'000, programs(3000),
                                 {.policy = "random", .units = 8, .refusing_units = 8}, {});
  CHECK(totals.retried > 0);
}

}  // namespace
}  // namespace vitamin::tests
