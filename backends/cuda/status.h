// SPDX-License-Identifier: Apache-2.0
//
// CUresult in the words of the HAL.
#pragma once

#include <cuda.h>

#include <string>

#include "hal/error_classifier.h"

namespace vitamin::cuda {

inline tl::unexpected<hal::Error> failed(const char* what, CUresult status) {
  hal::Errc code = hal::Errc::kInternal;
  if (status == CUDA_ERROR_OUT_OF_MEMORY) code = hal::Errc::kOutOfMemory;
  if (status == CUDA_ERROR_NOT_SUPPORTED || status == CUDA_ERROR_INVALID_RESOURCE_TYPE)
    code = hal::Errc::kUnavailable;
  return hal::fail(
      code, std::string(what) + " (CUDA error " + std::to_string(static_cast<int>(status)) + ")",
      status);
}

class ErrorClassifier final : public hal::ErrorClassifier {
 public:
  hal::Outcome classify(hal::NativeStatus status) const noexcept override {
    switch (static_cast<CUresult>(status)) {
      case CUDA_SUCCESS:
        return hal::Outcome::kOk;
      case CUDA_ERROR_NOT_READY:
        return hal::Outcome::kNotReady;
      // Measured on an H200: a cluster of 16 on any partition answers 912, a cooperative grid that
      // does not fit answers 720; both work where there is room.
      case CUDA_ERROR_INVALID_CLUSTER_SIZE:
      case CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE:
        return hal::Outcome::kPartitionRefused;
      default:
        return hal::Outcome::kError;
    }
  }
  hal::NativeStatus not_ready() const noexcept override { return CUDA_ERROR_NOT_READY; }
  hal::NativeStatus out_of_memory() const noexcept override { return CUDA_ERROR_OUT_OF_MEMORY; }
};

}  // namespace vitamin::cuda
