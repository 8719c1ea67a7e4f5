// SPDX-License-Identifier: Apache-2.0
//
// What happens around every call into the driver.
//
// An exported symbol is Entry<...>::call, made from one line of entry_points.def: it opens an
// ApiCall (initialisation check, fault injection, one step of the virtual clock, the meaning of a
// NULL stream), and calls the function of the same name in namespace `api`, which a noun's .cpp
// defines with the types of cuda.h.
#pragma once

#include <cstdint>

#include "backends/soft/libcuda/cuda_api.h"

namespace vitamin::soft {
class ResidencyLedger;
}

namespace vitamin::soft::driver {

// One enumerator for each exported symbol.
enum class EntryId : std::uint16_t {
#define ENTRY(symbol, base, since) symbol,
#define SAME_AS(symbol, target, base, since) symbol,
#define PER_THREAD(symbol, target, base, since) symbol,
#define MISSING(symbol, base, since) symbol,
#include "backends/soft/libcuda/entry_points.def"
#undef ENTRY
#undef SAME_AS
#undef PER_THREAD
#undef MISSING
  kCount
};

struct EntryInfo {
  const char* symbol;
  const char* base;  // what cuGetProcAddress calls it
  int since;         // CUDA version that introduced this variant
  bool per_thread;   // NULL means the per-thread default stream
  void* address;     // what dlsym returns
};
const EntryInfo& entry_info(EntryId id);

// The scope of one call. Not copied; lives on the caller's stack.
class ApiCall {
 public:
  ApiCall(EntryId id, bool per_thread) noexcept;
  ~ApiCall();
  ApiCall(const ApiCall&) = delete;
  ApiCall& operator=(const ApiCall&) = delete;

  // CUDA_SUCCESS, or what the call answers without being tried. Waits while a checkpoint has the
  // process locked.
  CUresult admit() noexcept;

 private:
  EntryId id_;
  EntryId outer_id_;
  bool outer_per_thread_;
  ResidencyLedger* ledger_ = nullptr;  // where the call is counted
};

// The exported symbol that this thread is inside of; the outermost one.
EntryId current_entry() noexcept;
// Whether NULL names the per-thread default stream in the call that this thread is inside of.
bool null_stream_is_per_thread() noexcept;

// The functions that implement the entry points.
namespace api {
#define ENTRY(symbol, base, since) extern decltype(::symbol) symbol;
#define SAME_AS(symbol, target, base, since)
#define PER_THREAD(symbol, target, base, since)
#define MISSING(symbol, base, since)
#include "backends/soft/libcuda/entry_points.def"
#undef ENTRY
#undef SAME_AS
#undef PER_THREAD
#undef MISSING
}  // namespace api

}  // namespace vitamin::soft::driver
