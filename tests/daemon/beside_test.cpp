// SPDX-License-Identifier: Apache-2.0
//
// Clients with a latency bound beside clients without one, between real clients and the real
// arbiter in virtual time (tests/daemon/machine.h): what each gets. The arbiter knows clients by
// records and counters only, as in vitamind; tests/scheduler/slo_test.cpp tests the policy
// itself.
#include <doctest/doctest.h>

#include <string>

#include "daemon/from_configuration.h"
#include "tests/daemon/machine.h"

namespace vitamin::tests {
namespace {

daemon::ClientTraits traits(config::ProgramKind kind, std::uint64_t tpot_ns = 0) {
  config::WorkloadClass workload;
  workload.kind = kind;
  workload.tpot_ns = tpot_ns;
  return daemon::traits_of(&workload, 100, 132);
}
const daemon::ClientTraits kService = traits(config::ProgramKind::kLatency);
const daemon::ClientTraits kBatch = traits(config::ProgramKind::kBatch);

constexpr double kRequest = 33.6e-3;

struct Setup {
  unsigned services = 1, jobs = 1;
  double load = 0.5;
  double seconds = 20;
  daemon::ClientTraits service = kService;
  Program program = decoder(), job = training();
  double request_s = kRequest;  // time of a request here, alone
};

struct Reached {
  double p50 = 0, p99 = 0;
  std::size_t answered = 0;
  std::vector<double> steps_per_s;
  double longest_pause_ms = 0;  // between completed launches of the first job
  scheduler::SchedulerCounters counters;
};

// Poisson arrivals, after a second in which the training runs alone.
Reached run(const std::string& policy, const Setup& setup) {
  Machine machine(policy);
  std::vector<Machine::Client*> jobs, services;
  for (unsigned i = 0; i < setup.jobs; ++i) jobs.push_back(&machine.add(setup.job, kBatch));
  machine.run(kSecond);
  const double begin = machine.now(), until = begin + setup.seconds * 1e9;
  for (unsigned i = 0; i < setup.services; ++i)
    services.push_back(
        &machine.add(setup.program, setup.service,
                     poisson(setup.load / setup.request_s, begin, setup.seconds * 1e9, 7 + i)));
  std::vector<std::uint64_t> before;
  for (const Machine::Client* job : jobs) before.push_back(job->kernels_ended);
  Reached reached;
  double since = begin;
  for (std::uint64_t ended = 0; machine.now() < until;) {
    machine.run(machine.now() + 1e6);
    if (jobs.empty()) continue;
    if (ended != jobs[0]->kernels_ended) since = machine.now();
    ended = jobs[0]->kernels_ended;
    reached.longest_pause_ms = std::max(reached.longest_pause_ms, (machine.now() - since) * 1e-6);
  }
  for (std::size_t i = 0; i < jobs.size(); ++i)
    reached.steps_per_s.push_back(static_cast<double>(jobs[i]->kernels_ended - before[i]) /
                                  setup.job.phases[0].launches / setup.seconds);
  machine.run(until + 2e9);
  std::vector<double> answered;
  for (const Machine::Client* service : services)
    answered.insert(answered.end(), service->answered_ms.begin(), service->answered_ms.end());
  reached.answered = answered.size();
  if (!answered.empty()) {
    reached.p50 = quantile(answered, 0.5);
    reached.p99 = quantile(answered, 0.99);
  }
  reached.counters = machine.arbiter().scheduler().counters();
  return reached;
}

void say(const std::string& what, const Reached& reached) {
  std::string steps;
  for (const double each : reached.steps_per_s) steps += " " + std::to_string(each);
  MESSAGE(what << ": p50 " << reached.p50 << " ms, p99 " << reached.p99 << " ms of "
               << reached.answered << ", training" << steps << " steps/s, pauses of at most "
               << reached.longest_pause_ms << " ms; grants " << reached.counters.grants
               << ", revoked " << reached.counters.revoked << ", plans " << reached.counters.plans
               << ", starving " << reached.counters.starving);
}

// A latency class without a bound, and one with a bound.
const daemon::ClientTraits kTarget = traits(config::ProgramKind::kLatency, 20 * kMs);

TEST_CASE(
    "A latency client beside training is served as if it were alone, or nearly, at any load") {
  for (const char* policy : {"slo", "tpot-first"})
    for (const double load : {0.03, 0.2, 0.5, 0.8}) {
      CAPTURE(std::string(policy));
      CAPTURE(load);
      const Reached alone = run(policy, {.jobs = 0, .load = load});
      const Reached both = run(policy, {.load = load});
      say("alone", alone);
      say("beside training", both);
      CHECK(both.answered == alone.answered);
      CHECK(both.p50 <= 2 * alone.p50);
    }
}

TEST_CASE("a service with little load costs training little, with a bound or without") {
  const Reached trains = run("slo", {.services = 0, .seconds = 10});
  for (const daemon::ClientTraits& service : {kService, kTarget}) {
    const Reached alone = run("slo", {.jobs = 0, .load = 0.1, .seconds = 10, .service = service});
    const Reached both = run("slo", {.load = 0.1, .seconds = 10, .service = service});
    say("three requests a second", both);
    CHECK(both.p50 <= 1.1 * alone.p50);
    CHECK(both.steps_per_s[0] >= 0.95 * trains.steps_per_s[0]);
    CHECK(both.counters.starving == 0);
  }
}

// Training runs while the service is behind its bound, and when it starves.
TEST_CASE(
    "beside a service that never pauses training pauses no longer than the starvation bound") {
  const Reached trains = run("slo", {.services = 0, .seconds = 10});
  const Reached both = run("slo", {.load = 1.5, .seconds = 20});
  say("never pauses", both);
  CHECK(both.longest_pause_ms <= 1'030);  // SchedulerOptions::starving_after_ns, and a drain
  CHECK(both.steps_per_s[0] >= 0.2 * trains.steps_per_s[0]);
}

TEST_CASE("two services are served before training, which runs when both are idle") {
  const Reached trains = run("slo", {.services = 0, .seconds = 10});
  const Reached alone = run("slo", {.services = 2, .jobs = 0, .load = 0.2});
  const Reached both = run("slo", {.services = 2, .load = 0.2});
  say("two services alone", alone);
  say("two services", both);
  CHECK(both.answered == alone.answered);
  CHECK(both.p50 <= 1.5 * alone.p50);
  CHECK(both.steps_per_s[0] >= 0.7 * trains.steps_per_s[0]);
}

TEST_CASE("without a client that has a bound, slo decides like throughput") {
  for (const unsigned jobs : {1U, 2U, 3U}) {
    const Setup setup{.services = 0, .jobs = jobs, .seconds = 6};
    const Reached here = run("slo", setup), there = run("throughput", setup);
    say("slo", here);
    CHECK(here.steps_per_s == there.steps_per_s);
    CHECK(here.counters.grants == there.counters.grants);
  }
}

TEST_CASE("other clients submit little ahead while a latency client is connected, and only then") {
  Machine machine("slo");
  Machine::Client& job = machine.add(training(), kBatch);
  machine.run(0.2e9);
  CHECK(job.terms.ahead_ns == runtime::kNever);
  Machine::Client& service = machine.add(decoder(), kService, poisson(5, machine.now(), 1e9, 3));
  machine.run(machine.now() + 1e6);
  std::uint64_t most = 0;  // also while the service is idle: a request may arrive at any time
  while (machine.now() < 1.2e9) {
    machine.run(machine.now() + 1e6);
    if (job.terms.partition != kNoPartition) most = std::max(most, job.terms.ahead_ns);
  }
  CHECK(most <= 2 * kMs);  // scheduler::kRunAheadNs
  machine.remove(service);
  machine.run(1.6e9);
  CHECK(job.terms.ahead_ns == runtime::kNever);
}

TEST_CASE("a latency client that dies during a request leaves no grant behind") {
  Machine machine("slo");
  Machine::Client& job = machine.add(training(), kBatch);
  machine.run(0.2e9);
  Machine::Client& service = machine.add(decoder(), kService, {machine.now(), 1e12});
  machine.run(machine.now() + 20e6);
  REQUIRE(!service.running.empty());
  const std::uint64_t before = job.kernels_ended;
  machine.remove(service);
  machine.run(machine.now() + 1e9);
  CHECK(static_cast<double>(job.kernels_ended - before) >= 0.95 * 15.9 * 2617);
  CHECK(machine.arbiter().held().size() == 1);
}

}  // namespace
}  // namespace vitamin::tests
