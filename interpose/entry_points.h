// SPDX-License-Identifier: Apache-2.0
//
// The functions that are overridden: one enumerator for each row of the vendor's table, the type
// that the vendor's header gives it, and the address of the real one.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "interpose/vendor.h"

namespace vitamin::interpose {

enum class Symbol : std::uint16_t {
#define VITAMIN_HOOK(symbol, since, ...) symbol,
#define VITAMIN_PASS(symbol, reason)
#include VITAMIN_ENTRY_POINTS
  kCount
};
inline constexpr std::size_t kSymbols = static_cast<std::size_t>(Symbol::kCount);

struct SymbolInfo {
  std::string_view name;  // ends in 0
  int since = 0;
  bool per_thread = false;
};
inline constexpr std::array<SymbolInfo, kSymbols> kSymbolInfo = {{
#define VITAMIN_HOOK(symbol, since, ...) {#symbol, since, per_thread_variant(#symbol)},
#define VITAMIN_PASS(symbol, reason)
#include VITAMIN_ENTRY_POINTS
}};
constexpr const SymbolInfo& info(Symbol symbol) {
  return kSymbolInfo[static_cast<std::size_t>(symbol)];
}

// Functions that are not overridden and that the overrides themselves call (VITAMIN_CALLED).
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

// Looks for the driver that the process loaded and fills real_addresses; loads it when `load`
// says so. False: no driver. Any thread; idempotent; takes no lock, because it runs inside
// dlopen as well as outside.
bool find_driver(bool load);
// By the vendor: what dlsym answers for a function of its management library that
// is_management_symbol() names; `other` looks for one beside it. The function itself: it stays.
void* management_override(void* found, const char* name,
                          const std::function<void*(const char*)>& other);
// Where a call from `caller` belongs while no driver is loaded: the function of this name that the
// application has itself, as CuPy's libraries for ROCm define functions of CUDA's driver and export
// them, so that ours is bound in their place. Null: none, or a driver is loaded. Once a driver is
// loaded such calls go to it (interpose/libcuda/README.md).
void* function_of_caller(Symbol symbol, const void* caller);
// A function of the real driver by its exact name, never an override. Null: not there.
void* real_function(const char* symbol);

// Null while the driver was not looked for, and where it has no such function.
template <class Function>
Function* real(Symbol symbol) {
  return reinterpret_cast<Function*>(
      real_addresses[static_cast<std::size_t>(symbol)].load(std::memory_order_acquire));
}
// VITAMIN_REAL(cuEventQuery)(event): the driver's own function, of driver.def or VITAMIN_CALLED.
// Only where an override runs, so that the driver is known to be there.
#define VITAMIN_REAL(symbol) \
  (reinterpret_cast<decltype(&symbol)>(::vitamin::interpose::RealOf_##symbol::address()))
#define VITAMIN_HOOK(symbol, since, ...)                                    \
  struct RealOf_##symbol {                                                  \
    static void* address() {                                                \
      return real_addresses[static_cast<std::size_t>(Symbol::symbol)].load( \
          std::memory_order_acquire);                                       \
    }                                                                       \
  };
#define VITAMIN_PASS(symbol, reason)
#include VITAMIN_ENTRY_POINTS
#define VITAMIN_USE(symbol)                                                   \
  struct RealOf_##symbol {                                                    \
    static void* address() {                                                  \
      return called_addresses[static_cast<std::size_t>(Called::symbol)].load( \
          std::memory_order_acquire);                                         \
    }                                                                         \
  };
VITAMIN_CALLED(VITAMIN_USE)
#undef VITAMIN_USE

}  // namespace vitamin::interpose
