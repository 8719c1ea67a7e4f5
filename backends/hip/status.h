// SPDX-License-Identifier: Apache-2.0
//
// hipError_t in the words of the HAL.
#pragma once

#include <hip/hip_runtime_api.h>

#include <string>

#include "hal/error_classifier.h"

namespace vitamin::hip {

inline tl::unexpected<hal::Error> failed(const char* what, hipError_t status) {
  hal::Errc code = hal::Errc::kInternal;
  if (status == hipErrorOutOfMemory) code = hal::Errc::kOutOfMemory;
  if (status == hipErrorNoDevice || status == hipErrorInvalidDevice ||
      status == hipErrorNotSupported)
    code = hal::Errc::kUnavailable;
  return hal::fail(
      code, std::string(what) + " (HIP error " + std::to_string(static_cast<int>(status)) + ")",
      status);
}

class ErrorClassifier final : public hal::ErrorClassifier {
 public:
  hal::Outcome classify(hal::NativeStatus status) const noexcept override {
    switch (static_cast<hipError_t>(status)) {
      case hipSuccess:
        return hal::Outcome::kOk;
      case hipErrorNotReady:
        return hal::Outcome::kNotReady;
      case hipErrorCooperativeLaunchTooLarge:
        return hal::Outcome::kPartitionRefused;
      default:
        return hal::Outcome::kError;
    }
  }
  hal::NativeStatus not_ready() const noexcept override { return hipErrorNotReady; }
  hal::NativeStatus out_of_memory() const noexcept override { return hipErrorOutOfMemory; }
};

}  // namespace vitamin::hip
