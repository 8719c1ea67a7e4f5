// SPDX-License-Identifier: Apache-2.0
//
// Opened with RTLD_DEEPBIND: its references bind to its own dependencies first, so it asks the
// driver past the preloaded library, and takes memory past it.
#include <cuda.h>

#include <cstddef>

extern "C" [[gnu::visibility("default")]] std::size_t native_free() {
  std::size_t available = 0, total = 0;
  return cuMemGetInfo(&available, &total) == CUDA_SUCCESS ? available : 0;
}

extern "C" [[gnu::visibility("default")]] CUresult native_take(std::size_t bytes) {
  CUdeviceptr address = 0;
  return cuMemAlloc(&address, bytes);
}
