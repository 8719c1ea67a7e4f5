// SPDX-License-Identifier: Apache-2.0
//
// What in a program's environment breaks the promise about bits, or the overlap of processes, under
// NVIDIA's MPS.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace vitamin::config {

// A sentence each: cause and remedy. `get`: the value of a variable, or null.
std::vector<std::string> mps_hazards(const std::function<const char*(const char*)>& get);

}  // namespace vitamin::config
