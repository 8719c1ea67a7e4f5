// SPDX-License-Identifier: Apache-2.0
//
// A policy in a shared object (vitamin_policy.h) as a Policy. Its calls run in a Sandbox; what goes
// wrong is thrown, and the scheduler replaces the policy. What goes wrong in create() refuses it.
// Outside of a sandbox, before that: the library's initializers and vitamin_policy(), which returns
// a constant; behind it: destroy().
//
// A file that is loaded stays as it is: while some policy of this process is of this path, the path
// names what was loaded first, whatever the file is by then (dlopen).
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
