// SPDX-License-Identifier: Apache-2.0
#include "backends/hip/api.h"

#include <dlfcn.h>

namespace vitamin::hip {
namespace {

// The oldest runtime that all of this was run on.
constexpr int kOldest = hip_version(5, 2);

// The library that libamdhip64 has loaded already; its name never changed.
void* hsa_library() {
  static void* const library = ::dlopen("libhsa-runtime64.so.1", RTLD_LAZY | RTLD_LOCAL);
  return library;
}

void* runtime_library() {
  static void* const library = [] {
    void* found = nullptr;
    for (const char* name : {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"})
      if (found == nullptr) found = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    return found;
  }();
  return library;
}

}  // namespace

hal::Result<Api> Api::load(Lookup lookup) {
  Api api;
  const char* missing = nullptr;
#define VITAMIN_HIP_OPTIONAL(name, blocks) api.name = {#name, lookup(#name)};
#define VITAMIN_HIP_NEWER(name, blocks, symbol, ...) api.name = {#name, lookup(symbol)};
#define VITAMIN_HIP_REQUIRED(name, blocks) \
  VITAMIN_HIP_OPTIONAL(name, blocks)       \
  if (api.name == nullptr && missing == nullptr) missing = #name;
#define VITAMIN_HIP_OVERLOADED(name, blocks, ...) VITAMIN_HIP_REQUIRED(name, blocks)
#define VITAMIN_HIP_HSA(name, blocks) \
  if (hsa_library() != nullptr) api.name = {#name, ::dlsym(hsa_library(), #name)};
#include "backends/hip/api.def"
#undef VITAMIN_HIP_REQUIRED
#undef VITAMIN_HIP_OPTIONAL
#undef VITAMIN_HIP_OVERLOADED
#undef VITAMIN_HIP_NEWER
#undef VITAMIN_HIP_HSA
  if (missing != nullptr)
    return hal::fail(hal::Errc::kUnavailable, "libamdhip64 has no " + std::string(missing) +
                                                  "; CU-masked streams need HIP 5.2 or later");
  if (const hipError_t status = api.hipRuntimeGetVersion(&api.version); status != hipSuccess)
    return hal::fail(hal::Errc::kUnavailable, "libamdhip64 does not say its version", status);
  if (api.version < kOldest)
    return hal::fail(hal::Errc::kUnavailable, "libamdhip64 is too old (version " +
                                                  std::to_string(api.version) +
                                                  "); CU-masked streams need HIP 5.2 or later");
  return api;
}

hal::Result<Api> open_runtime() {
  if (runtime_library() == nullptr)
    return hal::fail(hal::Errc::kUnavailable,
                     "there is no libamdhip64.so.7, .6 or .5 on the library path");
  return Api::load([](const char* name) { return ::dlsym(runtime_library(), name); });
}

}  // namespace vitamin::hip
