// SPDX-License-Identifier: Apache-2.0
//
// Exported functions of libc by which programs reach the driver. A path or descriptor of the driver
// is answered here, every other one by libc. Questions about a path: status.cpp.
#include <dirent.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <string>

#include "backends/soft/amdgpu/kfd/driver.h"
#include "backends/soft/amdgpu/kfd/files.h"
#include "backends/soft/amdgpu/kfd/preload.h"
#include "backends/soft/amdgpu/kfd/sysfs.h"

namespace vitamin::soft::amdgpu::kfd {
namespace {

// A descriptor of a device file, -1 and errno, or kElsewhere.
int open_device(const char* path, int flags) {
  switch (const DeviceNode device = device_of(path); device.kind) {
    case DeviceFile::kNone:
      return kElsewhere;
    case DeviceFile::kAbsent:
      return errno = device.error, -1;
    case DeviceFile::kRender:
      return DeviceFiles::instance().open_render(device.minor, flags);
    case DeviceFile::kKfd:
      break;
  }
  if (Driver::instance().is_of_parent()) {
    std::fprintf(stderr,
                 "software AMD GPU: process %d is a child of a fork of a process that uses the "
                 "driver and cannot open /dev/kfd (ENODEV): call exec first\n",
                 ::getpid());
    return errno = ENODEV, -1;
  }
  return DeviceFiles::instance().open_kfd(flags);
}

// `real`: libc's own function with the caller's other arguments, of a path.
template <class Real>
int open_any(Real real, const char* path, int flags) {
  if (!may_be_ours(path)) return real(path);
  const int device = open_device(path, flags);
  return device != kElsewhere ? device : real(redirected(path).c_str());
}

unsigned mode_of(int flags, std::va_list list) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, unsigned) : 0;
}

int answer(int descriptor, unsigned long request, void* argument) {
  const unsigned type = _IOC_TYPE(request), number = _IOC_NR(request);
  if (type == AMDKFD_IOCTL_BASE && DeviceFiles::instance().is_kfd(descriptor)) {
    const IoctlResult result = Driver::instance().ioctl(number, _IOC_SIZE(request), argument);
    if (result >= 0) return static_cast<int>(result);
    errno = static_cast<int>(-result);
    return -1;
  }
  constexpr unsigned kDrm = 'd';
  if (type == kDrm && DeviceFiles::instance().render_file(descriptor)) {
    std::fprintf(stderr, "software AMD GPU: the DRM ioctl %#04x is not served\n", number);
    errno = ENOTTY;
    return -1;
  }
  return kElsewhere;
}

}  // namespace
}  // namespace vitamin::soft::amdgpu::kfd

namespace kfd = vitamin::soft::amdgpu::kfd;

// open and openat, and what they become with _FORTIFY_SOURCE where there is no mode.
#define VITAMIN_OPEN(name)                                                                      \
  VITAMIN_EXPORT int name(const char* path, int flags, ...) {                                   \
    static auto* const real = kfd::next<int(const char*, int, ...)>(#name);                     \
    std::va_list list;                                                                          \
    va_start(list, flags);                                                                      \
    const unsigned mode = kfd::mode_of(flags, list);                                            \
    va_end(list);                                                                               \
    return kfd::open_any([&](const char* its) { return real(its, flags, mode); }, path, flags); \
  }                                                                                             \
  static_assert(true)
#define VITAMIN_OPEN_AT(name)                                                                      \
  VITAMIN_EXPORT int name(int directory, const char* path, int flags, ...) {                       \
    static auto* const real = kfd::next<int(int, const char*, int, ...)>(#name);                   \
    std::va_list list;                                                                             \
    va_start(list, flags);                                                                         \
    const unsigned mode = kfd::mode_of(flags, list);                                               \
    va_end(list);                                                                                  \
    return kfd::open_any([&](const char* its) { return real(directory, its, flags, mode); }, path, \
                         flags);                                                                   \
  }                                                                                                \
  static_assert(true)
#define VITAMIN_OPEN_2(name)                                                              \
  VITAMIN_EXPORT int name(const char* path, int flags) {                                  \
    static auto* const real = kfd::next<int(const char*, int)>(#name);                    \
    return kfd::open_any([&](const char* its) { return real(its, flags); }, path, flags); \
  }                                                                                       \
  static_assert(true)
#define VITAMIN_OPEN_AT_2(name)                                                              \
  VITAMIN_EXPORT int name(int directory, const char* path, int flags) {                      \
    static auto* const real = kfd::next<int(int, const char*, int)>(#name);                  \
    return kfd::open_any([&](const char* its) { return real(directory, its, flags); }, path, \
                         flags);                                                             \
  }                                                                                          \
  static_assert(true)

VITAMIN_OPEN(open);
VITAMIN_OPEN(open64);
VITAMIN_OPEN_AT(openat);
VITAMIN_OPEN_AT(openat64);
VITAMIN_OPEN_2(__open_2);
VITAMIN_OPEN_2(__open64_2);
VITAMIN_OPEN_AT_2(__openat_2);
VITAMIN_OPEN_AT_2(__openat64_2);

VITAMIN_EXPORT FILE* fopen(const char* path, const char* mode) {
  static auto* const real = kfd::next<FILE*(const char*, const char*)>("fopen");
  return kfd::may_be_ours(path) ? real(kfd::redirected(path).c_str(), mode) : real(path, mode);
}

VITAMIN_EXPORT FILE* fopen64(const char* path, const char* mode) {
  static auto* const real = kfd::next<FILE*(const char*, const char*)>("fopen64");
  return kfd::may_be_ours(path) ? real(kfd::redirected(path).c_str(), mode) : real(path, mode);
}

VITAMIN_EXPORT DIR* opendir(const char* path) {
  static auto* const real = kfd::next<DIR*(const char*)>("opendir");
  return kfd::may_be_ours(path) ? real(kfd::redirected(path).c_str()) : real(path);
}

#define VITAMIN_SCANDIR(name, type)                                                            \
  VITAMIN_EXPORT int name(const char* path, type*** list, int (*filter)(const type*),          \
                          int (*compare)(const type**, const type**)) {                        \
    static auto* const real = kfd::next<decltype(name)>(#name);                                \
    return kfd::may_be_ours(path) ? real(kfd::redirected(path).c_str(), list, filter, compare) \
                                  : real(path, list, filter, compare);                         \
  }                                                                                            \
  static_assert(true)
VITAMIN_SCANDIR(scandir, struct dirent);
VITAMIN_SCANDIR(scandir64, struct dirent64);

// Memory that libc takes back by itself has no attributes.
VITAMIN_EXPORT int munmap(void* begin, std::size_t bytes) noexcept {
  static auto* const real = kfd::next<int(void*, std::size_t)>("munmap");
  // Before: the addresses may be another thread's a moment later.
  kfd::Driver::unmapped(reinterpret_cast<std::uint64_t>(begin), bytes);
  return real(begin, bytes);
}

VITAMIN_EXPORT int ioctl(int descriptor, unsigned long request, ...) noexcept {
  static auto* const real = kfd::next<int(int, unsigned long, ...)>("ioctl");
  std::va_list list;
  va_start(list, request);
  void* const argument = va_arg(list, void*);
  va_end(list);
  const int result = kfd::answer(descriptor, request, argument);
  return result != kfd::kElsewhere ? result : real(descriptor, request, argument);
}
