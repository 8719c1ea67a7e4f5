// SPDX-License-Identifier: Apache-2.0
//
// The device that clients of tests and measurements report: 132 SMs in 16 units, like an
// H200.
#pragma once

#include <string>
#include <utility>

#include "hal/device.h"

namespace vitamin::tests {

inline hal::DeviceInfo device_like_an_h200(std::string uuid = "GPU-member") {
  hal::DeviceInfo info;
  info.name = "member";
  info.uuid = std::move(uuid);
  info.sms = 132;
  info.sms_per_unit.assign(15, 8);
  info.sms_per_unit.push_back(12);
  return info;
}

}  // namespace vitamin::tests
