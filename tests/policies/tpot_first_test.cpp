// SPDX-License-Identifier: Apache-2.0
#include <random>

#include "tests/policies/fixture.h"
#include "tests/policies/world.h"

namespace vitamin::policies {
namespace {

using runtime::Decision;
using runtime::EntryId;
using runtime::Hint;
using runtime::OperationClass;
using runtime::PoolLayout;
using runtime::Profile;
using runtime::ReadyOperation;
using runtime::Scheduler;
using runtime::SchedulerOptions;

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kDecodeKernel = 100;

ReadyOperation decode(runtime::ClientId client, std::uint64_t step_ns, std::uint64_t deadline_ns,
                      std::uint64_t id = 0) {
  ReadyOperation operation;
  operation.client = client;
  operation.kernel = kDecodeKernel;
  operation.kind = OperationClass::kDecode;
  operation.queued_ns = step_ns;
  operation.deadline_ns = deadline_ns;
  operation.id = id;
  return operation;
}

ReadyOperation training(runtime::ClientId client) {
  ReadyOperation operation;
  operation.client = client;
  operation.kernel = 200;
  return operation;
}

// What client 1 says, while it holds something, of a step that begins.
Hint step_at(std::uint64_t now, std::uint64_t given = 30 * kMs) {
  Hint step;
  step.client = 1;
  step.processors = 1;
  step.kind = OperationClass::kDecode;
  step.queued_ns = 4 * kMs;
  step.deadline_ns = now + given;
  return step;
}

struct Stage {
  PoolLayout layout = PoolLayout::build(h200());
  Profile profile;
  std::unique_ptr<Scheduler> scheduler;
  explicit Stage(const char* specification) {
    measure(profile, kDecodeKernel, layout, 0, 132e6, 66);  // no better beyond half of the device
    measure(profile, 200, layout, 0, 132e6);
    scheduler =
        std::make_unique<Scheduler>(layout, policy(specification), SchedulerOptions{}, &profile);
  }
  std::vector<Decision> decide(std::uint64_t now) {
    const auto decisions = scheduler->decide(now);
    return {decisions.begin(), decisions.end()};
  }
  EntryId granted(const std::vector<Decision>& decisions, runtime::ClientId client) {
    for (const Decision& decision : decisions)
      if (decision.kind == Decision::Kind::kGrant && decision.client == client)
        return decision.entry;
    return runtime::kNoEntry;
  }
  std::uint32_t width(EntryId id) const { return layout.at(id).processors; }
};

// What is expected of steps that nobody has seen yet.
std::uint64_t unseen(std::uint64_t whole_ns, std::uint32_t processors) {
  return static_cast<std::uint64_t>(static_cast<double>(whole_ns) * (0.1 + 0.9 * 132 / processors));
}

TEST_CASE("The reservation is the narrowest entry that keeps the target; lend=0: also when idle") {
  // A step takes 4 ms on the whole device, and 65 % of 30 ms on 25 processors, if nearly all of it
  // is shared work: its kernel would do with 14, but is not the step.
  Stage stage("tpot-first:target=30,lend=0");
  stage.scheduler->wants(decode(1, 4 * kMs, 30 * kMs), 0);
  const auto decisions = stage.decide(0);
  const EntryId entry = stage.granted(decisions, 1);
  REQUIRE(entry != runtime::kNoEntry);
  CHECK(stage.width(entry) > 32);  // alone, it has its share of the device as well
  stage.scheduler->idle(1, 0, kMs);
  stage.scheduler->returned(1, 0, entry, kMs);
  stage.scheduler->wants(training(2), kMs);
  const auto others = stage.decide(kMs);
  const EntryId rest = stage.granted(others, 2);
  REQUIRE(rest != runtime::kNoEntry);
  CHECK(stage.width(rest) == 100);
  // The next token finds it free.
  stage.scheduler->wants(decode(1, 4 * kMs, 60 * kMs), 2 * kMs);
  const EntryId again = stage.granted(stage.decide(2 * kMs), 1);
  REQUIRE(again != runtime::kNoEntry);
  CHECK(!stage.layout.at(rest).compute.overlaps(stage.layout.at(again).compute));
  // When its client is gone, so is the reservation.
  stage.scheduler->forget(1, 3 * kMs);
  CHECK(stage.width(stage.granted(stage.decide(3 * kMs), 2)) == 132);
}

TEST_CASE("What is lent is others' while nothing decodes, and comes back with the next step") {
  Stage stage("tpot-first:target=30");
  stage.scheduler->wants(decode(1, 4 * kMs, 30 * kMs), 0);
  const EntryId first = stage.granted(stage.decide(0), 1);
  REQUIRE(first != runtime::kNoEntry);
  stage.scheduler->idle(1, 0, kMs);
  stage.scheduler->returned(1, 0, first, kMs);
  stage.scheduler->wants(training(2), kMs);
  const EntryId all = stage.granted(stage.decide(kMs), 2);
  REQUIRE(all != runtime::kNoEntry);
  CHECK(stage.width(all) == 132);

  stage.scheduler->wants(decode(1, 4 * kMs, 40 * kMs, 1), 10 * kMs);
  const auto closing = stage.decide(10 * kMs);
  CHECK(stage.granted(closing, 1) == runtime::kNoEntry);  // a kernel runs there still
  const bool closed = std::any_of(closing.begin(), closing.end(), [&](const Decision& decision) {
    return decision.kind == Decision::Kind::kCloseGate && decision.client == 2 &&
           decision.entry == all;
  });
  CHECK(closed);
  stage.scheduler->returned(2, 0, all, 11 * kMs);
  const auto again = stage.decide(11 * kMs);
  const EntryId back = stage.granted(again, 1);
  REQUIRE(back != runtime::kNoEntry);
  CHECK(stage.width(back) >= 12);
  // And the training what is left, at once: it was its own.
  const EntryId rest = stage.granted(closing, 2);
  REQUIRE(rest != runtime::kNoEntry);
  CHECK(!stage.layout.at(back).compute.overlaps(stage.layout.at(rest).compute));
}

// As clients of vitamind are: one that holds a grant says nothing.
TEST_CASE("A decode that is quiet on its grant is asked for it; not while its step runs") {
  Stage stage("tpot-first:target=30,quiet=2000");
  Scheduler& scheduler = *stage.scheduler;
  std::uint64_t now = 0, launched = 0;
  const auto pass = [&](std::uint64_t until, bool launches) {
    std::vector<Decision> all;
    while (scheduler.wake_at() <= until) {
      now = std::max(now, scheduler.wake_at());
      if (launches) ++launched;
      scheduler.progressed(1, launched);
      scheduler.progressed(2, now);
      for (const Decision& decision : stage.decide(now)) all.push_back(decision);
    }
    now = until;
    return all;
  };
  const auto closes = [](const std::vector<Decision>& decisions, runtime::ClientId client) {
    return std::any_of(decisions.begin(), decisions.end(), [&](const Decision& decision) {
      return decision.kind == Decision::Kind::kCloseGate && decision.client == client;
    });
  };
  scheduler.progressed(1, 0);
  // Its launches all come at once.
  scheduler.wants(decode(1, 4 * kMs, 30 * kMs), 0);
  scheduler.wants(training(2), 0);
  const auto granted = stage.decide(0);
  const EntryId mine = stage.granted(granted, 1);
  REQUIRE(mine != runtime::kNoEntry);
  const EntryId rest = stage.granted(granted, 2);
  REQUIRE(rest != runtime::kNoEntry);
  const std::uint64_t takes = unseen(4 * kMs, stage.width(mine));
  CHECK(!closes(pass(takes, false), 1));
  // As long as it launches, it has it.
  CHECK(!closes(pass(takes + 20 * kMs, true), 1));
  // What it says while it holds is what it does next.
  scheduler.hint(step_at(now), now);
  stage.decide(now);
  const std::uint64_t ends = now + takes;
  CHECK(!closes(pass(ends, false), 1));
  CHECK(closes(pass(ends + 5 * kMs, false), 1));
  // Its work has ended: others have all of it, until it asks.
  scheduler.returned(1, 0, mine, now);
  scheduler.idle(1, 0, now);
  const EntryId all = stage.granted(stage.decide(now), 2);
  REQUIRE(all != runtime::kNoEntry);
  CHECK(stage.width(all) == 132);
  scheduler.returned(2, 0, rest, now);
  scheduler.wants(decode(1, 4 * kMs, now + 30 * kMs), now);
  CHECK(closes(stage.decide(now), 2));
}

TEST_CASE("Whoever runs beside a decode submits little ahead, and so does the decode; alone not") {
  Stage stage("tpot-first:target=30,ahead=300");
  const auto ahead = [&](const std::vector<Decision>& decisions, runtime::ClientId client) {
    std::uint64_t ns = 0;
    for (const Decision& decision : decisions)
      if (decision.kind == Decision::Kind::kGrant && decision.client == client)
        ns = decision.ahead_ns;
    return ns;
  };
  stage.scheduler->wants(decode(1, 4 * kMs, 30 * kMs), 0);
  CHECK(ahead(stage.decide(0), 1) == runtime::kNever);
  ReadyOperation prefill = training(3);
  prefill.kind = OperationClass::kPrefill;
  stage.scheduler->wants(prefill, kMs);
  auto decisions = stage.decide(kMs);
  CHECK(ahead(decisions, 1) == 300'000);
  for (const Decision& decision : std::vector(decisions))
    if (decision.kind == Decision::Kind::kCloseGate)
      stage.scheduler->returned(decision.client, 0, decision.entry, 2 * kMs);
  const auto later = stage.decide(2 * kMs);
  decisions.insert(decisions.end(), later.begin(), later.end());
  CHECK(ahead(decisions, 3) == 300'000);
}

// A step that began on a narrow entry and goes on on a wider one has not run there all the time.
TEST_CASE("A step that was moved to be in time stays there") {
  Stage stage("tpot-first:target=30");
  stage.scheduler->wants(training(2), 0);
  const EntryId all = stage.granted(stage.decide(0), 2);
  // 4 ms of work (22 ms on 12 processors), due in 12.
  stage.scheduler->wants(decode(1, 4 * kMs, 40 * kMs, 1), 10 * kMs);
  stage.decide(10 * kMs);
  stage.scheduler->returned(2, 0, all, 11 * kMs);
  stage.decide(11 * kMs);
  stage.scheduler->wants(decode(1, 4 * kMs, 52 * kMs, 2), 40 * kMs);
  const auto moved = stage.decide(40 * kMs);
  for (const Decision& decision : moved)
    if (decision.kind == Decision::Kind::kCloseGate && decision.client == 2)
      stage.scheduler->returned(2, 0, decision.entry, 43 * kMs);
  stage.decide(43 * kMs);
  const auto widest = [&] {
    std::uint32_t most = 0;
    for (const auto& entry : stage.layout.entries())
      if (!entry.whole() && stage.scheduler->leases().lessee(entry.id) == 1)
        most = std::max(most, entry.processors);
    return most;
  };
  const std::uint32_t there = widest();
  REQUIRE(there >= 24);
  for (std::uint64_t at = 44; at < 47; ++at) {
    stage.scheduler->wants(training(static_cast<runtime::ClientId>(at)), at * kMs);
    for (const Decision& decision : stage.decide(at * kMs)) {
      const bool narrower = decision.kind == Decision::Kind::kGrant && decision.client == 1 &&
                            stage.width(decision.entry) < there;
      CHECK(!narrower);
    }
  }
}

// A client that holds what it has without a word, whose steps follow each other: each takes
// `takes(processors)` of wherever it is; another trains beside it. The processors of the steps.
template <typename Takes>
std::vector<std::uint32_t> steps_of(Stage& stage, int steps, Takes takes, bool with_copies = false,
                                    std::uint64_t given = 30 * kMs, std::uint64_t class_target = 0,
                                    int needs_13_from = -1) {
  Scheduler& scheduler = *stage.scheduler;
  std::vector<std::uint32_t> widths;
  std::uint64_t now = 0, launches = 0;
  EntryId mine = runtime::kNoEntry, copies = runtime::kNoEntry, others = runtime::kNoEntry;
  const auto settle = [&] {
    for (int round = 0; round < 20; ++round) {
      scheduler.progressed(1, ++launches);
      scheduler.progressed(2, launches);
      const auto decisions = stage.decide(now);
      if (decisions.empty()) break;
      for (const Decision& decision : decisions) {
        EntryId& held = decision.client == 2 ? others : decision.lane == 0 ? mine : copies;
        if (decision.kind == Decision::Kind::kGrant) {
          held = decision.entry;
        } else {
          if (held == decision.entry) held = runtime::kNoEntry;
          scheduler.returned(decision.client, decision.lane, decision.entry, now);
        }
      }
    }
  };
  ReadyOperation first = decode(1, 4 * kMs, given);
  first.target_ns = class_target;
  scheduler.wants(first, now);
  if (with_copies) {
    ReadyOperation copy = decode(1, 0, 0);
    copy.lane = 1;
    copy.predicted_ns = 10'000;
    scheduler.wants(copy, now);
  }
  scheduler.wants(training(2), now);
  settle();
  for (int i = 0; i < steps; ++i) {
    REQUIRE(mine != runtime::kNoEntry);
    if (with_copies) CHECK(copies == mine);
    REQUIRE(others != runtime::kNoEntry);
    CHECK(!stage.layout.at(mine).compute.overlaps(stage.layout.at(others).compute));
    widths.push_back(stage.width(mine));
    now += takes(widths.back());
    Hint step = step_at(now, given);
    // Some of its kernels were refused on less.
    if (needs_13_from >= 0 && i >= needs_13_from) step.processors = 13;
    scheduler.hint(step, now);
    settle();
  }
  return widths;
}

TEST_CASE("The reservation follows what its steps take, not what a kernel of them would") {
  // The kernel that comes next takes as long on 8 processors as on all; the step does not.
  Stage stage("tpot-first:target=30");
  Profile& profile = stage.profile;
  for (int i = 0; i < 1000; ++i)
    for (const runtime::PoolEntry& entry : stage.layout.entries())
      profile.add(kDecodeKernel, entry.processors, 10'000);
  SUBCASE("steps of shared work") {
    const auto takes = [](std::uint32_t m) { return std::uint64_t{4 * kMs * 132 / m}; };
    const auto widths = steps_of(stage, 400, takes);
    // 65 % of 30 ms are 27.1 processors.
    CHECK(widths.back() == 32);
    CHECK(std::count(widths.begin(), widths.end(), 32U) > 200);
    // Once it has tried what is half as wide.
    CHECK(std::count_if(widths.begin(), widths.end(),
                        [&](std::uint32_t width) { return takes(width) > 30 * kMs; }) <= 10);
  }
  SUBCASE("steps that are mostly their host's") {
    const auto takes = [](std::uint32_t m) { return 3 * kMs + kMs * 132 / m; };
    const auto widths = steps_of(stage, 400, takes);
    // On 8 processors they take 19.5 ms, the most that they may: tried on the way down.
    CHECK(widths.back() <= 12);
    for (std::size_t i = 1; i < widths.size(); ++i) CHECK(widths[i] <= widths[i - 1]);
  }
  SUBCASE("steps that no width makes shorter, and that just meet the target") {
    const auto takes = [](std::uint32_t) { return 25 * kMs; };
    const auto widths = steps_of(stage, 400, takes);
    CHECK(widths.back() <= 12);
    CHECK(std::count_if(widths.begin(), widths.end(), [](auto width) { return width > 68; }) < 60);
  }
  SUBCASE("steps that no width makes meet the target") {
    const auto takes = [](std::uint32_t m) { return 40 * kMs + 10 * kMs * 132 / m; };
    steps_of(stage, 400, takes);  // best effort; the other has a part all the time
  }
  SUBCASE("steps that grow") {
    int step = 0;
    const auto takes = [&](std::uint32_t m) { return (++step < 200 ? 1 : 2) * 4 * kMs * 132 / m; };
    const auto widths = steps_of(stage, 600, takes);
    CHECK(widths[199] == 32);
    CHECK(widths.back() >= 64);
    // Not at once: some steps are late before.
    CHECK(std::count(widths.begin() + 200, widths.end(), 32U) < 100);
  }
}

TEST_CASE(
    "The target is that of the class, else what the client gives its steps; or the policy's") {
  const auto widths = [](const char* policy, std::uint64_t given, std::uint64_t class_target) {
    Stage stage(policy);
    const auto takes = [](std::uint32_t m) { return std::uint64_t{4 * kMs * 132 / m}; };
    return steps_of(stage, 400, takes, false, given, class_target).back();
  };
  CHECK(widths("tpot-first:target=30", 30 * kMs, 0) == 32);  // 65 % of it are 27.1 processors
  CHECK(widths("tpot-first:target=30", 30 * kMs, 15 * kMs) == 64);  // 54.2
  CHECK(widths("tpot-first:target=30", 15 * kMs, 15 * kMs) == 64);
  CHECK(widths("tpot-first:target=30", 15 * kMs, 0) == 64);
  CHECK(widths("tpot-first:target=15", 60 * kMs, 0) == 64);
  CHECK(widths("tpot-first:target=15", 60 * kMs, 30 * kMs) == 32);
}

TEST_CASE("A step that needs more than the reservation has that at once, and while steps say so") {
  Stage stage("tpot-first:target=30");
  const auto takes = [](std::uint32_t m) { return 3 * kMs + kMs * 132 / m; };
  const auto widths = steps_of(stage, 600, takes, false, 30 * kMs, 0, 400);
  REQUIRE(widths[400] <= 12);
  CHECK(std::all_of(widths.begin() + 402, widths.end(), [](auto width) { return width >= 13; }));
  CHECK(widths.back() <= 20);
}

TEST_CASE("Somebody has the rest whatever a decode holds") {
  for (const char* name : {"tpot-first:target=30,reserve=8", "tpot-first:target=30,reserve=32",
                           "tpot-first:target=30,reserve=8,lookahead=0",
                           "tpot-first:target=30,lend=0", "tpot-first:target=5"})
    for (const std::uint64_t ms : {3, 25, 60}) {
      CAPTURE(name);
      CAPTURE(ms);
      Stage stage(name);
      steps_of(stage, 100, [&](std::uint32_t) { return ms * kMs; });
    }
}

TEST_CASE("All lanes of a client that decodes are where its steps are") {
  Stage stage("tpot-first:target=30");
  const auto takes = [](std::uint32_t m) { return std::uint64_t{4 * kMs * 132 / m}; };
  CHECK(steps_of(stage, 200, takes, true).back() == 32);
}

TEST_CASE("A decode at risk gets the narrowest entry that is in time, drained before it is ready") {
  Stage stage("tpot-first:target=30");
  stage.scheduler->wants(decode(1, 4 * kMs, 30 * kMs, 1), 0);
  const EntryId reservation = stage.granted(stage.decide(0), 1);
  stage.scheduler->idle(1, 0, kMs);
  stage.scheduler->returned(1, 0, reservation, kMs);
  stage.scheduler->wants(training(2), kMs);
  const EntryId rest = stage.granted(stage.decide(kMs), 2);
  // Announced behind a copy: ready at 10 ms, due at 20: 4 ms of work must end within 10, so on 50
  // processors at least, as long as nobody has seen its steps.
  Hint hint;
  hint.client = 1;
  hint.kernel = kDecodeKernel;
  hint.kind = OperationClass::kDecode;
  hint.processors = 1;
  hint.queued_ns = 4 * kMs;
  hint.ready_at_ns = 10 * kMs;
  hint.deadline_ns = 20 * kMs;
  stage.scheduler->hint(hint, 5 * kMs);
  const auto prepared = stage.decide(5 * kMs);
  REQUIRE(!prepared.empty());
  CHECK(prepared[0].kind == Decision::Kind::kCloseGate);
  CHECK(prepared[0].client == 2);
  // It goes on at once on what is left of its own.
  const EntryId narrower = stage.granted(prepared, 2);
  REQUIRE(narrower != runtime::kNoEntry);
  CHECK(stage.width(narrower) < 100);
  stage.scheduler->returned(2, 0, rest, 6 * kMs);
  stage.decide(6 * kMs);
  stage.scheduler->wants(decode(1, 4 * kMs, 20 * kMs, 2), 10 * kMs);
  const EntryId wide = stage.granted(stage.decide(10 * kMs), 1);
  REQUIRE(wide != runtime::kNoEntry);
  CHECK(unseen(4 * kMs, stage.width(wide)) <= 10 * kMs);
  CHECK(stage.width(wide) <= 68);
}

TEST_CASE("Best effort makes way for a prefill, as a whole, and goes on when it has ended") {
  Stage stage("tpot-first:quiet=2000");
  ReadyOperation best_effort = training(2);
  best_effort.kind = OperationClass::kBestEffort;
  stage.scheduler->wants(best_effort, 0);
  const EntryId all = stage.granted(stage.decide(0), 2);
  REQUIRE(stage.width(all) == 132);
  ReadyOperation prefill = training(3);
  prefill.kind = OperationClass::kPrefill;
  stage.scheduler->wants(prefill, kMs);
  const auto closed = stage.decide(kMs);
  CHECK(stage.granted(closed, 2) == runtime::kNoEntry);
  REQUIRE(!closed.empty());
  CHECK(closed[0].kind == Decision::Kind::kCloseGate);
  CHECK(closed[0].client == 2);
  stage.scheduler->returned(2, 0, all, 2 * kMs);
  EntryId entry = stage.granted(stage.decide(2 * kMs), 3);
  if (entry == runtime::kNoEntry) entry = stage.granted(closed, 3);
  REQUIRE(entry != runtime::kNoEntry);
  CHECK(stage.width(entry) == 132);
  // The next chunk, a moment later: nobody else has run in between.
  stage.scheduler->idle(3, 0, 5 * kMs);
  stage.scheduler->returned(3, 0, entry, 5 * kMs);
  CHECK(stage.decide(5 * kMs).empty());
  stage.scheduler->wants(prefill, 5 * kMs + kMs / 2);
  CHECK(stage.granted(stage.decide(5 * kMs + kMs / 2), 3) != runtime::kNoEntry);
  stage.scheduler->idle(3, 0, 8 * kMs);
  stage.scheduler->returned(3, 0, entry, 8 * kMs);
  CHECK(stage.decide(8 * kMs).empty());
  CHECK(stage.scheduler->wake_at() <= 9 * kMs);
  CHECK(stage.granted(stage.decide(9 * kMs), 2) == all);
}

ReadyOperation request(runtime::ClientId client) {
  ReadyOperation operation;
  operation.client = client;
  operation.kernel = kDecodeKernel;
  operation.right_of_way = true;
  return operation;
}

bool closes(const std::vector<Decision>& decisions, runtime::ClientId client) {
  return std::any_of(decisions.begin(), decisions.end(), [&](const Decision& decision) {
    return decision.kind == Decision::Kind::kCloseGate && decision.client == client;
  });
}

TEST_CASE(
    "beside=always: a request stops nobody; one that was on a part goes over; a prefill does") {
  Stage stage("tpot-first:beside=always,quiet=2000");
  stage.scheduler->wants(training(2), 0);
  stage.scheduler->wants(training(3), 0);
  auto decisions = stage.decide(0);
  REQUIRE(stage.granted(decisions, 2) != runtime::kWholeDevice);  // nobody tells progress: parts
  stage.scheduler->wants(request(1), kMs);
  decisions = stage.decide(kMs);
  CHECK(stage.granted(decisions, 2) == runtime::kWholeDevice);
  CHECK(stage.granted(decisions, 3) == runtime::kWholeDevice);
  CHECK(stage.granted(decisions, 1) == runtime::kWholeDevice);  // beside what drains there
  for (const Decision& decision : decisions)
    if (decision.kind == Decision::Kind::kCloseGate)
      stage.scheduler->returned(decision.client, 0, decision.entry, kMs);
  decisions = stage.decide(kMs);
  // Its own lease, around which the others are.
  const EntryId lease = stage.granted(decisions, 1);
  REQUIRE(lease != runtime::kNoEntry);
  CHECK(lease != runtime::kWholeDevice);
  CHECK(stage.width(lease) == 132);
  CHECK(!closes(decisions, 2));
  // Somebody who waits gets it at once, too.
  stage.scheduler->wants(training(4), 2 * kMs);
  CHECK(stage.granted(stage.decide(2 * kMs), 4) == runtime::kWholeDevice);
  ReadyOperation prefill = training(5);
  prefill.kind = OperationClass::kPrefill;
  stage.scheduler->wants(prefill, 3 * kMs);
  decisions = stage.decide(3 * kMs);
  for (const runtime::ClientId client : {2U, 3U, 4U}) CHECK(closes(decisions, client));
}

TEST_CASE("Where nobody tells how the service gets on, and with beside=never, others make way") {
  for (const char* specification : {"tpot-first:quiet=2000", "tpot-first:beside=never"}) {
    Stage stage(specification);
    stage.scheduler->wants(training(2), 0);
    stage.decide(0);
    std::uint64_t now = 0;
    for (int i = 0; i < 200; ++i) {
      now += 100 * kMs;
      stage.scheduler->wants(request(1), now);
      auto decisions = stage.decide(now);
      CHECK(closes(decisions, 2));
      for (const Decision& decision : decisions)
        if (decision.kind == Decision::Kind::kCloseGate)
          stage.scheduler->returned(decision.client, 0, decision.entry, now);
      decisions = stage.decide(now);
      now += 50 * kMs;
      stage.scheduler->idle(1, 0, now);
      for (const auto& entry : stage.layout.entries())
        stage.scheduler->returned(1, 0, entry.id, now);
      stage.decide(now);
      now += 5 * kMs;
      CHECK(stage.granted(stage.decide(now), 2) != runtime::kNoEntry);
    }
  }
}

TEST_CASE("Without lookahead the reservation is all; without reservation preparation is") {
  Stage without("tpot-first:lookahead=0");
  without.scheduler->wants(decode(1, 4 * kMs, 6 * kMs), 0);
  // Its share, though that is too little, rather than what would do.
  without.scheduler->wants(training(2), 0);
  CHECK(without.width(without.granted(without.decide(0), 1)) < 44 + 30);
  Stage only("tpot-first:reservation=0");
  only.scheduler->wants(decode(1, 4 * kMs, 6 * kMs), 0);
  CHECK(only.width(only.granted(only.decide(0), 1)) >= 44);
}

TEST_CASE("A target that no width meets is said once, and the decode runs at best effort") {
  Stage stage("tpot-first:target=2");
  std::string said;
  for (std::uint64_t step = 1; step <= 5; ++step) {
    stage.scheduler->wants(decode(1, 4 * kMs, step * 2 * kMs, step), step * 10 * kMs);
    const auto decisions = stage.decide(step * 10 * kMs);
    if (step == 1) CHECK(stage.width(stage.granted(decisions, 1)) >= 66);
    const std::string message = stage.scheduler->policy().take_message();
    CHECK(message.empty() == (step > 1));
    said += message;
  }
  CHECK(said.find("no width up to 132 processors lets client 1 decode within 2 ms") !=
        std::string::npos);
  CHECK(said.find('\n') == std::string::npos);
}

TEST_CASE("Several decoders have reservations of their own, within the share that is allowed") {
  Stage stage("tpot-first:target=6,most=50");
  for (runtime::ClientId client = 1; client <= 6; ++client)
    stage.scheduler->wants(decode(client, 1 * kMs, 100 * kMs), 0);
  stage.decide(0);
  hal::ComputeSet all;
  std::uint32_t processors = 0;
  for (runtime::ClientId client = 1; client <= 6; ++client) {
    const hal::ComputeSet held = stage.scheduler->leases().held(client);
    CHECK(!held.overlaps(all));
    all |= held;
    for (const auto& entry : stage.layout.entries())
      if (!entry.whole() && entry.compute == held) processors += entry.processors;
  }
  CHECK(!all.empty());
  CHECK(processors <= 132);
}

// The finishing time of the decode with the earliest deadline.
std::uint64_t earliest(const char* specification, const PoolLayout& layout, const Profile& profile,
                       const std::vector<Work>& work) {
  World world(layout, policy(specification), SchedulerOptions{}, &profile);
  world.run(work);
  REQUIRE(world.complete());
  std::size_t first = 0;
  std::uint64_t deadline = runtime::kNever;
  for (std::size_t i = 0; i < work.size(); ++i)
    if (work[i].operation.deadline_ns > 0 && work[i].operation.deadline_ns < deadline)
      deadline = work[i].operation.deadline_ns, first = i;
  return std::max(world.ended()[first], deadline);  // in time is in time
}

// Kernels are not preempted and neither policy knows what the other tenants launch next, so a
// decode may find a kernel more in its way than under throughput: one at most, and rarely.
TEST_CASE("Not later than throughput for the earliest deadline: every small case") {
  unsigned cases = 0, better = 0, later = 0;
  for (const unsigned units : {2U, 3U, 4U}) {
    const PoolLayout layout = PoolLayout::build(device(units, 8, 8));
    Profile profile;
    for (const std::uint64_t kernel : {1U, 2U, 3U, 4U})
      measure(profile, kernel, layout, 0, 8e6);  // as the world runs them
    for (unsigned others = 1; others <= 3; ++others)
      for (unsigned decode_at = 0; decode_at <= 2; ++decode_at)
        for (unsigned length = 1; length <= 3; ++length)
          for (unsigned slack = 1; slack <= 4; ++slack)
            for (unsigned second = 0; second <= 1; ++second) {
              std::vector<Work> work;
              for (unsigned i = 0; i < others; ++i) {
                Work item;
                item.operation.client = 10 + i;
                item.operation.kernel = 1;
                item.operation.predicted_ns = kMs / units;
                item.kernels = 8;
                item.kernel_ns = kMs;
                work.push_back(item);
              }
              for (unsigned i = 0; i <= second; ++i) {
                Work item;
                item.at_ns = (decode_at + i) * kMs / 2;
                item.operation = decode(1 + i, length * kMs / units, 0);
                item.operation.kernel = 2;
                item.operation.predicted_ns = kMs / units;
                item.operation.deadline_ns = item.at_ns + slack * kMs;
                item.kernels = length;
                item.kernel_ns = kMs;
                work.push_back(item);
              }
              const std::uint64_t here = earliest("tpot-first:target=3", layout, profile, work);
              const std::uint64_t there = earliest("throughput", layout, profile, work);
              CAPTURE(units);
              CAPTURE(others);
              CAPTURE(decode_at);
              CAPTURE(length);
              CAPTURE(slack);
              CAPTURE(second);
              CHECK(here <= there + kMs);
              later += here > there ? 1 : 0;
              ++cases;
              better += here < there ? 1 : 0;
            }
  }
  MESSAGE(cases << " cases, earlier in " << better << ", later, by a kernel at most, in " << later);
  CHECK(better > cases / 3);
  CHECK(later * 50 <= cases);
}

}  // namespace
}  // namespace vitamin::policies
