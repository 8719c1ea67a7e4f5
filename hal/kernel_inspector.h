// SPDX-License-Identifier: Apache-2.0
//
// Describes kernels, and launches before they are made: names, parameters, how many SMs a launch
// needs, and whether the device would refuse it.
//
// Threads: any. Each function but attribute_record_bytes() may call the vendor. None is called on
// the fast path: the runtime asks name() and layout() once for a kernel, sms_needed() and
// resident_blocks() once for a launch configuration, validate() for a launch that it defers, and
// origin() once for a kernel and for each launch that is bridged.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>

#include "hal/operation.h"
#include "hal/result.h"

namespace vitamin::hal {

// Not codes of any vendor: the status of the launch is known only by making it.
inline constexpr NativeStatus kOnlyTheCallTells = INT_MIN;
inline constexpr NativeStatus kRefusedInAnyPlace = INT_MIN + 1;

class KernelInspector {
 public:
  virtual ~KernelInspector() = default;

  // Where a kernel's parameters lie. kUnsupported: this kernel's arguments cannot be copied, so it
  // must be submitted while the caller's pointers are valid.
  virtual Result<KernelLayout> layout(KernelHandle kernel) = 0;
  virtual std::string name(KernelHandle kernel) = 0;
  // The library that the kernel came from, for the coverage report ("libcudnn_cnn.so.9", "jit").
  virtual std::string origin(KernelHandle kernel) = 0;
  // The size of one record of an AttributeList, which begins with its attribute's 32-bit number.
  virtual std::size_t attribute_record_bytes() const noexcept = 0;

  // How many SMs (CUs) a launch needs at least so that it runs *unchanged*: 1 for an ordinary grid;
  // for a cooperative grid enough to hold every block at once; for a cluster what one cluster
  // needs. All SMs of the device + 1: only the whole device (through the program's own stream)
  // may take it. `resident`: treat an ordinary grid as if it were cooperative (a kernel that
  // spins).
  virtual std::uint32_t sms_needed(const KernelLaunch& launch, bool resident) = 0;
  // How many blocks of the launch one SM holds at once; 0: unknown.
  virtual std::uint32_t resident_blocks(const KernelLaunch& launch) = 0;
  // The error that the launch would return natively, at once, for a launch that is only copied now
  // and submitted later (bad block, too much shared memory, too large a cooperative grid or
  // cluster). kOnlyTheCallTells: the caller must not defer the launch, but make it, in its place.
  // kRefusedInAnyPlace: it fails with a code that the vendor's version decides, and nothing of it
  // ever runs: the caller makes it at once, ahead of what is deferred, for its code.
  virtual NativeStatus validate(const KernelLaunch& launch) noexcept = 0;
};

}  // namespace vitamin::hal
