// SPDX-License-Identifier: Apache-2.0
//
// The table of real driver entry points that the CUDA backend calls. Nothing links libcuda: the
// table is filled by code that knows where the real driver is (the interposer, which must not hand
// out its own hooks; a test that opened the library itself).
#pragma once

#include <cuda.h>

#include "hal/lock_rule.h"
#include "hal/result.h"

namespace vitamin::cuda {

// Returns the driver's entry point of exactly this exported name, or null.
using Lookup = void* (*)(const char* name);

struct Api {
#define VITAMIN_CUDA_REQUIRED(name, blocks) \
  hal::TableEntry<decltype(&::name), hal::Blocks::blocks> name;
#define VITAMIN_CUDA_OPTIONAL(name, blocks) VITAMIN_CUDA_REQUIRED(name, blocks)
#include "backends/cuda/api.def"
#undef VITAMIN_CUDA_REQUIRED
#undef VITAMIN_CUDA_OPTIONAL

  // kUnavailable names the first required function that the driver lacks.
  static hal::Result<Api> load(Lookup lookup);
};

}  // namespace vitamin::cuda
