// SPDX-License-Identifier: Apache-2.0
//
// Ioctls about the driver, its GPUs and the process on them.
#include <algorithm>
#include <cerrno>

#include "backends/soft/amdgpu/kfd/driver.h"
#include "backends/soft/amdgpu/kfd/files.h"
#include "backends/soft/amdgpu/kfd/sysfs.h"

namespace vitamin::soft::amdgpu::kfd {
namespace {

// Apertures of flat addresses, one page of 4 GiB each.
constexpr std::uint64_t kSharedAperture = 0x1000000000000, kPrivateAperture = 0x2000000000000;
constexpr std::uint64_t kApertureBytes = 1ull << 32;

kfd_process_device_apertures apertures_of(unsigned gpu) {
  return {.lds_base = kSharedAperture,
          .lds_limit = kSharedAperture + kApertureBytes - 1,
          .scratch_base = kPrivateAperture,
          .scratch_limit = kPrivateAperture + kApertureBytes - 1,
          // All that a process on x86-64 can address: the thunk then takes addresses from mmap.
          .gpuvm_base = kPageBytes,
          .gpuvm_limit = (1ull << 47) - 1,
          .gpu_id = gpu_id(gpu),
          .pad = 0};
}

bool is_policy(std::uint32_t policy) {
  return policy == KFD_IOC_CACHE_POLICY_COHERENT || policy == KFD_IOC_CACHE_POLICY_NONCOHERENT;
}

}  // namespace

Gpu* Driver::find_gpu(std::uint32_t id) const {
  for (const auto& gpu : machine_.gpus)
    if (gpu_id(gpu->number) == id) return gpu.get();
  return nullptr;
}

IoctlResult Driver::bound(const Gpu& gpu, IoctlResult otherwise) const {
  return render_files_.contains(gpu.number) ? 0 : otherwise;
}

IoctlResult Driver::get_version(kfd_ioctl_get_version_args& a) {
  a.major_version = kMajorVersion;
  a.minor_version = kMinorVersion;
  return 0;
}

IoctlResult Driver::set_memory_policy(kfd_ioctl_set_memory_policy_args& a) {
  if (!is_policy(a.default_policy) || !is_policy(a.alternate_policy)) return -EINVAL;
  const Gpu* const gpu = find_gpu(a.gpu_id);
  if (gpu == nullptr) return -EINVAL;
  const std::lock_guard lock(mutex_);
  return bound(*gpu, -ESRCH);
}

// A node without a GPU has CPU counters only.
IoctlResult Driver::get_clock_counters(kfd_ioctl_get_clock_counters_args& a) {
  const std::uint64_t now = now_ns();
  a.gpu_clock_counter = find_gpu(a.gpu_id) != nullptr ? now : 0;
  a.cpu_clock_counter = a.system_clock_counter = now;
  a.system_clock_freq = 1'000'000'000;
  return 0;
}

IoctlResult Driver::get_apertures(kfd_ioctl_get_process_apertures_args& a) {
  a.num_of_nodes = static_cast<std::uint32_t>(
      std::min<std::size_t>(machine_.gpus.size(), NUM_OF_SUPPORTED_GPUS));
  for (std::uint32_t gpu = 0; gpu < a.num_of_nodes; ++gpu)
    a.process_apertures[gpu] = apertures_of(gpu);
  return 0;
}

// Asked with no room, the number of GPUs; else as many of them as there is room for.
IoctlResult Driver::get_apertures_new(kfd_ioctl_get_process_apertures_new_args& a) {
  const auto gpus = static_cast<std::uint32_t>(machine_.gpus.size());
  if (a.num_of_nodes == 0) {
    a.num_of_nodes = gpus;
    return 0;
  }
  a.num_of_nodes = std::min(a.num_of_nodes, gpus);
  std::vector<kfd_process_device_apertures> apertures;
  for (std::uint32_t gpu = 0; gpu < a.num_of_nodes; ++gpu) apertures.push_back(apertures_of(gpu));
  return copy_out(a.kfd_process_device_apertures_ptr, apertures.data(),
                  apertures.size() * sizeof apertures[0])
             ? 0
             : -EFAULT;
}

// No tables of tiling modes, as gfx9 and later have none.
IoctlResult Driver::get_tile_config(kfd_ioctl_get_tile_config_args& a) {
  if (find_gpu(a.gpu_id) == nullptr) return -EINVAL;
  a.num_tile_configs = a.num_macro_tile_configs = 0;
  a.gb_addr_config = 0x2a114042;
  a.num_banks = a.num_ranks = 0;
  return 0;
}

// Private memory of waves is the interpreter's own, wherever its backing would lie.
IoctlResult Driver::set_scratch_backing(kfd_ioctl_set_scratch_backing_va_args& a) {
  const Gpu* const gpu = find_gpu(a.gpu_id);
  if (gpu == nullptr) return -EINVAL;
  const std::lock_guard lock(mutex_);
  return bound(*gpu, -ENODEV);
}

// No wave ever traps: what cannot be executed breaks its queue.
IoctlResult Driver::set_trap_handler(kfd_ioctl_set_trap_handler_args& a) {
  const Gpu* const gpu = find_gpu(a.gpu_id);
  if (gpu == nullptr) return -EINVAL;
  const std::lock_guard lock(mutex_);
  return bound(*gpu, -ESRCH);
}

// A process has one VM on a GPU, that of the first open file. kfd_chardev.c, kfd_ioctl_acquire_vm.
IoctlResult Driver::acquire_vm(kfd_ioctl_acquire_vm_args& a) {
  const Gpu* const gpu = find_gpu(a.gpu_id);
  const auto file = DeviceFiles::instance().render_file(static_cast<int>(a.drm_fd));
  if (gpu == nullptr || !file || file->minor != kFirstMinor + gpu->number) return -EINVAL;
  const std::lock_guard lock(mutex_);
  return render_files_.emplace(gpu->number, file->number).first->second == file->number ? 0
                                                                                        : -EBUSY;
}

// No GPU here retries faults; asking (below zero) and leaving it off is allowed.
IoctlResult Driver::set_xnack_mode(kfd_ioctl_set_xnack_mode_args& a) {
  const std::lock_guard lock(mutex_);
  if (a.xnack_enabled >= 0 && !queues_.empty()) return -EBUSY;
  if (a.xnack_enabled > 0) return -EPERM;
  a.xnack_enabled = 0;
  return 0;
}

IoctlResult Driver::available_memory(kfd_ioctl_get_available_memory_args& a) {
  const Gpu* const gpu = find_gpu(a.gpu_id);
  if (gpu == nullptr) return -EINVAL;
  const std::lock_guard lock(mutex_);
  a.available = kVideoBytes - used_[gpu->number];
  return 0;
}

}  // namespace vitamin::soft::amdgpu::kfd
