// SPDX-License-Identifier: Apache-2.0
//
// HIP's execution contexts ("green contexts", HIP 7.14 and later), as far as they are called here.
// No header of 7.14 is needed to build: what crosses the interface is written down below, with its
// offsets held by assertions. The library's functions are resolved at start; without them there are
// CU-masked streams. Sources: HIP 7.14 API reference, "Execution Context Management", and its
// programming guide; sizes and offsets as CUDA's structures of the same names, which they mirror.
#pragma once

#include <hip/hip_runtime_api.h>

#include <cstddef>

namespace vitamin::hip {

using ExecutionContext = void*;    // hipExecutionCtx_t
using ResourceDescriptor = void*;  // hipDevResourceDesc_t

inline constexpr unsigned kComputeUnits = 1;  // hipDevResourceTypeSm

// hipDevResource. Zero before use; what the runtime keeps in it is copied with it.
struct Resource {
  unsigned type = 0;
  unsigned char of_runtime[92] = {};
  struct {
    unsigned count, smallest_part, alignment, flags;
  } cus = {};
  unsigned char other_kinds[24] = {};
  Resource* next = nullptr;
};
static_assert(offsetof(Resource, cus) == 96 && offsetof(Resource, next) == 136 &&
              sizeof(Resource) == 144);

using GetResource = hipError_t(hipDevice_t, Resource*, unsigned type);
using SplitByCount = hipError_t(Resource* groups, unsigned* group_count, const Resource* whole,
                                Resource* remainder, unsigned flags, unsigned count_of_each);
using GenerateDescriptor = hipError_t(ResourceDescriptor*, Resource* adjacent, unsigned count);
using CreateExecutionContext = hipError_t(ExecutionContext*, ResourceDescriptor, int device,
                                          unsigned flags);
using DestroyExecutionContext = hipError_t(ExecutionContext);
using CreateStreamOf = hipError_t(hipStream_t*, ExecutionContext, unsigned flags, int priority);

}  // namespace vitamin::hip
