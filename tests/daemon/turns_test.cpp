// SPDX-License-Identifier: Apache-2.0
//
// The baselines that give the device to one client at a time (scheduler/policies/turns.cpp),
// between real clients and the real arbiter in virtual time (tests/daemon/machine.h): clients hold
// their grants silently, so that the arbiter does not notice pauses.
#include <doctest/doctest.h>

#include <string>

#include "tests/daemon/machine.h"

namespace vitamin::tests {
namespace {

const daemon::ClientTraits kBatch;

// A step of 10 ms, of which the device is busy for 6.
Program steps(bool told) {
  Program program{{{200, 50e3, 30e3, 132}}, false, 2};
  program.announces_rounds = told;
  return program;
}

// A step of 5 ms, for whose end the host waits before it launches the next one.
Program short_steps() {
  Program program{{{100, 50e3, 30e3, 132}}, true, 0};
  program.announces_rounds = true;
  return program;
}

// `count` steps, the first one now; then the program has nothing to run.
std::vector<double> so_many(std::size_t count, double now) {
  return std::vector<double>(count, now);
}

TEST_CASE("Salus switches clients at the end of each iteration, not before") {
  for (const bool waits : {false, true}) {
    CAPTURE(waits);
    Machine machine("salus");
    Machine::Client& a = machine.add(waits ? short_steps() : steps(true), kBatch);
    Machine::Client& b = machine.add(waits ? short_steps() : steps(true), kBatch);
    machine.run(0.1e9);
    const std::uint64_t before_a = a.rounds_ended, before_b = b.rounds_ended;
    std::uint64_t most = 0;
    for (double until = 2e9; machine.now() < until;) {
      machine.run(machine.now() + 1e6);
      const std::uint64_t x = a.rounds_ended - before_a, y = b.rounds_ended - before_b;
      most = std::max(most, x > y ? x - y : y - x);
    }
    const scheduler::SchedulerCounters counters = machine.arbiter().scheduler().counters();
    MESSAGE(a.rounds_ended << " and " << b.rounds_ended << " steps, of which one client is never "
                           << "more than " << most << " ahead; grants " << counters.grants);
    CHECK(most <= 1);
    CHECK(a.rounds_ended >= 60);
    // One grant for each iteration, and at most one more for the time that a message takes.
    CHECK(counters.grants >= a.rounds_ended + b.rounds_ended);
    CHECK(counters.grants <= 2 * (a.rounds_ended + b.rounds_ended) + 4);
  }
}

TEST_CASE("a single client under Salus loses little between its iterations") {
  Machine alone("fifo"), machine("salus");
  Machine::Client& native = alone.add(steps(true), kBatch);
  Machine::Client& job = machine.add(steps(true), kBatch);
  alone.run(2e9);
  machine.run(2e9);
  CHECK(static_cast<double>(job.rounds_ended) >= 0.9 * static_cast<double>(native.rounds_ended));
}

// Like a job between two windows of a measurement: its grant would never end.
TEST_CASE("an idle client does not keep its turn, whether it announces iterations or not") {
  for (const char* name : {"salus", "exclusive"})
    for (const bool told : {true, false}) {
      CAPTURE(std::string(name));
      CAPTURE(told);
      Machine machine(name);
      Machine::Client& first = machine.add(steps(told), kBatch, so_many(5, 1e6));
      machine.run(20e6);
      Machine::Client& second = machine.add(steps(told), kBatch);
      machine.run(2e9);
      CHECK(first.rounds_ended == 5);
      CHECK(second.rounds_ended >= 150);
      // And it gets its turn again: at the end of the other's iteration, if that is announced.
      if (std::string(name) != "salus" || !told) continue;
      first.arrivals.push_back(machine.now());
      machine.run(machine.now() + 50e6);
      CHECK(first.rounds_ended == 6);
    }
}

// A step is 200 launches of 50 us: no pause between them is as long as `quiet`.
TEST_CASE("under exclusive a client keeps its turn while its host is between launches") {
  Machine machine("exclusive");
  Machine::Client& first = machine.add(steps(false), kBatch);
  machine.run(20e6);
  Machine::Client& second = machine.add(steps(false), kBatch);
  machine.run(1e9);
  CHECK(first.rounds_ended >= 90);
  CHECK(second.rounds_ended == 0);
}

// A turn begins when the work of the turn before it has ended.
TEST_CASE("under time slicing kernels of two clients never overlap") {
  for (const char* name : {"temporal", "temporal:slice=200us", "salus", "exclusive"}) {
    CAPTURE(std::string(name));
    Machine machine(name);
    Machine::Client& a = machine.add(steps(true), kBatch);
    Machine::Client& b = machine.add(steps(true), kBatch, so_many(40, 30e6));
    std::uint64_t together = 0, turns = 0;
    const Machine::Client* last = nullptr;
    for (double until = 1e9; machine.now() < until;) {
      machine.run(machine.now() + 4e3);
      together += !a.running.empty() && !b.running.empty();
      const Machine::Client* const now = !a.running.empty() ? &a : !b.running.empty() ? &b : last;
      turns += now != last;
      last = now;
    }
    CHECK(together == 0);
    CHECK(turns >= (std::string(name) == "exclusive" ? 1 : 40));
    CHECK(machine.arbiter().counters().overdue == 0);
  }
}

}  // namespace
}  // namespace vitamin::tests
