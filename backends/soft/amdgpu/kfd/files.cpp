// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/kfd/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "backends/soft/amdgpu/kfd/uapi.h"

namespace vitamin::soft::amdgpu::kfd {
namespace {

constexpr std::uint64_t kMinors = 1024;  // more than a DRM minor can be
constexpr std::uint64_t kKfdBytes = kEventPage + kEventPageBytes;

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::abort();
}

std::uint64_t inode_of(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

// A description of its own, with its own position. The system call, because open() is ours.
int reopen(int descriptor, int flags) {
  const std::string name = "/proc/self/fd/" + std::to_string(descriptor);
  return static_cast<int>(
      ::syscall(SYS_openat, AT_FDCWD, name.c_str(), (flags & O_CLOEXEC) | O_RDWR, 0));
}

}  // namespace

DeviceFiles& DeviceFiles::instance() {
  static auto* const files = new DeviceFiles;
  return *files;
}

DeviceFiles::DeviceFiles() {
  kfd_ = ::memfd_create("vitamin-kfd", MFD_CLOEXEC);
  memory_ = ::memfd_create("vitamin-render", MFD_CLOEXEC);
  if (kfd_ < 0 || memory_ < 0 || ::ftruncate(kfd_, kKfdBytes) != 0)
    give_up("software AMD GPU: memfd_create");
  kfd_inode_ = inode_of(kfd_);
  memory_inode_ = inode_of(memory_);
  for (unsigned gpu = 0; gpu < kGpusMax; ++gpu) {
    void* const page = ::mmap(nullptr, kDoorbellBytes, PROT_READ | PROT_WRITE, MAP_SHARED, kfd_,
                              static_cast<off_t>(doorbells_of(gpu)));
    if (page == MAP_FAILED) give_up("software AMD GPU: mmap");
    doorbells_[gpu] = static_cast<std::uint64_t*>(page);
  }
}

int DeviceFiles::open_kfd(int flags) const { return reopen(kfd_, flags); }

int DeviceFiles::open_render(unsigned minor, int flags) const {
  const int descriptor = reopen(memory_, flags);
  static std::atomic<std::uint64_t> opened;
  const std::uint64_t position = opened.fetch_add(1) * kMinors + minor;
  if (descriptor >= 0) ::lseek(descriptor, static_cast<off_t>(position), SEEK_SET);
  return descriptor;
}

// Files without a name have a device number of their own, but other such files share it.
bool DeviceFiles::is(int descriptor, std::uint64_t inode) {
  static const std::uint64_t device = [] {
    struct stat status {};
    return ::fstat(instance().kfd_, &status) == 0 ? status.st_dev : 0;
  }();
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && status.st_ino == inode && status.st_dev == device;
}

std::optional<RenderFile> DeviceFiles::render_file(int descriptor) const {
  if (!is(descriptor, memory_inode_)) return std::nullopt;
  const auto position = static_cast<std::uint64_t>(::lseek(descriptor, 0, SEEK_CUR));
  return RenderFile{.minor = static_cast<unsigned>(position % kMinors),
                    .number = position / kMinors};
}

}  // namespace vitamin::soft::amdgpu::kfd
