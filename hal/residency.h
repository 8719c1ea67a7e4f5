// SPDX-License-Identifier: Apache-2.0
//
// Shared by the backends' implementations of KernelInspector::sms_needed.
#pragma once

#include <cstdint>

#include "hal/device.h"

namespace vitamin::hal {

// How many SMs hold `blocks` blocks at once, where each holds `resident` (0: unknown).
// All SMs + 1: more than there are.
inline std::uint32_t sms_to_hold(const DeviceInfo& device, std::uint64_t blocks,
                                 std::uint64_t resident) {
  if (resident == 0 || blocks > resident * device.sms) return device.sms + 1;
  return static_cast<std::uint32_t>((blocks + resident - 1) / resident);
}

}  // namespace vitamin::hal
