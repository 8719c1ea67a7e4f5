// SPDX-License-Identifier: Apache-2.0
//
// The runtime's own look-up functions, the thread's last error, and what happens when we are
// loaded.
#include <cstdlib>

#include "interpose/libamdhip64/manual_overrides.h"
#include "interpose/libamdhip64/version_rules.h"
#include "interpose/unknown_entry_points.h"
#include "runtime/environment.h"

namespace vitamin::interpose {

namespace stats = runtime::stats;

namespace {

// Drivers answer by name and flags; per-thread forms have names of their own.
void replace(const char* name, void** address, bool per_thread) {
  page().reach(stats::Stage::kDriver);
  if (name == nullptr || address == nullptr || *address == nullptr || !find_driver(false)) return;
  for (std::size_t i = 0; i < kSymbols; ++i) {
    const SymbolInfo& row = kSymbolInfo[i];
    const bool same = real_addresses[i].load(std::memory_order_acquire) == *address;
    if (!same && (base_name(row.name) != name || row.per_thread != per_thread)) continue;
    if (!same && per_thread_variant(name) != per_thread) continue;
    *address = hook_addresses[i];
    return;
  }
}

constexpr std::uint64_t kPerThread = 2;  // HIP_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

}  // namespace

hipError_t init(EntryPoint<hipError_t(unsigned)> entry, unsigned flags) {
  const hipError_t answer = entry.real(flags);
  note_runtime(answer);
  return answer;
}

hipError_t get_proc_address(EntryPoint<decltype(hipGetProcAddress)> entry, const char* name,
                            void** address, int version, std::uint64_t flags, void* found) {
  const hipError_t answer = entry.real(name, address, version, flags, found);
  if (answer == hipSuccess) replace(name, address, (flags & kPerThread) != 0);
  return answer;
}

hipError_t get_driver_entry_point(EntryPoint<decltype(hipGetDriverEntryPoint)> entry,
                                  const char* name, void** address, unsigned long long flags,
                                  void* found) {
  const hipError_t answer = entry.real(name, address, flags, found);
  if (answer == hipSuccess) replace(name, address, entry.per_thread || (flags & kPerThread) != 0);
  return answer;
}

// --- the last error ------------------------------------------------------------------------------

// Every call of ours sets it, so the runtime's is cleared when an override ends (finished) and ours
// remembers what the application was told. What the runtime holds beside that is of a call that is
// not overridden, and newer.
namespace {
constinit thread_local hipError_t last_error = hipSuccess;
}  // namespace

void finished(hipError_t answer) {
  static_cast<void>(VITAMIN_REAL(hipGetLastError)());
  if (answer != hipSuccess || success_replaces_last_error()) last_error = answer;
}

hipError_t get_last_error(EntryPoint<hipError_t()> entry) {
  const hipError_t real = entry.real();
  return real != hipSuccess ? last_error = hipSuccess, real : std::exchange(last_error, hipSuccess);
}

hipError_t peek_last_error(EntryPoint<hipError_t()> entry) {
  const hipError_t real = entry.real();
  return real != hipSuccess ? real : last_error;
}

}  // namespace vitamin::interpose
