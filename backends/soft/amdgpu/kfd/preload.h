// SPDX-License-Identifier: Apache-2.0
//
// What the exported functions of libc share.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define VITAMIN_EXPORT extern "C" __attribute__((visibility("default")))

namespace vitamin::soft::amdgpu::kfd {

constexpr int kElsewhere = -2;  // an answer of libc's, not of the driver's

// libc's own function.
template <class Function>
Function* next(const char* name) {
  auto* const found = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
  if (found == nullptr) {
    std::fprintf(stderr, "software AMD GPU: %s\n", ::dlerror());
    std::abort();
  }
  return found;
}

// A path outside /dev and /sys costs two comparisons and no allocation.
inline bool may_be_ours(const char* path) {
  return path != nullptr &&
         (std::strncmp(path, "/dev/", 5) == 0 || std::strncmp(path, "/sys/", 5) == 0);
}

enum class DeviceFile : std::uint8_t {
  kNone,    // not a device file of the driver's
  kAbsent,  // one that this machine lacks, with `error`
  kKfd,
  kRender,  // with its DRM minor
};
struct DeviceNode {
  DeviceFile kind = DeviceFile::kNone;
  int error = 0;
  unsigned minor = 0;
};
DeviceNode device_of(const char* path);

}  // namespace vitamin::soft::amdgpu::kfd
