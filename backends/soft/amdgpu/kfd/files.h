// SPDX-License-Identifier: Apache-2.0
//
// The device files of the driver as files without a name, so that mmap, dup, close and fork work on
// them by themselves. An opened one is recognised by its inode. The position of a render node's,
// which duplicates share, holds the DRM minor and a number for each call of open.
//
//   /dev/kfd         doorbells of each GPU, a page of registers for each, the event page
//   /dev/dri/renderD the memory of all GPUs; an allocation's mmap offset is its place in the file
#pragma once

#include <cstdint>
#include <optional>

#include "backends/soft/amdgpu/settings.h"

namespace vitamin::soft::amdgpu::kfd {

inline constexpr std::uint64_t kPageBytes = 4096;
// Rounded up. Sizes within a page of 2^64 wrap around to 0.
constexpr std::uint64_t whole_pages(std::uint64_t bytes) {
  return (bytes + kPageBytes - 1) & ~(kPageBytes - 1);
}
inline constexpr std::uint64_t kDoorbellBytes = 8192;  // of one process on one GPU (gfx9 and later)
inline constexpr unsigned kFirstMinor = 128;

// Offsets in /dev/kfd. The lower half of a doorbell's offset is its place in the page, as in the
// kernel: the thunk of 5.2 counts on that for the first queue of a GPU.
constexpr std::uint64_t doorbells_of(unsigned gpu) { return std::uint64_t{gpu} << 32; }
constexpr std::uint64_t registers_of(unsigned gpu) {
  return doorbells_of(kGpusMax) + gpu * kPageBytes;
}
inline constexpr std::uint64_t kEventPage = registers_of(kGpusMax);

struct RenderFile {
  unsigned minor = 0;
  std::uint64_t number = 0;  // duplicates of a descriptor have the same, other ones another
};

class DeviceFiles {
 public:
  // Of this process; made at the first use and never closed.
  static DeviceFiles& instance();

  int open_kfd(int flags) const;                     // a descriptor, or -1 and errno
  int open_render(unsigned minor, int flags) const;  // the same
  bool is_kfd(int descriptor) const { return is(descriptor, kfd_inode_); }
  std::optional<RenderFile> render_file(int descriptor) const;  // nothing: no render node's
  // The file behind every render node, for mapping and for other processes.
  int memory() const { return memory_; }
  // The doorbells of a GPU, as the device itself maps them.
  std::uint64_t* doorbells(unsigned gpu) const { return doorbells_[gpu]; }

 private:
  DeviceFiles();
  static bool is(int descriptor, std::uint64_t inode);
  int kfd_ = -1, memory_ = -1;
  std::uint64_t kfd_inode_ = 0, memory_inode_ = 0;
  std::uint64_t* doorbells_[kGpusMax] = {};
};

}  // namespace vitamin::soft::amdgpu::kfd
