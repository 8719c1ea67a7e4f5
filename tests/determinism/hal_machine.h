// SPDX-License-Identifier: Apache-2.0
//
// The suite over the HAL: the software device in virtual time, natively or through a VirtualContext
// with tenants beside it. The order of a kernel's blocks depends on where it runs and on the seed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hal/device.h"
#include "runtime/audit.h"
#include "tests/determinism/machine.h"

namespace vitamin::determinism {

struct Colocation {
  std::string policy = "random";
  std::uint64_t window_ns = ~0ULL;
  unsigned tenants = 1;    // streams that launch kernels of their own between the subject's
  std::uint64_t seed = 1;  // of the policy and of the tenants
  std::shared_ptr<runtime::Audit> audit = {};
  // Stands between the runtime and what the audit watches: a mistake of the runtime's, planted.
  std::function<std::unique_ptr<hal::Device>(std::unique_ptr<hal::Device>)> planted = {};
};

class HalMachine : public Machine {
 public:
  // How wide the launches of the subject ran, in order. Empty: natively.
  virtual const std::vector<unsigned>& widths() const = 0;
  // Launches that ran elsewhere than the one before them.
  virtual std::uint64_t moved() const = 0;
  // The device finishes everything; the runtime does not learn of it.
  virtual void settle() = 0;
};

// The device alone, no Vitamin: one queue over all of it. `seed`: of the device's own order.
std::unique_ptr<HalMachine> native_machine(std::uint64_t seed);
std::unique_ptr<HalMachine> shared_machine(std::uint64_t seed, const Colocation& colocation);

}  // namespace vitamin::determinism
