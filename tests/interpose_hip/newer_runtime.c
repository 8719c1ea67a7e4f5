// SPDX-License-Identifier: Apache-2.0
//
// Functions of HIP 6.1 to 6.4 over an older runtime, which is loaded as libreal_runtime.so. They
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

int hipExtModuleLaunchKernel(void* kernel, unsigned x, unsigned y, unsigned z, unsigned block_x,
                             unsigned block_y, unsigned block_z, size_t shared, void* stream,
                             void** arguments, void** extra, void* start, void* stop,
                             unsigned flags) {
  int (*function)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, size_t, void*,
                  void**, void**, void*, void*, unsigned) =
      real(
          "_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_"
          "P11ihipEvent_tS6_j",
          "hip_4.2");
  return function(kernel, x, y, z, block_x, block_y, block_z, shared, stream, arguments, extra,
                  start, stop, flags);
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
