// SPDX-License-Identifier: Apache-2.0
//
// Exported functions of libc by which programs ask whether a file is there, and what it is: a
// device file of the driver is a character device that everyone may read and write, a path that it
// shows in sysfs is the file that redirected() names.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "backends/soft/amdgpu/kfd/files.h"
#include "backends/soft/amdgpu/kfd/preload.h"
#include "backends/soft/amdgpu/kfd/sysfs.h"
#include "backends/soft/amdgpu/machine.h"

namespace vitamin::soft::amdgpu::kfd {

DeviceNode device_of(const char* path) {
  constexpr std::string_view kKfd = "/dev/kfd", kRender = "/dev/dri/renderD";
  const std::string_view name(path);
  if (name == kKfd)
    return machine().gpus.empty() ? DeviceNode{DeviceFile::kAbsent, ENXIO}
                                  : DeviceNode{DeviceFile::kKfd};
  if (!name.starts_with(kRender)) return {};
  char* end = nullptr;
  const unsigned long minor = std::strtoul(path + kRender.size(), &end, 10);
  if (*end != 0 || minor < kFirstMinor || minor >= kFirstMinor + machine().gpus.size())
    return {DeviceFile::kAbsent, ENOENT};
  return {DeviceFile::kRender, 0, static_cast<unsigned>(minor)};
}

namespace {

constexpr mode_t kDeviceMode = S_IFCHR | 0666;
constexpr unsigned kKfdMajor = 511, kDrmMajor = 226;  // the first is the kernel's to choose

unsigned major_of(const DeviceNode& device) {
  return device.kind == DeviceFile::kKfd ? kKfdMajor : kDrmMajor;
}

int access_of(const DeviceNode& device, int mode) {
  if (device.kind == DeviceFile::kAbsent) return errno = device.error, -1;
  if ((mode & X_OK) != 0) return errno = EACCES, -1;
  return 0;
}

template <class Real>
int access_any(Real real, const char* path, int mode) {
  if (!may_be_ours(path)) return real(path, mode);
  const DeviceNode device = device_of(path);
  return device.kind != DeviceFile::kNone ? access_of(device, mode)
                                          : real(redirected(path).c_str(), mode);
}

// struct stat or stat64, which are alike on x86-64.
template <class Status>
void fill(Status& status, const DeviceNode& device) {
  status = {};
  status.st_mode = kDeviceMode;
  status.st_nlink = 1;
  status.st_ino = major_of(device);
  status.st_rdev = makedev(major_of(device), device.minor);
  status.st_blksize = static_cast<decltype(status.st_blksize)>(kPageBytes);
}

void fill(struct statx& status, const DeviceNode& device) {
  status = {};
  status.stx_mask = STATX_BASIC_STATS;
  status.stx_mode = kDeviceMode;
  status.stx_nlink = 1;
  status.stx_ino = major_of(device);
  status.stx_rdev_major = major_of(device);
  status.stx_rdev_minor = device.minor;
  status.stx_blksize = static_cast<std::uint32_t>(kPageBytes);
}

// `Status`: struct stat, stat64 or statx.
template <class Status, class Real>
int status_any(Real real, const char* path, Status* status) {
  if (!may_be_ours(path)) return real(path, status);
  const DeviceNode device = device_of(path);
  if (device.kind == DeviceFile::kNone) return real(redirected(path).c_str(), status);
  if (device.kind == DeviceFile::kAbsent) return errno = device.error, -1;
  fill(*status, device);
  return 0;
}

template <class Real>
ssize_t getxattr_any(Real real, const char* path) {
  if (!may_be_ours(path)) return real(path);
  const DeviceNode device = device_of(path);
  if (device.kind == DeviceFile::kNone) return real(redirected(path).c_str());
  errno = device.kind == DeviceFile::kAbsent ? device.error : ENODATA;
  return -1;
}

}  // namespace
}  // namespace vitamin::soft::amdgpu::kfd

namespace kfd = vitamin::soft::amdgpu::kfd;

VITAMIN_EXPORT int access(const char* path, int mode) noexcept {
  static auto* const real = kfd::next<int(const char*, int)>("access");
  return kfd::access_any(real, path, mode);
}

VITAMIN_EXPORT int faccessat(int directory, const char* path, int mode, int flags) noexcept {
  static auto* const real = kfd::next<int(int, const char*, int, int)>("faccessat");
  return kfd::access_any(
      [&](const char* name, int its) { return real(directory, name, its, flags); }, path, mode);
}

// ls asks for access control lists, which no file of the driver's has.
#define VITAMIN_GETXATTR(name)                                                                    \
  VITAMIN_EXPORT ssize_t name(const char* path, const char* attribute, void* value,               \
                              std::size_t bytes) noexcept {                                       \
    static auto* const real =                                                                     \
        kfd::next<ssize_t(const char*, const char*, void*, std::size_t)>(#name);                  \
    return kfd::getxattr_any([&](const char* its) { return real(its, attribute, value, bytes); }, \
                             path);                                                               \
  }                                                                                               \
  static_assert(true)
VITAMIN_GETXATTR(getxattr);
VITAMIN_GETXATTR(lgetxattr);

// stat and lstat, and what programs call that were linked with a glibc older than 2.33.
#define VITAMIN_STATUS(name, type)                                       \
  VITAMIN_EXPORT int name(const char* path, type* status) noexcept {     \
    static auto* const real = kfd::next<int(const char*, type*)>(#name); \
    return kfd::status_any(real, path, status);                          \
  }                                                                      \
  static_assert(true)
#define VITAMIN_STATUS_AT(name, type)                                                              \
  VITAMIN_EXPORT int name(int directory, const char* path, type* status, int flags) noexcept {     \
    static auto* const real = kfd::next<int(int, const char*, type*, int)>(#name);                 \
    return kfd::status_any(                                                                        \
        [&](const char* its, type* to) { return real(directory, its, to, flags); }, path, status); \
  }                                                                                                \
  static_assert(true)
#define VITAMIN_STATUS_OF_VERSION(name, type)                                                 \
  VITAMIN_EXPORT int name(int version, const char* path, type* status) noexcept {             \
    static auto* const real = kfd::next<int(int, const char*, type*)>(#name);                 \
    return kfd::status_any([&](const char* its, type* to) { return real(version, its, to); }, \
                           path, status);                                                     \
  }                                                                                           \
  static_assert(true)

VITAMIN_EXPORT int statx(int directory, const char* path, int flags, unsigned mask,
                         struct statx* status) noexcept {
  static auto* const real = kfd::next<int(int, const char*, int, unsigned, struct statx*)>("statx");
  return kfd::status_any(
      [&](const char* its, struct statx* to) { return real(directory, its, flags, mask, to); },
      path, status);
}

VITAMIN_STATUS(stat, struct stat);
VITAMIN_STATUS(stat64, struct stat64);
VITAMIN_STATUS(lstat, struct stat);
VITAMIN_STATUS(lstat64, struct stat64);
VITAMIN_STATUS_AT(fstatat, struct stat);
VITAMIN_STATUS_AT(fstatat64, struct stat64);
VITAMIN_STATUS_OF_VERSION(__xstat, struct stat);
VITAMIN_STATUS_OF_VERSION(__xstat64, struct stat64);
VITAMIN_STATUS_OF_VERSION(__lxstat, struct stat);
VITAMIN_STATUS_OF_VERSION(__lxstat64, struct stat64);
