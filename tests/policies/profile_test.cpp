// SPDX-License-Identifier: Apache-2.0
#include "runtime/profile.h"

#include <rapidcheck.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "runtime/profile_file.h"
#include "tests/figure.h"
#include "tests/policies/fixture.h"

namespace vitamin::runtime {
namespace {

Profile sample() {
  Profile profile;
  profile.describe(0xabc, "gemm with a name", 448, 1);
  for (const std::uint32_t width : {8U, 32U, 132U})
    for (int i = 0; i < 20; ++i) profile.add(0xabc, width, 1e6 / width + i);
  profile.describe(7, "", 0, 0);
  profile.add(7, 16, 1234.5);
  return profile;
}

TEST_CASE("A measured width is answered as measured, others by the model, unknown kernels not") {
  Profile profile;
  for (const std::uint32_t width : {8U, 24U, 64U})
    for (int i = 0; i < 50; ++i) profile.add(1, width, 2'000 + 800'000.0 / width + i % 3);
  const Prediction measured = profile.predict(1, 24);
  CHECK(measured.measured);
  CHECK(measured.ns == doctest::Approx(2'000 + 800'000.0 / 24).epsilon(0.01));
  CHECK(measured.confidence > 0.8);
  for (const std::uint32_t width : {16U, 48U, 132U}) {
    const Prediction fitted = profile.predict(1, width);
    CHECK(!fitted.measured);
    CHECK(fitted.ns == doctest::Approx(2'000 + 800'000.0 / width).epsilon(0.02));
    CHECK(fitted.confidence < measured.confidence);
    CHECK(fitted.confidence > 0.3);
  }
  CHECK(profile.predict(2, 8).ns == 0);
  CHECK(profile.predict(2, 8).confidence == 0);
}

// Where everything takes longest, a tenth is longer than a whole launch on many processors.
TEST_CASE("Errors on narrow widths do not decide what is told of wide ones") {
  const auto takes = [](double width) { return 20'000 + 8e6 / width; };
  Profile profile;
  profile.add(1, 8, 1.10 * takes(8));
  profile.add(1, 12, 0.93 * takes(12));
  profile.add(1, 20, 1.05 * takes(20));
  profile.add(1, 116, takes(116));
  for (const std::uint32_t width : {36U, 64U, 100U, 132U})  // by absolute errors 19 % at 132
    CHECK(profile.predict(1, width).ns == doctest::Approx(takes(width)).epsilon(0.02));
}

TEST_CASE("Where the grid is known the model climbs in waves: 448 blocks, one a processor") {
  Profile profile;
  profile.describe(1, "gemm", 448, 1);
  // 4 waves on 132 and 116 processors, 5 on 100, 7 on 64 (evaluation plan, E0).
  profile.add(1, 132, 4 * 90'000.0 + 1'000);
  profile.add(1, 64, 7 * 90'000.0 + 1'000);
  CHECK(profile.predict(1, 116).ns == doctest::Approx(361'000));
  CHECK(profile.predict(1, 120).ns == doctest::Approx(361'000));
  CHECK(profile.predict(1, 100).ns == doctest::Approx(451'000));
  CHECK(profile.predict(1, 32).ns == doctest::Approx(14 * 90'000.0 + 1'000));
}

TEST_CASE("One measured width: a guess, never negative, never slower when wider") {
  rc::check("predictions are positive and do not grow with the width", [] {
    Profile profile;
    const auto count = *rc::gen::inRange(1, 5);
    for (int i = 0; i < count; ++i)
      profile.add(1, static_cast<std::uint32_t>(*rc::gen::inRange(1, 17)) * 8,
                  *rc::gen::inRange(500, 5'000'000));
    double last = 1e18;
    for (std::uint32_t width = 1; width <= 140; ++width) {
      const Prediction prediction = profile.predict(1, width);
      RC_ASSERT(prediction.ns > 0);
      RC_ASSERT(prediction.confidence <= 1);
      if (prediction.measured) continue;
      RC_ASSERT(prediction.ns <= last * 1.0001);
      last = prediction.ns;
    }
  });
}

TEST_CASE("Means and variances merge as if all samples had come one by one") {
  std::mt19937 random(5);
  ProfileCell all, left, right;
  for (int i = 0; i < 1000; ++i) {
    const double ns = 1000 + static_cast<double>(random() % 500);
    all.add(ns);
    (i % 3 == 0 ? left : right).add(ns);
  }
  left.merge(right);
  CHECK(left.count == all.count);
  CHECK(left.mean_ns == doctest::Approx(all.mean_ns));
  CHECK(left.m2 == doctest::Approx(all.m2));
}

TEST_CASE("The learner collects from several threads what they added, outliers left out") {
  ProfileLearner learner;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 20'000; ++i)
        learner.add(1 + i % 50, 8 * (1 + t), 10'000 + i % 100 + (i == 9'999 ? 5'000'000 : 0));
    });
  Profile profile;
  for (int i = 0; i < 20; ++i) learner.harvest(profile);  // while they add
  for (std::thread& thread : threads) thread.join();
  learner.harvest(profile);
  std::uint64_t count = 0;
  for (const auto& [key, kernel] : profile.kernels())
    for (const ProfileCell& cell : kernel.cells) {
      count += cell.count;
      CHECK(cell.mean_ns == doctest::Approx(10'050).epsilon(0.01));
    }
  CHECK(count + learner.outliers() + learner.dropped() == 80'000);
  CHECK(learner.outliers() >= 4);
  CHECK(learner.dropped() == 0);
}

TEST_CASE("A learner that is full drops and counts") {
  ProfileLearner learner;
  for (std::uint64_t key = 1; key <= 20'000; ++key) learner.add(key, 8, 1000);
  CHECK(learner.dropped() > 10'000);
  Profile profile;
  learner.harvest(profile);
  CHECK(profile.kernels().size() + learner.dropped() == 20'000);
}

TEST_CASE("A sample costs less than 100 ns") {
  ProfileLearner learner;
  constexpr unsigned kSamples = 200'000;
  const double ns = test::lowest(100, [&] {
    return 1e9 / kSamples * test::seconds([&] {
             for (unsigned i = 0; i < kSamples; ++i) learner.add(i % 300, 8 + 8 * (i % 4), 5'000);
           });
  });
  MESSAGE(ns << " ns a sample");
#ifdef NDEBUG
  CHECK(ns < 100);
#endif
}

// --- files -----------------------------------------------------------------------------------

std::string problem(const std::string& text, std::string_view model = "NVIDIA H200") {
  const auto parsed = parse_profile(text, model);
  return parsed ? "" : parsed.error().message;
}

TEST_CASE("What is written is read back, number for number") {
  const Profile profile = sample();
  const std::string text = format_profile(profile, "NVIDIA H200");
  std::string model;
  const auto again = parse_profile(text, "NVIDIA H200", &model);
  REQUIRE(again.has_value());
  CHECK(model == "NVIDIA H200");
  CHECK(format_profile(*again, "NVIDIA H200") == text);
  CHECK(again->find(0xabc)->name == "gemm with a name");
  CHECK(again->predict(0xabc, 32).ns == profile.predict(0xabc, 32).ns);
}

TEST_CASE("A profile that cannot be used says why in one line") {
  const std::string good = format_profile(sample(), "NVIDIA H200");
  CHECK(problem(good).empty());
  CHECK(problem("").find("not a profile") != std::string::npos);
  CHECK(problem("{\"a\": 1}\n").find("not a profile") != std::string::npos);
  CHECK(problem(good, "NVIDIA H100").find("another GPU (NVIDIA H200, this is NVIDIA H100)") !=
        std::string::npos);
  std::string newer = good;
  newer.replace(0, 17, "vitamin-profile 9");
  CHECK(problem(newer).find("newer Vitamin (version 9") != std::string::npos);
  CHECK(problem(good.substr(0, good.size() / 2)).find("cut short") != std::string::npos);
  // Any byte changed is noticed.
  for (std::size_t i = 18; i < good.size() - 1; i += 7) {
    std::string bad = good;
    bad[i] = bad[i] == '5' ? '6' : '5';
    if (bad == good) continue;
    CHECK_MESSAGE(!problem(bad).empty(), i);
    CHECK(problem(bad).find('\n') == std::string::npos);
  }
}

TEST_CASE("No garbage crashes the reader") {
  std::mt19937 random(1);
  const std::string good = format_profile(sample(), "m");
  for (int round = 0; round < 3000; ++round) {
    std::string bad = good;
    for (unsigned i = 0; i < 1 + random() % 20; ++i)
      bad[random() % bad.size()] = static_cast<char>(random());
    if (random() % 3 == 0) bad.resize(random() % bad.size());
    problem(bad, "m");
  }
}

TEST_CASE("Files: written whole or not at all, missing ones are named") {
  char directory[] = "/tmp/vitamin-profile-XXXXXX";
  REQUIRE(mkdtemp(directory) != nullptr);
  const std::string path = profile_path(directory, "NVIDIA H200 (141 GB)");
  CHECK(path == std::string(directory) + "/nvidia-h200-141-gb.profile");
  const auto missing = read_profile(path, "NVIDIA H200");
  REQUIRE(!missing.has_value());
  CHECK(missing.error().message.find(path + ": there is no such file") != std::string::npos);
  REQUIRE(write_profile(path, sample(), "NVIDIA H200").has_value());
  CHECK(read_profile(path, "NVIDIA H200").has_value());
  CHECK(!write_profile(std::string(directory) + "/no/such/folder", sample(), "x").has_value());
  unsigned files = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(directory)) ++files;
  CHECK(files == 1);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace vitamin::runtime
