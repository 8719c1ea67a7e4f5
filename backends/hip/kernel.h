// SPDX-License-Identifier: Apache-2.0
//
// What a launch names on AMD. HIP has two sorts of kernel handle (the address of a host stub and
// hipFunction_t) that no call tells apart or converts, and before 7.11 no call that lays out a
// kernel's parameters. The part that sees the code being registered (the interposer) keeps one
// Kernel for each handle; hal::KernelHandle is its address.
#pragma once

#include <hip/hip_runtime_api.h>

#include <cstdint>
#include <optional>
#include <string>

#include "hal/operation.h"

namespace vitamin::hip {

struct Kernel {
  enum class Kind : std::uint8_t {
    kHostFunction,  // hipLaunchKernel and its relatives
    kFunction,      // hipModuleLaunchKernel and its relatives
  };
  Kind kind = Kind::kHostFunction;
  const void* native = nullptr;
  std::string name;    // empty: the runtime is asked
  std::string origin;  // the library or program that its code came from
  // From the metadata of its code object; empty: unreadable, such a launch is never deferred.
  std::optional<hal::KernelLayout> layout;

  hipFunction_t function() const { return static_cast<hipFunction_t>(const_cast<void*>(native)); }
};

// The one record of KernelLaunch::attributes of a launch of form kExtended: what hipExtLaunchKernel
// and hipExtModuleLaunchKernel take besides. It has the size that the runtime copies.
struct ExtendedLaunch {
  hal::Dim3 work_items;  // of hipExtModuleLaunchKernel, whose grid need not be whole blocks
  std::uint32_t flags = 0;
  hipEvent_t start = nullptr, stop = nullptr;  // recorded around the kernel; may be null
  std::uint8_t unused[40] = {};
};
static_assert(sizeof(ExtendedLaunch) == 72);

}  // namespace vitamin::hip
