// SPDX-License-Identifier: Apache-2.0
//
// Driver calls that the application does not make now are legal beside its captures only within
// such a scope.
#pragma once

#include "hal/device.h"

namespace vitamin::runtime {

class CaptureSafeScope {
 public:
  explicit CaptureSafeScope(hal::Device& device) : device_(device) { device_.enter_internal(); }
  ~CaptureSafeScope() { device_.leave_internal(); }
  CaptureSafeScope(const CaptureSafeScope&) = delete;
  CaptureSafeScope& operator=(const CaptureSafeScope&) = delete;

 private:
  hal::Device& device_;
};

}  // namespace vitamin::runtime
