// SPDX-License-Identifier: Apache-2.0
//
// Prefill and decode as two processes, each in a class with a bound of its own, under slo and
// tpot-first, in virtual time between real clients and the real arbiter (tests/daemon/machine.h).
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/from_configuration.h"
#include "tests/daemon/machine.h"

namespace vitamin::tests {
namespace {

constexpr double kTick = 16e3;
constexpr double kTtft = 250e6, kTpot = 10e6;  // ns
constexpr std::uint64_t kTokens = 64;          // of a request

// One token after the other; as slow beside prefills on the same SMs as on an H200.
Program decodes() {
  Program program{{{330, 20e3, 14.2e3, 72, runtime::WorkKind::kDecode}}, true, 0, 6.8e6};
  program.slower = 4.3;
  program.due_ns = kTpot;
  return program;
}
// 1,200 tokens in 30 ms.
Program prefills() {
  Program program{{{330, 20e3, 91e3, 132, runtime::WorkKind::kPrefill}}, true, 0, 30e6};
  program.slower = 1.14;
  program.due_ns = kTtft;
  return program;
}

struct Outcome {
  double late_first = 0;    // fraction of the prompts
  double late_further = 0;  // fraction of the decoded requests
  double trained = 0;       // relative to alone
};

daemon::ClientTraits traits(config::ProgramKind kind, double ttft_ns, double tpot_ns) {
  config::WorkloadClass workload;
  workload.kind = kind;
  workload.ttft_ns = static_cast<std::uint64_t>(ttft_ns);
  workload.tpot_ns = static_cast<std::uint64_t>(tpot_ns);
  return daemon::traits_of(&workload, 100, 132);
}

Outcome run(const std::string& policy, bool trains = false) {
  Machine machine(policy, kTick);
  const std::vector<double> arrivals = poisson(11, 1e9, 60e9, 5);
  const Machine::Client& decoder =
      machine.add(decodes(), traits(config::ProgramKind::kLatency, 0, kTpot));
  const Machine::Client& prompts =
      machine.add(prefills(), traits(config::ProgramKind::kLatency, kTtft, 0), arrivals);
  const Machine::Client* const training =
      trains ? &machine.add(busy_training(), traits(config::ProgramKind::kBatch, 0, 0)) : nullptr;
  machine.run(2e9);
  double requests = 0, slow = 0;
  const double begin = machine.now();
  const std::uint64_t before = trains ? training->kernels_ended : 0;
  while (prompts.answered_ms.size() < arrivals.size() && machine.now() < begin + 120e9) {
    const std::uint64_t end = (decoder.rounds_ended / kTokens + 1) * kTokens;
    const auto left = static_cast<double>(end - decoder.rounds_ended);
    const double from = machine.now();
    while (decoder.rounds_ended < end) machine.run(machine.now() + 1e6);
    if (left < kTokens) continue;  // the first one had begun
    ++requests;
    slow += machine.now() - from > kTpot * left ? 1 : 0;
  }
  REQUIRE(prompts.answered_ms.size() == arrivals.size());
  const auto late = std::count_if(prompts.answered_ms.begin(), prompts.answered_ms.end(),
                                  [](double ms) { return ms > kTtft * 1e-6; });
  Outcome outcome;
  outcome.late_first = static_cast<double>(late) / static_cast<double>(arrivals.size());
  outcome.late_further = slow / requests;
  if (trains)
    outcome.trained =
        static_cast<double>(training->kernels_ended - before) * 50e3 / (machine.now() - begin);
  MESSAGE(policy << ": " << 100 * outcome.late_first << " % of the first tokens late, "
                 << 100 * outcome.late_further << " % of the others, training " << outcome.trained);
  return outcome;
}

TEST_CASE("prefills and decodes of two processes keep the bounds of both") {
  const Outcome measured = run("throughput");
  REQUIRE(measured.late_further > 0.05);
  for (const std::string policy : {"slo", "tpot-first"}) {
    const Outcome kept = run(policy);
    CHECK(kept.late_first <= measured.late_first + 0.01);
    CHECK(kept.late_further <= 0.5 * measured.late_further);
  }
}

TEST_CASE("training gets the time that prefills and decodes of two processes leave") {
  const Outcome kept = run("slo", true);
  CHECK(kept.late_first <= 0.01);
  CHECK(kept.late_further <= 0.05);
  CHECK(kept.trained >= 0.3);
}

}  // namespace
}  // namespace vitamin::tests
