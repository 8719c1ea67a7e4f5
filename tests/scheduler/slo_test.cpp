// SPDX-License-Identifier: Apache-2.0
//
// slo and tpot-first in virtual time: a client that serves requests beside clients that always have
// work, with known speeds in every configuration.
#include "scheduler/policies/slo.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "scheduler/scheduler.h"
#include "tests/scheduler/service_world.h"

namespace vitamin::scheduler {
namespace {

using test::kMs;
using test::kSecond;
using test::ServiceWorld;

ServiceWorld::Setup decodes(double work_ms, double spread) {
  ServiceWorld::Setup setup;
  setup.kind = StepKind::kDecode;
  setup.work_ms = work_ms;
  setup.spread = spread;
  return setup;
}

// TPOT-First: decodes keep a part, and each token is due one bound after it was ready.
SloOptions options_of_the_paper() {
  SloOptions options;
  options.keeps_parts = true;
  options.cumulative = false;
  return options;
}

// Latency of the same requests with the device to themselves.
double alone_ms(ServiceWorld::Setup setup, double quantile) {
  setup.alone = true;
  ServiceWorld alone(setup, {});
  alone.run(120);
  return alone.quantile(quantile);
}

TEST_CASE("A bound of 1.15 times the latency alone is held, and others get what that leaves") {
  for (const double load : {0.2, 0.5})
    for (const double room : {1.15, 1.5, 3.0}) {
      ServiceWorld::Setup setup;
      setup.load = load;
      setup.slo.latency_ns = static_cast<std::uint64_t>(room * alone_ms(setup, 0.99) * 1e6);
      const double bound = static_cast<double>(setup.slo.latency_ns) / 1e6;
      ServiceWorld world(setup, {});
      world.run(120);
      MESSAGE("load " << load << ", bound " << room << " x alone: p99 "
                      << world.quantile(0.99) / bound << " of it, late " << 100 * world.late(bound)
                      << " %, harvest " << world.harvest() << ", changes " << world.changes());
      CHECK(world.quantile(0.99) <= 1.03 * bound);
      CHECK(world.harvest() >= (room < 1.2 ? 0.8 : 0.9) * (1 - load));
    }
}

TEST_CASE("Requests that are not announced are busy periods, and their bound is held") {
  ServiceWorld::Setup setup;
  setup.load = 0.2;
  setup.announced = false;
  setup.slo.latency_ns = static_cast<std::uint64_t>(1.5 * alone_ms(setup, 0.99) * 1e6);
  const double bound = static_cast<double>(setup.slo.latency_ns) / 1e6;
  ServiceWorld world(setup, {});
  world.run(120);
  MESSAGE("not announced: p99 " << world.quantile(0.99) / bound << " of the bound, harvest "
                                << world.harvest());
  CHECK(world.quantile(0.99) <= 1.05 * bound);
  CHECK(world.harvest() >= 0.7);
}

TEST_CASE("A bound that cannot be met alone is infeasible, and says what would be feasible") {
  ServiceWorld::Setup setup;
  setup.slo.latency_ns = 5 * kMs;  // the work takes 8 ms
  ServiceWorld world(setup, {});
  world.run(20);
  const SloStatus status = world.slo_status();
  CHECK(!status.feasible);
  CHECK(status.alone_ns > 8 * kMs);
  CHECK(status.alone_ns < 25 * kMs);
  CHECK(status.late > 0.9 * static_cast<double>(status.finished));
  CHECK(world.harvest() >= 0.3);  // the others are not paused for a bound that is lost anyway
}

TEST_CASE("What a bound costs the others is told") {
  ServiceWorld::Setup tight, loose;
  tight.slo.latency_ns = static_cast<std::uint64_t>(1.05 * alone_ms(tight, 0.99) * 1e6);
  loose.slo.latency_ns = 10 * tight.slo.latency_ns;
  std::vector<SloStatus> statuses;
  for (const ServiceWorld::Setup& setup : {tight, loose}) {
    ServiceWorld world(setup, {});
    world.run(30);
    world.policy.slo_statuses(statuses);
  }
  REQUIRE(statuses.size() == 2);
  MESSAGE("cost of a tight bound " << statuses[0].costs << ", of a loose one "
                                   << statuses[1].costs);
  CHECK(statuses[0].costs > statuses[1].costs);
  CHECK(statuses[1].costs <= 0.15);
}

TEST_CASE("tpot-first keeps a partition for decodes while they are idle") {
  ServiceWorld::Setup setup = decodes(8, 0.05);
  setup.load = 0.4;
  setup.paced = true;
  setup.slo.tpot_ns = 14 * kMs;
  const SloOptions options = options_of_the_paper();
  ServiceWorld world(setup, options);
  world.run(5);
  const SloStatus status = world.slo_status();
  CHECK(status.kept_partition != kNoPartition);
  CHECK(h200().at(status.kept_partition).sms <= 68);
  world.latencies_ms.clear();
  world.run(30);
  bool held = false;
  for (const Row& row : world.allocation().rows)
    held = held || (row.client == 1 && row.hold && row.mode == Mode::kExclusive);
  CHECK(held);
  MESSAGE("tpot-first: late " << 100 * world.late(14) << " %, harvest " << world.harvest());
  CHECK(world.late(14) <= 0.01);
  CHECK(world.harvest() >= 0.4);
}

TEST_CASE("a class that loses its bound of tokens at a reload keeps no part any more") {
  ServiceWorld::Setup setup = decodes(8, 0.05);
  setup.load = 0.4;
  setup.paced = true;
  setup.slo.tpot_ns = setup.slo.latency_ns = 14 * kMs;
  const SloOptions options = options_of_the_paper();
  ServiceWorld world(setup, options);
  world.run(5);
  std::vector<SloStatus> statuses;
  world.policy.slo_statuses(statuses);
  REQUIRE(!statuses.empty());
  REQUIRE(statuses[0].kept_partition != kNoPartition);
  setup.slo.tpot_ns = 0;
  world.set_slo(setup.slo);
  world.run(5.1);
  statuses.clear();
  world.policy.slo_statuses(statuses);
  for (const SloStatus& status : statuses) CHECK(status.kept_partition == kNoPartition);
}

TEST_CASE("periods of a service without a number for a bound are late when they lose too much") {
  ServiceWorld::Setup setup;
  setup.announced = false;
  setup.slo.latency_ns = kAsAloneNs;
  ServiceWorld world(setup, {});
  world.run(60);
  const SloStatus status = world.slo_status();
  MESSAGE("as alone: " << status.late << " of " << status.finished << " periods late");
  CHECK(status.finished > 1'000);
  CHECK(status.late < status.finished / 10);
}

// Two services whose steps leave no time to try anything, and a client that trains.
class NoSlack {
 public:
  NoSlack() {
    for (std::size_t i = 0; i < 3; ++i) {
      clients_[i].id = static_cast<ClientId>(i + 1);
      clients_[i].reports_progress = clients_[i].active = true;
      clients_[i].streams = {&demand_, 1};
      if (i == 2) continue;
      clients_[i].slo.tpot_ns = 15 * kMs;
      clients_[i].slo.quantile = 0.5;
      clients_[i].phase = StepKind::kDecode;
      begin(i);
    }
    demand_.state = StreamDemand::State::kRunning;
  }
  void leave() { first_ = 1; }  // client 1
  // True: the client that trains runs beside the services.
  bool run_ms() {
    for (std::size_t i = first_; i < 2; ++i) {
      clients_[i].progress.work += trains_ ? kMs / 2 : kMs;
      if (clients_[i].progress.work >= ends_[i]) begin(i);
      clients_[i].steps = {&steps_[i], 1};
    }
    now_ns_ += kMs;
    Snapshot snapshot;
    snapshot.now_ns = now_ns_;
    snapshot.pool = pool_.partitions();
    snapshot.clients = std::span<const Client>(clients_).subspan(first_);
    Allocation out;
    policy_.allocate(snapshot, out);
    for (const Row& row : out.rows)
      if (row.client == 3) trains_ = row.mode != Mode::kPaused;
    return trains_;
  }
  std::uint64_t begun = 0;  // steps of client 2
  ChoiceReason choice() const {
    Findings found;
    REQUIRE(policy_.explain(found));
    return found.choice;
  }

 private:
  void begin(std::size_t i) {
    Step& step = steps_[i];
    ++step.id;
    step.client = clients_[i].id;
    step.kind = StepKind::kDecode;
    step.ready_ns = step.begin_ns = now_ns_;
    step.due_ns = now_ns_ + 1;
    ends_[i] = clients_[i].progress.work + 8 * kMs;
    if (i == 1) ++begun;
  }

  runtime::PoolLayout pool_ = h200();
  Estimator estimator_{pool_.partitions()};
  SloPolicy policy_{{}, estimator_, pool_.partitions()};
  StreamDemand demand_;
  std::vector<Client> clients_{3};
  std::array<Step, 2> steps_;
  std::array<std::uint64_t, 2> ends_{};
  std::uint64_t now_ns_ = kSecond;
  std::size_t first_ = 0;
  bool trains_ = false;
};

TEST_CASE("a trial is said to be one, and that others are paused where no time is left to lose") {
  NoSlack world;
  bool trial = false, no_slack = false;
  for (unsigned ms = 0; ms < 200; ++ms) {
    const bool trains = world.run_ms();
    const ChoiceReason why = world.choice();
    if (trains) CHECK(why == ChoiceReason::kTried);
    CHECK(why != ChoiceReason::kLate);
    trial = trial || trains;
    no_slack = no_slack || why == ChoiceReason::kNoSlack;
  }
  CHECK(trial);
  CHECK(no_slack);
}

// At a quantile of 0.5 one of four steps may be late for a trial.
TEST_CASE("a service that leaves takes its steps out of the count towards the next trial") {
  NoSlack world;
  unsigned waited = 0;
  while (!world.run_ms() && waited < 1'000) ++waited;
  REQUIRE(waited < 1'000);
  world.leave();
  const std::uint64_t before = world.begun;
  while (world.begun < before + 3) CHECK_FALSE(world.run_ms());
  waited = 0;
  while (!world.run_ms() && waited < 200) ++waited;
  CHECK(waited < 200);
}

TEST_CASE("What would be late alone, too, costs the others nothing") {
  ServiceWorld::Setup setup = decodes(7, 0.15);
  setup.load = 0.8;
  setup.paced = true;
  setup.slo.tpot_ns = 15 * kMs;
  double harvests[2];
  for (const unsigned tight : {0U, 8U}) {
    setup.tight = tight;
    ServiceWorld world(setup, {});
    world.run(60);
    harvests[tight != 0] = world.harvest();
    MESSAGE("one of " << tight << " due at once: late " << 100 * world.late(15) << " %, harvest "
                      << world.harvest());
    CHECK(world.late(15) <= 0.01);
  }
  CHECK(harvests[1] >= 0.6 * harvests[0]);
}

TEST_CASE(
    "a step that waits behind the one that runs is not taken to run, though it is due first") {
  ServiceWorld::Setup setup = decodes(7, 0.15);
  setup.load = 0.9;
  setup.alone = true;
  setup.slo.tpot_ns = 40 * kMs;
  std::vector<SloStatus> statuses;
  for (const unsigned tight : {0U, 8U}) {
    setup.tight = tight;
    ServiceWorld world(setup, {});
    world.run(60);
    world.policy.slo_statuses(statuses);
  }
  REQUIRE(statuses.size() == 2);
  CHECK(statuses[0].alone_ns == doctest::Approx(10e6).epsilon(0.1));
  CHECK(statuses[1].alone_ns == doctest::Approx(10e6).epsilon(0.1));
}

// Steps that take as long as the bound alone, now and then, or longer: there is never time to see
// what sharing costs.
TEST_CASE("A bound that leaves no slack, or cannot be met alone, leaves others their part") {
  for (const double spread : {0.27, 0.4})
    for (const bool keeps : {false, true}) {
      ServiceWorld::Setup setup = decodes(7, spread);
      setup.load = 0.6;
      setup.paced = true;
      setup.slo.tpot_ns = 15 * kMs;
      SloOptions options;
      options.keeps_parts = keeps;
      const double alone = alone_ms(setup, 0.99);
      ServiceWorld world(setup, options);
      world.run(120);
      MESSAGE("p99 alone " << alone << " ms, keeps parts " << keeps << ": p99 "
                           << world.quantile(0.99) << " ms, harvest " << world.harvest());
      CHECK(world.quantile(0.99) <= std::max(15.0, 1.25 * alone));
      // The part is kept while the service pauses, and only a wide part is good enough.
      CHECK(world.harvest() >= (keeps && spread < 0.3 ? 0.05 : 0.2));
    }
}

// A decode step of vLLM is one launch of a graph and some small ones, and their ends are seen when
// the step behind it has begun.
TEST_CASE("a service whose work is counted in lumps keeps its bound, and others get the rest") {
  ServiceWorld::Setup setup = decodes(7, 0.05);
  setup.closed = setup.in_lumps = true;
  setup.pause_ns = 0;
  setup.slo.quantile = 0.75F;
  for (const std::uint64_t bound_ms : {9, 12}) {
    setup.slo.tpot_ns = bound_ms * kMs;
    ServiceWorld world(setup, {});
    world.run(60);
    const SloStatus status = world.slo_status();
    MESSAGE("in lumps, bound " << bound_ms << " ms: alone " << status.alone_ns << " ns, late "
                               << 100 * world.late(static_cast<double>(bound_ms)) << " %, harvest "
                               << world.harvest());
    CHECK(status.alone_ns > 65 * kMs / 10);
    CHECK(status.alone_ns < 85 * kMs / 10);
    CHECK(status.feasible);
    CHECK(world.late(static_cast<double>(bound_ms)) <= 0.25);
    CHECK(world.harvest() >= (bound_ms == 9 ? 0 : 0.2));
  }
}

// While it pauses the others have the device, and what they submitted drains when a step begins.
TEST_CASE("A service that pauses between steps counted in lumps is measured by the clock") {
  for (const auto& [pause_ms, seen_late] : std::initializer_list<std::pair<std::uint64_t, bool>>{
           {2, false}, {3, false}, {10, false}, {3, true}, {10, true}}) {
    ServiceWorld::Setup setup = decodes(7, 0.05);
    setup.closed = setup.in_lumps = true;
    setup.seen_late = seen_late;
    setup.pause_ns = pause_ms * kMs;
    setup.slo.quantile = 0.75F;
    setup.slo.tpot_ns = 14 * kMs;
    ServiceWorld world(setup, {});
    world.run(60);
    const SloStatus status = world.slo_status();
    MESSAGE("in lumps, seen late " << seen_late << ", pauses of " << pause_ms << " ms: alone "
                                   << status.alone_ns << " ns, late " << 100 * world.late(14)
                                   << " %, harvest " << world.harvest());
    CHECK(status.alone_ns > 65 * kMs / 10);
    CHECK(status.alone_ns < 95 * kMs / 10);
    CHECK(world.late(14) <= 0.25);
    CHECK(world.harvest() >= 0.3);
  }
}

// No part is kept for what seems to be half as long as it is.
TEST_CASE("tpot-first keeps no part before it is known how work is counted") {
  for (const std::uint64_t pause_ms : {0, 3, 10}) {
    ServiceWorld::Setup setup = decodes(7, 0.05);
    setup.closed = setup.in_lumps = true;
    setup.pause_ns = pause_ms * kMs;
    setup.slo.quantile = 0.75F;
    setup.slo.tpot_ns = 14 * kMs;
    ServiceWorld world(setup, options_of_the_paper());
    world.run(60);
    MESSAGE("tpot-first, pauses of " << pause_ms << " ms: alone " << world.slo_status().alone_ns
                                     << " ns, late " << 100 * world.late(14) << " %, harvest "
                                     << world.harvest());
    CHECK(world.slo_status().alone_ns > 65 * kMs / 10);
    CHECK(world.late(14) <= 0.25);
    CHECK(world.harvest() >= 0.6);
  }
}

TEST_CASE("tpot-first keeps a part for decodes that never run alone, and for those that rest") {
  for (const bool closed : {false, true}) {
    ServiceWorld::Setup setup = decodes(closed ? 7 : 5, 0.05);
    setup.closed = closed;
    setup.paced = !closed;
    setup.pause_ns = 0;
    setup.load = 0.3;
    setup.slo.tpot_ns = (closed ? 25 : 14) * kMs;
    ServiceWorld world(setup, options_of_the_paper());
    world.run(20);
    CHECK(world.slo_status().kept_partition != kNoPartition);
  }
}

TEST_CASE("Short steps counted in lumps keep their bound, and others get the rest") {
  for (const std::uint64_t step_ms : {1, 3}) {
    ServiceWorld::Setup setup = decodes(static_cast<double>(step_ms), 0.05);
    setup.closed = setup.in_lumps = true;
    setup.pause_ns = 5 * kMs;
    setup.drain_ns = 2 * kMs;
    setup.slo.quantile = 0.75F;
    setup.slo.tpot_ns = (2 * step_ms + 4) * kMs;
    ServiceWorld world(setup, {});
    world.run(60);
    MESSAGE("steps of " << step_ms << " ms in lumps: alone " << world.slo_status().alone_ns
                        << " ns, late " << 100 * world.late(2 * static_cast<double>(step_ms) + 4)
                        << " %, harvest " << world.harvest());
    CHECK(world.slo_status().alone_ns < (2 * step_ms + 4) * kMs);
    CHECK(world.late(2 * static_cast<double>(step_ms) + 4) <= 0.25);
    CHECK(world.harvest() >= 0.3);
  }
}

// What drains at the beginning of its steps is neither its own, nor makes its counts wrong.
TEST_CASE("A service that pauses and is counted well is measured without what drains") {
  ServiceWorld::Setup setup = decodes(8, 0.05);
  setup.closed = true;
  setup.pause_ns = 5 * kMs;
  setup.drain_ns = 4 * kMs;
  setup.slo.tpot_ns = 14 * kMs;
  ServiceWorld world(setup, {});
  world.run(30);
  MESSAGE("alone " << world.slo_status().alone_ns << " ns");
  CHECK(world.slo_status().alone_ns < 105 * kMs / 10);
}

TEST_CASE("Training whose launches drain for long leaves nothing behind when it ends") {
  for (const auto& [pause_ms, drain_ms] :
       std::initializer_list<std::array<std::uint64_t, 2>>{{3, 13}, {8, 13}, {3, 20}, {8, 20}}) {
    ServiceWorld::Setup setup = decodes(5, 0.05);
    setup.closed = true;
    setup.pause_ns = pause_ms * kMs;
    setup.drain_ns = drain_ms * kMs;
    setup.slo.tpot_ns = 85 * kMs / 10;
    ServiceWorld world(setup, {});
    world.run(30);
    world.set_drain(kMs);
    world.run(200);
    world.latencies_ms.clear();
    world.run(260);
    MESSAGE("pauses of " << pause_ms << " ms: alone " << world.slo_status().alone_ns << " ns, late "
                         << 100 * world.late(8.5) << " %");
    CHECK(world.slo_status().alone_ns < 8 * kMs);
    CHECK(world.late(8.5) <= 0.01);
  }
}

// The pause is longer than what is known of arrangements lasts: they are tried again.
TEST_CASE("that work of a program is counted in lumps is known of its next client") {
  ServiceWorld::Setup setup = decodes(7, 0.05);
  setup.closed = setup.in_lumps = true;
  setup.pause_ns = 0;
  setup.slo.quantile = 0.75F;
  setup.slo.tpot_ns = 15 * kMs;
  ServiceWorld world(setup, {});
  for (double at_s = 0; at_s < 500; at_s += 100) {
    const double before_s = world.trained_s();
    world.run(at_s + 30);
    const SloStatus status = world.slo_status();
    const double harvest = (world.trained_s() - before_s) / 30;
    MESSAGE("begun at " << at_s << " s: alone " << status.alone_ns << " ns, harvest " << harvest);
    CHECK(status.alone_ns < 85 * kMs / 10);
    if (at_s > 0) CHECK(harvest >= 0.6);
    world.restart(70);
    world.run(at_s + 100);
  }
}

// It is never idle while they are there, so what they do without it is not known, and an
// arrangement in which it is slow is worth no more to them than what they do in it.
TEST_CASE("A service that always works is not slowed down for nothing") {
  ServiceWorld::Setup setup = decodes(7, 0.05);
  setup.closed = true;
  setup.pause_ns = 0;
  setup.slo.tpot_ns = 25 * kMs;
  setup.alone = true;
  ServiceWorld world(setup, {});
  world.run(2);
  world.begin_training();
  world.run(60);
  MESSAGE("always busy: median " << world.quantile(0.5) << " ms, harvest " << world.harvest());
  CHECK(world.quantile(0.5) <= 11);
  CHECK(world.harvest() >= 0.75);
}

// One token after another, each of which takes longer than the bound now and then, on the host:
// what a part of the device costs it is seen, and others have the rest.
TEST_CASE("A service that always works and misses its bound alone leaves others their part") {
  ServiceWorld::Setup setup = decodes(7, 0.4);
  setup.closed = setup.host_bound = true;
  setup.slo.tpot_ns = 15 * kMs;
  for (const bool keeps : {false, true}) {
    SloOptions options;
    options.keeps_parts = keeps;
    ServiceWorld world(setup, options);
    world.run(60);
    MESSAGE("always busy, keeps parts " << keeps << ": harvest " << world.harvest());
    CHECK(world.harvest() >= 0.3);
  }
}

TEST_CASE("A step that never ends is lost, and others run again") {
  ServiceWorld::Setup setup;
  setup.slo.latency_ns = 20 * kMs;
  setup.work_ms = 1e7;
  setup.load = 1e4;  // a request each second
  ServiceWorld world(setup, {});
  world.run(1);
  const double before = world.harvest();
  world.run(20);
  MESSAGE("beside a step that never ends: harvest " << world.harvest() << ", at first " << before);
  CHECK(world.latencies_ms.empty());
  CHECK(world.harvest() >= 0.4);
}

// docs/protect-latency.md: a share bounds a service as any client; what it leaves then is idle.
TEST_CASE("beside a service with a quota that has to work alone the rest of the device is idle") {
  const runtime::PoolLayout layout = h200();
  Estimator estimator(layout.partitions(), 1);
  Scheduler scheduler(layout.partitions(), make_slo({}, estimator, layout.partitions()), {},
                      &estimator);
  ClientTerms serves;
  serves.slo.latency_ns = 30 * kMs;
  serves.limits.max_sms = 66;
  serves.limits.may_share = false;
  scheduler.attach(1, serves, 0);
  for (const ClientId client : {1U, 2U}) {
    StreamDemand demand;
    demand.id = 0;
    demand.min_sms = 1;
    scheduler.wants(client, demand, 1);
  }
  scheduler.decide(1);
  REQUIRE(scheduler.plan().size() == 2);
  for (const Planned& planned : scheduler.plan()) {
    if (planned.row.client == 2) CHECK(planned.row.mode == Mode::kPaused);
    if (planned.row.client != 1) continue;
    CHECK(planned.row.mode == Mode::kExclusive);
    CHECK(layout.at(planned.row.partition).sms == 64);
  }
}

}  // namespace
}  // namespace vitamin::scheduler
