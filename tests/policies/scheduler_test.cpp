// SPDX-License-Identifier: Apache-2.0
#include "runtime/scheduler.h"

#include <random>

#include "tests/policies/fixture.h"
#include "tests/policies/world.h"
#include "tests/property.h"

namespace vitamin::policies {
namespace {

using runtime::Choice;
using runtime::ClientId;
using runtime::Decision;
using runtime::EntryId;
using runtime::kNoEntry;
using runtime::OperationClass;
using runtime::PoolLayout;
using runtime::PoolView;
using runtime::ReadyOperation;
using runtime::Scheduler;
using runtime::SchedulerOptions;

ReadyOperation operation(runtime::ClientId client, std::uint32_t processors = 1,
                         runtime::LaneId lane = 0) {
  ReadyOperation result;
  result.client = client;
  result.lane = lane;
  result.processors = processors;
  result.kernel = client;
  result.predicted_ns = 10'000;
  return result;
}

std::vector<Decision> decide(Scheduler& scheduler, std::uint64_t now) {
  const auto decisions = scheduler.decide(now);
  return {decisions.begin(), decisions.end()};
}

TEST_CASE("Whose turn it is keeps it while it submits, whoever else comes and goes") {
  const PoolLayout layout = PoolLayout::build(h200());
  constexpr std::uint64_t kMs = 1'000'000;
  for (const char* name : {"exclusive", "salus"}) {
    CAPTURE(name);
    Scheduler scheduler(layout, policy(name));
    std::uint64_t now = 1'000 * kMs, submitted = 0, closed_ms = 0;
    scheduler.wants(operation(1), now);
    decide(scheduler, now);
    scheduler.wants(operation(2), now);
    // As vitamind: progress is told when the policy wants to look, and not in between.
    const auto look = [&] {
      if (scheduler.look_at() > now) return;
      scheduler.progressed(1, submitted);
      scheduler.progressed(2, 0);
    };
    const auto run = [&](std::uint64_t ms, std::uint64_t launches) {
      for (std::uint64_t i = 1; i <= ms && closed_ms == 0; ++i) {
        now += kMs;
        submitted += launches;
        if (i % 6 == 0) scheduler.wants(operation(3), now);
        if (i % 6 == 3) scheduler.idle(3, 0, now);
        look();
        for (const Decision& decision : decide(scheduler, now))
          if (decision.kind == Decision::Kind::kCloseGate && decision.client == 1) closed_ms = i;
      }
    };
    scheduler.progressed(1, 0);
    scheduler.progressed(2, 0);
    run(200, 100);
    CHECK(closed_ms == 0);
    // It pauses.
    run(200, 0);
    CHECK(closed_ms >= 20);
    CHECK(closed_ms <= 40);
  }
}

TEST_CASE("What a lane that holds something is expected to do is what it does next") {
  const PoolLayout layout = PoolLayout::build(h200());
  struct Looks final : runtime::Policy {
    std::vector<ReadyOperation>* seen;
    explicit Looks(std::vector<ReadyOperation>* all) : seen(all) {}
    std::string_view name() const override { return "looks"; }
    runtime::Choice select(const ReadyOperation&, std::span<const EntryId> eligible,
                           const runtime::PoolView&) override {
      return {eligible.front(), runtime::kUntilChanged};
    }
    runtime::Plan prepare(const runtime::Hint&, const runtime::PoolView& pool) override {
      for (const runtime::Holding& holding : pool.holdings) seen->push_back(holding.next);
      return {};
    }
  };
  std::vector<ReadyOperation> seen;
  Scheduler scheduler(layout, std::make_unique<Looks>(&seen));
  ReadyOperation first = operation(1);
  first.processors = 8;
  first.id = 7;
  scheduler.wants(first, 0);
  REQUIRE(decide(scheduler, 0).size() == 1);
  runtime::Hint next;
  next.client = 1;
  next.kind = runtime::OperationClass::kDecode;
  next.queued_ns = 5'000;
  next.deadline_ns = 99'000;
  scheduler.hint(next, 10);
  CHECK(decide(scheduler, 10).empty());
  REQUIRE(!seen.empty());
  CHECK(seen.back().id != first.id);
  CHECK(seen.back().kind == runtime::OperationClass::kDecode);
  CHECK(seen.back().queued_ns == 5'000);
  CHECK(seen.back().deadline_ns == 99'000);
  CHECK(seen.back().since_ns == 10);
  // What it did not speak of is as it was.
  CHECK(seen.back().processors == 8);
  CHECK(seen.back().kernel == first.kernel);
}

// A client that goes idle unserved and comes back soon has waited all the while; served, it has
// not.
TEST_CASE("Who was served has not waited, whatever was before") {
  const PoolLayout layout = PoolLayout::build(h200());
  struct Last final : runtime::Policy {
    std::uint64_t* since;
    explicit Last(std::uint64_t* where) : since(where) {}
    std::string_view name() const override { return "last"; }
    runtime::Choice select(const ReadyOperation&, std::span<const EntryId> eligible,
                           const runtime::PoolView& pool) override {
      if (pool.now_ns < 20) return {runtime::kNoEntry, 0};
      return {eligible.front(), runtime::kUntilChanged};
    }
    runtime::Plan prepare(const runtime::Hint&, const runtime::PoolView& pool) override {
      for (const runtime::Holding& holding : pool.holdings) *since = holding.next.since_ns;
      return {};
    }
  };
  std::uint64_t since = 0;
  Scheduler scheduler(layout, std::make_unique<Last>(&since));
  scheduler.wants(operation(1), 0);
  CHECK(decide(scheduler, 0).empty());
  scheduler.idle(1, 0, 5);
  scheduler.wants(operation(1), 20);
  REQUIRE(decide(scheduler, 20).size() == 1);
  scheduler.wants(operation(1), 1'000);
  decide(scheduler, 1'000);
  CHECK(since == 1'000);
}

TEST_CASE("throughput gives a lone client all units, and cuts them in two when another comes") {
  const PoolLayout layout = PoolLayout::build(h200());
  Scheduler scheduler(layout, policy("throughput"));
  scheduler.wants(operation(1), 0);
  auto decisions = decide(scheduler, 0);
  REQUIRE(decisions.size() == 1);
  CHECK(layout.at(decisions[0].entry).processors == 132);
  CHECK(decisions[0].entry != runtime::kWholeDevice);

  const EntryId all = decisions[0].entry;
  scheduler.wants(operation(2), 10);
  decisions = decide(scheduler, 10);
  // The first moves into its half at once; the second waits for the rest to drain.
  REQUIRE(decisions.size() == 2);
  CHECK(decisions[0].kind == Decision::Kind::kCloseGate);
  CHECK(decisions[0].entry == all);
  CHECK(decisions[1].kind == Decision::Kind::kGrant);
  CHECK(decisions[1].client == 1);
  const EntryId half = decisions[1].entry;
  scheduler.returned(1, 0, all, 20);
  decisions = decide(scheduler, 20);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].client == 2);
  CHECK(!layout.at(decisions[0].entry).compute.overlaps(layout.at(half).compute));
  CHECK(layout.at(decisions[0].entry).processors + layout.at(half).processors == 132);

  // And all of it again when the other one has gone.
  scheduler.forget(2, 30);
  decisions = decide(scheduler, 30);
  REQUIRE(decisions.size() == 2);
  CHECK(decisions[1].kind == Decision::Kind::kGrant);
  CHECK(decisions[1].entry == all);
}

TEST_CASE("Another policy decides at once: what the old one granted is recalled") {
  const PoolLayout layout = PoolLayout::build(h200());
  Scheduler scheduler(layout, policy("throughput"));
  std::map<ClientId, EntryId> held;
  std::uint64_t now = 0;
  auto settle = [&] {
    for (int round = 0; round < 10; ++round) {
      std::vector<Decision> closed;
      for (const Decision& decision : decide(scheduler, ++now)) {
        if (decision.kind == Decision::Kind::kGrant) held[decision.client] = decision.entry;
        if (decision.kind == Decision::Kind::kCloseGate) closed.push_back(decision);
      }
      for (const Decision& one : closed) scheduler.returned(one.client, one.lane, one.entry, ++now);
    }
  };
  scheduler.wants(operation(1), now);
  scheduler.wants(operation(2), now);
  settle();
  CHECK(layout.at(held[1]).processors + layout.at(held[2]).processors == 132);
  // Nobody waits, so nothing else would ever take the halves back.
  scheduler.replace_policy(policy("fifo"), now);
  settle();
  CHECK(held[1] == runtime::kWholeDevice);
  CHECK(held[2] == runtime::kWholeDevice);
  CHECK(scheduler.counters().recalled == 2);
}

// Nobody waits on the way to the whole device; on the way back only for what others have to drain.
TEST_CASE("From parts to the whole device and back") {
  class Switch final : public runtime::Policy {
   public:
    std::string_view name() const override { return "switch"; }
    std::uint64_t look_at() const override { return at; }
    Choice select(const ReadyOperation& operation, std::span<const EntryId>,
                  const PoolView& pool) override {
      return {target(operation.client, pool), runtime::kUntilChanged};
    }
    runtime::Plan prepare(const runtime::Hint& hint, const PoolView& pool) override {
      if (at <= pool.now_ns) whole = !whole, at = pool.now_ns + 1000;
      seen.assign(pool.progress.begin(), pool.progress.end());
      return {target(hint.client, pool), true};
    }
    EntryId target(ClientId client, const PoolView& pool) const {
      if (whole) return runtime::kWholeDevice;
      for (const runtime::PoolEntry& entry : pool.entries.subspan(1))
        if (entry.compute == hal::ComputeSet::range(client == 1 ? 0 : 8, 8)) return entry.id;
      return kNoEntry;
    }
    bool whole = false;
    std::uint64_t at = 1000;
    std::vector<runtime::Progress> seen;
  };
  const PoolLayout layout = PoolLayout::build(h200());
  auto owned = std::make_unique<Switch>();
  Switch& policy = *owned;
  Scheduler scheduler(layout, std::move(owned));
  scheduler.wants(operation(1), 0);
  scheduler.wants(operation(2), 0);
  const auto granted = decide(scheduler, 0);
  REQUIRE(granted.size() == 2);
  CHECK(layout.at(granted[0].entry).processors + layout.at(granted[1].entry).processors == 132);
  CHECK(scheduler.wake_at() == 1000);
  scheduler.progressed(1, 70);
  scheduler.progressed(2, 80);
  scheduler.progressed(1, 75);
  // Both go at once, while what they leave drains.
  const auto out = decide(scheduler, 1000);
  REQUIRE(out.size() == 4);
  unsigned on_all = 0;
  for (const Decision& decision : out)
    on_all += decision.kind == Decision::Kind::kGrant && decision.entry == runtime::kWholeDevice;
  CHECK(on_all == 2);
  REQUIRE(policy.seen.size() == 2);
  CHECK(policy.seen[0].operations == 75);
  CHECK(policy.seen[1].operations == 80);
  // One has drained by the time it is to come back, the other one has not.
  scheduler.returned(1, 0, granted[0].entry, 1500);
  decide(scheduler, 1500);
  unsigned back = 0;
  for (const Decision& decision : decide(scheduler, 2000))
    back += decision.kind == Decision::Kind::kGrant && decision.client == 1;
  CHECK(back == 1);
  scheduler.returned(2, 0, granted[1].entry, 2100);
  bool both = false;
  for (const Decision& decision : decide(scheduler, 2100))
    both = both || (decision.kind == Decision::Kind::kGrant && decision.client == 2 &&
                    decision.entry == granted[1].entry);
  CHECK(both);
  scheduler.forget(2, 2200);
  decide(scheduler, 3000);
  CHECK(policy.seen.size() == 1);
}

// Only the scheduler itself serves anybody else, by age.
class FirstTakesAll final : public runtime::Policy {
 public:
  std::string_view name() const override { return "first-takes-all"; }
  runtime::Terms terms() const override { return {runtime::kNever, {}}; }
  Choice select(const ReadyOperation& operation, std::span<const EntryId> eligible,
                const PoolView& pool) override {
    if (operation.client != 1) return {kNoEntry, 0};
    for (const EntryId id : eligible)
      if (id != runtime::kWholeDevice && pool.entries[id].processors == 132)
        return {id, runtime::kUntilChanged};
    return {kNoEntry, 0};
  }
};

TEST_CASE("Who goes idle unserved and comes back soon has waited all the while") {
  for (const std::uint64_t away : {1'000'000ULL, 2'000'000'000ULL}) {
    const PoolLayout layout = PoolLayout::build(h200());
    Scheduler scheduler(layout, std::make_unique<FirstTakesAll>());
    scheduler.wants(operation(1), 0);
    CHECK(decide(scheduler, 0).size() == 1);
    std::uint64_t now = 0;
    bool served = false;
    // As a client that is stopped for a while between any two of its looks.
    while (now < 4'000'000'000 && !served) {
      scheduler.wants(operation(2), now);
      for (std::uint64_t until = now + 20'000'000; now < until; now += 1'000'000)
        for (const Decision& decision : decide(scheduler, now))
          served = served || decision.client == 2;
      if (served) break;
      scheduler.idle(2, 0, now);
      decide(scheduler, now);
      now += away;
    }
    CHECK(served == (away < 1'000'000'000));
    if (served) CHECK(now <= 1'100'000'000);
  }
}

TEST_CASE("A late or repeated message about a grant that is gone changes nothing") {
  const PoolLayout layout = PoolLayout::build(h200());
  Scheduler scheduler(layout, policy("throughput"));
  scheduler.returned(9, 0, 3, 0);
  scheduler.idle(9, 0, 0);
  scheduler.forget(9, 0);
  scheduler.wants(operation(1), 0);
  const auto decisions = decide(scheduler, 0);
  REQUIRE(decisions.size() == 1);
  scheduler.returned(1, 0, decisions[0].entry, 1);
  scheduler.returned(1, 0, decisions[0].entry, 1);
  CHECK(scheduler.leases().held(1).empty());
  CHECK(decide(scheduler, 1).size() == 1);  // it still wants
}

TEST_CASE("What no entry can hold is granted the whole device and waits for nobody") {
  const PoolLayout layout = PoolLayout::build(h200());
  for (const char* name : {"fifo", "throughput", "tpot-first", "temporal", "exclusive", "static"}) {
    CAPTURE(name);
    Scheduler scheduler(layout, policy(name));
    scheduler.wants(operation(1), 0);
    REQUIRE(!decide(scheduler, 0).empty());
    // Wider than any entry made of units: as many blocks as the device has must be resident.
    hal::DeviceInfo info = h200();
    scheduler.wants(operation(2, info.processors), 1);
    decide(scheduler, 1);
    CHECK(scheduler.counters().refused == 0);
  }
}

// Answers at random, nonsense included.
class Wild final : public runtime::Policy {
 public:
  explicit Wild(unsigned seed) : random_(seed) {}
  std::string_view name() const override { return "wild"; }
  std::optional<std::size_t> pick(std::span<const ReadyOperation> ready, const PoolView&) override {
    if (random_() % 4 == 0) return std::nullopt;
    return random_() % (ready.size() + 1);
  }
  Choice select(const ReadyOperation&, std::span<const EntryId> eligible,
                const PoolView&) override {
    if (random_() % 8 == 0) return {static_cast<EntryId>(random_() % 100), 1};
    return {eligible[random_() % eligible.size()], static_cast<std::uint32_t>(random_() % 5)};
  }
  runtime::Plan prepare(const runtime::Hint&, const PoolView& view) override {
    if (random_() % 2 == 0) return {};
    return {static_cast<EntryId>(random_() % 100), random_() % 2 == 0,
            random_() % 2 == 0 ? 0 : view.now_ns + 1'000'000,
            random_() % 4 == 0 ? static_cast<EntryId>(random_() % 20) : kNoEntry};
  }

 private:
  std::mt19937 random_;
};

// Refuses to run anybody.
class Idler final : public runtime::Policy {
 public:
  std::string_view name() const override { return "idler"; }
  std::optional<std::size_t> pick(std::span<const ReadyOperation>, const PoolView&) override {
    return std::nullopt;
  }
  Choice select(const ReadyOperation&, std::span<const EntryId>, const PoolView&) override {
    return {kNoEntry, 0};
  }
};

std::vector<Work> arrivals(unsigned seed, unsigned clients, unsigned count) {
  std::mt19937 random(seed);
  std::vector<Work> work;
  for (unsigned i = 0; i < count; ++i) {
    Work item;
    item.at_ns = random() % 3 == 0 ? 0 : random() % 20'000'000;
    item.operation = operation(1 + static_cast<unsigned>(random()) % clients);
    item.operation.lane = static_cast<unsigned>(random()) % 2;
    item.operation.processors = random() % 5 == 0 ? 1 + static_cast<unsigned>(random()) % 64 : 1;
    item.operation.id = i;
    item.operation.iteration_end = true;
    item.kernels = 1 + static_cast<unsigned>(random()) % 40;
    item.kernel_ns = 1'000 + random() % 400'000;
    if (random() % 3 == 0) {
      item.operation.kind = OperationClass::kDecode;
      item.operation.deadline_ns = item.at_ns + random() % 40'000'000;
      item.operation.queued_ns = item.kernels * item.kernel_ns / 8;
    }
    work.push_back(item);
  }
  return work;
}

TEST_CASE("No policy overlaps clients or is granted what cannot run; everything ends") {
  for (const char* name :
       {"throughput", "throughput:launches=1", "throughput:launches=7", "tpot-first",
        "tpot-first:reservation=0", "tpot-first:lookahead=0", "static", "static:parts=4",
        "exclusive", "temporal", "salus", "orion", "random", "fifo"})
    for (const unsigned units : {2U, 4U, 16U}) {
      const std::string what = std::string(name) + " on " + std::to_string(units) + " units";
      CAPTURE(what);
      const PoolLayout layout = PoolLayout::build(device(units, 8, units == 16 ? 12 : 8));
      const bool good = test::holds([&](unsigned seed) {
        World world(layout, policy(name, seed));
        auto work = arrivals(seed, 1 + seed % 7, 20 + seed % 50);
        for (Work& item : work)
          item.operation.processors = std::min(item.operation.processors, 4 * units);
        world.run(std::move(work));
        RC_ASSERT(world.complete());
      });
      CHECK(good);
    }
}

TEST_CASE("With clients that have the right of way, too, nothing overlaps and everything ends") {
  for (const char* name : {"tpot-first", "tpot-first:quiet=100", "tpot-first:floor=8",
                           "tpot-first:floor=24,ahead=10", "throughput"})
    for (const unsigned units : {2U, 4U, 16U}) {
      const std::string what = std::string(name) + " on " + std::to_string(units) + " units, first";
      CAPTURE(what);
      const PoolLayout layout = PoolLayout::build(device(units, 8, units == 16 ? 12 : 8));
      const bool good = test::holds([&](unsigned seed) {
        World world(layout, policy(name, seed));
        auto work = arrivals(seed, 2 + seed % 6, 20 + seed % 50);
        for (Work& item : work) {
          item.operation.processors = std::min(item.operation.processors, 4 * units);
          item.operation.right_of_way = item.operation.client % 3 == 1;
        }
        world.run(std::move(work));
        RC_ASSERT(world.complete());
        RC_ASSERT(world.scheduler().counters().refused == 0U);
      });
      CHECK(good);
    }
}

TEST_CASE("Whoever has the right of way and never stops keeps nobody for longer than the bound") {
  SchedulerOptions options;
  options.quantum_ns = 1'000'000;
  options.overdue_ns = 50'000'000;
  for (const char* name : {"tpot-first", "tpot-first:floor=8"})
    for (const unsigned greedy : {1U, 3U}) {
      CAPTURE(std::string(name));
      CAPTURE(greedy);
      const PoolLayout layout = PoolLayout::build(device(4, 8, 8));
      World world(layout, policy(name), options);
      std::vector<Work> work;
      for (unsigned client = 1; client <= greedy; ++client)
        for (unsigned i = 0; i < 40; ++i) {
          Work item;
          item.at_ns = i * 100'000;
          item.operation = operation(client);
          item.operation.kind = OperationClass::kDecode;
          item.operation.right_of_way = true;
          item.operation.id = i;
          item.kernels = 200;
          item.kernel_ns = 200'000;
          work.push_back(item);
        }
      Work modest;
      modest.at_ns = 500'000;
      modest.operation = operation(99);
      modest.operation.processors = 8;
      modest.kernels = 4;
      modest.kernel_ns = 200'000;
      work.push_back(modest);
      world.run(work, 600'000'000'000);
      REQUIRE(world.complete());
      const std::uint64_t waited = world.ended().back() - modest.at_ns;
      MESSAGE(name << ", " << greedy << ": waited " << static_cast<double>(waited) / 1e6 << " ms");
      CHECK(waited <=
            options.overdue_ns + (greedy + 1) * (options.quantum_ns + 2 * world.longest_kernel()));
      // Beside a floor it does not wait at all.
      if (std::string(name).find("floor") != std::string::npos)
        CHECK(waited <= 2'000'000 + 4 * world.longest_kernel());
    }
}

// One comes and goes again and again, while another has held the whole device for long.
TEST_CASE("For somebody who can be served at once nothing is taken back from others") {
  const PoolLayout layout = PoolLayout::build(h200());
  for (const char* name : {"fifo", "throughput:whole=always"}) {
    CAPTURE(std::string(name));
    Scheduler scheduler(layout, policy(name));
    scheduler.wants(operation(1), 0);
    REQUIRE(decide(scheduler, 0).size() == 1);
    for (std::uint64_t now = 10'000'000; now < 1'000'000'000; now += 10'000'000) {
      scheduler.wants(operation(2), now);
      const auto decisions = decide(scheduler, now);
      REQUIRE(decisions.size() == 1);
      REQUIRE(decisions[0].entry == runtime::kWholeDevice);
      scheduler.idle(2, 0, now + 1'000'000);
      scheduler.returned(2, 0, runtime::kWholeDevice, now + 1'000'000);
      CHECK(decide(scheduler, now + 1'000'000).empty());
    }
    CHECK(scheduler.counters().recalled == 0);
    CHECK(scheduler.counters().gates_closed == 0);
  }
  // For who cannot be, it is, and not before the quantum is over.
  const PoolLayout two = PoolLayout::build(device(2, 8, 8));
  Scheduler scheduler(two, policy("throughput:whole=never"));
  for (const ClientId client : {1U, 2U, 3U}) scheduler.wants(operation(client), 0);
  CHECK(decide(scheduler, 0).size() == 2);
  CHECK(decide(scheduler, 3'999'999).empty());
  CHECK(scheduler.wake_at() == 4'000'000);
  CHECK(decide(scheduler, 4'000'000).size() == 2);
  CHECK(scheduler.counters().recalled == 2);
}

TEST_CASE("Lanes that can only wait for their own work cost another client's decision nothing") {
  // How often it was asked, and how much it was shown.
  struct Asked final : runtime::Policy {
    unsigned* questions;
    explicit Asked(unsigned* count) : questions(count) {}
    std::string_view name() const override { return "asked"; }
    bool plans() const override { return false; }
    std::optional<std::size_t> pick(std::span<const ReadyOperation> ready,
                                    const PoolView& pool) override {
      *questions += static_cast<unsigned>(ready.size() + pool.waiting.size());
      return 0;
    }
    Choice select(const ReadyOperation&, std::span<const EntryId> eligible,
                  const PoolView&) override {
      return {eligible.back(), 1};
    }
  };
  unsigned questions = 0;
  const PoolLayout layout = PoolLayout::build(h200());
  Scheduler scheduler(layout, std::make_unique<Asked>(&questions));
  std::uint64_t now = 0;
  const std::uint32_t all = layout.at(runtime::kWholeDevice).processors;
  // Half of client 1's lanes have moved on as often as they may, the others have still to return
  // the only entry that is wide enough; and all of them go on asking.
  const auto ask_again = [&] {
    for (runtime::LaneId lane = 0; lane < 200; ++lane) {
      scheduler.idle(1, lane, now);
      scheduler.wants(operation(1, lane % 2 == 0 ? 1 : all, lane), ++now);
    }
    scheduler.decide(now);
  };
  for (int i = 0; i < 15; ++i) ask_again();
  CHECK(scheduler.waiting() == 200);
  questions = 0;
  for (int i = 0; i < 50; ++i) {
    scheduler.wants(operation(2), ++now);
    REQUIRE(decide(scheduler, now).size() == 1);
    scheduler.idle(2, 0, now);
    scheduler.returned(2, 0, runtime::kWholeDevice, now);
    scheduler.decide(++now);
  }
  CHECK(questions <= 2 * 50);
  // What they wait for ends, and they go on.
  scheduler.returned(1, 1, runtime::kWholeDevice, ++now);
  const auto decisions = decide(scheduler, now);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].lane == 1);
}

TEST_CASE("A lane that has all its grants leaves what the policy wants it to leave, and waits") {
  // Everybody elsewhere, always.
  class Mover final : public runtime::Policy {
   public:
    std::string_view name() const override { return "mover"; }
    Choice select(const ReadyOperation&, std::span<const EntryId> eligible,
                  const PoolView&) override {
      return {eligible.front(), runtime::kUntilChanged};
    }
    runtime::Plan prepare(const runtime::Hint& hint, const PoolView&) override {
      runtime::Plan plan;
      if (hint.held != kNoEntry) plan.target = static_cast<EntryId>(hint.held + 1);
      plan.close_gates = true;
      return plan;
    }
  };
  const PoolLayout layout = PoolLayout::build(h200());
  SchedulerOptions options;
  Scheduler scheduler(layout, std::make_unique<Mover>(), options);
  std::vector<EntryId> held;
  std::uint64_t now = 0;
  for (std::uint32_t i = 0; i < options.lane_grants; ++i) {
    scheduler.wants(operation(1), ++now);
    for (const Decision& decision : decide(scheduler, now))
      if (decision.kind == Decision::Kind::kGrant) held.push_back(decision.entry);
    CHECK(held.size() == i + 1);
  }
  scheduler.wants(operation(1), ++now);
  const auto last = decide(scheduler, now);
  REQUIRE(last.size() == 1);
  CHECK(last[0].kind == Decision::Kind::kCloseGate);
  CHECK(last[0].entry == held.back());
  CHECK(scheduler.waiting() == 1);
  // What another has is not closed for it.
  scheduler.wants(operation(2), ++now);
  const auto others = decide(scheduler, now);
  REQUIRE(others.size() == 1);
  CHECK(others[0].client == 2);
  CHECK(others[0].kind == Decision::Kind::kGrant);
  scheduler.returned(1, 0, held.front(), ++now);
  bool again = false;
  for (const Decision& decision : decide(scheduler, now))
    again = again || (decision.client == 1 && decision.kind == Decision::Kind::kGrant);
  CHECK(again);
}

TEST_CASE("A plan to stop closes the gate; that the lane waits is no reason to recall others") {
  // Client 2 is stopped while `stop`; both run on the whole device.
  class Stopper final : public runtime::Policy {
   public:
    std::string_view name() const override { return "stopper"; }
    Choice select(const ReadyOperation& operation, std::span<const EntryId>,
                  const PoolView&) override {
      if (stop && operation.client == 2) return {kNoEntry, 0};
      return {runtime::kWholeDevice, runtime::kUntilChanged};
    }
    runtime::Plan prepare(const runtime::Hint& hint, const PoolView&) override {
      runtime::Plan plan;
      plan.stop = stop && hint.client == 2;
      if (!plan.stop) plan.target = runtime::kWholeDevice;
      plan.ahead_ns = ahead_ns;
      return plan;
    }
    bool stop = false;
    std::uint64_t ahead_ns = runtime::kNever;
  };
  const PoolLayout layout = PoolLayout::build(h200());
  auto owned = std::make_unique<Stopper>();
  Stopper& policy = *owned;
  SchedulerOptions options;
  options.quantum_ns = 4'000'000;
  options.overdue_ns = 100'000'000;
  Scheduler scheduler(layout, std::move(owned), options);
  scheduler.wants(operation(1), 0);
  scheduler.wants(operation(2), 0);
  CHECK(decide(scheduler, 0).size() == 2);
  // The window changes under what is held: it is granted again.
  policy.ahead_ns = 7'000;
  scheduler.policy_changed();  // recalls
  for (const Decision& decision : decide(scheduler, 1000))
    scheduler.returned(decision.client, 0, decision.entry, 1001);
  const auto bounded = decide(scheduler, 1002);
  REQUIRE(bounded.size() == 2);
  for (const Decision& decision : bounded) CHECK(decision.ahead_ns == 7'000);
  policy.ahead_ns = runtime::kNever;
  scheduler.wants(operation(1), 1003);
  const auto again = decide(scheduler, 1003);
  REQUIRE(again.size() == 2);
  for (const Decision& decision : again) {
    CHECK(decision.kind == Decision::Kind::kGrant);
    CHECK(decision.ahead_ns == runtime::kNever);
  }
  const auto recalled = scheduler.counters().recalled;
  policy.stop = true;
  const std::uint64_t begin = 10'000'000;
  scheduler.wants(operation(1), begin);
  const auto stopped = decide(scheduler, begin);
  REQUIRE(stopped.size() == 1);
  CHECK(stopped[0].kind == Decision::Kind::kCloseGate);
  CHECK(stopped[0].client == 2);
  scheduler.returned(2, 0, runtime::kWholeDevice, begin + 1000);
  // Nothing happens until it is overdue, which is counted from then on.
  std::uint64_t now = begin + 1000;
  for (; now < begin + 100'000'000; now += 1'000'000) CHECK(decide(scheduler, now).empty());
  CHECK(scheduler.counters().recalled == recalled);
  CHECK(scheduler.wake_at() <= begin + 1000 + 100'000'000);
  now = begin + 1000 + 100'000'000;
  const auto by_age = decide(scheduler, now);
  REQUIRE(by_age.size() == 1);
  CHECK(by_age[0].client == 2);
  CHECK(scheduler.counters().overdue == 1);
  // Its own for a quantum, whatever happens; then it is stopped again.
  scheduler.wants(operation(1), now + 1'000'000);
  CHECK(decide(scheduler, now + 1'000'000).empty());
  CHECK(scheduler.wake_at() == now + 4'000'000);
  const auto over = decide(scheduler, now + 4'000'000);
  REQUIRE(over.size() == 1);
  CHECK(over[0].kind == Decision::Kind::kCloseGate);
}

TEST_CASE("While others hold entries, nobody is sent to the whole device who fits an entry") {
  const PoolLayout layout = PoolLayout::build(device(4, 8, 8));
  // Not tpot-first: who fits no entry beside its standing reservations goes there after a second.
  for (const char* name : {"throughput", "static", "exclusive", "temporal", "salus", "random",
                           "random:min=8,max=16", "extremes"}) {
    const std::string what = name;
    CAPTURE(what);
    for (unsigned seed = 1; seed <= 20; ++seed) {
      World world(layout, policy(name, seed));
      auto work = arrivals(seed, 2 + seed % 5, 60);
      for (Work& item : work) item.operation.processors = std::min(item.operation.processors, 16U);
      world.run(std::move(work));
      REQUIRE(world.complete());
      REQUIRE(world.scheduler().counters().whole_device == 0);
    }
  }
}

TEST_CASE("Whatever a policy answers, everybody runs within the bound") {
  SchedulerOptions options;
  options.quantum_ns = 2'000'000;
  options.overdue_ns = 20'000'000;
  const PoolLayout layout = PoolLayout::build(device(4, 8, 8));
  std::uint64_t slowest = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    const unsigned clients = 2 + seed % 6;
    std::unique_ptr<runtime::Policy> policy;
    if (seed % 3 == 0)
      policy = std::make_unique<Idler>();
    else
      policy = std::make_unique<Wild>(seed);
    World world(layout, std::move(policy), options);
    auto work = arrivals(seed, clients, 60);
    for (Work& item : work) item.operation.processors = std::min(item.operation.processors, 32U);
    world.run(std::move(work), 600'000'000'000);
    REQUIRE(world.complete());
    // Behind at most all other lanes, each of which keeps what it has for a quantum and drains.
    const std::uint64_t lanes = 2 * clients;
    const std::uint64_t bound =
        options.overdue_ns + lanes * (options.quantum_ns + 2 * world.longest_kernel());
    slowest = std::max(slowest, world.longest_wait());
    CHECK(world.longest_wait() <= bound);
  }
  MESSAGE("longest wait " << static_cast<double>(slowest) / 1e6 << " ms");
}

TEST_CASE("Adversarial arrivals starve nobody under throughput and tpot-first") {
  SchedulerOptions options;
  options.quantum_ns = 1'000'000;
  options.overdue_ns = 50'000'000;
  for (const char* name : {"throughput", "tpot-first", "temporal:quantum=1000", "static"}) {
    const std::string what = name;
    CAPTURE(what);
    const PoolLayout layout = PoolLayout::build(device(4, 8, 8));
    World world(layout, policy(name), options);
    std::vector<Work> work;
    // Twelve greedy clients that never stop, decodes among them, and one that wants a little.
    for (unsigned client = 1; client <= 12; ++client)
      for (unsigned i = 0; i < 40; ++i) {
        Work item;
        item.at_ns = i * 100'000;
        item.operation = operation(client);
        item.operation.kind = client % 2 == 0 ? OperationClass::kDecode : OperationClass::kUnknown;
        item.operation.deadline_ns = item.at_ns + 1;  // always late
        item.operation.id = i;
        item.kernels = 20;
        item.kernel_ns = 200'000;
        work.push_back(item);
      }
    Work modest;
    modest.at_ns = 500'000;
    modest.operation = operation(99);
    modest.operation.processors = 16;
    modest.kernels = 1;
    work.push_back(modest);
    world.run(work, 600'000'000'000);
    REQUIRE(world.complete());
    const std::uint64_t waited = world.ended().back() - modest.at_ns;
    MESSAGE(what << ": the modest one waited " << static_cast<double>(waited) / 1e6 << " ms");
    CHECK(waited <= options.overdue_ns + 13 * (options.quantum_ns + 2 * world.longest_kernel()));
  }
}

TEST_CASE("A reservation ends when it expires, is cancelled or its client dies; gates open again") {
  // Reserves all units for a client that has only announced itself.
  class Reserver final : public runtime::Policy {
   public:
    std::string_view name() const override { return "reserver"; }
    Choice select(const ReadyOperation&, std::span<const EntryId> eligible,
                  const PoolView&) override {
      const EntryId best = eligible.size() > 1 ? eligible[eligible.size() - 2] : kNoEntry;
      return {best, runtime::kUntilChanged};
    }
    runtime::Plan prepare(const runtime::Hint& hint, const PoolView& view) override {
      if (hint.client != 2) return {};
      return {view.entries.back().id, true, view.now_ns + 1000};
    }
  };
  const PoolLayout layout = PoolLayout::build(device(4, 8, 8));
  for (const int how : {0, 1, 2}) {
    CAPTURE(how);
    Scheduler scheduler(layout, std::make_unique<Reserver>());
    scheduler.wants(operation(1), 0);
    auto decisions = decide(scheduler, 0);
    REQUIRE(decisions.size() == 1);
    const EntryId entry = decisions[0].entry;
    runtime::Hint hint;
    hint.client = 2;
    hint.processors = 1;
    scheduler.hint(hint, 10);
    decisions = decide(scheduler, 10);
    REQUIRE(decisions.size() == 1);
    CHECK(decisions[0].kind == Decision::Kind::kCloseGate);
    scheduler.returned(1, 0, entry, 20);
    CHECK(decide(scheduler, 20).empty());  // it is kept for client 2
    CHECK(scheduler.wake_at() <= 1010);
    hint.cancelled = true;
    if (how == 1) scheduler.hint(hint, 30);
    if (how == 2) scheduler.forget(2, 30);
    decisions = decide(scheduler, how == 0 ? 1010 : 30);
    REQUIRE(decisions.size() == 1);
    CHECK(decisions[0].kind == Decision::Kind::kGrant);
    CHECK(decisions[0].client == 1);
  }
}

}  // namespace
}  // namespace vitamin::policies
