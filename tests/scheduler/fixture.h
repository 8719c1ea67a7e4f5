// SPDX-License-Identifier: Apache-2.0
//
// Devices that the tests of this directory share.
#pragma once

#include <cstdint>

#include "runtime/pool/layout.h"
#include "scheduler/types.h"

namespace vitamin::scheduler {

// `units` units of `each` SMs, the last one of `last`.
inline hal::DeviceInfo device(unsigned units, std::uint32_t each, std::uint32_t last) {
  hal::DeviceInfo info;
  info.sms_per_unit.assign(units - 1, each);
  info.sms_per_unit.push_back(last);
  info.sms = (units - 1) * each + last;
  return info;
}

inline runtime::PoolLayout h200() { return runtime::PoolLayout::build(device(16, 8, 12)); }
inline runtime::PoolLayout four_units() { return runtime::PoolLayout::build(device(4, 8, 8)); }

}  // namespace vitamin::scheduler
