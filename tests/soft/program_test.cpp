// SPDX-License-Identifier: Apache-2.0
//
// Random programs against a model: which operations must have ended before one may start is worked
// out from the program text alone, and the trace must agree. Also what a missing order looks like.
#include <algorithm>
#include <map>

#include "backends/soft/hash.h"
#include "tests/soft/harness.h"
#include "tests/soft/kernels.h"

namespace vitamin::soft {
namespace {

// Happens-before by vector clocks: clock[q] is how many operations of queue q have ended.
using ClockVector = std::vector<std::uint64_t>;

void join(ClockVector& into, const ClockVector& from) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
}

class Program {
 public:
  Program(std::uint64_t seed, std::size_t queue_count)
      : random_(seed), queues_(queue_count), clocks_(queue_count, ClockVector(queue_count)) {
    EngineOptions options;
    options.device = DeviceDescription::uniform(4, 2);
    options.seed = seed;
    options.jitter_percent = 50;
    engine_ = std::move(*Engine::create(options));
    engine_->set_trace([this](const TraceRecord& record) { check(record); });
    for (std::size_t q = 0; q < queue_count; ++q) {
      classes_.push_back(q == 0                  ? SyncClass::kLegacy
                         : random_.below(2) == 0 ? SyncClass::kBlocking
                                                 : SyncClass::kNonBlocking);
      const SmSet sms = engine_->device().units_of(1 + random_.below(15));
      queues_[q] = make_queue(*engine_, sms, classes_[q]);
      serials_[engine_->serial_of(queues_[q])] = q;
    }
    for (int e = 0; e < 4; ++e) {
      Event* event = nullptr;
      REQUIRE(engine_->create_event(&event) == kOk);
      events_.push_back(event);
      recorded_.emplace_back(queue_count);
    }
  }

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      enqueue(random_.below(queues_.size()));
      // Some of it runs while the rest is still being enqueued.
      for (std::uint64_t steps = random_.below(4); steps != 0; --steps) engine_->advance();
    }
    CHECK(engine_->drain() == AdvanceResult::kIdle);
    CHECK(engine_->outstanding() == 0);
    CHECK(early_ == 0);
    CHECK(ended_ == static_cast<std::uint64_t>(operations));
  }

 private:
  void enqueue(std::size_t q) {
    // What the queue's next operation must wait for, by the rules: its own past, the other side of
    // the legacy order, the waited-for record.
    ClockVector& clock = clocks_[q];
    if (classes_[q] == SyncClass::kLegacy) {
      for (std::size_t other = 0; other < queues_.size(); ++other)
        if (classes_[other] == SyncClass::kBlocking) join(clock, clocks_[other]);
    } else if (classes_[q] == SyncClass::kBlocking) {
      join(clock, clocks_[0]);
    }
    const std::size_t e = random_.below(events_.size());
    const std::uint64_t what = random_.below(6);
    if (what == 0) join(clock, recorded_[e]);
    required_[{q, clock[q] + 1}] = clock;
    if (what == 0) required_[{q, clock[q] + 1}] = {};  // the wait itself may start early
    clock[q] += 1;
    if (what == 1) recorded_[e] = clock;
    switch (what) {
      case 0:
        REQUIRE(engine_->wait(queues_[q], events_[e]) == kOk);
        break;
      case 1:
        REQUIRE(engine_->record(queues_[q], events_[e]) == kOk);
        break;
      case 2:
        REQUIRE(engine_->work(
                    queues_[q], [] {}, random_.below(3) * 400) == kOk);
        break;
      case 3:
        REQUIRE(engine_->host_function(queues_[q], [](Status) {}) == kOk);
        break;
      default: {
        Call call(VITAMIN_SOFT_KERNEL(count_blocks),
                  {static_cast<std::uint32_t>(1 + random_.below(20)), 1, 1},
                  {static_cast<std::uint32_t>(1 + random_.below(1024)), 1, 1}, &count_);
        REQUIRE(engine_->launch(queues_[q], *call) == kOk);
      }
    }
  }

  void check(const TraceRecord& record) {
    const std::size_t q = serials_[record.queue];
    if (record.phase == TraceRecord::Phase::kEnd) {
      if (record.ticket != done(q) + 1) ++early_;
      done_[q] = record.ticket;
      ++ended_;
    }
    if (record.phase != TraceRecord::Phase::kStart) return;
    const ClockVector& required = required_[{q, record.ticket}];
    for (std::size_t other = 0; other < required.size(); ++other)
      if (done(other) < required[other]) ++early_;
  }
  std::uint64_t done(std::size_t q) { return done_[q]; }

  Random random_;
  std::unique_ptr<Engine> engine_;
  std::vector<Queue*> queues_;
  std::vector<SyncClass> classes_;
  std::vector<Event*> events_;
  std::vector<ClockVector> clocks_, recorded_;
  std::map<std::uint64_t, std::size_t> serials_;
  std::map<std::pair<std::size_t, std::uint64_t>, ClockVector> required_;
  std::map<std::size_t, std::uint64_t> done_;
  std::uint64_t early_ = 0, ended_ = 0;
  std::uint32_t count_ = 0;
};

TEST_CASE("in random programs no operation starts before what it must wait for has ended") {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) Program(seed, 2 + seed % 5).run(60);
}

// What a reader at time 50 sees of a writer that lasts from 0 to 100, over many seeds.
std::map<std::uint32_t, int> seen_in_the_middle(bool copy, bool seeded) {
  std::map<std::uint32_t, int> seen;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    EngineOptions options;
    options.device = DeviceDescription::uniform(4, 2);
    options.seed = seed;
    options.seeded_effect_time = seeded;
    auto engine = std::move(*Engine::create(options));
    Queue* writer = make_queue(*engine, engine->device().unit(0));
    Queue* reader = make_queue(*engine, engine->device().unit(1));
    std::uint32_t value = 0;
    std::uint32_t read = 99;
    Call call(VITAMIN_SOFT_KERNEL(count_blocks), {}, {}, &value);
    if (copy)
      REQUIRE(engine->work(
                  writer, [&] { value = 1; }, 100) == kOk);
    else
      REQUIRE(engine->launch(writer, *call) == kOk);
    REQUIRE(engine->work(
                reader, [] {}, 50) == kOk);
    REQUIRE(engine->work(
                reader, [&] { read = value; }, 0) == kOk);
    CHECK(engine->drain() == AdvanceResult::kIdle);
    CHECK(value == 1);
    ++seen[read];
  }
  return seen;
}

TEST_CASE(
    "kernels and copies touch memory when they begin under some seeds, when they end under "
    "others") {
  for (const bool copy : {false, true}) {
    auto seen = seen_in_the_middle(copy, true);
    CHECK(seen.size() == 2);
    CHECK(seen[0] > 10);
    CHECK(seen[1] > 10);
    CHECK(seen_in_the_middle(copy, false) == std::map<std::uint32_t, int>{{1, 60}});
  }
}

}  // namespace
}  // namespace vitamin::soft
