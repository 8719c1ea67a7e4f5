// SPDX-License-Identifier: Apache-2.0
//
// Driver calls that the application does not make now are legal beside its captures only within
// such a scope.
#pragma once

#include "hal/device.h"

namespace vitamin::runtime {

class Internal {
 public:
  explicit Internal(hal::Device& device) : device_(device) { device_.enter_internal(); }
  ~Internal() { device_.leave_internal(); }
  Internal(const Internal&) = delete;
  Internal& operator=(const Internal&) = delete;

 private:
  hal::Device& device_;
};

}  // namespace vitamin::runtime
