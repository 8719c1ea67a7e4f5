// SPDX-License-Identifier: Apache-2.0
//
// One arbiter for each device of a machine, whoever's it is: an exclusive lock on a file that is
// named after the device's UUID. The kernel drops it with the process.
#pragma once

#include <string>

#include "hal/result.h"
#include "protocol/fd.h"

namespace vitamin::daemon {

// Held while the descriptor is open. The error names who holds it.
hal::Result<protocol::Fd> lock_device(const std::string& directory, const std::string& uuid);

}  // namespace vitamin::daemon
