// SPDX-License-Identifier: Apache-2.0
//
// Virtual time is cheap enough for hundreds of thousands of random programs.
#include "tests/cost.h"
#include "tests/soft/harness.h"
#include "tests/soft/kernels.h"

namespace vitamin::soft {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
constexpr double kRateMin = 10'000;
constexpr double kMakeMax = 10e-3;  // seconds
#else
constexpr double kRateMin = 300'000;  // millions on an idle core; tests share theirs
constexpr double kMakeMax = 200e-6;
#endif

TEST_CASE("simple operations pass at a rate that random programs can live with") {
  auto engine = make_engine(DeviceDescription::h200());
  std::vector<Queue*> queues;
  for (int i = 0; i < 8; ++i) queues.push_back(make_queue(*engine, engine->device().unit(i % 4u)));
  Event* event = nullptr;
  REQUIRE(engine->create_event(&event) == kOk);
  std::uint32_t count = 0;
  Call call(VITAMIN_SOFT_KERNEL(count_blocks), {2, 1, 1}, {64, 1, 1}, &count);
  constexpr int kRounds = 20'000;
  const auto rounds = [&] {
    count = 0;
    for (int round = 0; round < kRounds; ++round) {
      Queue* const from = queues[static_cast<std::size_t>(round) % queues.size()];
      Queue* const to = queues[static_cast<std::size_t>(round + 3) % queues.size()];
      REQUIRE(engine->launch(from, *call) == kOk);
      REQUIRE(engine->record(from, event) == kOk);
      REQUIRE(engine->wait(to, event) == kOk);
      REQUIRE(engine->launch(to, *call) == kOk);
      REQUIRE(engine->marker(to) == kOk);
      if (round % 16 == 0) REQUIRE(engine->drain() == AdvanceResult::kIdle);
    }
    REQUIRE(engine->drain() == AdvanceResult::kIdle);
    CHECK(count == 4 * kRounds);
  };
  const double seconds =
      test::lowest(5 * kRounds / kRateMin, [&] { return test::seconds(rounds); });
  const double rate = 5 * kRounds / seconds;
  MESSAGE("operations per second: " << rate);
  CHECK(rate > kRateMin);
}

TEST_CASE("an engine is cheap to make and to destroy") {
  constexpr int kEngines = 200;
  const auto engines = [] {
    for (int i = 0; i < kEngines; ++i) {
      auto engine = make_engine(DeviceDescription::h200(), static_cast<std::uint64_t>(i));
      REQUIRE(engine->marker(make_queue(*engine)) == kOk);
      REQUIRE(engine->drain() == AdvanceResult::kIdle);
    }
  };
  const double seconds = test::lowest(kEngines * kMakeMax, [&] { return test::seconds(engines); });
  MESSAGE("microseconds per engine: " << seconds / kEngines * 1e6);
  CHECK(seconds / kEngines < kMakeMax);
}

}  // namespace
}  // namespace vitamin::soft
