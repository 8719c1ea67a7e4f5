// SPDX-License-Identifier: Apache-2.0
//
// What becomes of the bounds of clients, from policies that keep them (slo.h).
#pragma once

#include <vector>

#include "scheduler/policies/slo.h"

namespace vitamin::scheduler {

// Of every client with a bound of its own that the policy knows; none: the policy keeps no bounds.
// A client that asks for latencies as alone has no bound that could be missed, and is left out.
void promises_of(const AllocationPolicy* policy, std::vector<Promise>& out);

}  // namespace vitamin::scheduler
