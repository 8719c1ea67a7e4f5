// SPDX-License-Identifier: Apache-2.0
#include "interpose/libcudart/backend.h"

#include "backends/cuda/device.h"
#include "interpose/context.h"
#include "interpose/origins.h"

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

CUcontext context_of_entry(hal::PhysicalContext& entry) { return cuda::context_of(entry); }

bool is_host_address(CUdeviceptr address) {
  const Inside ours;
  const unsigned type = memory_type(address);
  return type == 0 || type == CU_MEMORYTYPE_HOST;
}

void CopySides::pointer(CUdeviceptr address) {
  const unsigned type = memory_type(address);
  if (type == 0) pageable = true;
  if (type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY) device = true;
}

}  // namespace vitamin::interpose
