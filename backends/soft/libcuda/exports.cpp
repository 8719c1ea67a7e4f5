// SPDX-License-Identifier: Apache-2.0
//
// The exported symbols of libcuda.so.1, made from entry_points.def.
//
// A symbol is an indirect function whose resolver names an instance of Entry: so one line of the
// table gives a symbol of exactly the type that cuda.h declares, without writing 600 parameter
// lists a second time. The resolvers run while the loader relocates, before a sanitizer's runtime
// is ready, and are therefore not instrumented.

#include <cstddef>
#include <string_view>

#include "backends/soft/libcuda/entry.h"

namespace vitamin::soft::driver {
namespace {

template <EntryId kId, bool kPerThread, auto kTarget, class Function>
struct Entry;

template <EntryId kId, bool kPerThread, auto kTarget, class... Args>
struct Entry<kId, kPerThread, kTarget, CUresult(Args...)> {
  static CUresult call(Args... args) {
    ApiCall scope(kId, kPerThread);
    if (CUresult refused = scope.admit(); refused != CUDA_SUCCESS) return refused;
    return kTarget(args...);
  }
};

template <EntryId kId, class Function>
struct MissingEntry;

template <EntryId kId, class... Args>
struct MissingEntry<kId, CUresult(Args...)> {
  static CUresult call(Args...) {
    ApiCall scope(kId, false);
    CUresult refused = scope.admit();
    return refused != CUDA_SUCCESS ? refused : CUDA_ERROR_NOT_SUPPORTED;
  }
};

// One type for each symbol, so that the table and the resolver agree by construction.
#define ENTRY(symbol, base, since) \
  struct Of_##symbol : Entry<EntryId::symbol, false, &api::symbol, decltype(::symbol)> {};
#define SAME_AS(symbol, target, base, since) \
  struct Of_##symbol : Entry<EntryId::symbol, false, &api::target, decltype(::symbol)> {};
#define PER_THREAD(symbol, target, base, since) \
  struct Of_##symbol : Entry<EntryId::symbol, true, &api::target, decltype(::target)> {};
#define MISSING(symbol, base, since) \
  struct Of_##symbol : MissingEntry<EntryId::symbol, decltype(::symbol)> {};
#include "backends/soft/libcuda/entry_points.def"
#undef ENTRY
#undef SAME_AS
#undef PER_THREAD
#undef MISSING

constexpr bool is_per_thread(std::string_view symbol) {
  return symbol.ends_with("_ptsz") || symbol.ends_with("_ptds");
}

const EntryInfo kEntries[] = {
#define ROW(symbol, base, since, per_thread) \
  EntryInfo{#symbol, #base, since, per_thread, reinterpret_cast<void*>(&Of_##symbol::call)},
#define ENTRY(symbol, base, since) ROW(symbol, base, since, false)
#define SAME_AS(symbol, target, base, since) ROW(symbol, base, since, false)
#define PER_THREAD(symbol, target, base, since) ROW(symbol, base, since, true)
#define MISSING(symbol, base, since) ROW(symbol, base, since, is_per_thread(#symbol))
#include "backends/soft/libcuda/entry_points.def"
#undef ENTRY
#undef SAME_AS
#undef PER_THREAD
#undef MISSING
#undef ROW
};

}  // namespace

const EntryInfo& entry_info(EntryId id) { return kEntries[static_cast<std::size_t>(id)]; }

}  // namespace vitamin::soft::driver

#define VITAMIN_EXPORT(symbol)                                                              \
  extern "C" {                                                                              \
  __attribute__((used, visibility("hidden"), no_sanitize("address"), no_sanitize("thread"), \
                 no_sanitize("undefined"))) decltype(&symbol) vitamin_resolve_##symbol() {  \
    return &vitamin::soft::driver::Of_##symbol::call;                                       \
  }                                                                                         \
  __attribute__((visibility("default"),                                                     \
                 ifunc("vitamin_resolve_" #symbol))) decltype(symbol) symbol;               \
  }
#define ENTRY(symbol, base, since) VITAMIN_EXPORT(symbol)
#define SAME_AS(symbol, target, base, since) VITAMIN_EXPORT(symbol)
#define PER_THREAD(symbol, target, base, since) VITAMIN_EXPORT(symbol)
#define MISSING(symbol, base, since) VITAMIN_EXPORT(symbol)
#include "backends/soft/libcuda/entry_points.def"
