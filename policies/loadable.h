// SPDX-License-Identifier: Apache-2.0
//
// A policy in a shared object (policies/vitamin_policy.h) as a runtime::Policy. Its calls run on a
// thread of their own, under a time limit; what goes wrong is thrown, and Guarded, which `load`
// puts around it, answers by replacing it.
#pragma once

#include <memory>
#include <string>

#include "hal/result.h"
#include "policies/guarded.h"

namespace vitamin::policies {

// `path` holds a '/'. Errors: the file is missing, is no policy, is of another ABI, refuses its
// parameters: one sentence each.
// `limits`: for one answer; with what may pass on the caller's side, below the 10 ms promised.
hal::Result<std::unique_ptr<Guarded>> load(const std::string& path, const std::string& parameters,
                                           Sink sink = {}, const Limits& limits = {});

// What a shared object says of itself.
struct LoadableDescription {
  std::string name, summary;
};
hal::Result<LoadableDescription> describe(const std::string& path);

}  // namespace vitamin::policies
