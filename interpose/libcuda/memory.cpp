// SPDX-License-Identifier: Apache-2.0
#include "interpose/libcuda/memory.h"

#include <cstdio>

#include "interpose/libcuda/manual_overrides.h"

namespace vitamin::interpose {
namespace {

// Formats of which an element is not as wide as its channels together, by number: older headers
// lack some. In compressed and planar ones the bits of a whole array are divided by its elements.
constexpr std::pair<unsigned, unsigned> kPackedBits[] = {
    {0x50, 32},                                                  // UNORM_INT_101010_2
    {0x91, 4},  {0x92, 4},  {0x93, 8},  {0x94, 8},  {0x95, 8},   // BC1 to BC3
    {0x96, 8},  {0x97, 4},  {0x98, 4},  {0x99, 8},  {0x9a, 8},   // BC3 to BC5
    {0x9b, 8},  {0x9c, 8},  {0x9d, 8},  {0x9e, 8},               // BC6H and BC7
    {0x9f, 24}, {0xa1, 24}, {0xa2, 16}, {0xa3, 32}, {0xa4, 32},  // P010, P016, NV16, P210, P216
    {0xa5, 16}, {0xa6, 32}, {0xa7, 32}, {0xa8, 32}, {0xa9, 32},  // YUY2, Y210, Y216, AYUV, Y410
    {0xb0, 12}, {0xb1, 64}, {0xb2, 24}, {0xb3, 48}, {0xb4, 24},  // NV12, Y416, planar 4:4:4
    {0xb5, 48}, {0xc0, 8},  {0xc1, 16}, {0xc2, 32}, {0xc3, 16},  // normalised: 8 bits, 16
    {0xc4, 32}, {0xc5, 64}, {0xc6, 8},  {0xc7, 16}, {0xc8, 32}, {0xc9, 16}, {0xca, 32}, {0xcb, 64}};

// Bits of an element.
std::uint64_t element_bits(CUarray_format format, unsigned channels) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return std::uint64_t{8} * channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return std::uint64_t{16} * channels;
    default:
      for (const auto& [packed, bits] : kPackedBits)
        if (packed == static_cast<unsigned>(format)) return bits;
      return std::uint64_t{32} * channels;
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
  return {element_bits(array.Format, array.NumChannels),
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

std::optional<CUmemoryPool> default_pool_of_device(int ordinal) {
  CUmemoryPool pool = nullptr;
  if (VITAMIN_REAL(cuDeviceGetDefaultMemPool)(&pool, ordinal) != CUDA_SUCCESS) return std::nullopt;
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
