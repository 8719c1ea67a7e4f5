// SPDX-License-Identifier: Apache-2.0
//
// How wide a kernel must run (runtime/kernel_table.h).
#include "runtime/kernel_table.h"

#include <doctest/doctest.h>

#include "backends/soft/device.h"
#include "tests/hal/call.h"
#include "tests/soft/kernels.h"

namespace vitamin::soft {
namespace {

TEST_CASE("Of a kernel that is doubted all of a grid that fits is there at once, of a known any") {
  EngineOptions options;
  options.device = DeviceDescription::uniform(8, 2);
  auto opened = open_device(options);
  REQUIRE(opened.has_value());
  hal::Device& device = **opened;
  const std::uint32_t whole = device.info().processors;
  std::uint32_t counter = 0;
  const auto needed = [&](runtime::Kernel& kernel, std::uint32_t blocks) {
    HalCall call(VITAMIN_SOFT_KERNEL(count_blocks), {blocks, 1, 1}, {1024, 1, 1}, &counter);
    const std::uint32_t processors = kernel.sms_needed(device, call.launch);
    CHECK(kernel.sms_needed(device, call.launch) == processors);
    return processors;
  };
  HalCall one(VITAMIN_SOFT_KERNEL(count_blocks), {1, 1, 1}, {1024, 1, 1}, &counter);
  const std::uint32_t each = device.kernels().resident_blocks(one.launch);
  REQUIRE(each > 0);

  runtime::Kernel trusted, doubted;
  doubted.doubted = true;
  CHECK(needed(trusted, whole * each) == 1);
  CHECK(needed(doubted, 1) == 1);
  CHECK(needed(doubted, 3 * each) == 3);
  CHECK(needed(doubted, whole * each) == whole);
  CHECK(needed(doubted, whole * each + 1) == 1);
  // The watchdog caught it: what was found before does not count any more.
  doubted.resident = true;
  CHECK(needed(doubted, 3 * each) == 3);
  CHECK(needed(doubted, whole * each + 1) == whole + 1);
}

}  // namespace
}  // namespace vitamin::soft
