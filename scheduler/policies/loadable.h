// SPDX-License-Identifier: Apache-2.0
//
// A policy in a shared object (vitamin_policy.h) as a Policy. Its calls run in a Sandbox; what goes
// wrong is thrown, and the scheduler replaces the policy.
//
// Each call works on a copy of the snapshot, because a call that exceeds its time keeps reading.
#pragma once

#include <string>

#include "hal/result.h"
#include "scheduler/policies/sandbox.h"
#include "scheduler/policy.h"

namespace vitamin::scheduler {

// Errors: the file is missing, is no policy, is of another ABI, refuses its parameters: one
// sentence each.
hal::Result<Policy> load(const std::string& path, const std::string& parameters,
                         const SandboxLimits& limits = {});

// What a shared object says of itself.
struct LoadableDescription {
  std::string name, summary;
};
hal::Result<LoadableDescription> describe(const std::string& path);

}  // namespace vitamin::scheduler
