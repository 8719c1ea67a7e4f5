// SPDX-License-Identifier: Apache-2.0
#include "interpose/libcuda/backend.h"

#include <algorithm>

#include "backends/cuda/device.h"
#include "interpose/context.h"
#include "interpose/module_origins.h"

namespace vitamin::interpose {
namespace {

std::string origin(void* module_or_library) { return origin_of(module_or_library); }

// 0 for memory that the driver does not know: pageable.
unsigned memory_type(CUdeviceptr pointer) {
  unsigned type = 0;
  const CUresult answer =
      VITAMIN_REAL(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer);
  return answer == CUDA_SUCCESS ? type : 0;
}

// Driver functions never move, so one table serves every device.
const hal::Result<cuda::Api>& driver_api() {
  static const auto* const api = new hal::Result<cuda::Api>(cuda::Api::load(&real_function));
  return *api;
}

}  // namespace

hal::Result<std::unique_ptr<hal::Device>> open_device(int ordinal, CUcontext primary) {
  const hal::Result<cuda::Api>& api = driver_api();
  if (!api) return tl::unexpected(api.error());
  cuda::DeviceOptions options;
  options.ordinal = ordinal;
  options.primary = primary;
  options.open_captures = &open_captures;
  options.origin_of = &origin;
  return cuda::open_device(*api, options);
}

const cuda::Api* driver_functions() {
  const hal::Result<cuda::Api>& api = driver_api();
  return api ? &*api : nullptr;
}

CUcontext context_of_partition(hal::PhysicalContext& partition) {
  return cuda::context_of(partition);
}

bool is_host_address(CUdeviceptr address) {
  const ReentrancyGuard ours;
  const unsigned type = memory_type(address);
  return type == 0 || type == CU_MEMORYTYPE_HOST;
}

bool covers(CUdeviceptr address, std::size_t bytes) {
  if (bytes == 0) return true;
  CUdeviceptr start = 0;
  std::size_t size = 0;
  void* answers[] = {&start, &size};
  CUpointer_attribute questions[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                     CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  for (int i = 0; i < 2; ++i)
    if (VITAMIN_REAL(cuPointerGetAttribute)(answers[i], questions[i], address) != CUDA_SUCCESS)
      return false;
  return address >= start && bytes <= size && address - start <= size - bytes;
}

bool free_accepted(CUdeviceptr address) {
  CUmemoryPool pool = nullptr;
  CUdeviceptr start = 0;
  return VITAMIN_REAL(cuPointerGetAttribute)(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) ==
             CUDA_SUCCESS &&
         pool != nullptr &&
         VITAMIN_REAL(cuPointerGetAttribute)(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                             address) == CUDA_SUCCESS &&
         start == address;
}

bool value_wait_accepted(CUdeviceptr address, std::size_t size, unsigned flags) {
  return flags <= CU_STREAM_WAIT_VALUE_NOR && address % size == 0 && covers(address, size);
}

bool fill_accepted(CUdeviceptr target, std::size_t pitch, std::size_t element, std::size_t width,
                   std::size_t height) {
  constexpr std::size_t kMost = std::size_t{1} << 40;  // no product of two overflows
  if (width == 0 || height == 0) return true;
  if (width > kMost || height > kMost || pitch > kMost || target % element != 0) return false;
  const std::size_t row = width * element;
  if (height == 1) return covers(target, row);
  if (pitch < row || pitch % element != 0 || height > kMost / pitch) return false;
  return covers(target, (height - 1) * pitch + row);
}

namespace {

// A side of a box in linear memory; arrays are for the call to judge.
bool side_accepted(CUmemorytype type, const void* host, CUdeviceptr device, std::size_t pitch,
                   std::size_t height, std::size_t x, std::size_t y, std::size_t z,
                   std::size_t width, std::size_t rows, std::size_t depth) {
  if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
    return false;
  constexpr std::size_t kMost = std::size_t{1} << 20;  // no product of three overflows
  for (const std::size_t size : {pitch, height, x, y, z, width, rows, depth})
    if (size > kMost) return false;
  if (width == 0 || rows == 0 || depth == 0 || pitch < x + width) return false;
  if (depth > 1 && height < y + rows) return false;
  const CUdeviceptr start =
      type == CU_MEMORYTYPE_HOST ? reinterpret_cast<CUdeviceptr>(host) : device;
  const std::size_t last = ((z + depth - 1) * std::max(height, y + rows) + y + rows - 1) * pitch;
  return covers(start, last + x + width);
}

}  // namespace

bool surely_accepted(const CUDA_MEMCPY2D* copy, CUstream) {
  return side_accepted(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcPitch, 0,
                       copy->srcXInBytes, copy->srcY, 0, copy->WidthInBytes, copy->Height, 1) &&
         side_accepted(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstPitch, 0,
                       copy->dstXInBytes, copy->dstY, 0, copy->WidthInBytes, copy->Height, 1);
}

bool surely_accepted(const CUDA_MEMCPY3D* copy, CUstream) {
  return side_accepted(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcPitch,
                       copy->srcHeight, copy->srcXInBytes, copy->srcY, copy->srcZ,
                       copy->WidthInBytes, copy->Height, copy->Depth) &&
         side_accepted(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstPitch,
                       copy->dstHeight, copy->dstXInBytes, copy->dstY, copy->dstZ,
                       copy->WidthInBytes, copy->Height, copy->Depth);
}

void CopySides::pointer(CUdeviceptr address) {
  const unsigned type = memory_type(address);
  if (type == 0) pageable = true;
  if (type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY) device = true;
}

}  // namespace vitamin::interpose
