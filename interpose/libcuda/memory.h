// SPDX-License-Identifier: Apache-2.0
//
// What the treatments of device memory (interpose/memory.h) need to know of CUDA.
#pragma once

#include "interpose/libcuda/vendor_traits.h"
#include "interpose/memory.h"

namespace vitamin::interpose {

// --- contexts ------------------------------------------------------------------------------------

// (context): its memory is gone with it.
template <class Inner>
struct EndsContext {
  static CUresult run(EntryPoint<CUresult(CUcontext)> entry, CUcontext context) {
    const CUresult answer = Inner::run(entry, context);
    if (!no_quotas() && answer == CUDA_SUCCESS) give_back_context(context);
    return answer;
  }
};
// (device): of its primary context, if that was the last reference.
CUcontext primary_context(CUdevice device);  // null: there is none
template <class Inner>
struct EndsPrimary {
  static CUresult run(EntryPoint<CUresult(CUdevice)> entry, CUdevice device) {
    if (no_quotas()) return Inner::run(entry, device);
    const CUcontext context = primary_context(device);
    const CUresult answer = Inner::run(entry, device);
    if (context != nullptr && primary_context(device) == nullptr) give_back_context(context);
    return answer;
  }
};

}  // namespace vitamin::interpose
