// SPDX-License-Identifier: Apache-2.0
//
// CUDA's words for what the shared code speaks of (interpose/vendor.h).
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL  // declare every variant under its own name
#endif
#include <cuda.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include "interpose/array_shape.h"

static_assert(CUDA_VERSION >= 12040, "the interposer needs the headers of CUDA 12.4 or later");

namespace vitamin::interpose {

using ApiStatus = CUresult;
inline constexpr ApiStatus kSuccess = CUDA_SUCCESS;
inline constexpr ApiStatus kNotReady = CUDA_ERROR_NOT_READY;
inline constexpr ApiStatus kOutOfMemory = CUDA_ERROR_OUT_OF_MEMORY;
// Only a program that was linked without the driver, or with a newer one, is told this.
inline constexpr ApiStatus kNoSuchFunction = CUDA_ERROR_STUB_LIBRARY;

// Whether the driver calls its own exported functions by way of ours.
inline constexpr bool kCallsItself = false;
// A capture may forbid questions about streams and events that are no part of it
// (capture_global_same_thread.trace).
inline constexpr bool kCaptureForbidsQuestions = true;
// Our own work beside the legacy default stream's does not disturb it, so nothing stands for it.
inline constexpr bool kLegacyIsReal = true;
// Work of a stream that is destroyed goes on (stream_destroyed_with_work.trace).
inline constexpr bool kStreamDestroyWaits = false;
// When the process ends the driver answers that it is deinitialised.
inline constexpr bool kFaultsAtExit = false;
// In a child of a fork the driver answers each call with an error.
inline constexpr bool kServesForks = false;
// After an override: the driver keeps no last error.
inline void finished(ApiStatus) {}

using NativeStream = CUstream;
using NativeEvent = CUevent;
using NativeContext = CUcontext;
using MemoryPool = CUmemoryPool;
using PoolProperties = CUmemPoolProps;
using PhysicalHandle = CUmemGenericAllocationHandle;
using PhysicalProperties = CUmemAllocationProp;
using ShareableType = CUmemAllocationHandleType;
using DeviceAddress = CUdeviceptr;
inline const NativeStream kLegacyStream = CU_STREAM_LEGACY;
inline const NativeStream kThreadStream = CU_STREAM_PER_THREAD;
inline constexpr unsigned kEventInterprocess = CU_EVENT_INTERPROCESS;
inline constexpr unsigned kEventDisableTiming = CU_EVENT_DISABLE_TIMING;
inline constexpr unsigned kEventRecordExternal = CU_EVENT_RECORD_EXTERNAL;

using HostFunction = CUhostFn;
using StreamCallback = CUstreamCallback;

using Graph = CUgraph;
using GraphExec = CUgraphExec;
using GraphNode = CUgraphNode;
inline NativeEvent recorded_event(CUgraphNodeParams* node) {
  return node != nullptr && node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ? node->eventRecord.event
                                                                          : nullptr;
}
// What the arguments of an instantiation say besides the graph.
inline std::uint64_t instantiation_flags(CUgraphNode*, char*, std::size_t) { return 0; }
inline std::uint64_t instantiation_flags(unsigned long long flags) { return flags; }
inline std::uint64_t instantiation_flags(const CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  return parameters != nullptr ? parameters->flags : 0;
}
inline constexpr bool kTellsMemoryNodes = true;
// Whether an instantiation of these arguments uploads the executable, and into which stream.
template <class... Rest>
std::optional<NativeStream> uploads_to(Rest...) {
  return std::nullopt;
}
inline std::optional<NativeStream> uploads_to(CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  if (parameters == nullptr || (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) == 0)
    return std::nullopt;
  return parameters->hUploadStream;
}
using CaptureMode = CUstreamCaptureMode;

inline constexpr const char* kLibraries[] = {"libcuda.so.1"};

constexpr bool may_be_entry_point(const char* name) { return name[0] == 'c' && name[1] == 'u'; }

// Of NVML, which programs open by name.
constexpr bool is_management_symbol(std::string_view name) {
  return name == "nvmlDeviceGetMemoryInfo" || name == "nvmlDeviceGetMemoryInfo_v2";
}

// Whether NULL names the calling thread's own default stream in this variant.
constexpr bool per_thread_variant(std::string_view symbol) {
  return symbol.ends_with("_ptsz") || symbol.ends_with("_ptds");
}

// The name that cuGetProcAddress knows a variant by: without version and per-thread suffix.
constexpr std::string_view base_name(std::string_view symbol) {
  if (per_thread_variant(symbol)) symbol.remove_suffix(5);
  const std::size_t size = symbol.size();
  if (size > 3 && symbol[size - 3] == '_' && symbol[size - 2] == 'v' && symbol[size - 1] >= '0' &&
      symbol[size - 1] <= '9')
    symbol.remove_suffix(3);
  return symbol;
}

// What a function is called that has a place among stream operations, for VITAMIN_DEBUG.
constexpr bool may_be_ordered(std::string_view name) {
  return name.starts_with("cu") && name.size() > 2 && name[2] >= 'A' && name[2] <= 'Z';
}
inline constexpr std::string_view kOrderedWords[] = {"Async",  "Stream", "Event", "Launch",
                                                     "Memcpy", "Memset", "Upload"};
// Nodes only describe what a graph's launch will do; notifications are not queued.
inline constexpr std::string_view kHarmlessWords[] = {"Node", "AsyncNotification"};

// --- arrays --------------------------------------------------------------------------------------

ArrayShape array_shape(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels = 1);
inline ArrayShape array_shape(const CUDA_ARRAY_DESCRIPTOR& array) {
  return array_shape(
      CUDA_ARRAY3D_DESCRIPTOR{array.Width, array.Height, 0, array.Format, array.NumChannels, 0});
}
inline ArrayShape array_shape(const CUDA_ARRAY_DESCRIPTOR_v1& array) {
  return array_shape(
      CUDA_ARRAY3D_DESCRIPTOR{array.Width, array.Height, 0, array.Format, array.NumChannels, 0});
}
inline ArrayShape array_shape(const CUDA_ARRAY3D_DESCRIPTOR_v1& array) {
  return array_shape(CUDA_ARRAY3D_DESCRIPTOR{array.Width, array.Height, array.Depth, array.Format,
                                             array.NumChannels, array.Flags});
}

// --- copies --------------------------------------------------------------------------------------

// What arguments of type CUdeviceptr may be: addresses of device memory, or (cuMemcpyAsync) any.
enum class Addresses : bool { kDevice, kUnified };

template <class T>
concept Descriptor = std::is_class_v<T> && requires(T copy) { copy.WidthInBytes; };
// A descriptor is the same in every version of the driver.
template <class T>
using KeptAs = T;
template <class T>
std::size_t bytes_of(const T&) {
  return sizeof(T);
}

// Which memory a copy's arguments name.
struct CopySides {
  bool pageable = false;
  bool device = false;
  // Fills and copies on the device are work of its copy engines, or take no part of it that we
  // hand out.
  // NOLINTNEXTLINE(readability-identifier-naming): HIP's is a variable of the same name
  static constexpr bool kernel = false;

  template <Addresses kAddresses, class... Args>
  static CopySides of(Args... args) {
    CopySides sides;
    (sides.look<kAddresses>(args), ...);
    return sides;
  }

 private:
  void pointer(CUdeviceptr address);  // asks the driver
  void side(CUmemorytype type, const void* host, CUdeviceptr unified) {
    if (type == CU_MEMORYTYPE_HOST)
      pointer(reinterpret_cast<CUdeviceptr>(host));
    else if (type == CU_MEMORYTYPE_UNIFIED)
      pointer(unified);
    else
      device = true;
  }
  template <Addresses kAddresses, class T>
  void look(T argument) {
    if constexpr (std::is_same_v<T, void*> || std::is_same_v<T, const void*>)
      pointer(reinterpret_cast<CUdeviceptr>(argument));
    else if constexpr (std::is_same_v<T, CUarray>)
      device = true;
    else if constexpr (std::is_same_v<T, CUdeviceptr> && kAddresses == Addresses::kUnified)
      pointer(argument);
    else if constexpr (std::is_same_v<T, CUdeviceptr>)
      device = true;
  }
  template <Addresses kAddresses, Descriptor T>
  void look(const T* copy) {
    side(copy->srcMemoryType, copy->srcHost, copy->srcDevice);
    side(copy->dstMemoryType, copy->dstHost, copy->dstDevice);
  }
};
inline constexpr bool kFillsAreKernels = false;

// Whether the driver surely takes a call of these arguments: then it may be made later without the
// application missing an error that natively the call answers. Asks the driver; off the launch
// path.
bool covers(CUdeviceptr address, std::size_t bytes);  // memory that the driver knows
bool free_accepted(CUdeviceptr address);
bool value_wait_accepted(CUdeviceptr address, std::size_t size, unsigned flags);
bool fill_accepted(CUdeviceptr target, std::size_t pitch, std::size_t element, std::size_t width,
                   std::size_t height);

template <class... Args>
bool surely_accepted(Args...) {
  return false;
}
template <std::integral Value>
bool surely_accepted(CUdeviceptr target, Value, std::size_t count, CUstream) {
  return fill_accepted(target, 0, sizeof(Value), count, 1);
}
template <std::integral Value>
bool surely_accepted(CUdeviceptr target, std::size_t pitch, Value, std::size_t width,
                     std::size_t height, CUstream) {
  return fill_accepted(target, pitch, sizeof(Value), width, height);
}
inline bool surely_accepted(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream) {
  return covers(target, bytes) && covers(source, bytes);
}
inline bool surely_accepted(CUdeviceptr target, const void* source, std::size_t bytes, CUstream) {
  return covers(target, bytes) && covers(reinterpret_cast<CUdeviceptr>(source), bytes);
}
inline bool surely_accepted(void* target, CUdeviceptr source, std::size_t bytes, CUstream) {
  return covers(reinterpret_cast<CUdeviceptr>(target), bytes) && covers(source, bytes);
}
inline bool surely_accepted(CUdeviceptr address, CUstream) { return free_accepted(address); }
template <std::integral Value>
bool surely_accepted(CUstream, CUdeviceptr address, Value, unsigned flags) {
  return flags == 0 && address % sizeof(Value) == 0 && covers(address, sizeof(Value));
}
bool surely_accepted(const CUDA_MEMCPY2D* copy, CUstream);
bool surely_accepted(const CUDA_MEMCPY3D* copy, CUstream);

}  // namespace vitamin::interpose

#include "interpose/libcuda/host_copies.h"

// Functions that are not overridden and that the overrides themselves call.
#define VITAMIN_CALLED(USE)         \
  USE(cuCtxGetCurrent)              \
  USE(cuCtxPushCurrent_v2)          \
  USE(cuCtxPopCurrent_v2)           \
  USE(cuCtxGetDevice)               \
  USE(cuDevicePrimaryCtxGetState)   \
  USE(cuDeviceGetUuid_v2)           \
  USE(cuStreamGetCtx)               \
  USE(cuStreamGetFlags)             \
  USE(cuStreamGetPriority)          \
  USE(cuStreamGetGreenCtx)          \
  USE(cuPointerGetAttribute)        \
  USE(cuDeviceGetGraphMemAttribute) \
  USE(cuGraphMemAllocNodeGetParams) \
  USE(cuGraphMemFreeNodeGetParams)  \
  USE(cuDeviceGetMemPool)           \
  USE(cuDeviceGetDefaultMemPool)    \
  USE(cuFuncGetAttribute)           \
  USE(cuFuncGetModule)              \
  USE(cuKernelGetAttribute)         \
  USE(cuKernelGetFunction)          \
  USE(cuGraphGetNodes)              \
  USE(cuGraphNodeGetType)           \
  USE(cuGraphChildGraphNodeGetGraph)
