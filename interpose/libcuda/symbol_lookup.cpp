// SPDX-License-Identifier: Apache-2.0
//
// cuInit and cuGetProcAddress, and what happens when the library is loaded.
#include <dlfcn.h>

#include <cstring>

#include "interpose/context.h"
#include "interpose/libcuda/manual_overrides.h"
#include "interpose/unknown_entry_points.h"

namespace vitamin::interpose {

namespace stats = runtime::stats;

namespace {

[[gnu::constructor]] void begin() { loaded("libvitamin_cuda.so"); }

// cudart asks for the lookup function itself by its plain name, with several versions.
void* own_lookup(const char* name, int version) {
  if (std::strcmp(name, "cuGetProcAddress_v2") == 0)
    return hook_addresses[static_cast<std::size_t>(Symbol::cuGetProcAddress_v2)];
  if (std::strcmp(name, "cuGetProcAddress") != 0) return nullptr;
  const Symbol variant = version >= info(Symbol::cuGetProcAddress_v2).since
                             ? Symbol::cuGetProcAddress_v2
                             : Symbol::cuGetProcAddress;
  return hook_addresses[static_cast<std::size_t>(variant)];
}

// A variant that the driver exports and this build has no row for (a newer version with other
// parameters): nothing of ours fits it.
bool is_exported_function(void* address) {
  Dl_info symbol{};
  return dladdr(address, &symbol) != 0 && symbol.dli_saddr == address;
}

// The override for what the driver's cuGetProcAddress answered to (name, version, flags), or the
// answer itself.
void* override_for(const char* name, int version, std::uint64_t flags, void* answer) {
  if (answer == nullptr || name == nullptr || !find_driver(false)) return answer;
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  // Drivers answer with the addresses that dlsym gives (measured). Two variants may share one
  // address: then the one that was asked for by name and flags.
  std::size_t same_address = kSymbols, same_key = kSymbols;
  for (std::size_t i = 0; i < kSymbols; ++i) {
    const SymbolInfo& row = kSymbolInfo[i];
    const bool named = base_name(row.name) == name;
    const bool address = real_addresses[i].load(std::memory_order_acquire) == answer;
    if (address && (same_address == kSymbols || (named && row.per_thread == per_thread)))
      same_address = i;
    // Should a driver ever answer with another address: the newest variant not newer than asked.
    // A function with no per-thread form is asked for with that flag too.
    if (!named || row.since > version || (row.per_thread && !per_thread)) continue;
    const bool better = same_key == kSymbols || row.per_thread > kSymbolInfo[same_key].per_thread ||
                        (row.per_thread == kSymbolInfo[same_key].per_thread &&
                         row.since > kSymbolInfo[same_key].since);
    if (better) same_key = i;
  }
  if (same_address != kSymbols) return hook_addresses[same_address];
  if (same_key == kSymbols || is_exported_function(answer)) return answer;
  return hook_addresses[same_key];
}

void replace(const char* name, void** address, int version, cuuint64_t flags) {
  page().reach(stats::Stage::kDriver);
  if (name == nullptr || address == nullptr || *address == nullptr) return;
  void* own = own_lookup(name, version);
  *address = own != nullptr ? own : override_for(name, version, flags, *address);
}

}  // namespace

CUresult init(EntryPoint<CUresult(unsigned)> entry, unsigned flags) {
  const CUresult answer = entry.real(flags);
  stats::ProcessPage& process = page();
  process.reach(stats::Stage::kDriver);
  process.init_status.store(answer, std::memory_order_relaxed);
  if (answer != CUDA_SUCCESS) return answer;
  process.reach(stats::Stage::kReady);
  start_managing();  // a child that is forked from now on finds a driver that refuses every call
  report_drift(false);
  return answer;
}

CUresult get_proc_address(EntryPoint<decltype(::cuGetProcAddress)> entry, const char* name,
                          void** address, int version, cuuint64_t flags) {
  const CUresult answer = entry.real(name, address, version, flags);
  if (answer == CUDA_SUCCESS) replace(name, address, version, flags);
  return answer;
}

CUresult get_proc_address_v2(EntryPoint<decltype(::cuGetProcAddress_v2)> entry, const char* name,
                             void** address, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* found) {
  const CUresult answer = entry.real(name, address, version, flags, found);
  if (answer == CUDA_SUCCESS) replace(name, address, version, flags);
  return answer;
}

}  // namespace vitamin::interpose
