// SPDX-License-Identifier: Apache-2.0
//
// SM resources: splitting the device, and what a split resource can hold.
#pragma once

#include "backends/soft/libcuda/driver.h"

namespace vitamin::soft::driver {

SmResource whole_device(const Device& device);

}  // namespace vitamin::soft::driver
