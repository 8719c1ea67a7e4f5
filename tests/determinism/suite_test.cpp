// SPDX-License-Identifier: Apache-2.0
//
// The suite over the HAL. The native run is the gate: a subject that differs from itself there is
// excluded by name, and must be. What reshapes launches must drift, or the suite sees nothing.
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "policies/registry.h"
#include "tests/determinism/hal_machine.h"
#include "tests/determinism/trials.h"

namespace vitamin::determinism {
namespace {

constexpr TrialOptions kTrials{.scale = Scale::kSmall, .trials = 6, .seed = 7};

using Results = std::map<std::string, std::vector<Digest>>;

Results all_digests(Machine& machine) {
  Results results;
  for (const auto& subject : all_subjects())
    results[subject->name()] = digests(machine, *subject, kTrials);
  return results;
}

const Results& native() {
  static const Results results = all_digests(*native_machine(1));
  return results;
}

void check_equal(Machine& machine) {
  for (const auto& subject : all_subjects()) {
    if (subject->expect() == Expect::kExcluded) continue;
    CAPTURE(subject->name());
    CHECK(differing(native().at(subject->name()), digests(machine, *subject, kTrials)) == 0);
  }
}

// The widths at which ours ran, one for each trial: what the reshaping treatments are fed.
std::vector<unsigned> recorded_widths() {
  const auto machine = shared_machine(1, {.seed = 11});
  all_digests(*machine);
  return machine->widths();
}

std::map<std::string, Drift> all_drifts(Drift (*treatment)(
    Machine&, Subject&, const TrialOptions&, const std::function<unsigned(unsigned)>&)) {
  const std::vector<unsigned> widths = recorded_widths();
  REQUIRE(widths.size() > 100);
  const auto machine = native_machine(1);
  TrialOptions options = kTrials;
  options.trials = 24;
  options.errors = 24;
  std::map<std::string, Drift> drifts;
  for (const auto& subject : all_subjects())
    drifts[subject->name()] = treatment(*machine, *subject, options, [&](unsigned trial) {
      return widths[trial * 7 % widths.size()];
    });
  return drifts;
}

TEST_CASE("natively every subject but the excluded one equals itself whatever the block order") {
  const Results again = all_digests(*native_machine(2));
  for (const auto& subject : all_subjects()) {
    CAPTURE(subject->name());
    const unsigned trials = differing(native().at(subject->name()), again.at(subject->name()));
    if (subject->expect() == Expect::kExcluded)
      CHECK(trials > 0);
    else
      CHECK(trials == 0);
  }
}

TEST_CASE("trials differ from each other, so that equal digests mean something") {
  for (const auto& [name, trials] : native()) {
    CAPTURE(name);
    for (std::size_t i = 1; i < trials.size(); ++i) CHECK(trials[i].low != trials[i - 1].low);
  }
}

TEST_CASE("a new width and place for every launch beside a tenant changes no byte") {
  for (const std::uint64_t seed : {1, 2, 3}) {
    CAPTURE(seed);
    const auto machine = shared_machine(seed, {.seed = seed});
    check_equal(*machine);
    CHECK(machine->moved() > 100);
  }
}

TEST_CASE("no policy changes a byte") {
  std::vector<std::string> specifications = {"random:every=4",    "random:max=16",
                                             "random:whole=1",    "random:exclusive=1",
                                             "extremes:narrow=1", "extremes:wide=1"};
  for (const policies::Description& policy : policies::list())
    specifications.push_back(policy.name);
  for (const std::string& policy : specifications) {
    CAPTURE(policy);
    check_equal(*shared_machine(5, {.policy = policy, .seed = 5}));
  }
}

TEST_CASE("no window changes a byte") {
  for (const std::uint64_t window_ns : {0ULL, 10'000ULL, 500'000ULL, ~0ULL}) {
    CAPTURE(window_ns);
    check_equal(*shared_machine(6, {.window_ns = window_ns, .seed = 6}));
  }
}

TEST_CASE("the number of tenants changes no byte") {
  for (const unsigned tenants : {0u, 1u, 2u, 5u}) {
    CAPTURE(tenants);
    check_equal(*shared_machine(8, {.tenants = tenants, .seed = 8}));
  }
}

TEST_CASE("launches that follow the free processors drift where the structure follows") {
  const auto drifts = all_drifts(&reshaped);
  for (const auto& subject : all_subjects()) {
    if (subject->expect() == Expect::kExcluded) continue;
    const Drift& drift = drifts.at(subject->name());
    CAPTURE(subject->name());
    CAPTURE(subject->knob());
    CHECK(drift.turned > 0);
    if (subject->expect() == Expect::kDrift)
      CHECK(drift.differing > 0);
    else
      CHECK(drift.differing == 0);
  }
}

TEST_CASE("bf16 partials drift more than fp16 and those more than fp32") {
  const auto drifts = all_drifts(&reshaped);
  const Drift& bf16 = drifts.at("sum, bf16 partials");
  const Drift& fp16 = drifts.at("sum, fp16 partials");
  const Drift& fp32 = drifts.at("sum, fp32 partials");
  CHECK(bf16.max_abs > fp16.max_abs);
  CHECK(fp16.max_abs > fp32.max_abs);
  CHECK(fp32.max_abs > 0);
}

TEST_CASE("neither structure is wrong, and the error follows the type of the partials") {
  const auto drifts = all_drifts(&reshaped);
  for (const auto& [name, drift] : drifts) {
    CAPTURE(name);
    const bool short_partials = name.starts_with("sum, bf16") || name.starts_with("sum, fp16");
    const double most = short_partials ? 1e-2 : 1e-5;
    CHECK(drift.own_error > 0);
    CHECK(drift.own_error < most);
    CHECK(drift.error < most);
  }
  const double bf16 = drifts.at("sum, bf16 partials").error;
  const double fp16 = drifts.at("sum, fp16 partials").error;
  const double fp32 = drifts.at("sum, fp32 partials").error;
  CHECK(bf16 > fp16);
  CHECK(fp16 > fp32);
}

TEST_CASE("atoms of whole blocks change no byte where blocks do not interact") {
  const auto drifts = all_drifts(&in_atoms);
  for (const auto& subject : all_subjects()) {
    CAPTURE(subject->name());
    const Drift& drift = drifts.at(subject->name());
    CHECK(drift.turned > 0);
    if (subject->expect() != Expect::kExcluded) CHECK(drift.differing == 0);
  }
}

}  // namespace
}  // namespace vitamin::determinism
