// SPDX-License-Identifier: Apache-2.0
//
// A service beside training under slo, in virtual time between real clients and the real arbiter
// (tests/daemon/machine.h): the p99 of the same 2,000 requests, alone and beside, and what the
// training gets, compared with an oracle.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/from_configuration.h"
#include "tests/daemon/machine.h"

namespace vitamin::tests {
namespace {

constexpr std::size_t kRequests = 2'000;
constexpr double kRequest = 33.6e-3;  // s, alone
constexpr double kAllowed = 1.15;     // of the p99 alone
constexpr double kHeld = 1.03;        // tolerance of that
constexpr double kTick = 16e3;
constexpr std::array kLoads{0.2, 0.5, 0.8};

daemon::ClientTraits traits(config::ProgramKind kind) {
  config::WorkloadClass workload;
  workload.kind = kind;
  return daemon::traits_of(&workload, 100, 132);
}

// Poisson, the same in every run.
std::vector<double> arrivals(double load) {
  std::vector<double> times =
      poisson(load / kRequest, 1e9, 1.2 * kRequests * kRequest / load * 1e9, 11);
  times.resize(kRequests);
  return times;
}

struct Outcome {
  double p50 = 0, p99 = 0;  // ms
  double training = 0;      // its rate, relative to alone
};

Outcome run(const Program& service, double load, const Program* job) {
  Machine machine("slo", kTick);
  const std::vector<double> times = arrivals(load);
  const Machine::Client* trains =
      job != nullptr ? &machine.add(*job, traits(config::ProgramKind::kBatch)) : nullptr;
  machine.run(0.9e9);
  const Machine::Client& serves =
      machine.add(service, traits(config::ProgramKind::kLatency), times);
  machine.run(times.front());
  const std::uint64_t before = trains != nullptr ? trains->kernels_ended : 0;
  const double begin = machine.now(), end = times.back() + 10e9;
  while (serves.answered_ms.size() < kRequests && machine.now() < end)
    machine.run(machine.now() + 50e6);
  REQUIRE(serves.answered_ms.size() == kRequests);
  Outcome outcome;
  outcome.p50 = quantile(serves.answered_ms, 0.5);
  outcome.p99 = quantile(serves.answered_ms, 0.99);
  if (trains != nullptr)
    outcome.training = static_cast<double>(trains->kernels_ended - before) *
                       job->phases[0].kernel_ns / (machine.now() - begin);
  return outcome;
}

const Outcome& alone(std::size_t load) {
  static const std::array<Outcome, kLoads.size()> known{run(decoder(), kLoads[0], nullptr),
                                                        run(decoder(), kLoads[1], nullptr),
                                                        run(decoder(), kLoads[2], nullptr)};
  return known[load];
}

// --- the oracle ------------------------------------------------------------------------------

// A phase of the service in one arrangement of the device; `trains`: the training's rate beside it.
struct Way {
  double ns = 0, trains = 0;
};

double launch_ns(const Phase& phase, double sms, double slower) {
  return std::max(phase.host_ns,
                  phase.kernel_ns * phase.useful / std::min(sms, phase.useful) * slower);
}

// Alone, shared, and on each part with the training on the rest.
std::vector<Way> ways(const Phase& phase, const Program& service, const Program& job) {
  const auto way = [&](double sms, double rest, double slower) {
    const double step = launch_ns(job.phases[0], 132, 1);
    return Way{phase.launches * launch_ns(phase, sms, sms < 132 ? 1 : slower) + 300e3,
               rest == 0 ? 0 : step / launch_ns(job.phases[0], rest, sms < 132 ? 1 : slower)};
  };
  std::vector<Way> all{way(132, 0, 1), way(132, 132, service.slower)};
  for (double sms = 8; sms < 132; sms += 8) all.push_back(way(sms, 132 - sms, 1));
  return all;
}

// One server, first come first served, with free changes. Each phase has the arrangement in which
// the training gains most, as long as its busy period has lost no more than `budget_ns`.
Outcome oracle(const Program& service, const Program& job, double load, double budget_ns) {
  std::vector<std::vector<Way>> of_phase;
  for (const Phase& phase : service.phases) of_phase.push_back(ways(phase, service, job));
  const std::vector<double> times = arrivals(load);
  std::vector<double> latencies;
  double free = times.front(), lost = 0, trained = 0;
  for (const double at : times) {
    if (at >= free) trained += at - free, free = at, lost = 0;
    for (const std::vector<Way>& known : of_phase) {
      const Way& exclusive = known.front();
      const Way* best = &exclusive;
      const auto gain = [&](const Way& way) {
        return way.trains * way.ns - (way.ns - exclusive.ns);
      };
      for (const Way& way : known)
        if (lost + way.ns - exclusive.ns <= budget_ns && gain(way) > gain(*best)) best = &way;
      lost += best->ns - exclusive.ns;
      free += best->ns;
      trained += best->ns * best->trains;
    }
    latencies.push_back((free - at) * 1e-6);
  }
  return {quantile(latencies, 0.5), quantile(latencies, 0.99), trained / (free - times.front())};
}

// The most training that keeps the p99.
Outcome oracle(const Program& service, const Program& job, double load) {
  const double most = kAllowed * oracle(service, job, load, 0).p99;
  Outcome best = oracle(service, job, load, 0);
  for (double budget_ns = 1e6; budget_ns < 300e6; budget_ns *= 1.1)
    if (const Outcome found = oracle(service, job, load, budget_ns);
        found.p99 <= most && found.training > best.training)
      best = found;
  return best;
}

// --- the tests -------------------------------------------------------------------------------

// `parts`: the least fraction of the oracle's training, at each load.
void holds(const std::string& what, const Program& service, const Program& job,
           const std::array<double, kLoads.size()>& parts) {
  for (std::size_t i = 0; i < kLoads.size(); ++i) {
    CAPTURE(kLoads[i]);
    const Outcome both = run(service, kLoads[i], &job);
    const Outcome best = oracle(service, job, kLoads[i]);
    MESSAGE(what << ", load " << kLoads[i] << ": p99 " << both.p99 << " ms, "
                 << both.p99 / alone(i).p99 << " x alone; training " << both.training
                 << " of alone, oracle " << best.training);
    CHECK(both.p99 <= kAllowed * kHeld * alone(i).p99);
    CHECK(both.training >= parts[i] * best.training);
  }
}

TEST_CASE("the p99 of a service beside training is kept at every load, and training progresses") {
  holds("nothing announced", decoder(), busy_training(), {0.88, 0.7, 0.45});
}

TEST_CASE("a service that announces its steps leaves training more") {
  holds("steps announced", announcing_decoder(), busy_training(), {0.88, 0.75, 0.58});
}

}  // namespace
}  // namespace vitamin::tests
