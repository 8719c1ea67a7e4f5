// SPDX-License-Identifier: Apache-2.0
//
// The shape of a real device, as far as its runtime tells it.
#pragma once

#include <optional>

#include "backends/hip/api.h"
#include "backends/hip/mask_plan.h"

namespace vitamin::hip {

// Asks HSA for XCCs, engines, arrays and CUs. It does not tell which CUs were fused off: they are
// taken to be missing evenly (DeviceShape::even). Empty: HSA is not there, or has no such device.
std::optional<DeviceShape> shape_of(const Api& api, int ordinal);

}  // namespace vitamin::hip
