// SPDX-License-Identifier: Apache-2.0
//
// Why a run has less than full coverage, in one line that says what to do.
#pragma once

#include <string>
#include <vector>

#include "tools/vitamin/run/child.h"
#include "tools/vitamin/run/report.h"

namespace vitamin::tools {

// Empty when every launch of the run was bound. When no launch was seen it may ask the driver
// (node/probe.h).
std::string coverage_problem(const Report& report, const std::vector<std::string>& command,
                             const ChildEnd& end);

// What keeps the loader from preloading anything into this program ("it is statically linked"), or
// empty. `command` is looked up in PATH; a script is followed to its interpreter.
std::string preload_obstacle(const std::string& command);

}  // namespace vitamin::tools
