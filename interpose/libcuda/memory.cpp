// SPDX-License-Identifier: Apache-2.0
#include "interpose/libcuda/memory.h"

#include <cstdio>

#include "interpose/libcuda/manual_overrides.h"

namespace vitamin::interpose {
namespace {

std::uint64_t channel_bytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    default:
      return 4;  // and more than the packed and normalised ones take
  }
}

int device_of(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : -1;
}

}  // namespace

std::optional<MemoryFacts> memory_facts(int ordinal) {
  MemoryFacts facts;
  std::size_t total = 0;
  CUuuid uuid{};
  if (VITAMIN_REAL(cuDeviceTotalMem_v2)(&total, ordinal) != CUDA_SUCCESS ||
      VITAMIN_REAL(cuDeviceGetUuid_v2)(&uuid, ordinal) != CUDA_SUCCESS)
    return std::nullopt;
  facts.total = total;
  char text[48] = "GPU-";
  char* at = text + 4;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) *at++ = '-';
    at += std::snprintf(at, 3, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
  }
  facts.uuid = text;
  return facts;
}

int current_ordinal() {
  CUdevice device = -1;
  return VITAMIN_REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS ? device : -1;
}

int ordinal_of(CUstream stream, bool per_thread) {
  if (const StreamRecord* record = known_stream(stream, per_thread);
      record != nullptr && record->context != nullptr)
    return record->context->ordinal;
  CUcontext context = nullptr;
  if (stream == nullptr || stream == kLegacyStream || stream == kThreadStream ||
      VITAMIN_REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
    return current_ordinal();
  const CurrentContext current(context);
  return current_ordinal();
}

DeviceQuotas::View native_memory() {
  std::size_t available = 0, total = 0;
  if (VITAMIN_REAL(cuMemGetInfo_v2)(&available, &total) != CUDA_SUCCESS) return {};
  return {total, available};
}

void free_natively(CUdeviceptr address) { VITAMIN_REAL(cuMemFree_v2)(address); }
void free_natively(CUdeviceptr address, CUstream stream) {
  VITAMIN_REAL(cuMemFreeAsync)(address, stream);
}

ArrayShape array_shape(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels) {
  constexpr unsigned kWithout = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
  if ((array.Flags & kWithout) != 0) return {};
  return {channel_bytes(array.Format) * array.NumChannels,
          array.Width,
          array.Height,
          array.Depth,
          (array.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0,
          levels};
}

// --- pools and physical memory -------------------------------------------------------------------

std::uint64_t pool_memory(CUmemoryPool pool, Figure figure) {
  const auto attribute = figure == Figure::kReserved ? CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
                                                     : CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
  std::uint64_t value = 0;
  return VITAMIN_REAL(cuMemPoolGetAttribute)(pool, attribute, &value) == CUDA_SUCCESS ? value : 0;
}

std::optional<CUmemoryPool> pool_of_device(int ordinal) {
  CUmemoryPool pool = nullptr;
  if (VITAMIN_REAL(cuDeviceGetMemPool)(&pool, ordinal) != CUDA_SUCCESS) return std::nullopt;
  return pool;
}

void trim_pool(CUmemoryPool pool) { VITAMIN_REAL(cuMemPoolTrimTo)(pool, 0); }

int device_of(const CUmemPoolProps& properties) { return device_of(properties.location); }
int device_of(const CUmemAllocationProp& properties) { return device_of(properties.location); }

// --- graphs --------------------------------------------------------------------------------------

std::uint64_t graph_memory(int ordinal, Figure figure) {
  const auto attribute = figure == Figure::kReserved ? CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
                                                     : CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT;
  cuuint64_t value = 0;
  return VITAMIN_REAL(cuDeviceGetGraphMemAttribute)(ordinal, attribute, &value) == CUDA_SUCCESS
             ? value
             : 0;
}

std::optional<CUmemoryPool> default_pool_of_device(int ordinal) {
  CUmemoryPool pool = nullptr;
  if (VITAMIN_REAL(cuDeviceGetDefaultMemPool)(&pool, ordinal) != CUDA_SUCCESS) return std::nullopt;
  return pool;
}

void trim_graph_memory(int ordinal) { VITAMIN_REAL(cuDeviceGraphMemTrim)(ordinal); }

MemoryNode memory_node(CUgraphNode node) {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_KERNEL;
  if (VITAMIN_REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS) return {};
  if (type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
    CUdeviceptr address = 0;
    if (VITAMIN_REAL(cuGraphMemFreeNodeGetParams)(node, &address) != CUDA_SUCCESS) return {};
    return {MemoryNode::Kind::kFrees, address, 0, -1};
  }
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
      VITAMIN_REAL(cuGraphMemAllocNodeGetParams)(node, &parameters) != CUDA_SUCCESS)
    return {};
  return {MemoryNode::Kind::kAllocates, parameters.dptr, parameters.bytesize,
          device_of(parameters.poolProps.location)};
}

// --- contexts ------------------------------------------------------------------------------------

CUcontext primary_context(CUdevice device) {
  unsigned flags = 0;
  int active = 0;
  CUcontext context = nullptr;
  if (VITAMIN_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS ||
      active == 0 || VITAMIN_REAL(cuDevicePrimaryCtxRetain)(&context, device) != CUDA_SUCCESS)
    return nullptr;
  VITAMIN_REAL(cuDevicePrimaryCtxRelease_v2)(device);
  return context;
}

}  // namespace vitamin::interpose
