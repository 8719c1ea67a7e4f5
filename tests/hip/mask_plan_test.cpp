// SPDX-License-Identifier: Apache-2.0
//
// The mask plan against a model of the kernel driver, over all shapes and the ways to harvest them.
#include "backends/hip/mask_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

#include "backends/hip/version.h"
#include "backends/soft/amdgpu/part.h"
#include "tests/seed.h"

namespace vitamin::hip {
namespace {

using hal::ComputeSet;
using Cu = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;
using Cus = std::set<Cu>;

constexpr int kOld = hip_version(5, 2), kNew = hip_version(7, 0);

struct Part {
  const char* name;
  DeviceShape shape;
  unsigned units;
};

std::vector<Part> parts() {
  return {{"MI50", DeviceShape::even(1, 4, 1, 60, false), 15},
          {"MI100", DeviceShape::even(1, 8, 1, 120, false), 15},
          {"MI210", DeviceShape::even(1, 8, 1, 104, false), 13},
          {"MI250X", DeviceShape::even(1, 8, 1, 110, false), 13},
          {"MI300X", DeviceShape::even(8, 4, 1, 304, false), 9},
          {"gfx1030", DeviceShape::even(1, 4, 2, 80, true), 10},
          {"gfx1100", DeviceShape::even(1, 6, 2, 96, true), 8}};
}

// The driver's side: one XCC after the other takes its own bits and hands them out CU by CU.
Cus enabled(const DeviceShape& shape, const std::vector<std::uint32_t>& driver_mask) {
  Cus result;
  const std::uint32_t step = shape.pairs ? 2 : 1, bits = shape.total();
  auto is_set = [&](std::uint32_t bit) {
    return bit / 32 < driver_mask.size() && (driver_mask[bit / 32] >> bit % 32 & 1) != 0;
  };
  for (std::uint32_t xcc = 0; xcc < shape.xccs; ++xcc) {
    std::uint32_t bit = xcc * step;
    for (std::uint32_t cu = 0; cu < 16; cu += step)
      for (std::uint32_t array = 0; array < shape.arrays; ++array)
        for (std::uint32_t engine = 0; engine < shape.engines && bit < bits; ++engine) {
          if (shape.at(xcc, engine, array) <= cu) continue;
          for (std::uint32_t i = 0; i < step; ++i)
            if (is_set(bit + i)) result.insert({xcc, engine, array, cu + i});
          bit += step * shape.xccs;
        }
  }
  return result;
}

MaskPlan plan_of(const DeviceShape& shape, int version = kOld) {
  auto plan = MaskPlan::make(shape, version);
  REQUIRE(plan.has_value());
  return std::move(*plan);
}

std::vector<std::uint32_t> per_engine(const DeviceShape& shape, const Cus& cus) {
  std::vector<std::uint32_t> counts(shape.xccs * shape.engines);
  for (const auto& [xcc, engine, array, cu] : cus) ++counts[xcc * shape.engines + engine];
  return counts;
}

Cus unite(Cus a, const Cus& b) {
  a.insert(b.begin(), b.end());
  return a;
}

// What must hold of every shape: one failed line names it.
void check_units(const DeviceShape& shape) {
  const MaskPlan plan = plan_of(shape);
  const auto sms = plan.sms_per_unit();
  REQUIRE(plan.units() >= 1);
  REQUIRE(plan.units() <= ComputeSet::kMaxUnits);
  const std::uint32_t step = shape.pairs ? 2 : 1;
  bool right = true;
  Cus all;
  std::size_t sum = 0;
  for (unsigned unit = 0; unit < plan.units(); ++unit) {
    const Cus mine = enabled(shape, plan.mask(ComputeSet::range(unit, 1)));
    right = right && mine.size() == std::size_t{sms[unit]} * step;
    const auto counts = per_engine(shape, mine);
    right = right && *std::min_element(counts.begin(), counts.end()) >= 1;  // every XCC, engine
    for (const auto& [xcc, engine, array, cu] : mine)
      right = right && mine.count({xcc, engine, array, cu ^ (step - 1)}) == 1;  // whole pairs
    sum += mine.size();
    all = unite(std::move(all), mine);
  }
  right = right && all.size() == sum;  // disjoint
  const Cus everything = enabled(shape, std::vector<std::uint32_t>(16, ~0U));
  right = right && all == everything;  // nothing is left out that the driver can enable
  CHECK(right);
}

TEST_CASE("every part has the units that its engines make") {
  for (const Part& part : parts()) {
    CAPTURE(part.name);
    const MaskPlan plan = plan_of(part.shape);
    CHECK(plan.units() == part.units);
    check_units(part.shape);
    const auto sms = plan.sms_per_unit();
    CHECK(std::accumulate(sms.begin(), sms.end(), 0U) ==
          part.shape.total() / (part.shape.pairs ? 2 : 1));
  }
}

TEST_CASE("every set of units and its complement divide the device, each covering every engine") {
  for (const Part& part : parts()) {
    CAPTURE(part.name);
    const MaskPlan plan = plan_of(part.shape);
    const ComputeSet all = ComputeSet::range(0, plan.units());
    const auto whole = plan.mask(all);
    bool right = true;
    for (std::uint64_t bits = 1; bits < all.bits(); ++bits) {
      const auto one = plan.mask(ComputeSet(bits)), other = plan.mask(all - ComputeSet(bits));
      REQUIRE(one.size() == whole.size());
      for (std::size_t word = 0; word < whole.size(); ++word)
        right = right && (one[word] & other[word]) == 0 && (one[word] | other[word]) == whole[word];
      if (bits % 61 != 0) continue;  // the driver's model of a sample of them
      const auto counts = per_engine(part.shape, enabled(part.shape, one));
      right = right && *std::min_element(counts.begin(), counts.end()) >= ComputeSet(bits).count();
    }
    CHECK(right);
  }
}

TEST_CASE("no engine has more than one CU above another in any unit of a part as it is sold") {
  for (const Part& part : parts()) {
    CAPTURE(part.name);
    const MaskPlan plan = plan_of(part.shape);
    const std::uint32_t step = part.shape.pairs ? 2 : 1;
    for (unsigned unit = 0; unit < plan.units(); ++unit) {
      const auto counts =
          per_engine(part.shape, enabled(part.shape, plan.mask(ComputeSet::range(unit, 1))));
      const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
      CHECK(*most - *least <= step);
    }
  }
}

TEST_CASE("rows that are not complete go to different units") {
  DeviceShape shape = DeviceShape::even(1, 8, 1, 120, false);
  shape.at(0, 7, 0) = 12;  // three rows miss this engine
  const MaskPlan plan = plan_of(shape);
  CHECK(plan.units() == 12);
  for (unsigned unit = 0; unit < plan.units(); ++unit) {
    const auto counts = per_engine(shape, enabled(shape, plan.mask(ComputeSet::range(unit, 1))));
    const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
    CHECK(*most - *least <= 1);
  }
}

// Every way to take 0, 1 or 2 CUs (0 or 1 pairs) from each array.
TEST_CASE("units of harvested parts of one XCC are disjoint, whole and cover every engine") {
  for (const Part& part : parts()) {
    if (part.shape.xccs > 1) continue;
    CAPTURE(part.name);
    const std::uint32_t step = part.shape.pairs ? 2 : 1;
    const unsigned choices = part.shape.pairs ? 2 : 3;
    DeviceShape full = part.shape;
    std::fill(full.cus.begin(), full.cus.end(),
              *std::max_element(part.shape.cus.begin(), part.shape.cus.end()));
    std::size_t variants = 1;
    for (std::size_t i = 0; i < full.cus.size(); ++i) variants *= choices;
    // 19 has no factor of them: a sample has every choice for every array.
    for (std::size_t variant = 0; variant < variants; variant += test::takes_a_sample() ? 19 : 1) {
      DeviceShape shape = full;
      std::size_t rest = variant;
      for (auto& cus : shape.cus) {
        cus -= static_cast<std::uint32_t>(rest % choices) * step;
        rest /= choices;
      }
      check_units(shape);
    }
  }
}

TEST_CASE("units of harvested parts of several XCCs are disjoint and cover every engine of each") {
  std::mt19937 random(1);
  for (const std::uint32_t xccs : {2U, 4U, 6U, 8U})
    for (int variant = 0; variant < 200; ++variant) {
      DeviceShape shape = DeviceShape::even(xccs, 4, 1, xccs * 40, false);
      for (auto& cus : shape.cus) cus -= static_cast<std::uint32_t>(random() % 3);
      check_units(shape);
    }
}

TEST_CASE("engines or arrays that are fused off whole do not take their units with them") {
  DeviceShape shape = DeviceShape::even(1, 4, 2, 80, true);
  shape.at(0, 3, 0) = shape.at(0, 3, 1) = 0;  // three engines of four
  const MaskPlan three = plan_of(shape);
  CHECK(three.units() == 10);
  shape.at(0, 3, 0) = 10;  // one array of that engine
  const MaskPlan half = plan_of(shape);
  CHECK(half.units() == 5);
  Cus all;
  for (unsigned unit = 0; unit < half.units(); ++unit)
    all = unite(std::move(all), enabled(shape, half.mask(ComputeSet::range(unit, 1))));
  CHECK(all.size() == 70);
}

TEST_CASE("a bit is a CU to HIP 5.2 and a workgroup processor from 5.6 on parts with pairs") {
  const DeviceShape pairs = DeviceShape::even(1, 4, 2, 80, true);
  const auto old = plan_of(pairs, kOld).mask(ComputeSet::range(0, 1));
  CHECK(old == std::vector<std::uint32_t>{0xff, 0, 0});
  const auto recent = plan_of(pairs, kNew).mask(ComputeSet::range(0, 1));
  CHECK(recent == std::vector<std::uint32_t>{0xf, 0});
  for (const int version : {hip_version(5, 3), hip_version(5, 5) + 99'999}) {
    const auto plan = MaskPlan::make(pairs, version);
    REQUIRE_FALSE(plan.has_value());
    CHECK(plan.error().code == hal::Errc::kUnavailable);
    CHECK(plan.error().message.find("HIP 5.") != std::string::npos);
  }
  const DeviceShape single = DeviceShape::even(1, 8, 1, 104, false);
  for (const int version : {kOld, hip_version(5, 4), kNew})
    CHECK(plan_of(single, version).mask(ComputeSet::range(12, 1)) ==
          std::vector<std::uint32_t>{0, 0, 0, 0xff});
}

TEST_CASE("a CU without its partner is in no unit") {
  DeviceShape shape = DeviceShape::even(1, 4, 2, 80, true);
  shape.at(0, 2, 1) = 9;
  const MaskPlan plan = plan_of(shape);
  const auto sms = plan.sms_per_unit();
  CHECK(std::accumulate(sms.begin(), sms.end(), 0U) == 39);
  for (unsigned unit = 0; unit < plan.units(); ++unit)
    for (const std::uint32_t bit : plan.bits(unit)) {
      const auto& bits = plan.bits(unit);
      CHECK(std::binary_search(bits.begin(), bits.end(), bit ^ 1));
    }
}

TEST_CASE("a device without a CU has no plan") {
  const auto plan = MaskPlan::make(DeviceShape::even(1, 4, 1, 0, false), kOld);
  REQUIRE_FALSE(plan.has_value());
  CHECK(plan.error().code == hal::Errc::kUnsupported);
}

TEST_CASE("more rows than a ComputeSet has bits make wider units") {
  const MaskPlan plan = plan_of(DeviceShape::even(1, 1, 8, 8 * 16, false));
  CHECK(plan.units() == 64);
  for (const std::uint32_t sms : plan.sms_per_unit()) CHECK(sms == 2);
}

TEST_CASE("the plan and the software GPU agree about every bit") {
  for (const char* name : {"gfx90a", "gfx942", "gfx1030", "gfx1100"}) {
    const soft::amdgpu::Part* part = soft::amdgpu::find_part(name);
    REQUIRE(part != nullptr);
    const auto ours = mask_order(DeviceShape::even(
        part->xccs, part->engines, part->arrays_per_engine, part->cus(), part->cu_pairs));
    const auto theirs = soft::amdgpu::mask_order(*part);
    REQUIRE(ours.size() == theirs.size());
    for (std::size_t bit = 0; bit < ours.size(); ++bit)
      CHECK((ours[bit].real && ours[bit].place.xcc == theirs[bit].xcc &&
             ours[bit].place.engine == theirs[bit].engine &&
             ours[bit].place.array == theirs[bit].array && ours[bit].place.cu == theirs[bit].cu));
  }
}

}  // namespace
}  // namespace vitamin::hip
