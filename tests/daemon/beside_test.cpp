// SPDX-License-Identifier: Apache-2.0
//
// Clients that must not wait beside clients that may (tests/daemon/machine.h): what each gets.
#include <doctest/doctest.h>

#include <string>

#include "tests/daemon/machine.h"

namespace vitamin::tests {
namespace {

using runtime::OperationClass;

daemon::Traits traits(OperationClass kind, std::uint64_t tpot_ns = 0) {
  daemon::Traits result;
  result.kind = kind;
  result.tpot_ns = tpot_ns;
  return result;
}
const daemon::Traits kService = traits(OperationClass::kDecode);
const daemon::Traits kBatch = traits(OperationClass::kBestEffort);

constexpr double kRequest = 33.6e-3;

struct Setup {
  unsigned services = 1, jobs = 1;
  double load = 0.5;
  double seconds = 20;
  daemon::Traits service = kService;
  Program program = decoder(), job = training();
  double request_s = kRequest;  // that one takes here, alone
};

struct Reached {
  double p50 = 0, p99 = 0;
  std::size_t answered = 0;
  std::vector<double> steps_per_s;
  double longest_pause_ms = 0;  // without a launch of the first job's that ended
  runtime::SchedulerCounters counters;
};

// Poisson arrivals, after a second in which the training is alone.
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
               << ", recalled " << reached.counters.recalled << ", closed "
               << reached.counters.gates_closed << ", by age " << reached.counters.overdue);
}

TEST_CASE("A latency client beside training is served nearly as if it were alone") {
  const Reached alone = run("tpot-first", {.jobs = 0, .seconds = 60});
  const Reached trains = run("tpot-first", {.services = 0, .seconds = 60});
  const Reached both = run("tpot-first", {.seconds = 60});
  say("service alone", alone);
  say("training alone", trains);
  say("throughput", run("throughput", {}));
  say("tpot-first", both);
  // Asked at a load of 0.5.
  CHECK(both.p99 <= 1.15 * alone.p99);
  CHECK(both.steps_per_s[0] >= 0.7 * trains.steps_per_s[0]);
  // Nobody was asked for a grant that he was using.
  CHECK(both.counters.recalled == 0);
  // At most two each time that the service comes and goes, and one for a message between.
  CHECK(both.counters.grants <= 3 * both.answered);
}

// As where the device serves one of its programs first.
TEST_CASE(
    "A latency client that is not slowed down by others leaves them all that it does not use") {
  Program decodes = decoder();
  for (const double slower : {1.0, 1.04}) {
    CAPTURE(slower);
    decodes.slower = slower;
    const Reached alone = run("tpot-first", {.jobs = 0, .program = decodes});
    const Reached never = run("tpot-first:beside=never", {.program = decodes});
    const Reached always = run("tpot-first:beside=always", {.program = decodes});
    const Reached both = run("tpot-first", {.program = decodes});
    say("never", never);
    say("always", always);
    say("measured", both);
    CHECK(both.p99 <= 1.15 * alone.p99);
    CHECK(both.steps_per_s[0] >= 0.95 * always.steps_per_s[0]);
    CHECK(both.steps_per_s[0] >= 1.1 * never.steps_per_s[0]);
  }
}

// The latest answers are those of requests that queued.
TEST_CASE("A latency client that others slow down has them beside it in short stretches") {
  const Reached trains = run("tpot-first", {.services = 0});
  Program decodes = decoder();
  for (const double slower : {1.3, 1.5, 1.8}) {
    CAPTURE(slower);
    decodes.slower = slower;
    const Setup setup{.seconds = 60, .program = decodes};
    Setup only = setup;
    only.jobs = 0;
    const Reached alone = run("tpot-first", only);
    const Reached never = run("tpot-first:beside=never", setup);
    const Reached always = run("tpot-first:beside=always", setup);
    const Reached both = run("tpot-first", setup);
    MESSAGE("training alone " << trains.steps_per_s[0]);
    say("alone", alone);
    say("never", never);
    say("always", always);
    say("in short stretches", both);
    CHECK(both.p99 <= 1.15 * alone.p99);
    CHECK(both.p50 <= 1.5 * alone.p50);
    CHECK(both.steps_per_s[0] >= 0.7 * trains.steps_per_s[0]);
    CHECK(both.steps_per_s[0] >= (slower < 1.4 ? 1.1 : 1.0) * never.steps_per_s[0]);
  }
}

TEST_CASE("Nor do short stretches beside others make a busier service late") {
  Program decodes = decoder();
  decodes.slower = 1.5;
  for (const double load : {0.2, 0.8}) {
    CAPTURE(load);
    const Setup setup{.load = load, .seconds = 60, .program = decodes};
    Setup only = setup;
    only.jobs = 0;
    const Reached alone = run("tpot-first", only);
    const Reached both = run("tpot-first", setup);
    say("alone", alone);
    say("in short stretches", both);
    CHECK(both.p99 <= 1.2 * alone.p99);
    CHECK(both.p50 <= 1.6 * alone.p50);
  }
}

TEST_CASE("Requests of one service that are brief do not pay for long ones of another") {
  const Phase prefill{330, 20e3, 35.8e3, 132}, step{330, 20e3, 14.2e3, 72};
  Program brief{{prefill, step}, true, 0, 6.8e6}, lengthy{{prefill}, true, 0, 6.8e6};
  for (int i = 0; i < 30; ++i) lengthy.phases.push_back(step);
  brief.slower = lengthy.slower = 1.5;
  double p99[2];
  for (const bool patient : {false, true}) {
    Machine machine(patient ? "tpot-first" : "tpot-first:patience=0");
    machine.add(training(), kBatch);
    machine.run(kSecond);
    const double begin = machine.now();
    const Machine::Client& service = machine.add(brief, kService, poisson(4, begin, 90e9, 7));
    machine.add(lengthy, kService, poisson(0.8, begin, 90e9, 9));
    machine.run(begin + 92e9);
    p99[patient] = quantile(service.answered_ms, 0.99);
  }
  MESSAGE("p99 of brief ones " << p99[0] << " ms, with patience " << p99[1]);
  CHECK(p99[1] <= 1.15 * p99[0]);
}

TEST_CASE("A service that never pauses leaves training what was promised") {
  const Setup busy{.load = 1.5, .seconds = 10};
  const Reached trains = run("tpot-first", {.services = 0, .seconds = 10});
  // Served by age after a second (SchedulerOptions::overdue_ns), for a quantum.
  const Reached by_age = run("tpot-first", busy);
  say("never pauses", by_age);
  CHECK(by_age.counters.overdue >= 5);
  CHECK(by_age.longest_pause_ms <= 1'030);
  const Reached floor = run("tpot-first:floor=32", busy);
  say("floor=32", floor);
  CHECK(floor.counters.overdue == 0);
  CHECK(floor.longest_pause_ms <= 30);
  CHECK(floor.steps_per_s[0] >= 0.3 * trains.steps_per_s[0]);
}

TEST_CASE("A service that has little to do costs training little") {
  const Reached trains = run("tpot-first", {.services = 0, .seconds = 10});
  const Reached both = run("tpot-first", {.load = 0.03, .seconds = 10});
  say("a request a second", both);
  CHECK(both.steps_per_s[0] >= 0.95 * trains.steps_per_s[0]);
}

TEST_CASE("Two services beside training are served before it, and it goes on when both rest") {
  const Reached alone = run("tpot-first", {.services = 2, .jobs = 0, .load = 0.2});
  const Reached both = run("tpot-first", {.services = 2, .load = 0.2});
  say("two services alone", alone);
  say("two services", both);
  CHECK(both.p99 <= 1.15 * alone.p99);
  CHECK(both.steps_per_s[0] >= 0.7 * 15.9);
}

TEST_CASE("Without anybody who comes first tpot-first is throughput") {
  for (const unsigned jobs : {1U, 2U, 3U}) {
    const Setup setup{.services = 0, .jobs = jobs, .seconds = 6};
    const Reached here = run("tpot-first", setup), there = run("throughput", setup);
    say("tpot-first", here);
    CHECK(here.steps_per_s == there.steps_per_s);
    CHECK(here.counters.grants == there.counters.grants);
  }
}

TEST_CASE("While a latency client is there, others submit little ahead; not for longer") {
  Machine machine("tpot-first:ahead=300");
  Machine::Client& job = machine.add(training(), kBatch);
  Machine::Client& other = machine.add(training(), kBatch);
  machine.run(0.2e9);
  CHECK(job.choice.ahead_ns == runtime::kNever);
  Machine::Client& service = machine.add(decoder(), kService, poisson(5, machine.now(), 1e9, 3));
  // From its first request on; what was submitted before runs to its end.
  for (double most = 0; machine.now() < 1.2e9;) {
    machine.run(machine.now() + 1e6);
    if (machine.now() < service.arrivals[0] + 30e6) continue;
    most = std::max({most, job.ahead_ns, other.ahead_ns});
    REQUIRE(most <= 300e3);
  }
  machine.run(1.5e9);
  CHECK(job.choice.ahead_ns == 300'000);
  machine.remove(service);
  machine.run(1.6e9);
  CHECK(job.choice.ahead_ns == runtime::kNever);
  CHECK(other.choice.ahead_ns == runtime::kNever);
}

TEST_CASE("A latency client that dies in the middle of a request leaves nothing behind") {
  Machine machine("tpot-first");
  Machine::Client& job = machine.add(training(), kBatch);
  machine.run(0.2e9);
  Machine::Client& service = machine.add(decoder(), kService, {machine.now(), 1e12});
  machine.run(machine.now() + 20e6);
  REQUIRE(!service.running.empty());
  const std::uint64_t before = job.kernels_ended;
  machine.remove(service);
  machine.run(machine.now() + 1e9);
  CHECK(job.kernels_ended - before >= 0.95 * 15.9 * 2617);
  CHECK(machine.arbiter().held().size() == 1);
}

// A target says how long a token may take, which is enough to know for how few processors it would
// do, and nothing of the prefill before it.
TEST_CASE("A client that says a target gets what that needs, and training the rest") {
  const Reached target =
      run("tpot-first",
          {.load = 0.1, .seconds = 10, .service = traits(OperationClass::kDecode, 20 * kMs)});
  const Reached first = run("tpot-first", {.load = 0.1, .seconds = 10});
  say("target 20 ms", target);
  say("no target", first);
  CHECK(target.p50 >= 1.1 * first.p50);
  CHECK(target.counters.overdue == 0);
}

// Nobody says that he pauses: it is seen from what he submits.
TEST_CASE("What is reserved for tokens is lent while there are none, and back in time") {
  const double due = 9e6;
  const Setup setup{.load = 0.3,
                    .seconds = 10,
                    .service = traits(OperationClass::kDecode, 9 * kMs),
                    .program = tokens(6, due),
                    .job = busy_training(),
                    .request_s = 6 * 7.1e-3};
  Setup trains = setup, alone = setup;
  trains.services = 0;
  alone.jobs = 0;
  const Reached without = run("tpot-first", trains), only = run("tpot-first", alone);
  const Reached lent = run("tpot-first:target=9", setup);
  const Reached kept = run("tpot-first:target=9,lend=0", setup);
  say("training alone", without);
  say("tokens alone", only);
  say("lent", lent);
  say("kept", kept);
  CHECK(lent.answered == kept.answered);
  // Six tokens, and what is lost when they come back.
  CHECK(lent.p50 <= 6 * due * 1e-6);
  CHECK(lent.p99 <= 1.1 * kept.p99);
  CHECK(lent.steps_per_s[0] >= 1.15 * kept.steps_per_s[0]);
}

}  // namespace
}  // namespace vitamin::tests
