// SPDX-License-Identifier: Apache-2.0
//
// Policies in shared objects: the C interface carries every field, the examples run, and whatever
// a library does wrong ends with fifo and a reason.
#include "scheduler/policies/loadable.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "scheduler/policies/flat.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/fixture.h"
#include "tests/scheduler/shorthand.h"
#include "tests/scheduler/world.h"

namespace vitamin::scheduler {
namespace {

using runtime::PoolLayout;

Policy loaded(const std::string& path, const std::string& parameters, const SandboxLimits& limits) {
  auto policy = load(path, parameters, limits);
  REQUIRE_MESSAGE(policy.has_value(), (policy ? "" : policy.error().message));
  return std::move(*policy);
}

// No verdict is to depend on the speed of the machine: a loop uses up its processor time, and
// nothing else here has a limit that counts.
constexpr SandboxLimits kPatient{std::chrono::seconds(60), std::chrono::seconds(300)};
constexpr SandboxLimits kLoop{std::chrono::milliseconds(8), std::chrono::seconds(300)};

std::string refusal(const std::string& path, const std::string& parameters = {}) {
  const auto policy = load(path, parameters, kPatient);
  return policy ? "it was loaded" : policy.error().message;
}

const std::string kPlugins = PLUGINS "/", kExamples = EXAMPLES "/";

// --- fields ----------------------------------------------------------------------------------

// Each binding names every member: a member that is added to a structure does not compile here
// before it is carried over.
TEST_CASE("a flat client has the value of every field") {
  Limits limits{41, 42, 43, true};
  Slo slo{51, 52, 53, 54, 0.5F};
  Progress progress{61, 62, 63, 64, 65};
  {
    auto& [max_sms, reserved_sms, group, may_share, outer] = limits;
    auto& [ttft, tpot, latency, step, quantile] = slo;
    auto& [work, busy, misplaced, launches, collectives] = progress;
    Client client{7, 1.5F, limits, slo, StepKind::kDecode, true, true, true, progress, 71, {}, {}};
    auto& [id, weight, l, s, phase, active, reports, distributed, p, since, streams, steps] =
        client;
    const vitamin_client c = flat(client);
    CHECK(c.size == sizeof c);
    CHECK(c.id == id);
    CHECK(c.weight == weight);
    CHECK(c.max_sms == max_sms);
    CHECK(c.reserved_sms == reserved_sms);
    CHECK(c.group == group);
    CHECK(c.may_share == may_share);
    CHECK(c.ttft_ns == ttft);
    CHECK(c.tpot_ns == tpot);
    CHECK(c.latency_ns == latency);
    CHECK(c.step_ns == step);
    CHECK(c.quantile == quantile);
    CHECK(c.phase == VITAMIN_STEP_DECODE);
    CHECK(phase == StepKind::kDecode);
    CHECK(c.active == active);
    CHECK(c.reports_progress == reports);
    CHECK(c.work == work);
    CHECK(c.busy_ns == busy);
    CHECK(c.misplaced == misplaced);
    CHECK(c.launches == launches);
    CHECK(c.collectives == collectives);
    CHECK(c.distributed == distributed);
    CHECK(c.active_since_ns == since);
    CHECK((l == limits && s == slo && p.work == work && streams.empty() && steps.empty()));
  }
}

TEST_CASE("flat streams and steps have the value of every field") {
  {
    StreamDemand stream{3, StreamDemand::State::kRunning, 5, 6, 7, 8};
    auto& [id, state, min_sms, kernel, predicted, since] = stream;
    const vitamin_stream c = flat(stream);
    CHECK((c.size == sizeof c && c.id == id && c.state == VITAMIN_STREAM_RUNNING));
    CHECK((c.min_sms == min_sms && c.kernel == kernel && c.predicted_ns == predicted));
    CHECK((c.waiting_since_ns == since && state == StreamDemand::State::kRunning));
  }
  {
    Step step{1, 2, 3, 4, StepKind::kIteration, 6, 7, 8, 9, 10};
    auto& [id, request, client, stream, kind, ready, begin, due, work, min_sms] = step;
    const vitamin_step c = flat(step);
    CHECK((c.size == sizeof c && c.id == id && c.request == request && c.client == client));
    CHECK((c.stream == stream && c.kind == VITAMIN_STEP_ITERATION && c.ready_ns == ready));
    CHECK((c.begin_ns == begin && c.due_ns == due && c.work_ns == work && c.min_sms == min_sms));
    CHECK(kind == StepKind::kIteration);
  }
}

TEST_CASE("flat grants and rows have the value of every field") {
  {
    // Why a grant was made and revoked is for people, not for policies.
    Grant grant{1,
                2,
                3,
                4,
                Mode::kExclusive,
                Grant::State::kRevoked,
                Reason::kStarving,
                Reason::kIdle,
                9,
                10,
                11,
                12,
                13};
    auto& [id, client, stream, partition, mode, state, reason, revoked, launches, ahead, requested,
           opened, revoked_ns] = grant;
    const vitamin_grant c = flat(grant);
    CHECK((c.size == sizeof c && c.id == id && c.client == client && c.stream == stream));
    CHECK((c.partition == partition && c.mode == VITAMIN_EXCLUSIVE));
    CHECK((c.state == VITAMIN_GRANT_REVOKED && c.launches == launches));
    CHECK((c.run_ahead_ns == ahead && c.requested_ns == requested && c.opened_ns == opened));
    CHECK((c.revoked_ns == revoked_ns && c.heard_ns == revoked_ns));
    CHECK((mode == Mode::kExclusive && state == Grant::State::kRevoked));
    CHECK((reason == Reason::kStarving && revoked == Reason::kIdle));
  }
  {
    Row row{1, 2, 3, Mode::kPaused, 5, true, 7, 8, 9};
    auto& [client, stream, partition, mode, rank, hold, launches, ahead, until] = row;
    const vitamin_row c = flat(row);
    CHECK((c.size == sizeof c && c.client == client && c.stream == stream));
    CHECK((c.partition == partition && c.mode == VITAMIN_PAUSED && c.rank == rank));
    CHECK((c.hold == hold && c.launches == launches && c.run_ahead_ns == ahead));
    CHECK((c.until_ns == until && mode == Mode::kPaused));
    CHECK(from_flat(c) == row);
    const vitamin_row usual = vitamin_row_for(5);
    Row expected;
    expected.client = 5;
    CHECK(from_flat(usual) == expected);
  }
}

static_assert(VITAMIN_STEP_UNKNOWN == static_cast<int>(StepKind::kUnknown) &&
              VITAMIN_STEP_PREFILL == static_cast<int>(StepKind::kPrefill));
static_assert(VITAMIN_SHARED == static_cast<int>(Mode::kShared));
static_assert(VITAMIN_STREAM_IDLE == static_cast<int>(StreamDemand::State::kIdle) &&
              VITAMIN_STREAM_WAITING == static_cast<int>(StreamDemand::State::kWaiting));
static_assert(VITAMIN_GRANT_PENDING == static_cast<int>(Grant::State::kPending) &&
              VITAMIN_GRANT_OPEN == static_cast<int>(Grant::State::kOpen));
static_assert(VITAMIN_ALL_STREAMS == kAllStreams && VITAMIN_NEVER == kNever &&
              VITAMIN_NO_PARTITION == kNoPartition && VITAMIN_WHOLE_DEVICE == kWholeDevice &&
              VITAMIN_AS_ALONE_NS == kAsAloneNs);

TEST_CASE("numbers beyond a field stay beyond any valid value") {
  vitamin_row row = vitamin_row_for(1);
  row.partition = 70'000;
  row.mode = 257;
  row.rank = 1'000;
  CHECK(from_flat(row).partition == 65'534);  // 65'535 is "none"
  CHECK(from_flat(row).mode == static_cast<Mode>(255));
  CHECK(from_flat(row).rank == 255);
}

TEST_CASE("a flat snapshot holds streams, steps and speeds of each client") {
  class Half final : public Estimates {
   public:
    Speed speed(ClientId client, Assignments configuration) const override {
      if (client == 9) return {};
      return {static_cast<float>(configuration[0].partition), 0.25F};
    }
  };
  const PoolLayout layout = four_units();
  const Half estimates;
  std::vector<StreamDemand> streams(3);
  for (StreamId id = 0; id < 3; ++id) streams[id].id = 10 + id;
  std::vector<Step> steps(2);
  steps[1].id = 5;
  std::vector<Client> clients(2);
  clients[0].id = 4;
  clients[0].streams = std::span(streams).first(1);
  clients[1].id = 9;
  clients[1].streams = std::span(streams).last(2);
  clients[1].steps = steps;
  Snapshot snapshot;
  snapshot.pool = layout.partitions();
  snapshot.clients = clients;
  snapshot.estimates = &estimates;
  snapshot.now_ns = 77;
  FlatSnapshot flat_snapshot;
  flat_snapshot.fill(snapshot);
  const vitamin_snapshot& view = flat_snapshot.view();
  CHECK(view.now_ns == 77);
  REQUIRE(view.clients_count == 2);
  REQUIRE(view.partitions_count == layout.size());
  CHECK(VITAMIN_AT(vitamin_partition, view.partitions, 1)->sms == 8);
  const auto* const second = VITAMIN_AT(vitamin_client, view.clients, 1);
  REQUIRE(second->streams_count == 2);
  CHECK(VITAMIN_AT(vitamin_stream, second->streams, 1)->id == 12);
  REQUIRE(second->steps_count == 2);
  CHECK(VITAMIN_AT(vitamin_step, second->steps, 1)->id == 5);
  float mean = 0, error = 0;
  REQUIRE(view.speed(&view, 4, 3, &mean, &error) == 1);
  CHECK(mean == 3);
  CHECK(error == 0.25F);
  CHECK(view.speed(&view, 9, 3, &mean, &error) == 0);
  CHECK(view.speed(&view, 5, 3, &mean, &error) == 0);
  CHECK(view.speed(&view, 4, 3'000, &mean, &error) == 0);
}

// --- libraries -------------------------------------------------------------------------------

TEST_CASE("what is no policy of this version is refused with a sentence") {
  CHECK(refusal("./no/such.so").find("policy library ./no/such.so: ") == 0);
  CHECK(refusal(kPlugins + "scheduler_no_policy.so").find("exports no function vitamin_policy") !=
        std::string::npos);
  CHECK(refusal(kPlugins + "scheduler_old_policy.so")
            .find("compiled for policy ABI 1, this Vitamin has 2; compile it again") !=
        std::string::npos);
  CHECK(refusal(kPlugins + "scheduler_two_interfaces.so").find("exactly one is needed") !=
        std::string::npos);
  CHECK(refusal(kPlugins + "scheduler_shorter_table.so").find("its table is incomplete") !=
        std::string::npos);
  CHECK(refusal(kPlugins + "scheduler_bad_policy.so", "refuse")
            .find("refuses 'refuse': I do not like these parameters") != std::string::npos);
  for (const char* bad : {"share=0", "share=2,x", "share=-1", "share="})
    CHECK_MESSAGE(
        refusal(kExamples + "round_robin.so", bad).find("is not share=N") != std::string::npos,
        bad);
}

// As one that was compiled before the table grew: what stands behind it in memory is not its own.
TEST_CASE("a table that is smaller than this header's is taken, and lacks what is behind its end") {
  const PoolLayout layout = h200();
  Scheduler scheduler(layout.partitions(),
                      loaded(kPlugins + "scheduler_short_table.so", {}, kPatient));
  scheduler.wants(1, demand(0), 1);
  const auto decisions = decide(scheduler, 1);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].reason == Reason::kPolicy);
  scheduler.forget(1, 2);
  CHECK(scheduler.fault() == "");
}

TEST_CASE("a structure of another size has the fields that both know, and zeros") {
  const std::vector<vitamin_row> rows(2, vitamin_row_for(7));
  constexpr std::size_t kLess = offsetof(vitamin_row, launches);
  const auto less = complete<vitamin_row>(rows.data(), kLess);
  CHECK((less.size == sizeof less && less.client == 7 && less.stream == VITAMIN_ALL_STREAMS));
  CHECK((less.run_ahead_ns == 0 && less.until_ns == 0));
  const auto more = complete<vitamin_row>(rows.data(), sizeof(vitamin_row) + 8);
  CHECK((more.size == sizeof more && more.client == 7 && more.until_ns == VITAMIN_NEVER));
}

TEST_CASE("a path stands for what was loaded first, for as long as a policy of it lives") {
  char directory[] = "/tmp/vitamin-policy-XXXXXX";
  REQUIRE(::mkdtemp(directory) != nullptr);
  const std::filesystem::path path = std::filesystem::path(directory) / "mine.so";
  const auto put = [&](const char* what) {
    std::filesystem::copy_file(kPlugins + what, path.string() + ".new");
    std::filesystem::rename(path.string() + ".new", path);
  };
  put("scheduler_bad_policy.so");
  {
    const Policy first = loaded(path, {}, kPatient);
    put("scheduler_bad_placement.so");
    CHECK(loaded(path, {}, kPatient).allocation != nullptr);
    CHECK(first.allocation != nullptr);
  }
  std::filesystem::remove_all(directory);
}

TEST_CASE("a library that fails while its policy is created is refused, within limits") {
  const auto why = [](const char* parameter, const SandboxLimits& limits) {
    const auto policy = load(kPlugins + "scheduler_bad_policy.so", parameter, limits);
    return policy ? "it was loaded" : policy.error().message;
  };
  CHECK(
      why("create-throw", kPatient).ends_with("refuses 'create-throw': create() failed: planted"));
  CHECK(why("create-loop", {std::chrono::milliseconds(8), std::chrono::milliseconds(300)})
            .find("refuses 'create-loop': create() failed: no answer to create within 300 ms") !=
        std::string::npos);
}

// Two launches at a time would fit; clients without a part are served when another's are used up.
TEST_CASE("the example in C gives more clients than there are parts their turns") {
  const PoolLayout layout = four_units();
  SchedulerOptions options;
  options.starving_after_ns = 1'000'000'000;
  World world(layout, loaded(kExamples + "round_robin.so", "share=2", kPatient), options);
  std::vector<Work> work(4);
  for (ClientId client = 1; client <= 4; ++client) {
    work[client - 1].client = client;
    work[client - 1].kernels = 100'000;
    work[client - 1].kernel_ns = 100'000;
  }
  world.run(work, 2'000'000'000);
  CHECK(world.scheduler().counters().starving == 0);
  CHECK(world.longest_wait() < 100'000'000);
  for (ClientId client = 1; client <= 4; ++client) {
    CAPTURE(client);
    CHECK(world.ran_ns(client) > 900'000'000);
    CHECK(world.ran_ns(client) < 1'100'000'000);
  }
}

TEST_CASE("narrow_first places what is known to be short first, on parts that run it") {
  class Flat final : public Estimates {  // as fast on any part
    Speed speed(ClientId, Assignments) const override { return {1, 0.01F}; }
  };
  const Flat flat_speeds;
  const PoolLayout layout = four_units();
  Scheduler scheduler(layout.partitions(), loaded(kExamples + "narrow_first.so", {}, kPatient), {},
                      &flat_speeds);
  StreamDemand unknown = demand(0, 24), wide = demand(0, 16), narrow = demand(0);
  wide.predicted_ns = 20'000;
  narrow.predicted_ns = 10'000;
  scheduler.wants(1, unknown, 1);
  scheduler.wants(2, wide, 1);
  scheduler.wants(3, narrow, 1);
  decide(scheduler, 1);
  std::uint32_t sms[4] = {};
  for (const Planned& planned : scheduler.plan()) {
    sms[planned.row.client] = layout.at(planned.row.partition).sms;
    if (planned.row.client != 1) CHECK(planned.reason == Reason::kPolicy);
  }
  CHECK(sms[3] == 8);
  CHECK(sms[2] == 16);
}

TEST_CASE("a library that misbehaves is replaced by fifo, with the reason") {
  const PoolLayout layout = h200();
  const struct {
    std::string library, parameter, reason;
  } cases[] = {
      {"bad_policy", "throw", "bad: allocate() failed: planted"},
      {"bad_policy", "fail", "bad: allocate() failed: allocate() returned -1 rows"},
      {"bad_policy", "beyond", "bad: allocate() failed: allocate() returned "},
      {"bad_policy", "size", "bad: allocate() failed: allocate() returned a row without"},
      {"bad_policy", "partition", "bad: a row names a partition that the pool lacks"},
      {"bad_policy", "mode", "bad: a row has no valid mode"},
      {"bad_policy", "client", "bad: a row names a client that the snapshot lacks"},
      {"bad_policy", "loop", "bad: allocate() failed: no answer to allocate within 8 ms"},
      {"bad_placement", "throw", "bad: place() failed: planted"},
      {"bad_placement", "partition", "bad: place() returned a partition that is not eligible"},
      {"bad_placement", "loop", "bad: place() failed: no answer to place within 8 ms"},
      {"bad_callbacks", "beyond", "bad: allocate() failed: pick() returned operation 1 of 1"},
      {"bad_callbacks", "partition", "bad: allocate() failed: select() returned a partition that "},
      {"bad_callbacks", "loop", "bad: allocate() failed: no answer to pick, select and prepare"}};
  for (const auto& one : cases) {
    CAPTURE(one.library);
    CAPTURE(one.parameter);
    Scheduler scheduler(layout.partitions(),
                        loaded(kPlugins + "scheduler_" + one.library + ".so", one.parameter,
                               one.parameter == "loop" ? kLoop : kPatient));
    scheduler.wants(1, demand(0), 1);
    const auto decisions = decide(scheduler, 1);
    REQUIRE(decisions.size() == 1);
    CHECK(decisions[0].reason == Reason::kFallback);
    CHECK_MESSAGE(scheduler.fault().find(one.reason) == 0, scheduler.fault());
  }
}

// The row of the first client would be looked up in the pool for the second one.
TEST_CASE("a partition of select that is not eligible is a fault before the next client is asked") {
  const PoolLayout layout = h200();
  for (const char* what : {"partition", "taken"}) {
    const std::string parameter = what;
    CAPTURE(parameter);
    Scheduler scheduler(layout.partitions(),
                        loaded(kPlugins + "scheduler_bad_callbacks.so", parameter, kPatient));
    for (const ClientId client : {1U, 2U}) scheduler.wants(client, demand(0), 1);
    const auto decisions = decide(scheduler, 1);
    CHECK(decisions.size() == 2);
    for (const Decision& decision : decisions) CHECK(decision.reason == Reason::kFallback);
    CHECK(scheduler.fault() ==
          "bad: allocate() failed: select() returned a partition that is not eligible");
  }
}

TEST_CASE("a library that fails in forget is replaced, and the client is forgotten") {
  const PoolLayout layout = h200();
  Scheduler scheduler(layout.partitions(),
                      loaded(kPlugins + "scheduler_bad_policy.so", "forget", kPatient));
  scheduler.wants(1, demand(0), 1);
  CHECK(decide(scheduler, 1).size() == 1);
  scheduler.wants(2, demand(0), 2);
  decide(scheduler, 2);
  scheduler.forget(1, 3);
  CHECK(scheduler.fault() == "bad: forget() failed: planted");
  const auto decisions = decide(scheduler, 4);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].client == 2);
}

std::vector<Work> some_work(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Work> all;
  for (int i = 0; i < 60; ++i) {
    Work work;
    work.at_ns = random() % 20'000'000;
    work.client = 1 + static_cast<ClientId>(random() % 5);
    work.stream = static_cast<StreamId>(random() % 2);
    work.min_sms = 1 + static_cast<std::uint32_t>(random() % 8);
    work.kernels = 1 + static_cast<unsigned>(random() % 20);
    work.kernel_ns = 1'000 + random() % 400'000;
    all.push_back(work);
  }
  return all;
}

TEST_CASE("the examples run any work to its end") {
  const PoolLayout layout = four_units();
  for (const char* name : {"round_robin.so", "narrow_first.so"}) {
    const std::string what = name;
    CAPTURE(what);
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      World world(layout, loaded(kExamples + name, {}, kPatient));
      world.run(some_work(seed));
      REQUIRE(world.complete());
      CHECK(world.scheduler().fault().empty());
    }
  }
}

TEST_CASE("the example in C, in the paper's callbacks, gives parts in turn and prepares decodes") {
  const PoolLayout layout = h200();
  Scheduler scheduler(layout.partitions(),
                      loaded(kExamples + "round_robin.so", "share=5", kPatient));
  for (const ClientId client : {3U, 1U, 2U}) scheduler.wants(client, demand(0), 1);
  const auto decisions = decide(scheduler, 1);
  REQUIRE(decisions.size() == 3);
  hal::ComputeSet used;
  for (const Decision& decision : decisions) {
    CHECK(decision.mode == Mode::kExclusive);
    CHECK(layout.at(decision.partition).sms == 32);
    CHECK_FALSE(layout.at(decision.partition).compute.overlaps(used));
    used |= layout.at(decision.partition).compute;
  }
  const Step step = decode_step(9, 1'000'000);
  scheduler.step_expected(step, 2);
  CHECK(decide(scheduler, 2).empty());  // a part is free
  scheduler.wants(9, demand(0), 4);
  const auto granted = decide(scheduler, 4);
  REQUIRE(granted.size() == 1);
  CHECK(granted[0].client == 9);
  CHECK(layout.at(granted[0].partition).sms == 36);
}

// Two decodes that are announced at once, whose clients then work: each keeps a part of its own,
// and an earlier client keeps what it has.
TEST_CASE("the example in C prepares a part for each of two decodes, and revokes none for them") {
  const PoolLayout layout = four_units();
  Scheduler scheduler(layout.partitions(),
                      loaded(kExamples + "round_robin.so", "share=4", kPatient));
  scheduler.wants(1, demand(0), 1);
  REQUIRE(decide(scheduler, 1).size() == 1);
  for (const ClientId client : {8U, 9U}) scheduler.step_expected(decode_step(client, 1'000'000), 2);
  CHECK(decide(scheduler, 2).empty());
  hal::ComputeSet used;
  unsigned parts = 0;
  for (const Planned& planned : scheduler.plan()) {
    if (planned.row.mode == Mode::kPaused) continue;  // further streams of client 1
    ++parts;
    CHECK(planned.row.mode == Mode::kExclusive);
    CHECK(layout.at(planned.row.partition).sms == 8);
    CHECK_FALSE(layout.at(planned.row.partition).compute.overlaps(used));
    used |= layout.at(planned.row.partition).compute;
  }
  CHECK(parts == 3);
  for (const ClientId client : {8U, 9U}) scheduler.wants(client, demand(0), 3);
  CHECK(decide(scheduler, 3).size() == 2);
  // The next decodes, while both run.
  for (const ClientId client : {8U, 9U}) {
    Step next = decode_step(client, 2'000'000);
    next.id = 2;
    scheduler.step_expected(next, 4);
  }
  for (const Decision& decision : decide(scheduler, 4))
    CHECK(decision.kind != Decision::Kind::kRevoke);
}

}  // namespace
}  // namespace vitamin::scheduler
