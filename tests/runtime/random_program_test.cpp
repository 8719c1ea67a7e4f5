// SPDX-License-Identifier: Apache-2.0
//
// Random programs under every policy and window: submission order extends H, descriptors arrive
// unchanged, everything ends.
#include <doctest/doctest.h>

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>

#include "tests/runtime/random_program.h"
#include "tests/seed.h"

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

// Seeds from `first` on; in the long form, or where one is given, from another one on.
std::uint64_t base(std::uint64_t first) {
  static const std::uint64_t of_run = test::seed(0);
  return first + of_run;
}

Totals run_many(std::uint64_t first, std::uint64_t count, const Setting& setting,
                const Shape& shape) {
  Totals totals;
  first = base(first);
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
    FAIL_CHECK("seed " << seed << ", policy " << setting.policy << ", window " << setting.window_ns
                       << ": " << outcome.error << "\n"
                       << text(program));
    return totals;
  }
  return totals;
}

const std::string kPolicies[] = {"fifo",   "static",         "static:units=3-5",
                                 "random", "random:every=3", "random:exclusive=1"};

TEST_CASE("Random programs keep their order and descriptors with an unbounded window") {
  for (const std::string& policy : kPolicies) {
    const Totals totals = run_many(1, programs(8000), {.policy = policy}, {});
    if (policy == "random") CHECK(totals.moved * 2 > totals.launches);
  }
}

TEST_CASE("Random programs keep their order and descriptors under the strict rule") {
  for (const std::string& policy : kPolicies) {
    const Totals totals = run_many(100'000, programs(5000), {.policy = policy, .window_ns = 0}, {});
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

TEST_CASE("The audit finds nothing in random programs and sees the same under every allocation") {
  std::string directory =
      (std::filesystem::temp_directory_path() / "vitamin-audit-XXXXXX").native();
  REQUIRE(::mkdtemp(directory.data()) != nullptr);
  std::uint64_t audited = 0;
  const std::uint64_t first = base(500'000);
  for (std::uint64_t seed = first; seed < first + programs(150); ++seed) {
    const Program program = random_program(seed, {});
    const Outcome exclusive = run(program, {.seed = seed, .audit_directory = directory});
    audited += exclusive.audited.size();
    for (const std::string& policy : kPolicies)
      for (const std::uint64_t window_ns : {30'000ULL, ~0ULL}) {
        const Outcome shared = run(program, {.policy = policy,
                                             .window_ns = window_ns,
                                             .seed = seed + 1,
                                             .audit_directory = directory});
        if (shared.error.empty() && shared.audited == exclusive.audited) continue;
        FAIL("seed " << seed << ", policy " << policy << ", window " << window_ns << ": "
                     << shared.error << "\n"
                     << exclusive.audited << "shared:\n"
                     << shared.audited << text(program));
      }
  }
  CHECK(audited > 0);
  std::filesystem::remove_all(directory);
}

TEST_CASE("Random programs survive refusals of single entries") {
  const Totals totals =
      run_many(400'000, programs(3000), {.policy = "random", .units = 8, .refusing_units = 8}, {});
  CHECK(totals.retried > 0);
}

}  // namespace
}  // namespace vitamin::tests
