// SPDX-License-Identifier: Apache-2.0
//
// The driver functions that are overridden: one enumerator for each row of driver.def, the type
// that cuda.h gives it, and the address of the real one.
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL  // declare every variant under its own name
#endif
#include <cuda.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

static_assert(CUDA_VERSION >= 12040, "the interposer needs the headers of CUDA 12.4 or later");

namespace vitamin::interpose {

enum class Symbol : std::uint16_t {
#define VITAMIN_HOOK(symbol, since, ...) symbol,
#define VITAMIN_PASS(symbol, reason)
#include "interpose/libcudart/driver.def"
  kCount
};
inline constexpr std::size_t kSymbols = static_cast<std::size_t>(Symbol::kCount);

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

struct SymbolInfo {
  std::string_view name;  // ends in 0
  int since = 0;
  bool per_thread = false;
};
inline constexpr std::array<SymbolInfo, kSymbols> kSymbolInfo = {{
#define VITAMIN_HOOK(symbol, since, ...) {#symbol, since, per_thread_variant(#symbol)},
#define VITAMIN_PASS(symbol, reason)
#include "interpose/libcudart/driver.def"
}};
constexpr const SymbolInfo& info(Symbol symbol) {
  return kSymbolInfo[static_cast<std::size_t>(symbol)];
}

// Functions that are not overridden and that the overrides themselves call.
#define VITAMIN_CALLED(USE)       \
  USE(cuCtxGetCurrent)            \
  USE(cuCtxPushCurrent_v2)        \
  USE(cuCtxPopCurrent_v2)         \
  USE(cuCtxGetDevice)             \
  USE(cuDevicePrimaryCtxGetState) \
  USE(cuStreamGetCtx)             \
  USE(cuStreamGetFlags)           \
  USE(cuStreamGetPriority)        \
  USE(cuStreamGetGreenCtx)        \
  USE(cuPointerGetAttribute)      \
  USE(cuFuncGetAttribute)         \
  USE(cuFuncGetModule)            \
  USE(cuKernelGetAttribute)       \
  USE(cuKernelGetFunction)        \
  USE(cuGraphGetNodes)            \
  USE(cuGraphNodeGetType)         \
  USE(cuGraphChildGraphNodeGetGraph)
enum class Called : std::uint16_t {
#define VITAMIN_USE(symbol) symbol,
  VITAMIN_CALLED(VITAMIN_USE)
#undef VITAMIN_USE
      kCount
};
inline constexpr std::size_t kCalled = static_cast<std::size_t>(Called::kCount);
extern constinit std::array<std::atomic<void*>, kCalled> called_addresses;

// Set once the driver was found; null: this driver has no such function.
extern constinit std::array<std::atomic<void*>, kSymbols> real_addresses;
// Where our override of each begins. Read-only.
extern void* const hook_addresses[kSymbols];

// Looks for the driver that the process loaded and fills real_addresses; loads libcuda.so.1 when
// `load` says so. False: no driver. Any thread; idempotent; takes no lock, because it runs inside
// dlopen as well as outside.
bool find_driver(bool load);
// A function of the real driver by its exact name, never an override. Null: not there.
void* real_function(const char* symbol);

template <class Function>
Function* real(Symbol symbol) {
  std::atomic<void*>& address = real_addresses[static_cast<std::size_t>(symbol)];
  void* found = address.load(std::memory_order_acquire);
  if (found == nullptr) [[unlikely]] {
    if (!find_driver(true)) return nullptr;
    found = address.load(std::memory_order_acquire);
  }
  return reinterpret_cast<Function*>(found);
}
// VITAMIN_REAL(cuEventQuery)(event): the driver's own function, of driver.def or VITAMIN_CALLED.
// Only where an override runs, so that the driver is known to be there.
#define VITAMIN_REAL(symbol) \
  (reinterpret_cast<decltype(&::symbol)>(::vitamin::interpose::RealOf_##symbol::address()))
#define VITAMIN_HOOK(symbol, since, ...)                                    \
  struct RealOf_##symbol {                                                  \
    static void* address() {                                                \
      return real_addresses[static_cast<std::size_t>(Symbol::symbol)].load( \
          std::memory_order_acquire);                                       \
    }                                                                       \
  };
#define VITAMIN_PASS(symbol, reason)
#include "interpose/libcudart/driver.def"
#define VITAMIN_USE(symbol)                                                   \
  struct RealOf_##symbol {                                                    \
    static void* address() {                                                  \
      return called_addresses[static_cast<std::size_t>(Called::symbol)].load( \
          std::memory_order_acquire);                                         \
    }                                                                         \
  };
VITAMIN_CALLED(VITAMIN_USE)
#undef VITAMIN_USE

// The override for what the driver's cuGetProcAddress answered to (name, version, flags), or the
// answer itself.
void* override_for(const char* name, int version, std::uint64_t flags, void* answer);

}  // namespace vitamin::interpose
