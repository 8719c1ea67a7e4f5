// SPDX-License-Identifier: Apache-2.0
//
// The suite over the HAL, on whatever platform is linked (platform.h): natively, or through a
// VirtualContext with tenants beside it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hal/device.h"
#include "runtime/audit/audit.h"
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
  // The SMs that the program is told of instead of the device's: 0: none.
  unsigned leaked_sms = 0;
};

// Where the launches of a kernel really ran, in order.
struct LaunchRun {
  std::string kernel;
  unsigned sms;
};

class HalMachine : public Machine {
 public:
  // Of the subject's launches. Empty: natively.
  virtual const std::vector<LaunchRun>& launch_runs() const = 0;
  // Launches that ran elsewhere than the one before them.
  virtual std::uint64_t moved() const = 0;
  virtual std::uint64_t tenants_launches() const = 0;
  // The device finishes everything; the runtime does not learn of it.
  virtual void settle() = 0;
};

// The device alone, no Vitamin: one queue over all of it, or over a set. `seed`: of the device's
// own order, where it can be chosen.
std::unique_ptr<HalMachine> native_machine(std::uint64_t seed, hal::ComputeSet set = {});
std::unique_ptr<HalMachine> shared_machine(std::uint64_t seed, const Colocation& colocation);

}  // namespace vitamin::determinism
