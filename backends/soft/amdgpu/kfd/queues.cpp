// SPDX-License-Identifier: Apache-2.0
//
// Ioctls about queues.
#include <algorithm>
#include <bit>
#include <cerrno>

#include "backends/soft/amdgpu/kfd/driver.h"
#include "backends/soft/amdgpu/kfd/files.h"

namespace vitamin::soft::amdgpu::kfd {
namespace {

constexpr std::size_t kQueuesMax = kDoorbellBytes / sizeof(std::uint64_t);
constexpr std::uint32_t kMaskBitsMax = 1024;  // the kernel drops what is beyond

// What creating and updating check alike.
IoctlResult check(std::uint32_t percentage, std::uint32_t priority, std::uint64_t ring,
                  std::uint32_t bytes) {
  if (percentage > KFD_MAX_QUEUE_PERCENTAGE || priority > KFD_MAX_QUEUE_PRIORITY) return -EINVAL;
  if (!may_be_user(ring)) return -EFAULT;
  return bytes != 0 && !std::has_single_bit(bytes) ? -EINVAL : 0;
}

}  // namespace

IoctlResult Driver::create_queue(kfd_ioctl_create_queue_args& a) {
  // The upper bytes of the percentage say on which XCC's target a queue is, since 1.14.
  if (const IoctlResult answer =
          check(a.queue_percentage & 0xff, a.queue_priority, a.ring_base_address, a.ring_size);
      answer != 0)
    return answer;
  for (const std::uint64_t address : {a.read_pointer_address, a.write_pointer_address,
                                      a.eop_buffer_address, a.ctx_save_restore_address})
    if (!may_be_user(address)) return -EFAULT;
  const bool copy = a.queue_type == KFD_IOC_QUEUE_TYPE_SDMA;
  // PM4 is what nothing above sends, and links between GPUs have no engines of their own here.
  if (!copy && a.queue_type != KFD_IOC_QUEUE_TYPE_COMPUTE_AQL) return -kNotSupported;
  Gpu* const gpu = find_gpu(a.gpu_id);
  if (gpu == nullptr) return -EINVAL;
  const std::lock_guard lock(mutex_);
  if (const IoctlResult answer = bound(*gpu, -ESRCH); answer != 0) return answer;
  if (queues_.size() + 1 >= kQueuesMax) return -ENOMEM;
  const auto copy_queues = std::count_if(queues_.begin(), queues_.end(), [&](const auto& entry) {
    return entry.second.copy && entry.second.gpu == gpu->number;
  });
  if (copy && copy_queues >= kCopyEngines * kQueuesPerCopyEngine) return -ENOMEM;
  const QueueMemory memory{.ring = reinterpret_cast<void*>(a.ring_base_address),
                           .bytes = a.ring_size,
                           .read_index = reinterpret_cast<std::uint64_t*>(a.read_pointer_address),
                           .write_index = reinterpret_cast<std::uint64_t*>(a.write_pointer_address),
                           .doorbells = DeviceFiles::instance().doorbells(gpu->number),
                           .doorbell_count = kQueuesMax};
  const auto kind = copy ? Queue::Kind::kCopy : Queue::Kind::kCompute;
  std::uint64_t doorbell = 0;
  switch (machine_.queues.create(machine_, *gpu, kind, memory, a.queue_id, doorbell)) {
    case QueueStatus::kDone:
      break;
    case QueueStatus::kNoResources:
      return -ENOMEM;
    default:
      return -EIO;  // the GPU is lost
  }
  queues_.emplace(a.queue_id, QueueRecord{.gpu = gpu->number, .copy = copy});
  a.doorbell_offset = doorbells_of(gpu->number) + doorbell * sizeof(std::uint64_t);
  return 0;
}

IoctlResult Driver::destroy_queue(kfd_ioctl_destroy_queue_args& a) {
  {
    const std::lock_guard lock(mutex_);
    if (queues_.erase(a.queue_id) == 0) return -EINVAL;
  }
  // Waits for the queue's thread, which may be in the middle of a packet.
  machine_.queues.destroy(machine_, a.queue_id);
  return 0;
}

IoctlResult Driver::update_queue(kfd_ioctl_update_queue_args& a) {
  if (const IoctlResult answer =
          check(a.queue_percentage, a.queue_priority, a.ring_base_address, a.ring_size);
      answer != 0)
    return answer;
  return machine_.queues.update(a.queue_id) ? 0 : -EFAULT;
}

IoctlResult Driver::set_cu_mask(kfd_ioctl_set_cu_mask_args& a) {
  if (a.num_cu_mask == 0 || a.num_cu_mask % 32 != 0) return -EINVAL;
  std::vector<std::uint32_t> mask(std::min(a.num_cu_mask, kMaskBitsMax) / 32);
  if (!copy_in(mask.data(), a.cu_mask_ptr, mask.size() * sizeof mask[0])) return -EFAULT;
  switch (machine_.queues.set_mask(machine_, a.queue_id, std::move(mask))) {
    case QueueStatus::kDone:
      return 0;
    case QueueStatus::kNoQueue:
      return -EFAULT;
    default:
      return -EIO;
  }
}

IoctlResult Driver::alloc_queue_gws(kfd_ioctl_alloc_queue_gws_args& a) {
  const std::lock_guard lock(mutex_);
  if (!queues_.contains(a.queue_id)) return -EINVAL;
  a.first_gws = 0;
  return 0;
}

}  // namespace vitamin::soft::amdgpu::kfd
