// SPDX-License-Identifier: Apache-2.0
//
// VITAMIN_SOFT_TRACE: one line for each operation that ended.
#pragma once

#include <string>

#include "backends/soft/libcuda/driver.h"

namespace vitamin::soft::driver {

// Appends to `path` (shared by the devices of the process). Fields, separated by blanks:
// device stream-id kind kernel-name|- grid block shared launch-hash SMs start-ns end-ns status
void start_trace(Device& device, const std::string& path);

}  // namespace vitamin::soft::driver
