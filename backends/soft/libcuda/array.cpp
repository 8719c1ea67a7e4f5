// SPDX-License-Identifier: Apache-2.0
//
// Arrays and mipmapped arrays: rows without gaps in memory of the device.

#include <algorithm>
#include <memory>
#include <vector>

#include "backends/soft/libcuda/driver.h"
#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/memory.h"

namespace vitamin::soft::driver {

namespace {

std::size_t bytes_of(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4;
    default:
      return 0;  // block-compressed and planar formats
  }
}

Array* find_array(CUarray handle) { return driver().find<Array>(handle, Kind::kArray); }

CUresult create_array(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  const std::size_t element = bytes_of(descriptor.Format);
  const unsigned channels = descriptor.NumChannels;
  if (handle == nullptr || descriptor.Width == 0 ||
      (channels != 1 && channels != 2 && channels != 4))
    return CUDA_ERROR_INVALID_VALUE;
  if (element == 0 || descriptor.Flags != 0) return CUDA_ERROR_NOT_SUPPORTED;
  auto array = std::make_unique<Array>();
  array->descriptor = descriptor;
  array->row_bytes = descriptor.Width * element * channels;
  array->rows = std::max<std::size_t>(descriptor.Height, 1);
  array->layers = std::max<std::size_t>(descriptor.Depth, 1);
  CUdeviceptr data = 0;
  if (const CUresult error = allocate_on_device(
          &data, array->row_bytes * array->rows * array->layers, MemoryKind::kArray, 0);
      error != CUDA_SUCCESS)
    return error;
  const std::lock_guard lock(driver().mutex);
  array->data = reinterpret_cast<unsigned char*>(data);
  array->context = find_allocation(static_cast<std::uintptr_t>(data))->context;
  *handle = reinterpret_cast<CUarray>(driver().own(std::move(array), Kind::kArray));
  return CUDA_SUCCESS;
}

}  // namespace

CUresult api::cuArrayCreate_v2(CUarray* handle, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  if (descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR wide{};
  wide.Width = descriptor->Width;
  wide.Height = descriptor->Height;
  wide.Format = descriptor->Format;
  wide.NumChannels = descriptor->NumChannels;
  return create_array(handle, wide);
}

CUresult api::cuArray3DCreate_v2(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  return descriptor == nullptr ? CUDA_ERROR_INVALID_VALUE : create_array(handle, *descriptor);
}

CUresult api::cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* descriptor, CUarray handle) {
  const std::lock_guard lock(driver().mutex);
  const Array* array = find_array(handle);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *descriptor = CUDA_ARRAY_DESCRIPTOR{array->descriptor.Width, array->descriptor.Height,
                                      array->descriptor.Format, array->descriptor.NumChannels};
  return CUDA_SUCCESS;
}

CUresult api::cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* descriptor, CUarray handle) {
  const std::lock_guard lock(driver().mutex);
  const Array* array = find_array(handle);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *descriptor = array->descriptor;
  return CUDA_SUCCESS;
}

CUresult api::cuArrayDestroy(CUarray handle) {
  std::uintptr_t data = 0;
  {
    const std::lock_guard lock(driver().mutex);
    const Array* array = find_array(handle);
    if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    data = reinterpret_cast<std::uintptr_t>(array->data);
  }
  if (const CUresult error =
          free_synchronously(data, CUDA_ERROR_INVALID_HANDLE,
                             [](MemoryKind kind) { return kind == MemoryKind::kArray; });
      error != CUDA_SUCCESS)
    return error;
  const std::lock_guard lock(driver().mutex);
  if (Array* array = find_array(handle)) driver().release(array);
  return CUDA_SUCCESS;
}

// Levels are arrays of their own, each half as wide, high and deep as the one before.
CUresult api::cuMipmappedArrayCreate(CUmipmappedArray* handle,
                                     const CUDA_ARRAY3D_DESCRIPTOR* descriptor, unsigned levels) {
  if (handle == nullptr || descriptor == nullptr || levels == 0) return CUDA_ERROR_INVALID_VALUE;
  auto array = std::make_unique<MipmappedArray>();
  CUDA_ARRAY3D_DESCRIPTOR level = *descriptor;
  CUresult made = CUDA_SUCCESS;
  for (unsigned i = 0; i < levels && made == CUDA_SUCCESS; ++i) {
    CUarray one = nullptr;
    made = create_array(&one, level);
    if (made == CUDA_SUCCESS) array->levels.push_back(one);
    for (std::size_t* extent : {&level.Width, &level.Height, &level.Depth})
      if (*extent > 1) *extent /= 2;
  }
  if (made != CUDA_SUCCESS) {
    for (CUarray one : array->levels) api::cuArrayDestroy(one);
    return made;
  }
  const std::lock_guard lock(driver().mutex);
  *handle =
      reinterpret_cast<CUmipmappedArray>(driver().own(std::move(array), Kind::kMipmappedArray));
  return CUDA_SUCCESS;
}

CUresult api::cuMipmappedArrayGetLevel(CUarray* level, CUmipmappedArray handle, unsigned number) {
  const std::lock_guard lock(driver().mutex);
  const auto* array = driver().find<MipmappedArray>(handle, Kind::kMipmappedArray);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (level == nullptr || number >= array->levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *level = array->levels[number];
  return CUDA_SUCCESS;
}

CUresult api::cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  std::vector<CUarray> levels;
  {
    const std::lock_guard lock(driver().mutex);
    auto* array = driver().find<MipmappedArray>(handle, Kind::kMipmappedArray);
    if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    levels = array->levels;
    driver().release(array);
  }
  for (CUarray level : levels)
    if (const CUresult error = api::cuArrayDestroy(level); error != CUDA_SUCCESS) return error;
  return CUDA_SUCCESS;
}

}  // namespace vitamin::soft::driver
