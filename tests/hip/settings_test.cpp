// SPDX-License-Identifier: Apache-2.0
#include "backends/hip/settings.h"

#include <doctest/doctest.h>

namespace vitamin::hip {
namespace {

TEST_CASE("without settings half of the budget is for masked queues and no notice is given") {
  const QueueLimits limits = limits_of({}, 8);
  CHECK(limits.slots == 4);
  CHECK_FALSE(limits.confined);
  CHECK(limits.notices.empty());
}

TEST_CASE("a mask of the user's confines the process and is named with its value") {
  Settings settings;
  settings.hsa_cu_mask = "0:0-7";
  settings.roc_global_cu_mask = "0xff";
  const QueueLimits limits = limits_of(settings, 8);
  CHECK(limits.confined);
  REQUIRE(limits.notices.size() == 2);
  CHECK(limits.notices[0].find("HSA_CU_MASK=0:0-7 ") != std::string::npos);
  CHECK(limits.notices[1].find("ROC_GLOBAL_CU_MASK=0xff ") != std::string::npos);
}

TEST_CASE("the user's number of plain queues is taken from the budget") {
  Settings settings;
  settings.max_hw_queues = "1";
  CHECK(limits_of(settings, 8).slots == 7);
  CHECK(limits_of(settings, 8).notices.empty());
  settings.max_hw_queues = "6";
  CHECK(limits_of(settings, 8).slots == 2);
  REQUIRE(limits_of(settings, 8).notices.size() == 1);
  CHECK(limits_of(settings, 8).notices[0].find("GPU_MAX_HW_QUEUES=6 ") == 0);
  settings.max_hw_queues = "32";
  CHECK(limits_of(settings, 8).slots == 1);  // never none
  for (const char* nonsense : {"many", "-1", "0", "3x"}) {
    settings.max_hw_queues = nonsense;
    CHECK(limits_of(settings, 8).slots == 4);
  }
}

}  // namespace
}  // namespace vitamin::hip
