// SPDX-License-Identifier: Apache-2.0
//
// The few functions of libdrm_amdgpu that ROCm calls about a render node. They are answered above
// the kernel's interface, because libdrm would ask the display driver for much that a device
// without graphics has not.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <mutex>

#include "backends/soft/amdgpu/kfd/driver.h"
#include "backends/soft/amdgpu/kfd/files.h"

#define VITAMIN_EXPORT extern "C" __attribute__((visibility("default")))

namespace kfd = vitamin::soft::amdgpu::kfd;

namespace {

// What amdgpu_device_handle points at: one for a GPU, with a duplicate of the descriptor that it
// was first made with, because callers close theirs.
struct DrmDevice {
  int descriptor = -1;
  unsigned users = 0;
};
DrmDevice devices[vitamin::soft::amdgpu::kGpusMax];
constinit std::mutex users;

// The beginning of libdrm's struct amdgpu_gpu_info, which is longer in every version; a caller that
// reads on finds what it had there.
struct GpuInfo {
  std::uint32_t device_id, chip_revision, external_revision, family;
  std::uint64_t flags, highest_clock, highest_memory_clock;
  std::uint32_t engines, arrays_per_engine;
  std::uint32_t shader_pipes, shader_pipes_max, cache_entries, contexts, backends, backend_mask;
  std::uint32_t counter_khz;  // of s_memrealtime
};
constexpr std::uint32_t kFamilyArcticIslands = 141, kFamilyNavi = 143, kFamilyGc11 = 145;

}  // namespace

VITAMIN_EXPORT int amdgpu_device_initialize(int descriptor, std::uint32_t* major,
                                            std::uint32_t* minor, DrmDevice** device) {
  const auto node = kfd::DeviceFiles::instance().render_file(descriptor);
  if (!node) return -EINVAL;
  *major = 3;
  *minor = 49;  // of Linux 6.1
  *device = &devices[node->minor - kfd::kFirstMinor];
  const std::lock_guard lock(users);
  if ((*device)->users++ == 0) (*device)->descriptor = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  return 0;
}

VITAMIN_EXPORT int amdgpu_device_deinitialize(DrmDevice* device) {
  const std::lock_guard lock(users);
  if (--device->users == 0) ::close(device->descriptor);
  return 0;
}

VITAMIN_EXPORT int amdgpu_device_get_fd(DrmDevice* device) { return device->descriptor; }

VITAMIN_EXPORT const char* amdgpu_get_marketing_name(DrmDevice*) {
  return "Vitamin software AMD GPU";
}

VITAMIN_EXPORT int amdgpu_query_gpu_info(DrmDevice*, GpuInfo* info) {
  const auto& part = vitamin::soft::amdgpu::machine().part;
  *info = {};
  info->device_id = part.device_id;
  info->family = part.major >= 11   ? kFamilyGc11
                 : part.major >= 10 ? kFamilyNavi
                                    : kFamilyArcticIslands;
  info->engines = part.xccs * part.engines;
  info->arrays_per_engine = part.arrays_per_engine;
  info->counter_khz = vitamin::soft::amdgpu::isa::kRealtimeMhz * 1000;
  return 0;
}
