// SPDX-License-Identifier: Apache-2.0
//
// Preloaded behind our library: wraps vitamin_test_name() the way every interposer does. Were dlsym
// to run with any caller but this one, RTLD_NEXT would find this very function again.
#include <dlfcn.h>

#include <cstdio>

extern "C" [[gnu::visibility("default")]] const char* vitamin_test_name() {
  static int depth = 0;
  if (++depth > 1) return "itself";
  using Function = const char* (*)();
  auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "vitamin_test_name"));
  static char text[64];
  std::snprintf(text, sizeof text, "first before %s", next != nullptr ? next() : "none");
  --depth;
  return text;
}
