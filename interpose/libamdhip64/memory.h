// SPDX-License-Identifier: Apache-2.0
//
// What the treatments of device memory (interpose/memory.h) need to know of HIP.
#pragma once

#include <cstring>

#include "interpose/libamdhip64/vendor_traits.h"
#include "interpose/memory.h"

namespace vitamin::interpose {

// ([device]): all its memory of this process is gone.
template <class Inner>
struct EndsDevice {
  template <class... Device>
  static hipError_t run(EntryPoint<hipError_t(Device...)> entry, Device... device) {
    const int ended = ordinal_that_ends(device...);
    const hipError_t answer = Inner::run(entry, device...);
    if (!no_quotas() && answer == hipSuccess) give_back_context(ended);
    return answer;
  }

 private:
  static int ordinal_that_ends() { return current_ordinal(); }
  static int ordinal_that_ends(int device) { return device; }
};

hipError_t charged_box(EntryPoint<decltype(::hipMalloc3D)> entry, hipPitchedPtr* memory,
                       hipExtent extent);

// Of properties that begin with the name: where the size of the memory is.
constexpr std::size_t total_offset(const hipDeviceProp_t*) {
  return offsetof(hipDeviceProp_t, totalGlobalMem);
}
// hipDeviceProp_tR0600: name[256], UUID (16 bytes), luid[8], luidDeviceNodeMask, then this.
constexpr std::size_t total_offset(const void*) { return 288; }

template <class Properties>
hipError_t device_properties(EntryPoint<hipError_t(Properties*, int)> entry, Properties* properties,
                             int ordinal) {
  const hipError_t answer = entry.real(properties, ordinal);
  if (no_quotas() || answer != hipSuccess || properties == nullptr) return answer;
  char* const at = static_cast<char*>(static_cast<void*>(properties)) + total_offset(properties);
  std::size_t total = 0;
  std::memcpy(&total, at, sizeof total);
  total = bounded_total(ordinal, total);
  std::memcpy(at, &total, sizeof total);
  return answer;
}

}  // namespace vitamin::interpose
