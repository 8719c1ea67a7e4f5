// SPDX-License-Identifier: Apache-2.0
//
// NVIDIA's cuda.h with every variant of every entry point declared (the plain, the versioned and
// the per-thread-default-stream symbols), which is what a driver defines.
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>
#include <cudaProfiler.h>

// The one call that green contexts are useless without and that the headers of 12.4 lack.
#if CUDA_VERSION < 12050
extern "C" CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream* phStream, CUgreenCtx greenCtx,
                                                   unsigned int flags, int priority);
using PFN_cuGreenCtxStreamCreate_v12050 = decltype(&cuGreenCtxStreamCreate);
#endif

static_assert(CUDA_VERSION >= 12040, "the software driver needs the headers of CUDA 12.4 or later");
