// SPDX-License-Identifier: Apache-2.0
//
// How calls of the application reach the overrides, and how overrides reach the driver.
//
// Three doors: exported symbols (exports.cpp) for programs that link the driver, a `dlsym` of our
// own, and the vendor's own look-up (its symbol_lookup.cpp), through which every libcudart
// since 11.3 gets all of its functions.
//
// `dlsym` and RTLD_NEXT: the loader finds the caller by its return address, so a wrapper that calls
// the real dlsym would make every other preloaded library find itself. The entry below therefore
// *jumps* to the real one with the caller's stack untouched, unless the name is one of ours.
// `dlopen` is not overridden at all: the same mechanism selects the caller's RUNPATH, which cuDNN
// needs to find its own parts.
//
// Compiled without sanitizers: this code runs before their runtime is ready.
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "interpose/entry_points.h"

extern "C" {
using DlsymFunction = void* (*)(void*, const char*);
[[gnu::visibility("hidden"), gnu::used]] DlsymFunction vitamin_dlsym_route(void* handle,
                                                                           const char* name);
// Bounds of the exported stubs, set by the linker.
[[gnu::visibility("hidden")]] extern const char __start_vitamin_exports[];
[[gnu::visibility("hidden")]] extern const char __stop_vitamin_exports[];
}

#if defined(__x86_64__)
asm(R"(
  .pushsection .text
  .p2align 4
  .globl dlsym
  .type dlsym, @function
dlsym:
  .cfi_startproc
  endbr64
  push %rdi
  .cfi_adjust_cfa_offset 8
  push %rsi
  .cfi_adjust_cfa_offset 8
  sub $8, %rsp
  .cfi_adjust_cfa_offset 8
  call vitamin_dlsym_route
  add $8, %rsp
  .cfi_adjust_cfa_offset -8
  pop %rsi
  .cfi_adjust_cfa_offset -8
  pop %rdi
  .cfi_adjust_cfa_offset -8
  jmp *%rax
  .cfi_endproc
  .size dlsym, .-dlsym
  .popsection
)");
#elif defined(__aarch64__)
// The link register, by which the loader finds the caller, is as it was at the jump.
asm(R"(
  .pushsection .text
  .p2align 4
  .globl dlsym
  .type dlsym, %function
dlsym:
  .cfi_startproc
  hint #34  // bti c
  stp x29, x30, [sp, #-32]!
  .cfi_adjust_cfa_offset 32
  .cfi_offset x29, -32
  .cfi_offset x30, -24
  stp x0, x1, [sp, #16]
  bl vitamin_dlsym_route
  mov x16, x0
  ldp x0, x1, [sp, #16]
  ldp x29, x30, [sp], #32
  .cfi_adjust_cfa_offset -32
  .cfi_restore x29
  .cfi_restore x30
  br x16
  .cfi_endproc
  .size dlsym, .-dlsym
  .popsection
)");
#else
#error "the entry of dlsym is written for x86-64 and arm64"
#endif

namespace vitamin::interpose {

constinit std::array<std::atomic<void*>, kSymbols> real_addresses{};
constinit std::array<std::atomic<void*>, kCalled> called_addresses{};

namespace {

constinit std::atomic<void*> driver_handle{nullptr};

// Of the architecture's first glibc.
#ifdef __x86_64__
constexpr const char* kFirstVersion = "GLIBC_2.2.5";
#else
constexpr const char* kFirstVersion = "GLIBC_2.17";
#endif

DlsymFunction real_dlsym() {
  static constinit std::atomic<DlsymFunction> cached{nullptr};
  DlsymFunction function = cached.load(std::memory_order_acquire);
  if (function == nullptr) {
    // glibc 2.34 moved dlsym from libdl to libc and gave it a new version; both are the same code.
    void* found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (found == nullptr) found = dlvsym(RTLD_NEXT, "dlsym", kFirstVersion);
    function = reinterpret_cast<DlsymFunction>(found);
    cached.store(function, std::memory_order_release);
  }
  return function;
}

// The dlsym behind ours: another vendor's library of this project, a foreign one, or the real
// one.
DlsymFunction next_dlsym() {
  static constinit std::atomic<DlsymFunction> cached{nullptr};
  DlsymFunction function = cached.load(std::memory_order_acquire);
  if (function == nullptr) {
    function = reinterpret_cast<DlsymFunction>(real_dlsym()(RTLD_NEXT, "dlsym"));
    if (function == nullptr) function = real_dlsym();
    cached.store(function, std::memory_order_release);
  }
  return function;
}

constexpr auto kByName = [] {
  std::array<std::uint16_t, kSymbols> order{};
  for (std::size_t i = 0; i < kSymbols; ++i) order[i] = static_cast<std::uint16_t>(i);
  std::sort(order.begin(), order.end(),
            [](auto a, auto b) { return kSymbolInfo[a].name < kSymbolInfo[b].name; });
  return order;
}();

std::size_t index_of(std::string_view name) {
  const auto found = std::lower_bound(
      kByName.begin(), kByName.end(), name,
      [](auto i, std::string_view wanted) { return kSymbolInfo[i].name < wanted; });
  return found != kByName.end() && kSymbolInfo[*found].name == name ? *found : kSymbols;
}

bool is_own_export(const void* address) {
  const auto* byte = static_cast<const char*>(address);
  return byte >= __start_vitamin_exports && byte < __stop_vitamin_exports;
}

// dlsym for one of our names, by a caller that did not ask for RTLD_NEXT.
void* overridden_dlsym(void* handle, const char* name) {
  const std::size_t index = index_of(name);
  void* found = real_dlsym()(handle, name);
  if (found == nullptr) return nullptr;
  const bool driver = find_driver(false);
  void* real = real_addresses[index].load(std::memory_order_acquire);
  if (is_own_export(found)) {
    // A probe of the global scope sees our export whether or not there is a driver. Where there is
    // none, the program must be told so, with the message that it would get without us.
    return driver && real != nullptr ? hook_addresses[index] : real_dlsym()(RTLD_NEXT, name);
  }
  // A foreign function of the same name (a wrapper of the driver inside a framework) stays
  // foreign.
  return found == real ? hook_addresses[index] : found;
}

// dlsym for a function of the vendor's management library.
void* management_dlsym(void* handle, const char* name) {
  void* const found = real_dlsym()(handle, name);
  if (found == nullptr) return nullptr;
  return management_override(found, name,
                             [&](const char* other) { return real_dlsym()(handle, other); });
}

}  // namespace

bool find_driver(bool load) {
  if (driver_handle.load(std::memory_order_acquire) != nullptr) return true;
  // By soname, so that it also matches a driver that was opened by its full path.
  void* handle = nullptr;
  for (const int how : {RTLD_NOLOAD, RTLD_LOCAL})
    for (const char* library : kLibraries)
      if (handle == nullptr && (load || how == RTLD_NOLOAD))
        handle = dlopen(library, RTLD_LAZY | how);
  if (handle == nullptr) {
    dlerror();  // ours: the application must not find it
    return false;
  }
  for (std::size_t i = 0; i < kSymbols; ++i) {
    void* address = real_dlsym()(handle, kSymbolInfo[i].name.data());
    if (!is_own_export(address)) real_addresses[i].store(address, std::memory_order_release);
  }
  constexpr const char* kCalledNames[] = {
#define VITAMIN_USE(symbol) #symbol,
      VITAMIN_CALLED(VITAMIN_USE)
#undef VITAMIN_USE
  };
  for (std::size_t i = 0; i < kCalled; ++i)
    called_addresses[i].store(real_dlsym()(handle, kCalledNames[i]), std::memory_order_release);
  dlerror();
  driver_handle.store(handle, std::memory_order_release);  // kept open for ever
  return true;
}

namespace {

// A function of the application's that has a name of ours, by the call that it was found for. Kept
// for ever, as is the library that it lies in: such calls are launches, too.
struct OwnFunction {
  Symbol symbol;
  const void* caller;
  void* function;
};
std::array<std::atomic<const OwnFunction*>, 256> own_functions;

std::atomic<const OwnFunction*>& own_function(Symbol symbol, const void* caller) {
  const auto at = reinterpret_cast<std::uintptr_t>(caller) ^ static_cast<std::size_t>(symbol) * 31;
  return own_functions[(at ^ at >> 8) % own_functions.size()];
}

// What the library defines or is linked with, but not ours. It stays open if it does.
void* function_in(const char* library, const char* name) {
  void* const handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  void* const found = real_dlsym()(handle, name);
  if (found != nullptr && !is_own_export(found)) return found;
  dlclose(handle);
  return nullptr;
}

std::vector<std::string> loaded_libraries() {
  std::vector<std::string> names;
  const auto note = [](dl_phdr_info* object, std::size_t, void* to) {
    if (object->dlpi_name != nullptr && object->dlpi_name[0] != '\0')
      static_cast<std::vector<std::string>*>(to)->emplace_back(object->dlpi_name);
    return 0;
  };
  dl_iterate_phdr(note, &names);
  return names;
}

// As the loader would bind the call without us: in the global scope, then from the caller's
// library. At the end of a function a call can be a jump, whose caller is not to be known: then any
// library's will do.
void* application_function(const char* name, const void* caller) {
  void* const next = real_dlsym()(RTLD_NEXT, name);
  if (next != nullptr && !is_own_export(next)) return next;
  Dl_info library{};
  if (dladdr(caller, &library) != 0)
    if (void* const found = function_in(library.dli_fname, name)) return found;
  for (const std::string& each : loaded_libraries())
    if (void* const found = function_in(each.c_str(), name)) return found;
  return nullptr;
}

}  // namespace

void* function_of_caller(Symbol symbol, const void* caller) {
  std::atomic<const OwnFunction*>& kept = own_function(symbol, caller);
  const OwnFunction* const known = kept.load(std::memory_order_acquire);
  if (known != nullptr && known->symbol == symbol && known->caller == caller)
    return known->function;
  if (find_driver(false)) return nullptr;
  void* const found = application_function(info(symbol).name.data(), caller);
  dlerror();  // ours, as above
  const OwnFunction* none = nullptr;
  if (found != nullptr && known == nullptr) {
    const auto* const made = new OwnFunction{symbol, caller, found};
    if (!kept.compare_exchange_strong(none, made, std::memory_order_acq_rel)) delete made;
  }
  return found;
}

void* real_function(const char* symbol) {
  if (!find_driver(true)) return nullptr;
  void* address = real_dlsym()(driver_handle.load(std::memory_order_acquire), symbol);
  if (address == nullptr) dlerror();
  return address;
}

}  // namespace vitamin::interpose

DlsymFunction vitamin_dlsym_route(void* handle, const char* name) {
  using namespace vitamin::interpose;
  if (handle != RTLD_NEXT && name != nullptr && is_management_symbol(name))
    return &management_dlsym;
  if (handle != RTLD_NEXT && name != nullptr && may_be_entry_point(name) &&
      index_of(name) != kSymbols)
    return &overridden_dlsym;
  return next_dlsym();
}
