// SPDX-License-Identifier: Apache-2.0
//
// Variables of a program's environment that break bit-identical results, or the overlap of
// processes, under NVIDIA's MPS.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace vitamin::config {

// A sentence for each: cause and remedy. `get`: returns the value of a variable, or null.
std::vector<std::string> mps_hazards(const std::function<const char*(const char*)>& get);

}  // namespace vitamin::config
