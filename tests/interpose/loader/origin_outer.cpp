// SPDX-License-Identifier: Apache-2.0
//
// Has RUNPATH $ORIGIN/inner and opens a neighbour by its bare name, as cuDNN does with its parts:
// the loader looks in the RUNPATH of the caller of dlopen.
#include <dlfcn.h>

extern "C" [[gnu::visibility("default")]] const char* vitamin_test_origin() {
  void* inner = dlopen("liborigin_inner.so", RTLD_NOW | RTLD_LOCAL);
  if (inner == nullptr) return dlerror();
  using Function = const char* (*)();
  auto function = reinterpret_cast<Function>(dlsym(inner, "vitamin_test_inner"));
  return function != nullptr ? function() : "no function";
}
