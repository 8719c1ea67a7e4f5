// SPDX-License-Identifier: Apache-2.0
#include "driver.h"

#include <dlfcn.h>

#include <cstring>

Driver drv;

namespace {

[[maybe_unused]] void must(const void* address, const char* name) {
  if (address != nullptr) return;
  std::printf("no %s\n", name);
  std::exit(3);
}

}  // namespace

#if defined(DRIVER_LINKED)

void reach_driver() {
#define DRIVER_ENTRY(name) drv.name = &::name;
  DRIVER_FUNCTIONS(DRIVER_ENTRY)
  GRAPH_FUNCTIONS(DRIVER_ENTRY)
#undef DRIVER_ENTRY
}

#else

#define TEXT_OF_EXPANDED(name) #name
#define TEXT_OF(name) TEXT_OF_EXPANDED(name)

void reach_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  must(library, "libcuda.so.1");
  const char* door = std::getenv("DRIVER_DOOR");
  if (door == nullptr || std::strcmp(door, "dlsym") == 0) {
    // The exported names, as cuda.h maps them.
#define DRIVER_ENTRY(name)                                                        \
  drv.name = reinterpret_cast<decltype(drv.name)>(dlsym(library, TEXT_OF(name))); \
  must(reinterpret_cast<void*>(drv.name), #name);
    DRIVER_FUNCTIONS(DRIVER_ENTRY)
    GRAPH_FUNCTIONS(DRIVER_ENTRY)
#undef DRIVER_ENTRY
    return;
  }
  using Lookup =
      CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  auto lookup = reinterpret_cast<Lookup>(dlsym(library, "cuGetProcAddress_v2"));
  must(reinterpret_cast<void*>(lookup), "cuGetProcAddress_v2");
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
  constexpr cuuint64_t kFlags = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
#else
  constexpr cuuint64_t kFlags = CU_GET_PROC_ADDRESS_LEGACY_STREAM;
#endif
  // The plain names, with the version of the header, but before 13.0: there cuCtxSynchronize has a
  // parameter that the header's cuCtxSynchronize has not.
  constexpr int kVersion = CUDA_VERSION < 12080 ? CUDA_VERSION : 12080;
#define DRIVER_ENTRY(name)                                    \
  {                                                           \
    void* address = nullptr;                                  \
    lookup(#name, &address, kVersion, kFlags, nullptr);       \
    must(address, #name);                                     \
    drv.name = reinterpret_cast<decltype(drv.name)>(address); \
  }
  DRIVER_FUNCTIONS(DRIVER_ENTRY)
  GRAPH_FUNCTIONS(DRIVER_ENTRY)
#undef DRIVER_ENTRY
}

#endif
