// SPDX-License-Identifier: Apache-2.0
//
// A device that does what a mistake of the runtime would do, once the runtime has asked for the
// right thing. For tests of the audit only.
//
// Every planted mistake leaves the bits as they are: `settle` is called first, and lets the device
// finish everything, so that an edge which is missing now is not missed.
#pragma once

#include <functional>
#include <memory>

#include "hal/device.h"

namespace vitamin::determinism {

enum class Plant {
  kNone,
  kDescriptor,  // a launch with more shared memory than was asked for
  kDroppedEdge, // a wait that is never made
  kOtherEvent,  // a wait for another event than was asked for
};

std::unique_ptr<hal::Device> planted_device(std::unique_ptr<hal::Device> device, Plant plant,
                                            std::function<void()> settle);

}  // namespace vitamin::determinism
