// SPDX-License-Identifier: Apache-2.0
//
// Opened with RTLD_DEEPBIND: its references bind to its own dependencies first, so its dlsym is
// libc's.
#include <dlfcn.h>

extern "C" [[gnu::visibility("default")]] void* vitamin_test_lookup(void* handle,
                                                                    const char* name) {
  return dlsym(handle, name);
}
