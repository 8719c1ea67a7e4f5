// SPDX-License-Identifier: Apache-2.0
//
// Functions of HIP 6.1 and 6.2 over an older runtime, which is loaded as libreal_runtime.so. They
// call its functions and not the overrides, as a runtime does. An array is memory of the host.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

static void* real(const char* name, const char* version) {
  return dlvsym(dlopen("libreal_runtime.so", RTLD_LAZY | RTLD_NOLOAD), name, version);
}

static int copy(void* to, const void* from, size_t bytes, int kind) {
  int (*function)(void*, const void*, size_t, int) = real("hipMemcpy", "hip_4.2");
  return function(to, from, bytes, kind);
}

int hipGetProcAddress(const char* name, void** address, int version, unsigned long long flags,
                      void* status) {
  (void)version, (void)flags, (void)status;
  *address = real(name, "hip_4.2");
  return *address != NULL ? 0 : 500;  // hipErrorNotFound
}

enum { kHostToDevice = 1, kDeviceToHost = 2 };

int hipMemcpyAtoD(void* to, void* array, size_t offset, size_t bytes) {
  return copy(to, (char*)array + offset, bytes, kHostToDevice);
}

int hipMemcpyDtoA(void* array, size_t offset, void* from, size_t bytes) {
  return copy((char*)array + offset, from, bytes, kDeviceToHost);
}

int hipStreamBeginCaptureToGraph(void* stream, void* graph, const void* dependencies,
                                 const void* data, size_t count, int mode) {
  int (*function)(void*, int) = real("hipStreamBeginCapture", "hip_4.3");
  (void)graph, (void)dependencies, (void)data, (void)count;
  return function(stream, mode);
}
