// SPDX-License-Identifier: Apache-2.0
//
// What the daemon's parts want of the configuration, in their own terms.
#pragma once

#include <string>

#include "config/configuration.h"
#include "daemon/device_arbiter.h"

namespace vitamin::daemon {

ArbiterSettings arbiter_settings(const config::Configuration& configuration);
// What tells a policy from another.
std::string seeded(const std::string& specification, std::uint64_t seed);
// `workload` null: of no class. `share`: percent of the device that something else leaves it.
Traits traits_of(const config::WorkloadClass* workload, std::uint32_t share,
                 std::uint32_t processors);

}  // namespace vitamin::daemon
