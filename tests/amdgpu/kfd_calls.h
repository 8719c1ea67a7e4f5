// SPDX-License-Identifier: Apache-2.0
//
// How the tests of the fake kernel driver call it.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#include "backends/soft/amdgpu/kfd/driver.h"
#include "backends/soft/amdgpu/kfd/files.h"

namespace vitamin::tests {

namespace kfd = soft::amdgpu::kfd;
using kfd::DeviceFiles;
using kfd::Driver;
using kfd::IoctlResult;

inline constexpr std::uint32_t kGpu = kfd::kFirstGpuId, kNoGpu = 7;

template <class Arguments>
IoctlResult call(unsigned number, Arguments& arguments) {
  return Driver::instance().ioctl(number, sizeof arguments, &arguments);
}

inline int render_node() {
  static const int descriptor = DeviceFiles::instance().open_render(kfd::kFirstMinor, O_RDWR);
  return descriptor;
}

// A VM on the GPU, which most calls need.
inline void acquire() {
  kfd_ioctl_acquire_vm_args vm{.drm_fd = static_cast<std::uint32_t>(render_node()), .gpu_id = kGpu};
  REQUIRE(call(0x15, vm) == 0);
}

inline void* reserve(std::size_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(at != MAP_FAILED);
  return at;
}

inline IoctlResult map_memory(std::uint64_t handle, std::uint32_t gpu = kGpu) {
  kfd_ioctl_map_memory_to_gpu_args map{
      .handle = handle,
      .device_ids_array_ptr = reinterpret_cast<std::uint64_t>(&gpu),
      .n_devices = 1,
      .n_success = 0};
  return call(0x18, map);
}

struct Buffer {
  void* at = nullptr;
  kfd_ioctl_alloc_memory_of_gpu_args alloc{};

  explicit Buffer(std::size_t bytes, std::uint32_t flags = KFD_IOC_ALLOC_MEM_FLAGS_VRAM) {
    at = reserve(bytes);
    alloc.va_addr = reinterpret_cast<std::uint64_t>(at);
    alloc.size = bytes;
    alloc.gpu_id = kGpu;
    alloc.flags = flags;
    REQUIRE(call(0x16, alloc) == 0);
  }
  IoctlResult map(std::uint32_t gpu = kGpu) const { return map_memory(alloc.handle, gpu); }
  IoctlResult unmap(std::uint32_t gpu = kGpu) const {
    kfd_ioctl_unmap_memory_from_gpu_args unmap{
        .handle = alloc.handle,
        .device_ids_array_ptr = reinterpret_cast<std::uint64_t>(&gpu),
        .n_devices = 1,
        .n_success = 0};
    return call(0x19, unmap);
  }
  IoctlResult free() const {
    kfd_ioctl_free_memory_of_gpu_args free{.handle = alloc.handle};
    return call(0x17, free);
  }
};

}  // namespace vitamin::tests
