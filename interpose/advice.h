// SPDX-License-Identifier: Apache-2.0
//
// Advice of the application (interpose/advice/vitamin_advice.h, NVTX ranges) on its way to a
// launch.
#pragma once

#include "runtime/advice.h"

namespace vitamin::interpose {

// Of the calling thread, innermost; null: nothing is said.
const runtime::Advice* current_advice();

}  // namespace vitamin::interpose
