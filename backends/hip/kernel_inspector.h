// SPDX-License-Identifier: Apache-2.0
//
// What the HIP runtime and code objects say of kernels and of launches that are not made.
#pragma once

#include <string>

#include "backends/hip/api.h"
#include "hal/device.h"

namespace vitamin::hip {

class KernelInspector final : public hal::KernelInspector {
 public:
  // `api` and `info` are borrowed from the device.
  KernelInspector(const Api& api, int ordinal, const hal::DeviceInfo& info)
      : api_(api), ordinal_(ordinal), info_(info) {}

  hal::Result<hal::KernelLayout> layout(hal::KernelHandle kernel) override;
  std::string name(hal::KernelHandle kernel) override;
  std::string origin(hal::KernelHandle kernel) override;
  std::size_t attribute_record_bytes() const noexcept override;
  std::uint32_t sms_needed(const hal::KernelLaunch& launch, bool resident) override;
  std::uint32_t resident_blocks(const hal::KernelLaunch& launch) override;
  hal::NativeStatus validate(const hal::KernelLaunch& launch) noexcept override;

 private:
  int shared_bytes_max() const;
  bool plain(const hal::KernelLaunch& launch) const;

  const Api& api_;
  const int ordinal_;
  const hal::DeviceInfo& info_;
};

}  // namespace vitamin::hip
