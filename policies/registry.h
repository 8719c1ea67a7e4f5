// SPDX-License-Identifier: Apache-2.0
//
// Policies by name: "fifo", "static:units=0-7", "random:every=4,min=16".
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "hal/result.h"
#include "policies/guarded.h"
#include "runtime/policy.h"

namespace vitamin::policies {

struct Parameter {
  const char* name;
  const char* meaning;  // one line, with the default
};

struct Description {
  const char* name;
  const char* summary;  // one line
  std::span<const Parameter> parameters;
};

// Every built-in policy, in the order in which a person should read about them.
std::span<const Description> list();

// The policy of a specification NAME[:PARAMETER=VALUE[,...]]. An error names what is wrong, what is
// known and the nearest known name. `seed` is what `random` draws from. A NAME with a '/' is the path
// of a shared object (policies/loadable.h). Every policy comes guarded (policies/guarded.h): `sink`
// is told when it is replaced.
hal::Result<std::unique_ptr<runtime::Policy>> make(std::string_view specification,
                                                   std::uint64_t seed, Sink sink = {});

}  // namespace vitamin::policies
