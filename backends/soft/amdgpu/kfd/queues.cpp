// SPDX-License-Identifier: Apache-2.0
//
// Ioctls about queues.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>

#include "backends/soft/amdgpu/kfd/driver.h"
#include "backends/soft/amdgpu/kfd/files.h"

namespace vitamin::soft::amdgpu::kfd {
namespace {

// Of a process: KFD_MAX_NUM_OF_QUEUES_PER_PROCESS (kfd_priv.h), a doorbell of each GPU for each.
constexpr std::size_t kQueuesMax = kDoorbellBytes / sizeof(std::uint64_t);
// Of a process on one GPU, which is what the scheduler firmware takes.
// kfd_process_queue_manager.c, pqm_create_queue.
constexpr std::size_t kQueuesOfGpuMax = 127;
constexpr std::uint32_t kMaskBitsMax = 1024;  // the kernel drops what is beyond

// What creating and updating check alike.
IoctlResult check(std::uint32_t percentage, std::uint32_t priority, std::uint64_t ring,
                  std::uint32_t bytes) {
  if (percentage > KFD_MAX_QUEUE_PERCENTAGE || priority > KFD_MAX_QUEUE_PRIORITY) return -EINVAL;
  if (!may_be_user(ring)) return -EFAULT;
  return bytes != 0 && !std::has_single_bit(bytes) ? -EINVAL : 0;
}

bool is_readable(std::uint64_t address, std::size_t bytes) {
  std::uint8_t first, last;
  return address != 0 && copy_in(&first, address, 1) && copy_in(&last, address + bytes - 1, 1);
}

std::uint64_t* index_at(std::uint64_t address) {
  return is_readable(address, sizeof(std::uint64_t)) ? reinterpret_cast<std::uint64_t*>(address)
                                                     : nullptr;
}

// Active as by QUEUE_IS_ACTIVE (kfd_priv.h). A GPU faults on memory that is not there; here such a
// queue runs nothing.
PacketRing ring_of(std::uint64_t address, std::uint32_t bytes, std::uint32_t percentage) {
  return {.packets = reinterpret_cast<std::uint8_t*>(address),
          .bytes = bytes,
          .active = percentage != 0 && bytes != 0 && is_readable(address, bytes)};
}

}  // namespace

std::size_t Driver::count_queues(unsigned gpu, std::optional<std::uint32_t> type) const {
  return static_cast<std::size_t>(
      std::count_if(queues_.begin(), queues_.end(), [&](const auto& entry) {
        return entry.second.gpu == gpu && (!type || entry.second.type == *type);
      }));
}

IoctlResult Driver::create_queue(kfd_ioctl_create_queue_args& a) {
  // The upper bytes of the percentage say on which XCC's target a queue is, since 1.14.
  if (const IoctlResult answer =
          check(a.queue_percentage & 0xff, a.queue_priority, a.ring_base_address, a.ring_size);
      answer != 0)
    return answer;
  for (const std::uint64_t address : {a.read_pointer_address, a.write_pointer_address,
                                      a.eop_buffer_address, a.ctx_save_restore_address})
    if (!may_be_user(address)) return -EFAULT;
  const bool xgmi = a.queue_type == KFD_IOC_QUEUE_TYPE_SDMA_XGMI;
  const bool copy = xgmi || a.queue_type == KFD_IOC_QUEUE_TYPE_SDMA;
  // PM4 is what nothing above sends.
  if (!copy && a.queue_type != KFD_IOC_QUEUE_TYPE_COMPUTE_AQL) return -kNotSupported;
  Gpu* const gpu = find_gpu(a.gpu_id);
  if (gpu == nullptr) return -EINVAL;
  const std::lock_guard lock(mutex_);
  if (const IoctlResult answer = bound(*gpu, -ESRCH); answer != 0) return answer;
  if (count_queues(gpu->number) >= kQueuesOfGpuMax) return -ENOSPC;
  if (queues_.size() + 1 >= kQueuesMax) return -ENOMEM;
  const unsigned engines = xgmi ? machine_.part.xgmi_copy_engines : kCopyEngines;
  if (copy && count_queues(gpu->number, a.queue_type) >= engines * kQueuesPerCopyEngine)
    return -ENOMEM;
  const QueueMemory memory{
      .ring = ring_of(a.ring_base_address, a.ring_size, a.queue_percentage & 0xff),
      .read_index = index_at(a.read_pointer_address),
      .write_index = index_at(a.write_pointer_address),
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
  if (memory.read_index == nullptr || memory.write_index == nullptr)
    std::fprintf(stderr,
                 "software AMD GPU: queue %u runs nothing: the process has no memory at its read "
                 "pointer %#llx or its write pointer %#llx\n",
                 a.queue_id, a.read_pointer_address, a.write_pointer_address);
  queues_.emplace(a.queue_id, QueueRecord{.gpu = gpu->number, .type = a.queue_type});
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
  const PacketRing ring = ring_of(a.ring_base_address, a.ring_size, a.queue_percentage);
  return machine_.queues.update(a.queue_id, ring) ? 0 : -EFAULT;
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
    case QueueStatus::kUnpaired:
      return -EINVAL;
    default:
      return -EIO;
  }
}

// One queue of a process on a GPU can have it. kfd_process_queue_manager.c, pqm_set_gws.
IoctlResult Driver::alloc_queue_gws(kfd_ioctl_alloc_queue_gws_args& a) {
  const std::lock_guard lock(mutex_);
  const auto found = queues_.find(a.queue_id);
  if (found == queues_.end()) return -EINVAL;
  QueueRecord& queue = found->second;
  const bool taken = std::any_of(queues_.begin(), queues_.end(), [&](const auto& entry) {
    return entry.second.gpu == queue.gpu && entry.second.gws;
  });
  if (a.num_gws != 0 && taken) return -EBUSY;
  if (a.num_gws == 0 && !queue.gws) return -EINVAL;
  queue.gws = a.num_gws != 0;
  a.first_gws = 0;
  return 0;
}

}  // namespace vitamin::soft::amdgpu::kfd
