// SPDX-License-Identifier: Apache-2.0
#include "runtime/profile/profile.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>

#include "hal/fnv1a.h"
#include "runtime/profile/file.h"
#include "tests/cost.h"
#include "tests/property.h"

namespace vitamin::runtime {
namespace {

Profile sample() {
  Profile profile;
  profile.describe(0xabc, "gemm with a name", 448, 1);
  for (const std::uint32_t width : {8U, 32U, 132U})
    for (int i = 0; i < 20; ++i) profile.add(0xabc, width, 1e6 / width + i);
  profile.describe(7, "", 0, 0);
  profile.add(7, 16, 1234.5);
  profile.merge(7, {24, 5, 999.25, 3});  // of which only the mean is known
  for (const double ns : {1100.0, 0.0, 1250.5}) profile.add_bracket(ns);
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

// Where everything takes longest, a tenth is longer than a whole launch on many SMs.
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
  // 4 waves on 132 and 116 SMs, 5 on 100, 7 on 64 (evaluation plan, E0).
  profile.add(1, 132, 4 * 90'000.0 + 1'000);
  profile.add(1, 64, 7 * 90'000.0 + 1'000);
  CHECK(profile.predict(1, 116).ns == doctest::Approx(361'000));
  CHECK(profile.predict(1, 120).ns == doctest::Approx(361'000));
  CHECK(profile.predict(1, 100).ns == doctest::Approx(451'000));
  CHECK(profile.predict(1, 32).ns == doctest::Approx(14 * 90'000.0 + 1'000));
}

TEST_CASE("One measured width: a guess, never negative, never slower when wider") {
  CHECK(test::holds([] {
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
  }));
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

// As on an H200: 3 us of work, and what others add, little as a rule and sometimes much.
TEST_CASE("What a launch takes undisturbed is told, however much others add and however often") {
  std::mt19937 random(3);
  const auto disturbed = [&](double by_ns) {
    const double chance = static_cast<double>(random()) * 0x1p-32;
    return 3'000 + by_ns * chance * chance * chance;
  };
  for (const int launches : {6, 20, 300, 20'000}) {
    CAPTURE(launches);
    double alone = 0, beside = 0, mean = 0;
    constexpr int kKernels = 200;
    for (int kernel = 0; kernel < kKernels; ++kernel) {
      ProfileCell one, other;
      for (int i = 0; i < launches; ++i) one.add(disturbed(200)), other.add(disturbed(12'000));
      CHECK(one.kept == std::min<std::uint64_t>(one.count, ProfileCell::kMostKept));
      alone += one.undisturbed_ns() / kKernels;
      beside += other.undisturbed_ns() / kKernels;
      mean += other.mean_ns / kKernels;
    }
    CHECK(mean > 1.9 * alone);
    CHECK(beside == doctest::Approx(alone).epsilon(0.1));
  }
}

TEST_CASE("What is kept of a width is a fair draw from all of its launches, merged or not") {
  constexpr int kRounds = 4000;
  double kept = 0, merged = 0, few_of_many = 0;
  for (int round = 0; round < kRounds; ++round) {
    ProfileCell all, left, right;
    for (int i = 0; i < 100; ++i) {
      const double ns = 1 + 100 * round + i;
      all.add(ns);
      (i < 10 ? left : right).add(ns);
    }
    left.merge(right);
    REQUIRE(left.kept == ProfileCell::kMostKept);
    const auto first_ten = [&](const ProfileCell& cell) {
      return static_cast<double>(std::count_if(
                 cell.some.begin(), cell.some.end(),
                 [&](float ns) { return ns < 1 + 100.0F * static_cast<float>(round) + 10; })) /
             ProfileCell::kMostKept / kRounds;
    };
    kept += first_ten(all);
    merged += first_ten(left);
    std::array<float, ProfileCell::kMostKept> sorted = left.some;
    std::sort(sorted.begin(), sorted.end());
    few_of_many += std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end() ? 0 : 1;
  }
  CHECK(kept == doctest::Approx(0.1).epsilon(0.1));
  CHECK(merged == doctest::Approx(0.1).epsilon(0.1));
  CHECK(few_of_many == 0);  // none twice
}

TEST_CASE("One odd launch of a width counts little beside widths that agree, many count") {
  const auto takes = [](double width) { return 2'000 + 200'000 / width; };
  for (const int times : {1, 20}) {
    CAPTURE(times);
    Profile profile;
    std::mt19937 random(4);
    for (const std::uint32_t width : {8U, 16U, 32U, 64U, 124U})
      for (int i = 0; i < 20; ++i)
        profile.add(1, width, takes(width) * (1 + 0.02 * static_cast<double>(random()) * 0x1p-32));
    for (int i = 0; i < times; ++i) profile.add(1, 100, 1.5 * takes(100));
    const Prediction told = profile.predict(1, 100);
    CHECK(told.measured);
    if (times == 1) CHECK(told.ns < 1.2 * takes(100));
    if (times == 20) CHECK(told.ns == doctest::Approx(1.5 * takes(100)));
  }
}

TEST_CASE("The learner holds what it is told until it is harvested, outliers left out") {
  ProfileLearner learner;
  Profile profile;
  for (unsigned round = 0; round < 20; ++round) {
    for (unsigned i = 0; i < 4'000; ++i)
      learner.add(1 + i % 50, 8 * (1 + i % 4), 10'350 + i % 100 + (i == 999 ? 5'000'000 : 0));
    learner.harvest(profile, 300);
  }
  std::uint64_t count = 0;
  for (const auto& [key, kernel] : profile.kernels())
    for (const ProfileCell& cell : kernel.cells) {
      count += cell.count;
      CHECK(cell.mean_ns == doctest::Approx(10'100).epsilon(0.01));
    }
  CHECK(learner.outliers() == 20);
  CHECK(count == 20 * 3'999);
  CHECK(learner.dropped() == 0);
}

TEST_CASE("A learner that is full drops and counts, and takes more once it was harvested") {
  ProfileLearner learner;
  Profile profile;
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t key = 1; key <= 5'000; ++key) learner.add(key, 8, 1000);
    learner.harvest(profile);
  }
  CHECK(learner.dropped() == 2 * (5'000 - 4'096));
  CHECK(profile.kernels().size() == 4'096);
}

TEST_CASE("A sample costs less than 100 ns") {
  constexpr unsigned kSamples = 4'000;
  ProfileLearner learner;
  Profile profile;
  const double ns = test::lowest(100, [&] {
    learner.harvest(profile);
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

TEST_CASE("A profile of version 1, of means alone, is read, and what is timed again counts") {
  std::string text =
      "vitamin-profile 1\nmodel NVIDIA H200\nkernel 0000000000000abc blocks 448 "
      "resident 1 name gemm\nwidth 8 count 120 mean 5012.5 m2 91.25\n";
  char end[64];
  std::snprintf(end, sizeof end, "end 1 checksum %016llx\n",
                static_cast<unsigned long long>(hal::fnv1a(text)));
  auto old = parse_profile(text + end, "NVIDIA H200");
  REQUIRE_MESSAGE(old.has_value(), (old ? "" : old.error().message));
  CHECK(old->predict(0xabc, 8).ns == 5012.5);
  CHECK(old->find(0xabc)->cells[0].count == 120);
  CHECK(old->bracket().count == 0);
  // One launch that met something is not worth more than the mean of 120.
  old->add(0xabc, 8, 60'000);
  CHECK(old->predict(0xabc, 8).ns < 6'000);
  for (int i = 0; i < 8; ++i) old->add(0xabc, 8, 4'000);
  CHECK(old->predict(0xabc, 8).ns == 4'000);
  CHECK(format_profile(*old, "NVIDIA H200").starts_with("vitamin-profile 2\n"));
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
  CHECK(!write_profile(std::string(directory) + "/no/such/directory", sample(), "x").has_value());
  unsigned files = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(directory)) ++files;
  CHECK(files == 1);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace vitamin::runtime
