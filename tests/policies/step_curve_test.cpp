// SPDX-License-Identifier: Apache-2.0
#include "policies/step_curve.h"

#include "tests/policies/fixture.h"

namespace vitamin::policies {
namespace {

using runtime::PoolLayout;

struct Curve {
  PoolLayout layout = PoolLayout::build(h200());
  StepCurve steps;
  std::vector<float> kernel = std::vector<float>(layout.entries().size(), 1000);  // flat
  float at(std::uint32_t processors) {
    steps.update(layout.entries(), kernel);
    for (const runtime::PoolEntry& entry : layout.entries())
      if (!entry.whole() && entry.processors == processors) return steps.values()[entry.id];
    FAIL("there is no such width");
    return 0;
  }
  void add(std::uint32_t processors, double ratio, int times) {
    for (int i = 0; i < times; ++i) steps.add(processors, ratio);
  }
};

TEST_CASE("Without steps: the kernel's curve or shared work, whichever is worse") {
  Curve curve;
  CHECK(curve.at(64) == doctest::Approx(0.1 + 0.9 * 132 / 64));
  for (const runtime::PoolEntry& entry : curve.layout.entries())
    curve.kernel[entry.id] = 1000.0F * 132 / static_cast<float>(entry.processors) *
                             (entry.processors < 32 ? 4.0F : 1.0F);
  CHECK(curve.at(64) == doctest::Approx(132.0 / 64));
  CHECK(curve.at(8) == doctest::Approx(4 * 132.0 / 8));
  CHECK(curve.steps.values()[0] == 1);
}

TEST_CASE("What was measured holds; what was not is as that makes it") {
  Curve curve;
  curve.add(64, 1.2, 2);
  curve.at(64);
  CHECK(!curve.steps.known());  // chance
  curve.add(64, 1.2, 1);
  CHECK(curve.at(64) == doctest::Approx(1.2));
  REQUIRE(curve.steps.known());
  CHECK(curve.at(124) == doctest::Approx(1));                   // no better than was said
  CHECK(curve.at(32) == doctest::Approx(1.2));                  // worth trying
  CHECK(curve.at(16) == doctest::Approx(1.2 * 64 / 2.3 / 16));  // not all at once
  SUBCASE("latency and shared work") {
    curve.add(32, 1.5, 3);  // 0.9 + 19.2 / m
    CHECK(curve.at(32) == doctest::Approx(1.5));
    CHECK(curve.at(16) == doctest::Approx(2.1));
    CHECK(curve.at(36) == doctest::Approx(0.9 + 19.2 / 36));
    CHECK(curve.at(64) == doctest::Approx(1.2));
  }
  SUBCASE("wider is never worse") {
    curve.add(116, 1.9, 3);
    CHECK(curve.at(116) == doctest::Approx(1.2));
    CHECK(curve.at(32) == doctest::Approx(1.2));  // and narrower no better
  }
}

TEST_CASE("Pauses between steps hardly count; steps that grow do") {
  Curve curve;
  for (int i = 0; i < 300; ++i) curve.steps.add(64, i % 5 == 4 ? 100.0 : 1.2);
  CHECK(curve.at(64) == doctest::Approx(1.2));
  for (int i = 0; i < 300; ++i) curve.steps.add(64, 2.4);
  CHECK(curve.at(64) > 2.3);
  for (int i = 0; i < 20; ++i) curve.steps.add(64, 1.2);
  CHECK(curve.at(64) < 1.3);
  for (int i = 0; i < 5; ++i) curve.steps.add(64, 12);
  CHECK(curve.at(64) == doctest::Approx(12));
}

}  // namespace
}  // namespace vitamin::policies
