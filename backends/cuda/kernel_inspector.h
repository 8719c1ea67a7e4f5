// SPDX-License-Identifier: Apache-2.0
//
// What the driver says of kernels and of launches that are not made.
#pragma once

#include <string>

#include "backends/cuda/device.h"

namespace vitamin::cuda {

class KernelInspector final : public hal::KernelInspector {
 public:
  // All borrowed from the device.
  KernelInspector(const Api& api, const DeviceOptions& options, const hal::DeviceInfo& info)
      : api_(api), options_(options), info_(info) {}

  hal::Result<hal::KernelLayout> layout(hal::KernelHandle kernel) override;
  std::string name(hal::KernelHandle kernel) override;
  std::string origin(hal::KernelHandle kernel) override;
  std::size_t attribute_record_bytes() const noexcept override { return sizeof(CUlaunchAttribute); }
  std::uint32_t sms_needed(const hal::KernelLaunch& launch, bool resident) override;
  std::uint32_t resident_blocks(const hal::KernelLaunch& launch) override;
  hal::NativeStatus validate(const hal::KernelLaunch& launch) noexcept override;

 private:
  static bool may_be_refused(const CUlaunchAttribute& record);
  CUresult check_clusters(CUfunction function, const hal::KernelLaunch& launch);
  // The CUfunction of a CUfunction or CUkernel, as the occupancy and attribute calls want it.
  CUfunction function_of(hal::KernelHandle kernel);
  int function_attribute(CUfunction function, CUfunction_attribute attribute, int otherwise);

  const Api& api_;
  const DeviceOptions& options_;
  const hal::DeviceInfo& info_;
};

}  // namespace vitamin::cuda
