// SPDX-License-Identifier: Apache-2.0
//
// Policies by name; and those that learn, among random and adversarial work.
#include "scheduler/policies/registry.h"

#include <doctest/doctest.h>

#include <random>
#include <regex>
#include <string>
#include <vector>

#include "scheduler/policies/parameters.h"
#include "tests/scheduler/fixture.h"
#include "tests/scheduler/world.h"
#include "tests/seed.h"

namespace vitamin::scheduler {
namespace {

using hal::ComputeSet;
using runtime::PoolLayout;

constexpr const char* kLearning[] = {
    "throughput", "throughput:objective=sum", "throughput:objective=fair",  "slo",
    "tpot-first", "tpot-first:cumulative=no", "throughput:model=algorithm1"};

// A policy and what it is made for.
struct Made {
  explicit Made(const PoolLayout& layout) : estimator(layout.partitions()) {}
  Policy policy(const std::string& name, const PoolLayout& layout) {
    auto made = make(name, {layout.partitions(), estimator, &profile, 1});
    REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
    return std::move(*made);
  }
  Estimator estimator;
  runtime::Profile profile;
};

std::string refusal(const std::string& specification) {
  const auto known = check(specification);
  REQUIRE(!known.has_value());
  CHECK(known.error().code == hal::Errc::kInvalidArgument);
  return known.error().message;
}

TEST_CASE("a bad specification is refused with what is known and what may have been meant") {
  CHECK(refusal("randon").find("did you mean 'random'") != std::string::npos);
  CHECK(refusal("zzz") ==
        "the policy (zzz) is unknown. Known policies: fifo, throughput, slo, tpot-first, static, "
        "exclusive, temporal, salus, orion, random, extremes");
  CHECK(refusal("random:evry=3").find("'evry' is unknown") != std::string::npos);
  CHECK(refusal("random:every=0").find("from 1 to") != std::string::npos);
  CHECK(refusal("random:every=x").find("'x'") != std::string::npos);
  CHECK(refusal("random:every=2,every=3").find("twice") != std::string::npos);
  CHECK(refusal("static:units=7-3").find("not units") != std::string::npos);
  CHECK(refusal("static:units=0-64").find("not units") != std::string::npos);
  CHECK(refusal("fifo:fast").find("Known parameters: none") != std::string::npos);
  CHECK(refusal("").find("unknown") != std::string::npos);
}

TEST_CASE("parameters that contradict each other are refused with what to do") {
  CHECK(refusal("random:min_sms=64,max_sms=8").find("min_sms is 64, above max_sms, which is 8: ") !=
        std::string::npos);
  CHECK(refusal("static:units=0-3,parts=2").find("remove one of the two") != std::string::npos);
  CHECK(check("static:units=0-3,parts=1").has_value());
  CHECK(refusal("throughput:relative=paper").find("relative=paper is of model=algorithm1: add ") !=
        std::string::npos);
  for (const char* vain : {"objective=fair", "objective=proportional", "min_share=30"})
    CHECK_MESSAGE(
        refusal("throughput:model=algorithm1," + std::string(vain))
                .find(" is of model=measured, and algorithm1 has the paper's") != std::string::npos,
        vain);
  for (const char* other : {"", ",objective=fair", ",objective=proportional"})
    CHECK_MESSAGE(
        refusal("throughput:min_share=30" + std::string(other))
                .find("min_share is of objective=sum: add that, or remove") != std::string::npos,
        other);
  for (const char* good : {"objective=sum,min_share=30", "relative=alone", "model=measured",
                           "model=algorithm1,relative=alone"})
    CHECK_MESSAGE(check("throughput:" + std::string(good)).has_value(), good);
  CHECK(refusal("static:units=0-3,8-11").find("join runs of units by '+'") != std::string::npos);
  CHECK(refusal("static:units=0-3,8").find("join runs of units by '+'") != std::string::npos);
  for (const char* good : {"random:whole=true,exclusive=false", "random:whole", "random:whole=0",
                           "extremes:narrow=true", "extremes:wide=1"})
    CHECK_MESSAGE(check(good).has_value(), good);
  CHECK(refusal("random:whole=yes").find("'yes', not 1 or true, 0 or false") != std::string::npos);
}

TEST_CASE("static refuses runs of units that are no partition of the device together") {
  const PoolLayout layout = h200();
  Made made(layout);
  const auto refused = make("static:units=0-3+8-11", {layout.partitions(), made.estimator});
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message.find("no partition of the units 0-3+8-11; the widest inside is "
                                     "units=8-11 (32 SMs): give this one") != std::string::npos);
  Scheduler scheduler(layout.partitions(), made.policy("static:units=0-3+8-15", layout));
  scheduler.wants(1, StreamDemand(), 1);
  const auto decisions = scheduler.decide(1);
  REQUIRE(decisions.size() == 1);
  CHECK(layout.at(decisions[0].partition).compute.count() == 12);
}

TEST_CASE("units are written as they are read") {
  CHECK(units_text(ComputeSet()) == "");
  for (const char* text : {"0", "63", "0-7", "0-3+8-15", "1+3+5-6", "0-63"}) {
    Parameters parameters = Parameters::parse("units=" + std::string(text));
    ComputeSet units;
    parameters.units("units", &units);
    CHECK(units_text(units) == text);
  }
}

TEST_CASE("a duration has a unit") {
  for (const char* good : {"temporal:slice=2ms", "salus:quiet=1us", "orion:duration=1s"})
    CHECK_MESSAGE(check(good).has_value(), good);
  for (const char* bad : {"2000", "2 ms", "2min", "0ms", "-1ms", "1.5ms", "ms", "1001s",
                          "18446744073709551615s", "18446744073709551616us"})
    CHECK_MESSAGE(
        refusal(std::string("temporal:slice=") + bad)
                .find(std::string("is '") + bad +
                      "', not a duration from 1us to 1000s, like 2ms") != std::string::npos,
        bad);
}

TEST_CASE("a policy takes the parameters that it describes, and no other") {
  unsigned parameters = 0;
  for (const PolicyDescription& policy : list())
    for (const Parameter& parameter : policy.parameters) {
      ++parameters;
      // No parameter takes this value, so the answer says whether the maker read it.
      const std::string said =
          refusal(std::string(policy.name) + ":" + std::string(parameter.name) + "=?");
      CHECK_MESSAGE(said.find("is '?', not") != std::string::npos, said);
    }
  CHECK(parameters >= 20);
  // A maker that takes what its description lacks: refused as in vitamin.toml.
  Parameters undescribed = Parameters::parse("known=1,other=2");
  std::uint32_t value = 0;
  undescribed.number("known", 0, 9, &value);
  undescribed.number("other", 0, 9, &value);
  constexpr Parameter kKnown[] = {{"known", ""}};
  CHECK(undescribed.error(kKnown) == "parameter 'other' is unknown");
}

TEST_CASE("what is said of a number has its unit, and of a duration its default with one") {
  unsigned numbers = 0, durations = 0;
  for (const PolicyDescription& policy : list())
    for (const Parameter& parameter : policy.parameters) {
      const std::string said =
          refusal(std::string(policy.name) + ":" + std::string(parameter.name) + "=?");
      const std::string meaning(parameter.meaning);
      CAPTURE(meaning);
      const bool number = said.find("not a number") != std::string::npos;
      const bool duration = said.find("not a duration") != std::string::npos;
      numbers += number;
      durations += duration;
      if (number)
        CHECK(std::regex_search(meaning, std::regex("SMs|percent|launches|how many parts")));
      if (duration) CHECK(std::regex_search(meaning, std::regex(R"(\(default \d+(us|ms|s)\)$)")));
    }
  CHECK(numbers >= 6);
  CHECK(durations >= 3);
}

TEST_CASE("a parameter of the scheduler before is refused with what took its place") {
  CHECK(refusal("tpot-first:target=30").find("use tpot of a [[class]]") != std::string::npos);
  CHECK(refusal("throughput:whole=never").find("no parameter 'whole' any more") !=
        std::string::npos);
  CHECK(refusal("throughput:model=measured,objective=paper") ==
        "the policy 'throughput' has no parameter 'objective=paper' any more: use "
        "model=algorithm1,relative=paper");
  CHECK(refusal("random:min=16").ends_with("any more: use min_sms"));
  CHECK(refusal("random:every=4,max=16").ends_with("any more: use max_sms"));
  CHECK(refusal("orion:processors=66").ends_with("any more: use sms"));
  CHECK(refusal("temporal:quantum=2000").ends_with("any more: use slice, with a unit: slice=2ms"));
  for (const char* gone : {"look=1", "launches=1"})
    CHECK(refusal(std::string("throughput:") + gone).find(" any more: ") != std::string::npos);
  for (const char* gone : {"target=1", "margin=1", "reserve=1", "reservation=1", "lookahead=1",
                           "lend=1", "quiet=1", "ahead=1", "floor=1", "beside=1"})
    CHECK(refusal(std::string("tpot-first:") + gone).find(" any more: ") != std::string::npos);
  CHECK(check("throughput:model=algorithm1,relative=paper").has_value());
}

TEST_CASE("every listed policy can be made from its name alone, and is one of two kinds") {
  const PoolLayout layout = h200();
  CHECK(list().size() == 11);
  for (const PolicyDescription& description : list()) {
    Made made(layout);
    const Policy policy = made.policy(std::string(description.name), layout);
    CHECK(policy.description.name == description.name);
    CHECK(description.summary.size() > 10);
    CHECK((policy.allocation == nullptr) != (policy.placement == nullptr));
  }
}

TEST_CASE("static takes the widest partition inside units that are no partition themselves") {
  const PoolLayout layout = h200();
  Made made(layout);
  Scheduler scheduler(layout.partitions(), made.policy("static:units=1-5", layout));
  scheduler.wants(1, StreamDemand(), 1);
  const auto decisions = scheduler.decide(1);
  REQUIRE(decisions.size() == 1);
  const ComputeSet got = layout.at(decisions[0].partition).compute;
  CHECK(ComputeSet::range(1, 5).contains(got));
  CHECK(got.count() == 2);
}

// Even clients have a bound and have announced a step that is late.
void bound(Scheduler& scheduler, ClientId clients) {
  for (ClientId client = 2; client <= clients; client += 2) {
    ClientTerms terms;
    terms.slo.tpot_ns = 1'000'000;
    scheduler.attach(client, terms, 0);
    Step step;
    step.id = 1;
    step.client = client;
    step.kind = StepKind::kDecode;
    step.due_ns = 1;
    scheduler.step_begin(step, 0);
  }
}

TEST_CASE("policies that learn run any work to its end, and no two clients overlap") {
  const PoolLayout layout = four_units();
  const std::uint64_t begin = test::seed();
  for (std::uint64_t seed = begin; seed < begin + 10; ++seed)
    for (const std::string name : kLearning) {
      CAPTURE(name);
      CAPTURE(seed);
      Made made(layout);
      World world(layout, made.policy(name, layout));
      bound(world.scheduler(), 4);
      world.run(random_work(seed, 2 + static_cast<unsigned>(seed % 5), 60, 32), 600'000'000'000);
      REQUIRE(world.complete());
      CHECK(world.scheduler().fault().empty());
    }
}

TEST_CASE("greedy clients that are always late starve no modest one") {
  const PoolLayout layout = four_units();
  SchedulerOptions options;
  options.quantum_ns = 1'000'000;
  options.starving_after_ns = 50'000'000;
  for (const std::string name : kLearning) {
    CAPTURE(name);
    Made made(layout);
    World world(layout, made.policy(name, layout), options);
    bound(world.scheduler(), 12);
    std::vector<Work> work;
    for (ClientId client = 1; client <= 12; ++client)
      for (unsigned i = 0; i < 40; ++i) {
        Work item;
        item.at_ns = i * 100'000;
        item.client = client;
        item.kernels = 20;
        item.kernel_ns = 200'000;
        work.push_back(item);
      }
    Work modest;
    modest.at_ns = 500'000;
    modest.client = 99;
    modest.min_sms = 16;
    work.push_back(modest);
    world.run(work, 600'000'000'000);
    REQUIRE(world.complete());
    // Of any stream: the modest one and the greedy ones.
    CHECK(world.longest_wait() <=
          options.starving_after_ns + 13 * (options.quantum_ns + 2 * world.longest_kernel()));
  }
}

}  // namespace
}  // namespace vitamin::scheduler
