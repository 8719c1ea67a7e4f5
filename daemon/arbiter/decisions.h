// SPDX-License-Identifier: Apache-2.0
//
// The decisions for one device and their reasons, as fields of its status. docs/explain.md says how
// `vitamin explain` shows them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "daemon/arbiter/devices.h"

namespace vitamin::daemon {

// The key of vitamin.toml that bounds steps of this kind, for example "tpot".
const char* bound_name(scheduler::StepKind kind);

// Adds to the status of a device:
//   allocation    for each client the row in force, since when, and what decided it
//   found         the alternatives of the choice in force, measured or predicted
//   found_before  the alternatives of the last choice, if there is none in force; else null
//   bounds        for each latency bound whether it is met
//   measures      whether the policy compares alternatives by what clients complete under them
void add_decisions(const ServedDevice& device, std::uint64_t now_ns, nlohmann::json& status);

}  // namespace vitamin::daemon
