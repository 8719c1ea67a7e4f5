// SPDX-License-Identifier: Apache-2.0
//
// What live launches teach, and what the window makes of it. In the device's virtual time a kernel
// lasts exactly what it lasts.
#include "runtime/profile/profiler.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tests/runtime/fixture.h"
#include "tests/soft/kernels.h"

namespace vitamin::tests {
namespace {

using runtime::Profile;
using soft::vitamin_kernel_busy;

VITAMIN_KERNEL_WITH((.block_ns = 5000), sum_kernel, unsigned* total) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(total, 1U); }
}

std::uint64_t key_of(const Fixture& f, const soft::KernelDescriptor* kernel, unsigned blocks) {
  hal::KernelLaunch launch;
  launch.grid = {blocks, 1, 1};
  launch.block = {32, 1, 1};
  return runtime::launch_key(runtime::name_hash(f.context->device().inspector().name(kernel)),
                             launch);
}

TEST_CASE("What was learnt is what the device took, width by width") {
  Profile learnt;
  FixtureOptions options;
  options.profiler.every = 1;
  options.keep_profile = [&](const Profile& profile) { learnt = profile; };
  std::uint64_t small = 0, large = 0;
  std::vector<Stay> stays;
  {
    Fixture f(options);
    runtime::Stream& stream = f.stream();
    unsigned total = 0;
    unsigned* address = &total;
    for (unsigned i = 0; i < 400; ++i)
      REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(sum_kernel), {&address}, i % 2 == 0 ? 8 : 100) ==
              0);
    CHECK(f.context->synchronize(stream) == 0);
    small = key_of(f, VITAMIN_SOFT_KERNEL(sum_kernel), 8);
    large = key_of(f, VITAMIN_SOFT_KERNEL(sum_kernel), 100);
    f.context->finish_timing();
    stays = f.stays;
  }
  REQUIRE(small != large);
  std::map<std::pair<unsigned, unsigned>, double> took;  // (blocks, SMs) -> ns
  for (const Stay& stay : stays)
    took[{stay.grid.x, stay.sms.count()}] = static_cast<double>(stay.end - stay.start);
  unsigned compared = 0, samples = 0;
  for (const auto& [key, blocks] : {std::pair(small, 8U), std::pair(large, 100U)}) {
    const runtime::KernelProfile* kernel = learnt.find(key);
    REQUIRE(kernel != nullptr);
    CHECK(kernel->name.find("sum_kernel") != std::string::npos);
    CHECK(kernel->blocks == blocks);
    CHECK(kernel->resident > 0);
    for (const runtime::ProfileCell& cell : kernel->cells) {
      const auto found = took.find({blocks, cell.sms});
      REQUIRE(found != took.end());
      CHECK(cell.mean_ns == doctest::Approx(found->second).epsilon(0.01));
      ++compared, samples += static_cast<unsigned>(cell.count);
    }
  }
  CHECK(compared >= 10);
  CHECK(samples > 200);
}

TEST_CASE("One launch in so many is timed, and none where times are not asked for") {
  for (const unsigned every : {0U, 1U, 7U}) {
    Profile learnt;
    FixtureOptions options;
    options.policy = "static";
    options.profiler.every = every;
    options.keep_profile = [&](const Profile& profile) { learnt = profile; };
    {
      Fixture f(options);
      runtime::Stream& stream = f.stream();
      unsigned total = 0;
      unsigned* address = &total;
      for (unsigned i = 0; i < 140; ++i)
        REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(sum_kernel), {&address}) == 0);
      CHECK(f.context->synchronize(stream) == 0);
    }
    std::uint64_t samples = 0;
    for (const auto& [key, kernel] : learnt.kernels())
      for (const runtime::ProfileCell& cell : kernel.cells) samples += cell.count;
    // And as many again, while little is known.
    const std::uint64_t regular = every == 0 ? 0 : 140 / every;
    CHECK(samples >= regular);
    CHECK(samples <= (every == 1 ? 1 : 2) * regular);
  }
}

TEST_CASE("Rare kernels are known soon, and common ones are not timed more often than asked") {
  constexpr unsigned kRare = 40, kLaunches = 97 * 60;
  Profile learnt;
  FixtureOptions options;
  options.policy = "static";
  options.profiler.every = 97;
  options.keep_profile = [&](const Profile& profile) { learnt = profile; };
  std::uint64_t common = 0;
  {
    Fixture f(options);
    runtime::Stream& stream = f.stream();
    unsigned total = 0;
    unsigned* address = &total;
    common = key_of(f, VITAMIN_SOFT_KERNEL(sum_kernel), 100);
    for (unsigned i = 0; i < kLaunches; ++i) {
      // One in twenty is one of forty others: each is launched seven times in all.
      const unsigned blocks = i % 20 == 19 ? 1 + i / 20 % kRare : 100;
      REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(sum_kernel), {&address}, blocks) == 0);
      if (i % 97 != 0) continue;
      CHECK(f.context->synchronize(stream) == 0);
      f.context->finish_timing();
    }
    CHECK(f.context->synchronize(stream) == 0);
  }
  CHECK(learnt.kernels().size() > 30);
  std::uint64_t of_common = 0, of_all = 0;
  for (const auto& [key, kernel] : learnt.kernels())
    for (const runtime::ProfileCell& cell : kernel.cells) {
      of_all += cell.count;
      of_common += key == common ? cell.count : 0;
    }
  CHECK(of_common <= kLaunches / 97 + 2 * runtime::kFewSamples);
  CHECK(of_all <= 2 * (kLaunches / 97));
}

TEST_CASE("Who looks for what is little known stops when everything is known") {
  soft::EngineOptions options;
  options.device = soft::DeviceDescription::uniform(4, 2);
  auto device = soft::open_device(options);
  REQUIRE(device.has_value());
  runtime::ProfilerOptions profiler_options;
  profiler_options.every = 97;
  profiler_options.known.merge(1, {8, runtime::kFewSamples, 5000, 0});
  profiler_options.known.merge(2, {8, runtime::kFewSamples - 1, 5000, 0});
  runtime::Profiler profiler(**device, profiler_options);
  CHECK(!profiler.worth_timing(1, 8));
  CHECK(profiler.worth_timing(1, 4));
  CHECK(profiler.worth_timing(2, 8));
  CHECK(profiler.worth_timing(3, 8));
  unsigned regular = 0, looked = 0;
  for (unsigned i = 0; i < 97 * 100; ++i) {
    const bool may = profiler.next_is_due();
    const runtime::Profiler::Turn turn = profiler.turn();
    if (turn != runtime::Profiler::Turn::kNo) REQUIRE(may);
    regular += turn == runtime::Profiler::Turn::kRegular ? 1 : 0;
    looked += turn == runtime::Profiler::Turn::kSearch ? 1 : 0;
  }
  CHECK(regular == 100);
  CHECK(looked == 8 * (32 + 16 + 8 + 4 + 2) + 60);
}

TEST_CASE("A launch that finds its queue dry is no measure, unless it lasts long") {
  for (const soft::Nanoseconds lasts : {5'000, 500'000}) {
    soft::EngineOptions options;
    options.device = soft::DeviceDescription::uniform(4, 2);
    auto device = soft::open_device(options);
    REQUIRE(device.has_value());
    soft::Engine& engine = (*device)->engine();
    auto queue = (*device)->create_whole_queue(0);
    REQUIRE(queue.has_value());
    runtime::ProfilerOptions profiler_options;
    profiler_options.every = 1;
    runtime::Profiler profiler(**device, profiler_options);
    std::uint64_t ns = lasts;
    void* arguments[] = {&ns};
    hal::KernelLaunch launch;
    launch.kernel = VITAMIN_SOFT_KERNEL(busy);
    launch.block = {32, 1, 1};
    launch.arguments = arguments;
    for (const bool dry : {true, false}) {
      CAPTURE(dry);
      CAPTURE(lasts);
      if (!dry) REQUIRE((*queue)->launch(launch) == hal::kNativeOk);
      runtime::Profiler::Stopwatch* stopwatch = profiler.start(**queue);
      REQUIRE(stopwatch != nullptr);
      if (dry) REQUIRE(engine.drain() == soft::AdvanceResult::kIdle);
      REQUIRE((*queue)->launch(launch) == hal::kNativeOk);
      profiler.stop(stopwatch, **queue, dry ? 1 : 2, "busy", launch, 8);
      REQUIRE(engine.drain() == soft::AdvanceResult::kIdle);
      CHECK(!profiler.collect());
      const runtime::Prediction learnt = profiler.profile().predict(dry ? 1 : 2, 8);
      CHECK(learnt.measured == (!dry || lasts > 100'000));
      if (learnt.measured)
        CHECK(learnt.ns == doctest::Approx(static_cast<double>(lasts)).epsilon(0.02));
    }
  }
}

TEST_CASE("What was looked for and always found its queue dry is not looked for for ever") {
  soft::EngineOptions options;
  options.device = soft::DeviceDescription::uniform(4, 2);
  auto device = soft::open_device(options);
  REQUIRE(device.has_value());
  auto queue = (*device)->create_whole_queue(0);
  REQUIRE(queue.has_value());
  runtime::ProfilerOptions profiler_options;
  profiler_options.every = 97;
  runtime::Profiler profiler(**device, profiler_options);
  std::uint64_t ns = 5'000;
  void* arguments[] = {&ns};
  hal::KernelLaunch launch;
  launch.kernel = VITAMIN_SOFT_KERNEL(busy);
  launch.block = {32, 1, 1};
  launch.arguments = arguments;
  unsigned searches = 0;
  for (; searches < 100 && profiler.worth_timing(7, 8); ++searches) {
    runtime::Profiler::Stopwatch* stopwatch = profiler.start(**queue);
    REQUIRE(stopwatch != nullptr);
    REQUIRE((*device)->engine().drain() == soft::AdvanceResult::kIdle);
    REQUIRE((*queue)->launch(launch) == hal::kNativeOk);
    profiler.stop(stopwatch, **queue, 7, "busy", launch, 8, true);
    REQUIRE((*device)->engine().drain() == soft::AdvanceResult::kIdle);
    profiler.collect();
  }
  CHECK(searches == 2 * runtime::kFewSamples);
  CHECK(profiler.worth_timing(7, 4));
  CHECK(profiler.worth_timing(8, 8));
}

// Events cost something, and more where others keep the device busy: as on an H200, half as much as
// a short kernel in the middle, and as much as it on average.
TEST_CASE("What is learnt beside others is what was learnt alone, short kernels and all") {
  soft::EngineOptions options;
  options.device = soft::DeviceDescription::uniform(4, 2);
  options.event_ns = 1'200;
  options.event_beside_ns = 12'000;
  auto device = soft::open_device(options);
  REQUIRE(device.has_value());
  soft::Engine& engine = (*device)->engine();
  auto queue = (*device)->create_whole_queue(0), others = (*device)->create_whole_queue(0);
  REQUIRE(queue.has_value());
  REQUIRE(others.has_value());
  const auto busy = [](hal::Queue& on, std::uint64_t ns) {
    void* arguments[] = {&ns};
    hal::KernelLaunch launch;
    launch.kernel = VITAMIN_SOFT_KERNEL(busy);
    launch.block = {32, 1, 1};
    launch.arguments = arguments;
    REQUIRE(on.launch(launch) == hal::kNativeOk);
  };
  constexpr std::uint64_t kKernels = 40, kTimes = 12;
  const auto takes = [](std::uint64_t kernel) { return 2'000 + 250 * kernel; };  // 2 to 12 us
  const auto learn = [&](bool beside) {
    runtime::ProfilerOptions profiler_options;
    profiler_options.every = 1;
    runtime::Profiler profiler(**device, profiler_options);
    hal::KernelLaunch launch;
    launch.block = {32, 1, 1};
    for (std::uint64_t round = 0; round < kKernels * kTimes; ++round) {
      if (beside) busy(**others, 400'000);
      busy(**queue, 5'000);  // so that the queue is not dry
      const std::uint64_t kernel = 1 + round % kKernels;
      runtime::Profiler::Stopwatch* stopwatch = profiler.start(**queue);
      REQUIRE(stopwatch != nullptr);
      busy(**queue, takes(kernel));
      profiler.stop(stopwatch, **queue, kernel, "busy", launch, 8);
      REQUIRE(engine.drain() == soft::AdvanceResult::kIdle);
      profiler.collect();
    }
    return profiler.profile();
  };
  const Profile alone = learn(false), together = learn(true);
  CHECK(alone.bracket().count >= 8 + kKernels * kTimes / 16 - 1);
  CHECK(alone.bracket().undisturbed_ns() == doctest::Approx(1'200));
  std::vector<double> errors, of_means;
  for (std::uint64_t kernel = 1; kernel <= kKernels; ++kernel) {
    const double known = alone.predict(kernel, 8).ns;
    CHECK(known == doctest::Approx(static_cast<double>(takes(kernel))).epsilon(0.01));
    errors.push_back(std::abs(together.predict(kernel, 8).ns / known - 1));
    of_means.push_back(together.find(kernel)->cells[0].mean_ns / known - 1);
  }
  std::sort(errors.begin(), errors.end());
  std::sort(of_means.begin(), of_means.end());
  MESSAGE("median error " << errors[kKernels / 2] << ", of means " << of_means[kKernels / 2]
                          << "; brackets alone " << alone.bracket().mean_ns << " ns, beside others "
                          << together.bracket().undisturbed_ns() << ", mean "
                          << together.bracket().mean_ns);
  CHECK(errors[kKernels / 2] <= 0.1);
  CHECK(of_means[kKernels / 2] >= 0.2);
}

// What is told of all kernels together: how many times as long as at first, whatever the mix.
TEST_CASE("A change of kernels is told as such, and not as a change of speed") {
  soft::EngineOptions options;
  options.device = soft::DeviceDescription::uniform(4, 2);
  auto device = soft::open_device(options);
  REQUIRE(device.has_value());
  auto queue = (*device)->create_whole_queue(0);
  REQUIRE(queue.has_value());
  runtime::ProfilerOptions profiler_options;
  profiler_options.every = 1;
  runtime::Profiler profiler(**device, profiler_options);
  std::vector<runtime::TimedLaunches> told;
  profiler.on_sample([&](const runtime::TimedLaunches& timed) { told.push_back(timed); });
  hal::KernelLaunch launch;
  launch.kernel = VITAMIN_SOFT_KERNEL(busy);
  launch.block = {32, 1, 1};
  // Runs on the whole device, and is said to have run on fewer SMs.
  const auto timed = [&](std::uint64_t kernel, std::uint64_t ns, std::uint32_t sms, int times) {
    void* arguments[] = {&ns};
    launch.arguments = arguments;
    for (int i = 0; i < times; ++i) {
      REQUIRE((*queue)->launch(launch) == hal::kNativeOk);  // so that the queue is not dry
      runtime::Profiler::Stopwatch* stopwatch = profiler.start(**queue);
      REQUIRE(stopwatch != nullptr);
      REQUIRE((*queue)->launch(launch) == hal::kNativeOk);
      profiler.stop(stopwatch, **queue, kernel, "busy", launch, sms);
      REQUIRE((*device)->engine().drain() == soft::AdvanceResult::kIdle);
      profiler.collect();
    }
  };
  timed(1, 200'000, 8, 8);
  timed(2, 2'000'000, 8, 8);
  const auto latest = [&] { return told.back().mean_ns / told.back().whole_ns; };
  CHECK(latest() == doctest::Approx(1).epsilon(0.02));
  timed(1, 200'000, 8, 3);
  CHECK(latest() == doctest::Approx(1).epsilon(0.02));  // ten times as short, and that is all
  timed(1, 400'000, 4, 3);
  CHECK(latest() == doctest::Approx(2).epsilon(0.02));
  timed(2, 4'000'000, 4, 3);
  CHECK(latest() == doctest::Approx(2).epsilon(0.02));
  CHECK(told.back().sms == 4);
  // What was looked for is learnt and not told.
  const std::size_t before = told.size();
  std::uint64_t ns = 900'000;
  void* arguments[] = {&ns};
  launch.arguments = arguments;
  REQUIRE((*queue)->launch(launch) == hal::kNativeOk);
  runtime::Profiler::Stopwatch* stopwatch = profiler.start(**queue);
  REQUIRE(stopwatch != nullptr);
  REQUIRE((*queue)->launch(launch) == hal::kNativeOk);
  profiler.stop(stopwatch, **queue, 4, "busy", launch, 8, true);
  REQUIRE((*device)->engine().drain() == soft::AdvanceResult::kIdle);
  profiler.collect();
  CHECK(told.size() == before);
  CHECK(profiler.profile().predict(4, 8).ns == doctest::Approx(900'000).epsilon(0.02));
  // First seen on few SMs: one block is taken to last as long on any.
  timed(3, 400'000, 4, 8);
  CHECK(latest() == doctest::Approx(1).epsilon(0.02));
}

// How many launches were on the device at the same time, at most.
std::size_t most_ahead(const std::vector<Stay>& stays) {
  std::size_t most = 0;
  for (const Stay& at : stays) {
    std::size_t ahead = 0;
    for (const Stay& other : stays)
      ahead += other.enqueued <= at.enqueued && other.end > at.enqueued ? 1 : 0;
    most = std::max(most, ahead);
  }
  return most;
}

TEST_CASE("The window is a time: long kernels fill it sooner") {
  struct Case {
    double known_ns;
    std::size_t ahead;
  };
  // 100 us: without a profile ten kernels of the usual guess; one that lasts longer still runs.
  for (const Case& c : {Case{0, 10}, Case{50'000, 2}, Case{25'000, 4}, Case{900'000, 1}}) {
    CAPTURE(c.known_ns);
    FixtureOptions options;
    options.policy = "static";
    options.window_ns = 100'000;
    {
      const Fixture any;
      const std::uint64_t key = key_of(any, VITAMIN_SOFT_KERNEL(sum_kernel), 1);
      if (c.known_ns > 0)
        for (std::uint32_t width = 1; width <= 16; ++width)
          options.profiler.known.add(key, width, c.known_ns);
    }
    Fixture f(options);
    runtime::Stream& stream = f.stream();
    unsigned total = 0;
    unsigned* address = &total;
    for (unsigned i = 0; i < 60; ++i)
      REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(sum_kernel), {&address}) == 0);
    CHECK(f.context->synchronize(stream) == 0);
    CHECK(total == 60);
    CHECK(most_ahead(f.stays) == c.ahead);
  }
}

TEST_CASE("Of the graphs that run on the whole device the first ones and a sample are timed") {
  Fixture f;
  runtime::Stream& stream = f.stream();
  auto graph = runtime::call([](void*) { return hal::kNativeOk; }, runtime::Keep::kNo);
  for (int i = 0; i < 200; ++i) {
    REQUIRE(f.context->bridge_graph(stream, graph, runtime::CallKind::kWork,
                                    runtime::stats::GraphReason::kNodes) == hal::kNativeOk);
    CHECK(f.context->synchronize(stream) == 0);
  }
  f.context->finish_timing();
  CHECK(f.page.other.graph_launches.get() == 200);
  CHECK(f.page.other.graphs_timed.get() == 8 + 2);  // the first 8, 97 and 194
}

TEST_CASE("How long graphs ran without a grant is measured") {
  Fixture f;
  runtime::Stream& stream = f.stream();
  std::uint64_t ns = 30'000;
  void* arguments[] = {&ns};
  hal::KernelLaunch launch;
  launch.kernel = VITAMIN_SOFT_KERNEL(busy);
  launch.block = {32, 1, 1};
  launch.arguments = arguments;
  for (int i = 0; i < 3; ++i) {
    // Stands for the vendor's graph launch: two kernels on the real stream.
    auto graph = runtime::call(
        [&](void* native) {
          auto queue = f.context->device().adopt_queue(native);
          const hal::NativeStatus first = queue->launch(launch);
          return first == hal::kNativeOk ? queue->launch(launch) : first;
        },
        runtime::Keep::kNo);
    REQUIRE(f.context->bridge_graph(stream, graph, runtime::CallKind::kWork,
                                    runtime::stats::GraphReason::kNodes) == hal::kNativeOk);
  }
  CHECK(f.context->synchronize(stream) == 0);
  f.context->finish_timing();
  CHECK(f.page.other.graphs_timed.get() == 3);
  CHECK(static_cast<double>(f.page.other.graph_whole_ns.get()) ==
        doctest::Approx(180'000).epsilon(0.05));
}

}  // namespace
}  // namespace vitamin::tests
