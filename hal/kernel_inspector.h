// SPDX-License-Identifier: Apache-2.0
//
// What a device says of kernels and of launches that are not made: names, parameters, how many SMs
// a launch needs, and whether the device would refuse it.
//
// Threads: any. Off the fast path: each answer may take a call of the vendor. The runtime asks once
// for each kernel (KernelTable) or for each launch that it keeps for later.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>

#include "hal/operation.h"
#include "hal/result.h"

namespace vitamin::hal {

// No code of any vendor: what a launch answers is not known before it is made.
inline constexpr NativeStatus kOnlyTheCallTells = INT_MIN;

class KernelInspector {
 public:
  virtual ~KernelInspector() = default;

  // Where a kernel's parameters lie. kUnsupported: this kernel's arguments cannot be copied, so it
  // must be submitted while the caller's pointers are valid.
  virtual Result<KernelLayout> layout(KernelHandle kernel) = 0;
  virtual std::string name(KernelHandle kernel) = 0;
  // The library that the kernel came from, for the coverage report ("libcudnn_cnn.so.9", "jit").
  virtual std::string origin(KernelHandle kernel) = 0;
  // Of one record of an AttributeList. A record begins with the 32-bit number of its attribute.
  virtual std::size_t attribute_record_bytes() const noexcept = 0;

  // How many SMs (CUs) a launch needs at least so that it runs *unchanged*: 1 for an ordinary grid;
  // for a cooperative grid enough to hold every block at once; for a cluster what one cluster
  // needs. All SMs of the device + 1: only the whole device (through the application's own stream)
  // may take it. `resident`: treat an ordinary grid as if it were cooperative (a kernel that
  // spins).
  virtual std::uint32_t sms_needed(const KernelLaunch& launch, bool resident) = 0;
  // How many blocks of the launch one SM holds at once; 0: unknown.
  virtual std::uint32_t resident_blocks(const KernelLaunch& launch) = 0;
  // The error that the launch would return natively, at once, for a launch that is only copied now
  // and submitted later (bad block, too much shared memory, too large a cooperative grid or
  // cluster). kOnlyTheCallTells: then the launch is not copied but made.
  virtual NativeStatus validate(const KernelLaunch& launch) noexcept = 0;
};

}  // namespace vitamin::hal
