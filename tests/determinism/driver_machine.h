// SPDX-License-Identifier: Apache-2.0
//
// The suite as an ordinary CUDA program: the driver found by dlsym, one stream, kernels loaded from
// the file beside the program. Knows nothing of Vitamin.
#pragma once

#include <cstdint>
#include <memory>

#include "tests/determinism/machine.h"

namespace vitamin::determinism {

struct DriverOptions {
  // 0: the device's own streams. Otherwise a green context of so many SMs, for the life of
  // the program: a static partition, as a user would make it.
  unsigned green_sms = 0;
};

class DriverMachine : public Machine {
 public:
  // Waits until at most so many milliseconds of work lie ahead of the host.
  virtual void pace() = 0;
};

std::unique_ptr<DriverMachine> driver_machine(const DriverOptions& options);

}  // namespace vitamin::determinism
