// SPDX-License-Identifier: Apache-2.0
//
// The suite over the HAL, one source for every backend. The native run is the gate: a subject that
// differs from itself there is excluded by name, and must be. What reshapes launches must drift, or
// the suite sees nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "daemon/client/local_arbiter.h"
#include "runtime/pool/layout.h"
#include "tests/determinism/hal_machine.h"
#include "tests/determinism/platform.h"
#include "tests/determinism/trials.h"

namespace vitamin::determinism {
namespace {

TrialOptions trial_options() {
  return {.scale = Scale::kSmall, .trials = effort().trials, .seed = 7};
}

// Of a list of treatments every so many-th, the first among them.
template <class Value>
std::vector<Value> some(const std::vector<Value>& all, unsigned stride = effort().every_other) {
  std::vector<Value> chosen;
  for (std::size_t i = 0; i < all.size(); i += stride) chosen.push_back(all[i]);
  return chosen;
}

using Results = std::map<std::string, std::vector<Digest>>;

Results all_digests(Machine& machine, const TrialOptions& options = trial_options()) {
  Results results;
  for (const auto& subject : all_subjects())
    results[subject->name()] = digests(machine, *subject, options);
  return results;
}

const Results& native() {
  static const Results results = all_digests(*native_machine(1));
  return results;
}

// Answers how many trials of the excluded subject, which adds in the order of arrival, differ.
unsigned check_equal(Machine& machine) {
  unsigned excluded = 0;
  for (const auto& subject : all_subjects()) {
    CAPTURE(subject->name());
    const unsigned differ =
        differing(native().at(subject->name()), digests(machine, *subject, trial_options()));
    if (subject->expect() == Expect::kExcluded)
      excluded += differ;
    else
      CHECK(differ == 0);
  }
  return excluded;
}

// The widths at which launches of ours really ran, the narrowest first: what the reshaping
// treatments are fed.
std::vector<unsigned> recorded_widths() {
  const auto machine = shared_machine(1, {.seed = 11});
  all_digests(*machine);
  std::set<unsigned> widths;
  for (const LaunchRun& launch : machine->launch_runs()) widths.insert(launch.sms);
  return {widths.begin(), widths.end()};
}

std::map<std::string, Drift> all_drifts(
    Drift (*treatment)(Machine&, Subject&, const TrialOptions&,
                       const std::function<unsigned(unsigned)>&),
    unsigned trials) {
  const std::vector<unsigned> widths = recorded_widths();
  REQUIRE(widths.size() > 1);
  const auto machine = native_machine(1);
  TrialOptions options = trial_options();
  options.trials = trials;
  options.errors = 4;
  std::map<std::string, Drift> drifts;
  for (const auto& subject : all_subjects())
    drifts[subject->name()] = treatment(
        *machine, *subject, options, [&](unsigned trial) { return widths[trial % widths.size()]; });
  return drifts;
}

TEST_CASE("natively every subject but the excluded one equals itself whatever the block order") {
  const Results again = all_digests(*native_machine(2));
  for (const auto& subject : all_subjects()) {
    CAPTURE(subject->name());
    const unsigned trials = differing(native().at(subject->name()), again.at(subject->name()));
    if (subject->expect() != Expect::kExcluded)
      CHECK(trials == 0);
    else if (effort().seeded)
      CHECK(trials > 0);
  }
}

TEST_CASE("trials differ from each other, so that equal digests mean something") {
  TrialOptions options = trial_options();
  options.trials = std::max(options.trials, 2u);
  for (const auto& digests : all_digests(*native_machine(1), options)) {
    CAPTURE(digests.first);
    const auto& trials = digests.second;
    for (std::size_t i = 1; i < trials.size(); ++i) CHECK(trials[i].low != trials[i - 1].low);
  }
}

TEST_CASE("every entry of the pool gives the bits of the whole device") {
  const auto layout = runtime::PoolLayout::build(make_platform(1)->take_device()->info());
  std::vector<runtime::Partition> parts;
  for (const auto& partition : layout.partitions())
    if (!partition.whole()) parts.push_back(partition);
  CHECK(parts.size() > 30);
  unsigned excluded = 0;
  for (const auto& partition : some(parts, effort().every_partition)) {
    CAPTURE(partition.compute.bits());
    excluded += check_equal(*native_machine(1, partition.compute));
  }
  CHECK(excluded > 0);  // where it runs does change what may change
}

TEST_CASE("a new width and place for every launch beside a tenant changes no byte") {
  std::set<unsigned> widths;
  const auto run = [&](std::uint64_t seed) {
    CAPTURE(seed);
    const auto machine = shared_machine(seed, {.seed = seed});
    check_equal(*machine);
    CHECK(machine->moved() > machine->launch_runs().size() / 10);
    CHECK(machine->tenants_launches() > machine->launch_runs().size() / 2);
    for (const LaunchRun& launch : machine->launch_runs()) widths.insert(launch.sms);
  };
  for (const std::uint64_t seed : some<std::uint64_t>({1, 2, 3})) run(seed);
  // What the tenant leaves free at a moment decides which widths a run gets.
  for (std::uint64_t seed = 4; widths.size() <= 2 && seed < 24; ++seed) run(seed);
  CHECK(widths.size() > 2);
}

TEST_CASE("no policy changes a byte") {
  std::vector<std::string> specifications;
  for (const scheduler::PolicyDescription& policy : scheduler::list())
    specifications.emplace_back(policy.name);
  for (const std::string& parameters :
       some<std::string>({"random:every=4", "random:max_sms=16", "random:whole=1",
                          "random:exclusive=1", "extremes:narrow=1", "extremes:wide=1"}))
    specifications.push_back(parameters);
  for (const std::string& policy : specifications) {
    CAPTURE(policy);
    check_equal(*shared_machine(5, {.policy = policy, .seed = 5}));
  }
}

TEST_CASE("no window changes a byte") {
  for (const std::uint64_t window_ns : some<std::uint64_t>({0, 10'000, 500'000, ~0ULL})) {
    CAPTURE(window_ns);
    check_equal(*shared_machine(6, {.window_ns = window_ns, .seed = 6}));
  }
}

TEST_CASE("the number of tenants changes no byte") {
  for (const unsigned tenants : some<unsigned>({0, 1, 2, 5})) {
    CAPTURE(tenants);
    const auto machine = shared_machine(8, {.tenants = tenants, .seed = 8});
    check_equal(*machine);
    CHECK(machine->tenants_launches() >= tenants * machine->launch_runs().size() / 2);
  }
}

// One case, since it is the longest: the drifts are made once.
TEST_CASE(
    "launches that follow the free processors drift, bf16 most, and neither result is wrong") {
  const auto drifts = all_drifts(&reshaped, effort().drift_trials);
  for (const auto& subject : all_subjects()) {
    const Drift& drift = drifts.at(subject->name());
    CAPTURE(subject->name());
    CAPTURE(subject->knob());
    CHECK(drift.turned > 0);
    if (subject->expect() == Expect::kDrift)
      CHECK(drift.differing > 0);
    else if (subject->expect() == Expect::kNone)
      CHECK(drift.differing == 0);
    const bool short_partials =
        subject->name().starts_with("sum, bf16") || subject->name().starts_with("sum, fp16");
    const double most = short_partials ? 1e-2 : 1e-5;
    CHECK(drift.own_error > 0);
    CHECK(drift.own_error < most);
    CHECK(drift.error < most);
  }
  const Drift& bf16 = drifts.at("sum, bf16 partials");
  const Drift& fp16 = drifts.at("sum, fp16 partials");
  const Drift& fp32 = drifts.at("sum, fp32 partials");
  CHECK(bf16.max_abs > fp16.max_abs);
  CHECK(fp16.max_abs > fp32.max_abs);
  CHECK(fp32.max_abs > 0);
  CHECK(bf16.error > fp16.error);
  CHECK(fp16.error > fp32.error);
}

TEST_CASE("atoms of whole blocks change no byte where blocks do not interact") {
  const auto drifts = all_drifts(&in_atoms, effort().trials + 3);
  for (const auto& subject : all_subjects()) {
    CAPTURE(subject->name());
    const Drift& drift = drifts.at(subject->name());
    CHECK(drift.turned > 0);
    if (subject->expect() != Expect::kExcluded) CHECK(drift.differing == 0);
  }
}

}  // namespace
}  // namespace vitamin::determinism
