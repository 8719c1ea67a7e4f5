// SPDX-License-Identifier: Apache-2.0
//
// Waiting for devices, in real and in virtual time.
#pragma once

#include <functional>

#include "backends/soft/libcuda/driver.h"

namespace vitamin::soft::driver {

// Virtual clock: advances every device by a number of steps drawn from the seed, so that a program
// meets its devices at all stages. Real clock: nothing. Called without the mutex.
void step_virtual_clock();

// Blocks until `status` answers something other than kNotReady, and gives that answer. Virtual
// clock: time passes meanwhile. Ends the process with a report when nothing can move any more.
// Called without the mutex.
int wait_until(const std::function<int()>& status);

}  // namespace vitamin::soft::driver
