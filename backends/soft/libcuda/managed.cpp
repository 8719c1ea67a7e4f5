// SPDX-License-Identifier: Apache-2.0
//
// Managed memory: advice and migration. All memory is host memory, so there is nothing to move.

#include "backends/soft/libcuda/capture.h"
#include "backends/soft/libcuda/command.h"
#include "backends/soft/libcuda/driver.h"
#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/memory.h"

namespace vitamin::soft::driver {

CUresult api::cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise, CUdevice) {
  const std::lock_guard lock(driver().mutex);
  return inside_allocation(reinterpret_cast<const void*>(pointer), bytes)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult api::cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, CUmem_advise advice,
                             CUmemLocation) {
  return api::cuMemAdvise(pointer, bytes, advice, 0);
}

CUresult api::cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice, CUstream handle) {
  std::unique_lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (const CUresult error = resolve_stream(handle, &stream); error != CUDA_SUCCESS) return error;
  if (!inside_allocation(reinterpret_cast<const void*>(pointer), bytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture != nullptr) return refuse_in_capture(*stream);
  return enqueue(lock, *stream, EmptyCommand{});
}

CUresult api::cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
                                    unsigned flags, CUstream stream) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return api::cuMemPrefetchAsync(pointer, bytes, location.id, stream);
}

CUresult api::cuStreamAttachMemAsync(CUstream handle, CUdeviceptr pointer, size_t, unsigned) {
  std::unique_lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (const CUresult error = resolve_stream(handle, &stream); error != CUDA_SUCCESS) return error;
  const MemoryAllocation* allocation = find_allocation(static_cast<std::uintptr_t>(pointer));
  if (allocation == nullptr || allocation->kind != MemoryKind::kManaged)
    return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture != nullptr) return refuse_in_capture(*stream);
  return enqueue(lock, *stream, EmptyCommand{});
}

}  // namespace vitamin::soft::driver
