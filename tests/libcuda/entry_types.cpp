// SPDX-License-Identifier: Apache-2.0
//
// Compiles only while the version numbers of entry_points.def are those of the toolkit: for every
// line there is a function pointer type of that name and version, and it is the type of the
// exported function.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaProfiler.h>
#include <cudaProfilerTypedefs.h>
#include <cudaTypedefs.h>

#include <type_traits>

#if CUDA_VERSION < 12050
#include "backends/soft/libcuda/cuda_api.h"
#endif

#define ENTRY(symbol, base, since) \
  static_assert(std::is_same_v<PFN_##base##_v##since, decltype(&::symbol)>);
#define SAME_AS(symbol, target, base, since) ENTRY(symbol, base, since)
#define MISSING(symbol, base, since)
#define PER_THREAD(symbol, target, base, since)
#include "backends/soft/libcuda/entry_points.def"
