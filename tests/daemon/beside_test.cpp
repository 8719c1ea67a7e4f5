// SPDX-License-Identifier: Apache-2.0
//
// A client that must not wait beside one that may (tests/daemon/machine.h): what each gets.
#include <doctest/doctest.h>

#include <cmath>

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

constexpr double kSeconds = 20;

struct Reached {
  double p50 = 0, p99 = 0, request_ms = 0;
  double steps_per_s = 0;
  runtime::SchedulerCounters counters;
};

// Poisson arrivals at a load of 0.5, after a second in which the training is alone.
Reached run(const char* policy, bool service, bool trains, std::uint64_t tpot_ns = 0,
            double load = 0.5) {
  Machine machine(policy);
  Machine::Client* training_job = nullptr;
  Machine::Client* server = nullptr;
  if (trains) training_job = &machine.add(training(), traits(OperationClass::kBestEffort));
  machine.run(kSecond);
  // Alone a request takes 33.6 ms here.
  const double begin = machine.now(), until = begin + kSeconds * kSecond;
  if (service)
    server = &machine.add(decoder(), traits(OperationClass::kDecode, tpot_ns),
                          poisson(load / 33.6e-3, begin, kSeconds * kSecond, 7));
  const std::uint64_t steps = trains ? training_job->rounds_ended : 0;
  machine.run(until);
  Reached reached;
  if (trains)
    reached.steps_per_s = static_cast<double>(training_job->rounds_ended - steps) / kSeconds;
  if (service) {
    machine.run(until + kSecond);
    reached.p50 = quantile(server->answered_ms, 0.5);
    reached.p99 = quantile(server->answered_ms, 0.99);
  }
  reached.counters = machine.arbiter().scheduler().counters();
  return reached;
}

void say(const char* what, const Reached& reached) {
  MESSAGE(what << ": p50 " << reached.p50 << " ms, p99 " << reached.p99 << " ms, training "
               << reached.steps_per_s << " steps/s; grants " << reached.counters.grants
               << ", recalled " << reached.counters.recalled << ", closed "
               << reached.counters.gates_closed << ", by age " << reached.counters.overdue);
}

TEST_CASE("A latency client beside training is served nearly as if it were alone") {
  const Reached alone = run("tpot-first", true, false);
  const Reached trains = run("tpot-first", false, true);
  const Reached both = run("tpot-first", true, true);
  say("service alone", alone);
  say("training alone", trains);
  say("fifo", run("fifo", true, true));
  say("throughput", run("throughput", true, true));
  say("tpot-first:target=8", run("tpot-first:target=8", true, true, 8 * kMs));
  say("tpot-first:target=8,lend=1", run("tpot-first:target=8,lend=1", true, true, 8 * kMs));
  say("tpot-first", both);
  CHECK(both.p99 <= 1.15 * alone.p99);
  CHECK(both.steps_per_s >= 0.7 * trains.steps_per_s);
}

}  // namespace
}  // namespace vitamin::tests
