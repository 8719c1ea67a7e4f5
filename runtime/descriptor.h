// SPDX-License-Identifier: Apache-2.0
//
// The immutable operation descriptor of a kernel launch: a deep copy of everything that the call
// pointed to (argument values, packed buffers, attributes), made when a launch has to wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "hal/device.h"
#include "runtime/advice.h"
#include "runtime/operation.h"

namespace vitamin::runtime {

// A launch as it came in. Borrowed; keep() copies.
class LaunchOperation : public Operation {
 public:
  // `advice`, null or borrowed as the launch is.
  LaunchOperation(hal::KernelInspector& inspector, const hal::KernelLaunch& launch,
                  const Advice* advice = nullptr)
      : inspector_(inspector), launch_(&launch), advice_(advice) {}
  const LaunchOperation* as_launch() const override { return this; }
  hal::NativeStatus submit(hal::Queue& queue) noexcept override { return queue.launch(*launch_); }
  // Null when the kernel's parameter layout is unknown to the vendor.
  std::unique_ptr<Operation> keep() const override;
  const hal::KernelLaunch& launch() const { return *launch_; }
  const Advice* advice() const { return advice_; }  // null: nothing is said

 private:
  hal::KernelInspector& inspector_;
  const hal::KernelLaunch* launch_;
  const Advice* advice_;
};

// The parameters of a launch in the vendor's packed form: a list of (key, value) pairs in which
// CUDA and HIP agree on two keys (CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE, HIP_LAUNCH_PARAM_*).
// Any other key ends the list.
inline constexpr std::uintptr_t kPackedPointer = 1;
inline constexpr std::uintptr_t kPackedSize = 2;
struct PackedParameters {
  const void* bytes = nullptr;
  const std::size_t* size = nullptr;
  void* end_mark = nullptr;  // the vendors do not agree on it
};
// Borrowed from `list`, which is not null.
PackedParameters packed_parameters(void* const* list);

}  // namespace vitamin::runtime
