// SPDX-License-Identifier: Apache-2.0
//
// What the driver says of functions and kernels: names, parameters, attributes.

#include "backends/soft/libcuda/driver.h"
#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/modules.h"

namespace vitamin::soft::driver {

namespace {

Function* find_of(const void* handle, Kind kind) { return driver().find<Function>(handle, kind); }

CUresult parameter_info(const Function* function, std::size_t index, std::size_t* offset,
                        std::size_t* size) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (offset == nullptr || index >= function->descriptor->parameter_count)
    return CUDA_ERROR_INVALID_VALUE;
  *offset = function->descriptor->parameters[index].offset;
  if (size != nullptr) *size = function->descriptor->parameters[index].size;
  return CUDA_SUCCESS;
}

CUresult name_of(const Function* function, const char** name) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = function->descriptor->name;
  return CUDA_SUCCESS;
}

CUresult get_attribute(const Function* function, CUfunction_attribute attribute, int* value) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const kernel::Traits& traits = function->descriptor->traits;
  const auto set = function->settings.values.find(attribute);
  if (set != function->settings.values.end()) {
    *value = set->second;
    return CUDA_SUCCESS;
  }
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = static_cast<int>(traits.max_threads);
      break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = static_cast<int>(traits.static_shared);
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = static_cast<int>(traits.registers);
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      *value = 90;
      break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = 90;
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = static_cast<int>(dynamic_shared_limit(*function));
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = -1;
      break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
      *value = 0;
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
      *value = static_cast<int>(traits.required_cluster);
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      *value = traits.required_cluster != 0 ? 1 : 0;
      break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      *value = 0;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult set_attribute(Function* function, CUfunction_attribute attribute, int value,
                       const SmLimits& limits) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 ||
          static_cast<std::uint32_t>(value) + function->descriptor->traits.static_shared >
              limits.block_shared_bytes)
        return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  function->settings.values[attribute] = value;
  return CUDA_SUCCESS;
}

const SmLimits& limits_of(CUdevice ordinal) {
  const Device* device = driver().device(ordinal);
  return (device != nullptr ? *device : *driver().devices.front()).engine->device().sm;
}

}  // namespace

CUresult api::cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
  const std::lock_guard lock(driver().mutex);
  return parameter_info(find_of(function, Kind::kFunction), index, offset, size);
}
CUresult api::cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  const std::lock_guard lock(driver().mutex);
  return parameter_info(find_of(kernel, Kind::kKernel), index, offset, size);
}
CUresult api::cuFuncGetName(const char** name, CUfunction function) {
  const std::lock_guard lock(driver().mutex);
  return name_of(find_of(function, Kind::kFunction), name);
}
CUresult api::cuKernelGetName(const char** name, CUkernel kernel) {
  const std::lock_guard lock(driver().mutex);
  return name_of(find_of(kernel, Kind::kKernel), name);
}

CUresult api::cuFuncGetModule(CUmodule* module, CUfunction handle) {
  const std::lock_guard lock(driver().mutex);
  const Function* function = find_of(handle, Kind::kFunction);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *module = reinterpret_cast<CUmodule>(function->module);
  return CUDA_SUCCESS;
}

CUresult api::cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
  const std::lock_guard lock(driver().mutex);
  if (find_of(function, Kind::kFunction) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}
CUresult api::cuFuncLoad(CUfunction function) {
  const std::lock_guard lock(driver().mutex);
  return find_of(function, Kind::kFunction) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

#if CUDA_VERSION >= 12050
CUresult api::cuKernelGetLibrary(CUlibrary* library, CUkernel handle) {
  const std::lock_guard lock(driver().mutex);
  const Function* kernel = find_of(handle, Kind::kKernel);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (library == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *library = reinterpret_cast<CUlibrary>(kernel->library);
  return CUDA_SUCCESS;
}
#endif

CUresult api::cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  const std::lock_guard lock(driver().mutex);
  return get_attribute(find_of(handle, Kind::kFunction), attribute, value);
}
CUresult api::cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  const std::lock_guard lock(driver().mutex);
  return set_attribute(find_of(handle, Kind::kFunction), attribute, value, limits_of(0));
}
CUresult api::cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                                   CUdevice ordinal) {
  const std::lock_guard lock(driver().mutex);
  if (driver().device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return get_attribute(find_of(kernel, Kind::kKernel), attribute, value);
}
CUresult api::cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                   CUdevice ordinal) {
  const std::lock_guard lock(driver().mutex);
  if (driver().device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return set_attribute(find_of(kernel, Kind::kKernel), attribute, value, limits_of(ordinal));
}

CUresult api::cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config) {
  const std::lock_guard lock(driver().mutex);
  Function* function = find_of(handle, Kind::kFunction);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  function->settings.cache = config;
  return CUDA_SUCCESS;
}
CUresult api::cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache config, CUdevice ordinal) {
  const std::lock_guard lock(driver().mutex);
  Function* kernel = find_of(handle, Kind::kKernel);
  if (driver().device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  kernel->settings.cache = config;
  return CUDA_SUCCESS;
}
CUresult api::cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig config) {
  const std::lock_guard lock(driver().mutex);
  Function* function = find_of(handle, Kind::kFunction);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  function->settings.shared = config;
  return CUDA_SUCCESS;
}

}  // namespace vitamin::soft::driver
