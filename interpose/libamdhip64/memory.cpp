// SPDX-License-Identifier: Apache-2.0
#include "interpose/libamdhip64/memory.h"

#include <algorithm>

#include "interpose/libamdhip64/manual_overrides.h"

namespace vitamin::interpose {
namespace {

std::uint64_t channel_bits(hipArray_Format format) {
  switch (format) {
    case HIP_AD_FORMAT_UNSIGNED_INT8:
    case HIP_AD_FORMAT_SIGNED_INT8:
      return 8;
    case HIP_AD_FORMAT_UNSIGNED_INT16:
    case HIP_AD_FORMAT_SIGNED_INT16:
    case HIP_AD_FORMAT_HALF:
      return 16;
    default:
      return 32;
  }
}

int device_of(const hipMemLocation& location) {
  return location.type == hipMemLocationTypeDevice ? location.id : -1;
}

}  // namespace

// The same name as vitamind has for it: the PCI address.
std::optional<MemoryFacts> memory_facts(int ordinal) {
  std::size_t total = 0;
  char address[32] = "";
  if (VITAMIN_REAL(hipDeviceTotalMem)(&total, ordinal) != hipSuccess ||
      VITAMIN_REAL(hipDeviceGetPCIBusId)(address, sizeof address, ordinal) != hipSuccess)
    return std::nullopt;
  return MemoryFacts{address, total};
}

int current_ordinal() { return native_current_context(); }

int ordinal_of(hipStream_t stream, bool per_thread) {
  if (const StreamRecord* record = known_stream(stream, per_thread);
      record != nullptr && record->context != nullptr)
    return record->context->ordinal;
  return context_of_stream(stream);
}

DeviceQuotas::View native_memory() {
  std::size_t available = 0, total = 0;
  if (VITAMIN_REAL(hipMemGetInfo)(&available, &total) != hipSuccess) return {};
  return {total, available};
}

void free_natively(void* address) { static_cast<void>(VITAMIN_REAL(hipFree)(address)); }
void free_natively(void* address, hipStream_t stream) {
  static_cast<void>(VITAMIN_REAL(hipFreeAsync)(address, stream));
}

hipError_t charged_box(EntryPoint<decltype(::hipMalloc3D)> entry, hipPitchedPtr* memory,
                       hipExtent extent) {
  const auto call = [&] { return entry.real(memory, extent); };
  std::uint64_t rows = 0;
  if (memory == nullptr || __builtin_mul_overflow(extent.height, extent.depth, &rows))
    return call();
  return charged_rows(extent.width, rows, call, memory->ptr, memory->pitch);
}

void* management_override(void* found, const char*, const std::function<void*(const char*)>&) {
  return found;
}

// --- arrays --------------------------------------------------------------------------------------

ArrayShape array_shape(const HIP_ARRAY3D_DESCRIPTOR& array, unsigned levels) {
  return {channel_bits(array.Format) * array.NumChannels,
          array.Width,
          array.Height,
          array.Depth,
          (array.Flags & (hipArrayLayered | hipArrayCubemap)) != 0,
          levels};
}
ArrayShape array_shape(const HIP_ARRAY_DESCRIPTOR& array) {
  return {channel_bits(array.Format) * array.NumChannels, array.Width, array.Height, 0, false, 1};
}
ArrayShape array_shape(const hipChannelFormatDesc& format, hipExtent extent, unsigned levels,
                       unsigned flags) {
  const int bits = format.x + format.y + format.z + format.w;
  return {
      static_cast<std::uint64_t>(std::max(bits, 0)),      extent.width, extent.height, extent.depth,
      (flags & (hipArrayLayered | hipArrayCubemap)) != 0, levels};
}
ArrayShape array_shape(const hipChannelFormatDesc& format, hipExtent extent, unsigned flags) {
  return array_shape(format, extent, 1, flags);
}
ArrayShape array_shape(const hipChannelFormatDesc& format, std::size_t width, std::size_t height,
                       unsigned flags) {
  return array_shape(format, hipExtent{width, height, 0}, 1, flags);
}

// --- pools and physical memory -------------------------------------------------------------------

std::uint64_t pool_memory(hipMemPool_t pool, Figure figure) {
  const auto attribute =
      figure == Figure::kReserved ? hipMemPoolAttrReservedMemCurrent : hipMemPoolAttrUsedMemCurrent;
  std::uint64_t value = 0;
  auto* const ask = VITAMIN_REAL(hipMemPoolGetAttribute);
  return ask != nullptr && ask(pool, attribute, &value) == hipSuccess ? value : 0;
}

std::optional<hipMemPool_t> pool_of_device(int ordinal) {
  hipMemPool_t pool = nullptr;
  auto* const ask = VITAMIN_REAL(hipDeviceGetMemPool);
  if (ask == nullptr || ask(&pool, ordinal) != hipSuccess) return std::nullopt;
  return pool;
}

std::optional<hipMemPool_t> default_pool_of_device(int ordinal) {
  hipMemPool_t pool = nullptr;
  auto* const ask = VITAMIN_REAL(hipDeviceGetDefaultMemPool);
  if (ask == nullptr || ask(&pool, ordinal) != hipSuccess) return std::nullopt;
  return pool;
}

void trim_pool(hipMemPool_t pool) { static_cast<void>(VITAMIN_REAL(hipMemPoolTrimTo)(pool, 0)); }

int device_of(const hipMemPoolProps& properties) { return device_of(properties.location); }
int device_of(const hipMemAllocationProp& properties) { return device_of(properties.location); }

// --- graphs --------------------------------------------------------------------------------------

std::uint64_t graph_memory(int ordinal, Figure figure) {
  constexpr int kUsedCurrent = 0, kReservedCurrent = 2;  // hipGraphMemAttributeType
  std::uint64_t value = 0;
  auto* const ask = VITAMIN_REAL(hipDeviceGetGraphMemAttribute);
  const int attribute = figure == Figure::kReserved ? kReservedCurrent : kUsedCurrent;
  return ask != nullptr && ask(ordinal, attribute, &value) == hipSuccess ? value : 0;
}

void trim_graph_memory(int ordinal) {
  if (auto* const trim = VITAMIN_REAL(hipDeviceGraphMemTrim)) static_cast<void>(trim(ordinal));
}

MemoryNode memory_node(hipGraphNode_t) { return {}; }

}  // namespace vitamin::interpose
