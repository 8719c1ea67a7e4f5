// SPDX-License-Identifier: Apache-2.0
//
// The execution contexts of HIP 7.14, stood in for over the CU-masked streams of the runtime that
// is here: what the documentation says of their arguments and results, strictly. It shows that the
// backend calls them as they are documented, and nothing about a runtime that has them.
#pragma once

#include "backends/hip/api.h"

namespace vitamin::tests {

// What it gets wrong on purpose.
enum class GreenFault { kNone, kOtherUnits, kOtherGroups, kNoStream };

// The entry points of the runtime that is here and, above them, those of execution contexts.
// VITAMIN_TEST_GREEN: "1", or "other-units", "other-groups", "no-stream" for a fault.
hal::Result<hip::Api> open_runtime_with_green_contexts();

// What was asked for in this process.
struct GreenCounts {
  int contexts = 0, alive = 0, streams = 0, with_priority = 0, blocking = 0;
};
GreenCounts green_counts();

}  // namespace vitamin::tests
