// SPDX-License-Identifier: Apache-2.0
//
// Policies by name: "fifo", "static:units=0-7", "random:every=4,min_sms=16".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "hal/result.h"
#include "runtime/profile/profile.h"
#include "scheduler/estimator/estimator.h"
#include "scheduler/policies/sandbox.h"
#include "scheduler/policy.h"

namespace vitamin::scheduler {

// What a policy is made for. All of it outlives the policy.
struct PolicyContext {
  std::span<const Partition> pool;
  Estimator& estimator;
  const runtime::Profile* profile = nullptr;  // times of kernels; null: none are known
  std::uint64_t seed = 0;                     // what `random` draws from
  SandboxLimits limits = {};                  // of the calls of a shared object
};

// Every built-in policy, in the order in which a person should read about them.
std::span<const PolicyDescription> list();
// A line that says what took the place of NAME or NAME=VALUE, which the policy had in an earlier
// release; empty: it had no such parameter, or has it still.
std::string former_parameter(std::string_view policy, std::string_view parameter);

// The policy of a specification NAME[:PARAMETER=VALUE[,...]]. An error is one line: what is wrong,
// the known names and the nearest of them; of a parameter or value that former_parameter() knows,
// what took its place. What depends on the device (units of `static`) is checked against
// `context.pool`, and by check() not at all. A NAME with a '/' is the path of a shared object
// (scheduler/policies/loadable.h).
hal::Result<Policy> make(std::string_view specification, const PolicyContext& context);

// Whether make() would succeed on some device, or why not.
struct Checked {
  bool uses_kernel_times = false, keeps_bounds = false, weighs = false;  // PolicyDescription
};
hal::Result<Checked> check(std::string_view specification, const SandboxLimits& limits = {});

}  // namespace vitamin::scheduler
