// SPDX-License-Identifier: Apache-2.0
//
// What was decided for one device and why, as the fields of its status (docs/explain.md has what
// `vitamin explain` makes of them).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "daemon/arbiter/devices.h"

namespace vitamin::daemon {

// The key of vitamin.toml that bounds such steps: "tpot".
const char* bound_name(scheduler::StepKind kind);

// Adds to the status of a device:
//   allocation    for each client the row in force, since when, and what decided it
//   found         the alternatives of the choice in force, measured or predicted
//   found_before  the same of the last choice, where there is none now; null: there was none
//   bounds        what becomes of each latency bound
//   measures      whether the policy compares alternatives by what clients complete under them
void add_decisions(const Device& device, std::uint64_t now_ns, nlohmann::json& status);

}  // namespace vitamin::daemon
