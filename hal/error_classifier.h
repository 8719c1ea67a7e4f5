// SPDX-License-Identifier: Apache-2.0
//
// Explains the vendor's status codes to the runtime, which knows none of them.
#pragma once

#include "hal/result.h"

namespace vitamin::hal {

// Threads: any. Pure: a status has one meaning for the life of the device.
class ErrorClassifier {
 public:
  virtual ~ErrorClassifier() = default;
  virtual Outcome classify(NativeStatus status) const noexcept = 0;
  virtual NativeStatus not_ready() const noexcept = 0;  // the vendor's "still running"
  // The vendor's "out of memory": the program's answer when the driver gives no more events.
  virtual NativeStatus out_of_memory() const noexcept = 0;
};

}  // namespace vitamin::hal
