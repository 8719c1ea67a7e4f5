// SPDX-License-Identifier: Apache-2.0
//
// HIP's words for what the shared code speaks of (interpose/vendor.h).
#pragma once

#define __HIP_DISABLE_CPP_FUNCTIONS__
#include <hip/hip_runtime_api.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include "interpose/array_shape.h"
#include "interpose/libamdhip64/newer.h"
#include "runtime/audit/audit.h"

namespace vitamin::interpose {

using ApiStatus = hipError_t;
inline constexpr ApiStatus kSuccess = hipSuccess;
inline constexpr ApiStatus kNotReady = hipErrorNotReady;
inline constexpr ApiStatus kOutOfMemory = hipErrorOutOfMemory;
// Only a program that was linked with a newer runtime is told this.
inline constexpr ApiStatus kNoSuchFunction = hipErrorNotSupported;

// The runtime calls its own exported functions by way of ours.
inline constexpr bool kCallsItself = true;
// A stream of ours stands for the legacy default stream: streams with a CU mask are blocking
// streams, so everything on the real one would wait for the whole pool, and the pool for it.
inline constexpr bool kLegacyIsReal = false;
// Destroying a stream waits until its work has ended.
inline constexpr bool kStreamDestroyWaits = true;
// When the process ends the runtime destroys its own objects and faults in a call that comes then.
inline constexpr bool kFaultsAtExit = true;
// A child of a fork may call it: some calls succeed, others hang or fault.
inline constexpr bool kServesForks = true;
// What a capture forbids of others was not looked at; a broken one would be ours to answer.
inline constexpr bool kCaptureForbidsQuestions = false;
// After an override, with what the application is told.
void finished(ApiStatus answer);

using NativeStream = hipStream_t;
using NativeEvent = hipEvent_t;
using NativeContext = int;  // a device, as hipSetDevice counts
using MemoryPool = hipMemPool_t;
using PoolProperties = hipMemPoolProps;
using PhysicalHandle = hipMemGenericAllocationHandle_t;
using PhysicalProperties = hipMemAllocationProp;
using ShareableType = hipMemAllocationHandleType;
using DeviceAddress = void*;
inline const NativeStream kLegacyStream = reinterpret_cast<NativeStream>(1);  // HIP 6.2
inline const NativeStream kThreadStream = hipStreamPerThread;
inline constexpr unsigned kEventInterprocess = hipEventInterprocess;
inline constexpr unsigned kEventDisableTiming = hipEventDisableTiming;
inline constexpr unsigned kEventRecordExternal = 1;  // hipEventRecordExternal, HIP 6.4

using HostFunction = hipHostFn_t;
using StreamCallback = hipStreamCallback_t;

using Graph = hipGraph_t;
using GraphExec = hipGraphExec_t;
using GraphNode = hipGraphNode_t;
inline NativeEvent recorded_event(GraphNodeParams* node) {
  constexpr int kRecordsEvent = 7;  // as backends/hip/graph_node.h says of 5.3 and newer
  return node != nullptr && node->type == kRecordsEvent ? node->event : nullptr;
}
// No caller asks for more (graphs.cpp).
template <class... Rest>
std::uint64_t instantiation_flags(Rest...) {
  return 0;
}
// The numbers of node types were given anew, and what an allocation node takes is asked by a
// function that reads any node as one.
inline constexpr bool kTellsMemoryNodes = false;
template <class... Rest>
std::optional<NativeStream> uploads_to(Rest...) {
  return std::nullopt;
}
using CaptureMode = hipStreamCaptureMode;

inline constexpr const char* kLibraries[] = {"libamdhip64.so.7", "libamdhip64.so.6",
                                             "libamdhip64.so.5"};

constexpr bool may_be_entry_point(const char* name) {
  return (name[0] == 'h' && name[1] == 'i' && name[2] == 'p') || (name[0] == '_');
}

// rocm-smi and amd-smi read files of the kernel.
constexpr bool is_management_symbol(std::string_view) { return false; }

// Whether NULL names the calling thread's own default stream in this variant.
constexpr bool per_thread_variant(std::string_view symbol) { return symbol.ends_with("_spt"); }

constexpr std::string_view base_name(std::string_view symbol) {
  if (per_thread_variant(symbol)) symbol.remove_suffix(4);
  return symbol;
}

// What a function is called that has a place among stream operations, for VITAMIN_DEBUG.
constexpr bool may_be_ordered(std::string_view name) {
  return name.starts_with("hip") && name.size() > 3 && name[3] >= 'A' && name[3] <= 'Z';
}
inline constexpr std::string_view kOrderedWords[] = {"Async",  "Stream", "Event",
                                                     "Launch", "Memcpy", "Memset"};
// Nodes only describe what a graph's launch will do.
inline constexpr std::string_view kHarmlessWords[] = {"Node"};

// --- arrays --------------------------------------------------------------------------------------

ArrayShape array_shape(const HIP_ARRAY3D_DESCRIPTOR& array, unsigned levels = 1);
ArrayShape array_shape(const HIP_ARRAY_DESCRIPTOR& array);
ArrayShape array_shape(const hipChannelFormatDesc& format, std::size_t width, std::size_t height,
                       unsigned flags);
ArrayShape array_shape(const hipChannelFormatDesc& format, hipExtent extent, unsigned flags);
ArrayShape array_shape(const hipChannelFormatDesc& format, hipExtent extent, unsigned levels,
                       unsigned flags);

// --- copies --------------------------------------------------------------------------------------

// What the pointers of a copy may be. Symbols are named by the address of a variable of the host.
enum class Addresses : std::uint8_t { kAny, kToSymbol, kFromSymbol };

template <class T>
concept Descriptor = std::is_same_v<T, hip_Memcpy2D> || std::is_same_v<T, hipMemcpy3DParms> ||
                     std::is_same_v<T, HIP_MEMCPY3D>;

// HIP_MEMCPY3D since 6.0. In the headers that this is built with its sizes are unsigned.
struct WideMemcpy3D {
  struct Side {
    std::size_t x, y, z, level;
    hipMemoryType type;
    const void* host;
    hipDeviceptr_t device;
    hipArray* array;
    std::size_t pitch, height;
  };
  Side source, destination;
  std::size_t width, height, depth;
};
static_assert(sizeof(WideMemcpy3D) == 184 && sizeof(HIP_MEMCPY3D) < sizeof(WideMemcpy3D));

// What holds a descriptor of any version, and how many bytes the runtime at hand reads of it.
template <class T>
using KeptAs = std::conditional_t<std::is_same_v<T, HIP_MEMCPY3D>, WideMemcpy3D, T>;
template <class T>
std::size_t bytes_of(const T&) {
  return sizeof(T);
}
std::size_t bytes_of(const HIP_MEMCPY3D&);

// Which memory a copy's arguments name.
struct CopySides {
  bool pageable = false;
  bool device = false;
  // Both sides are device memory: the runtime launches a kernel that copies.
  bool kernel = false;
  // Both are memory that only the current device has: neither managed nor an array, no symbol.
  bool within_device = false;
  // Other devices than the current one that have a side's memory; below zero: none.
  int elsewhere[2] = {-1, -1};

  template <Addresses kAddresses, class... Args>
  static CopySides of(Args... args) {
    CopySides sides;
    int pointers = 0;
    auto each = [&](auto argument) {
      using T = decltype(argument);
      if constexpr (std::is_same_v<T, void*> || std::is_same_v<T, const void*>) {
        const int place = pointers++;
        const bool symbol = (kAddresses == Addresses::kToSymbol && place == 0) ||
                            (kAddresses == Addresses::kFromSymbol && place == 1);
        if (symbol)
          sides.array();  // or a managed variable
        else
          sides.pointer(argument);
      } else {
        sides.look(argument);
      }
    };
    (each(args), ...);
    sides.kernel = !sides.host_ && sides.device;
    sides.within_device = sides.kernel && !sides.shared_or_array_;
    return sides;
  }

 private:
  void pointer(const void* address);  // asks the runtime
  void side(hipMemoryType type, const void* host, const void* on_device);
  void array() { device = shared_or_array_ = true; }
  void look(const hipArray*) { array(); }
  void look(hipArray*) { array(); }
  void look(const hipPitchedPtr& memory) { pointer(memory.ptr); }
  void look(const hip_Memcpy2D* copy) {
    side(copy->srcMemoryType, copy->srcHost, copy->srcDevice);
    side(copy->dstMemoryType, copy->dstHost, copy->dstDevice);
  }
  void look(const HIP_MEMCPY3D* copy);
  void look(const hipMemcpy3DParms* copy) {
    copy->srcArray != nullptr ? array() : pointer(copy->srcPtr.ptr);
    copy->dstArray != nullptr ? array() : pointer(copy->dstPtr.ptr);
  }
  template <class T>
  void look(T) {}
  bool host_ = false;             // a side is memory of the host, page-locked or not
  bool shared_or_array_ = false;  // a side is managed, an array, a symbol or on another device
};
inline constexpr bool kFillsAreKernels = true;

// Whether one allocation that the runtime knows holds all of these bytes, rows or a box. Asks the
// runtime; off the launch path.
bool covers(const void* address, std::size_t bytes);
bool covers_rows(const void* address, std::size_t pitch, std::size_t element, std::size_t width,
                 std::size_t height);
bool covers_box(const hipPitchedPtr& memory, const hipExtent& extent);
bool begins_at(const void* address);  // an allocation does
bool value_wait_accepted(const void* address, std::size_t size, unsigned flags);

// Values of a fill are int where the elements are bytes (hipMemsetAsync, hipMemset2DAsync), or the
// entry point says how large they are.
template <class Value>
inline constexpr std::size_t kElementBytes = std::is_same_v<Value, int> ? 1 : sizeof(Value);

// Whether the runtime surely takes a call of these arguments: then it may be made later without the
// application missing an error that natively the call answers. Arrays, symbols and descriptors are
// for the call to judge.
template <class... Args>
bool surely_accepted(Args...) {
  return false;
}
template <std::integral Value>
bool surely_accepted(hipDeviceptr_t target, Value, std::size_t count, hipStream_t) {
  return covers_rows(target, 0, kElementBytes<Value>, count, 1);
}
template <std::size_t kElement>
bool surely_accepted(std::integral_constant<std::size_t, kElement>, hipDeviceptr_t target, int,
                     std::size_t count, hipStream_t) {
  return covers_rows(target, 0, kElement, count, 1);
}
template <std::integral Value>
bool surely_accepted(hipDeviceptr_t target, std::size_t pitch, Value, std::size_t width,
                     std::size_t height, hipStream_t) {
  return covers_rows(target, pitch, kElementBytes<Value>, width, height);
}
inline bool surely_accepted(hipPitchedPtr target, int, hipExtent extent, hipStream_t) {
  return covers_box(target, extent);
}
// -1 is no direction either.
inline bool is_direction(hipMemcpyKind kind) {
  return static_cast<unsigned>(kind) <= static_cast<unsigned>(hipMemcpyDefault);
}
inline bool surely_accepted(void* target, const void* source, std::size_t bytes, hipMemcpyKind kind,
                            hipStream_t) {
  return is_direction(kind) && covers(target, bytes) && covers(source, bytes);
}
inline bool surely_accepted(void* target, std::size_t target_pitch, const void* source,
                            std::size_t source_pitch, std::size_t width, std::size_t height,
                            hipMemcpyKind kind, hipStream_t) {
  return is_direction(kind) && covers_rows(target, target_pitch, 1, width, height) &&
         covers_rows(source, source_pitch, 1, width, height);
}
inline bool surely_accepted(void* target, void* source, std::size_t bytes, hipStream_t) {
  return covers(target, bytes) && covers(source, bytes);
}
inline bool surely_accepted(void* address, hipStream_t) { return begins_at(address); }
template <std::integral Value>
bool surely_accepted(hipStream_t, void* address, Value, unsigned flags) {
  return flags == 0 && covers_rows(address, 0, sizeof(Value), 1, 1);
}

// visit(HostBox) for the host memory that a copy with these arguments writes, when they say so.
template <class Visit, class... Args>
void for_each_host_copy(const Visit&, Args...) {}
template <class Visit, class... Rest>
void for_each_host_copy(const Visit& visit, void* host, const void*, std::size_t bytes,
                        hipMemcpyKind kind, Rest...) {
  if (kind == hipMemcpyDeviceToHost && bytes > 0)
    visit(runtime::HostBox{static_cast<const std::byte*>(host), bytes});
}

}  // namespace vitamin::interpose

// Functions that are not overridden and that the overrides themselves call.
#define VITAMIN_CALLED(USE)          \
  USE(hipGetDevice)                  \
  USE(hipSetDevice)                  \
  USE(hipRuntimeGetVersion)          \
  USE(hipStreamGetFlags)             \
  USE(hipStreamGetPriority)          \
  USE(hipGetStreamDeviceId)          \
  USE(hipPointerGetAttributes)       \
  USE(hipDeviceGetMemPool)           \
  USE(hipDeviceGetDefaultMemPool)    \
  USE(hipDeviceGetPCIBusId)          \
  USE(hipMemGetAddressRange)         \
  USE(hipMemPoolGetAttribute)        \
  USE(hipDeviceGetGraphMemAttribute) \
  USE(hipGraphGetNodes)              \
  USE(hipGraphNodeGetType)           \
  USE(hipGraphChildGraphNodeGetGraph)
