// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend on real driver functions.
#pragma once

#include <memory>

#include "hal/device.h"
#include "interpose/entry_points.h"

namespace vitamin::cuda {
struct Api;
}

namespace vitamin::interpose {

// The driver's functions; null: some that the backend needs are missing.
const cuda::Api* driver_functions();
// The driver's context of a partition.
CUcontext context_of_partition(hal::PhysicalContext& partition);

}  // namespace vitamin::interpose
