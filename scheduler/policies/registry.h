// SPDX-License-Identifier: Apache-2.0
//
// Policies by name: "fifo", "static:units=0-7", "random:every=4,min=16".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "hal/result.h"
#include "runtime/profile/profile.h"
#include "scheduler/estimator/estimator.h"
#include "scheduler/policy.h"

namespace vitamin::scheduler {

// What a policy is made for. All of it outlives the policy.
struct PolicyContext {
  std::span<const Partition> pool;
  Estimator& estimator;
  const runtime::Profile* profile = nullptr;  // times of kernels; null: none are known
  std::uint64_t seed = 0;                     // what `random` draws from
};

// Every built-in policy, in the order in which a person should read about them.
std::span<const PolicyDescription> list();
// A line that says what took the place of NAME or NAME=VALUE, which the policy had in the release
// before; empty: it had no such parameter, or has it still.
std::string former_parameter(std::string_view policy, std::string_view parameter);

// The policy of a specification NAME[:PARAMETER=VALUE[,...]]. An error names what is wrong, what is
// known and the nearest known name; of a parameter of before the present scheduler, what took its
// place. A NAME with a '/' is the path of a shared object (scheduler/policies/loadable.h).
hal::Result<Policy> make(std::string_view specification, const PolicyContext& context);

// Whether make() would succeed, or why not.
struct Checked {
  bool uses_kernel_times = false, keeps_bounds = false, weighs = false;  // PolicyDescription
};
hal::Result<Checked> check(std::string_view specification);

}  // namespace vitamin::scheduler
