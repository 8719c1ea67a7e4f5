// SPDX-License-Identifier: Apache-2.0
//
// The table of real entry points that the HIP backend calls. Nothing links libamdhip64: the table
// is filled by the caller that knows where the real library is (the interposer, which must not hand
// out its own hooks; a tool or test through open_runtime).
#pragma once

#include <hip/hip_runtime_api.h>
#include <hsa/hsa.h>

#include <cstddef>
#include <type_traits>

#include "backends/hip/execution_context.h"
#include "backends/hip/version.h"
#include "hal/lock_rule.h"
#include "hal/result.h"

namespace vitamin::hip {

// Returns libamdhip64's own entry point of exactly this exported name, or null.
using Lookup = void* (*)(const char* name);

struct Api {
#define VITAMIN_HIP_OVERLOADED(name, blocks, ...) \
  hal::TableEntry<std::type_identity_t<__VA_ARGS__>, hal::Blocks::blocks> name;
#define VITAMIN_HIP_NEWER(name, blocks, symbol, ...) \
  hal::TableEntry<std::type_identity_t<__VA_ARGS__>, hal::Blocks::blocks> name;
#define VITAMIN_HIP_REQUIRED(name, blocks) \
  hal::TableEntry<decltype(&::name), hal::Blocks::blocks> name;
#define VITAMIN_HIP_OPTIONAL(name, blocks) VITAMIN_HIP_REQUIRED(name, blocks)
#define VITAMIN_HIP_HSA(name, blocks) VITAMIN_HIP_REQUIRED(name, blocks)
#include "backends/hip/api.def"
#undef VITAMIN_HIP_REQUIRED
#undef VITAMIN_HIP_OPTIONAL
#undef VITAMIN_HIP_OVERLOADED
#undef VITAMIN_HIP_NEWER
#undef VITAMIN_HIP_HSA
  int version = 0;  // as hipRuntimeGetVersion says it

  // kUnavailable names the first required function that the library lacks, or its version when it
  // is older than 5.2. HSA's functions are taken from the libhsa-runtime64 of the process.
  static hal::Result<Api> load(Lookup lookup);
};

// Opens libamdhip64.so.7, .6 or .5, the newest that is there, and keeps it open for the life of the
// process. kUnavailable: there is none.
hal::Result<Api> open_runtime();

}  // namespace vitamin::hip
