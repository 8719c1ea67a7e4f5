// SPDX-License-Identifier: Apache-2.0
//
// Ioctls about memory. A buffer object is a piece of the file behind the render nodes. A program
// maps it there through its render node; when a GPU maps it, the whole piece is mapped at the
// buffer's address for reading and writing, because the software GPU reaches memory by the
// process's own addresses.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>

#include "backends/soft/amdgpu/isa/alias.h"
#include "backends/soft/amdgpu/kfd/driver.h"
#include "backends/soft/amdgpu/kfd/files.h"
#include "backends/soft/amdgpu/kfd/sysfs.h"

namespace vitamin::soft::amdgpu::kfd {
namespace {

constexpr std::uint32_t kVram = KFD_IOC_ALLOC_MEM_FLAGS_VRAM, kGtt = KFD_IOC_ALLOC_MEM_FLAGS_GTT,
                        kUser = KFD_IOC_ALLOC_MEM_FLAGS_USERPTR,
                        kDoorbell = KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL,
                        kRegisters = KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP,
                        kAqlQueue = KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM;

bool map_at(std::uint64_t address, std::uint64_t bytes, int file, std::uint64_t offset) {
  void* const at = reinterpret_cast<void*>(address);
  if (::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file,
             static_cast<off_t>(offset)) == MAP_FAILED)
    return false;
  ::madvise(at, bytes, MADV_DONTFORK);  // as the thunk does with its own mappings
  return true;
}

std::uint32_t gpu_id_of(std::uint64_t handle) { return static_cast<std::uint32_t>(handle >> 32); }

}  // namespace

Buffer* Driver::find_buffer(std::uint64_t handle) {
  const auto found = buffers_.find(handle);
  return found == buffers_.end() ? nullptr : &found->second;
}

std::uint64_t Driver::add_buffer(const Buffer& buffer) {
  const std::uint64_t handle = std::uint64_t{gpu_id(buffer.gpu)} << 32 | next_buffer_++;
  buffers_.emplace(handle, buffer);
  return handle;
}

std::optional<std::uint64_t> Driver::add_memory(std::uint64_t bytes) {
  constexpr std::uint64_t kFileBytesMax = 1ull << 62;
  if (bytes > kFileBytesMax - memory_bytes_) return std::nullopt;
  const std::uint64_t begin = memory_bytes_, end = begin + bytes;
  if (::ftruncate(DeviceFiles::instance().memory(), static_cast<off_t>(end)) != 0)
    return std::nullopt;
  memory_bytes_ = end;
  return begin;
}

std::uint64_t* Driver::used_bytes(const Buffer& buffer) {
  if (buffer.has(kVram)) return &used_[buffer.gpu];
  return buffer.has(kGtt) || buffer.has(kUser) ? &used_system_ : nullptr;
}

// As the kernel's amdgpu_amdkfd_reserve_mem_limit: the memory of a GPU, and of the system for what
// is outside of it.
bool Driver::has_room_for(const Buffer& buffer) {
  const std::uint64_t* const used = used_bytes(buffer);
  return used == nullptr ||
         buffer.bytes <= (buffer.has(kVram) ? kVideoBytes : kSystemBytes) - *used;
}

IoctlResult Driver::alloc_memory(kfd_ioctl_alloc_memory_of_gpu_args& a) {
  if (a.size == 0) return -EINVAL;
  const std::lock_guard lock(mutex_);
  if (has_attributes(a.va_addr, a.size)) return -EADDRINUSE;
  const Gpu* const gpu = find_gpu(a.gpu_id);
  if (gpu == nullptr) return -EINVAL;
  Buffer buffer{.gpu = gpu->number, .flags = a.flags, .va = a.va_addr, .bytes = a.size};
  std::uint64_t mmap_offset = a.mmap_offset;
  if (buffer.has(kDoorbell)) {
    if (a.size != kDoorbellBytes) return -EINVAL;
    mmap_offset = doorbells_of(gpu->number);
  } else if (buffer.has(kRegisters)) {
    if (a.size != kPageBytes) return -EINVAL;
    mmap_offset = registers_of(gpu->number);
  }
  if (const IoctlResult answer = bound(*gpu, -ENODEV); answer != 0) return answer;
  const bool ours = buffer.has(kVram) || buffer.has(kGtt);
  // Half of it twice, for queues whose packets may wrap around.
  if (ours && buffer.has(kAqlQueue)) buffer.bytes /= 2;
  // Before whole_pages(), where large sizes wrap around. The limits and what is used are whole
  // pages, so that nothing exceeds a limit when its size is rounded up.
  if (!has_room_for(buffer)) return -ENOMEM;
  if (ours) {
    buffer.bytes = whole_pages(buffer.bytes);
    const auto offset = add_memory(buffer.bytes);
    if (!offset) return -ENOMEM;
    buffer.file = DeviceFiles::instance().memory();
    buffer.offset = mmap_offset = *offset;
  } else if (buffer.has(kUser)) {
    if (a.mmap_offset == 0 || a.mmap_offset % kPageBytes != 0) return -EINVAL;
    if (!may_be_user(a.mmap_offset) || !may_be_user(a.mmap_offset + a.size)) return -EFAULT;
    buffer.user = a.mmap_offset;
    buffer.bytes = whole_pages(buffer.bytes);
  } else if (!buffer.has(kDoorbell) && !buffer.has(kRegisters)) {
    return -EINVAL;
  }
  if (std::uint64_t* const used = used_bytes(buffer)) *used += buffer.bytes;
  a.handle = add_buffer(buffer);
  a.mmap_offset = mmap_offset;
  return 0;
}

IoctlResult Driver::free_memory(kfd_ioctl_free_memory_of_gpu_args& a) {
  if (find_gpu(gpu_id_of(a.handle)) == nullptr) return -EINVAL;
  const std::lock_guard lock(mutex_);
  Buffer* const buffer = find_buffer(a.handle);
  if (buffer == nullptr) return -EINVAL;
  if (a.handle == event_page_ || buffer->mapped != 0) return -EBUSY;
  if (buffer->file >= 0 && buffer->file_is_ours) {
    ::fallocate(buffer->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(buffer->offset), static_cast<off_t>(buffer->bytes));
  } else if (buffer->file >= 0) {
    ::close(buffer->file);
  }
  std::uint64_t* const used = buffer->file_is_ours ? used_bytes(*buffer) : nullptr;
  if (used != nullptr) *used -= buffer->bytes;
  buffers_.erase(a.handle);
  return 0;
}

IoctlResult Driver::devices(std::uint64_t handle, std::uint64_t array, std::uint32_t count,
                            std::uint32_t done, std::vector<std::uint32_t>& ids) const {
  if (find_gpu(gpu_id_of(handle)) == nullptr || count == 0 || done > count) return -EINVAL;
  if (count > kKernelArrayBytes / sizeof ids[0]) return -ENOMEM;
  ids.resize(count);
  return copy_in(ids.data(), array, count * sizeof ids[0]) ? 0 : -EFAULT;
}

// `n_success` counts what was done, and a call that failed is made again with it.
IoctlResult Driver::map_memory(kfd_ioctl_map_memory_to_gpu_args& a) {
  std::vector<std::uint32_t> ids;
  if (const IoctlResult answer =
          devices(a.handle, a.device_ids_array_ptr, a.n_devices, a.n_success, ids);
      answer != 0)
    return answer;
  const std::lock_guard lock(mutex_);
  Buffer* const buffer = find_buffer(a.handle);
  if (buffer == nullptr) return -ENOMEM;
  for (; a.n_success < a.n_devices; ++a.n_success) {
    const Gpu* const gpu = find_gpu(ids[a.n_success]);
    if (gpu == nullptr) return -EINVAL;
    if (const IoctlResult answer = bound(*gpu, -ENODEV); answer != 0) return answer;
    if (const IoctlResult answer = map(*buffer, gpu->number); answer != 0) return answer;
  }
  return 0;
}

IoctlResult Driver::unmap_memory(kfd_ioctl_unmap_memory_from_gpu_args& a) {
  std::vector<std::uint32_t> ids;
  if (const IoctlResult answer =
          devices(a.handle, a.device_ids_array_ptr, a.n_devices, a.n_success, ids);
      answer != 0)
    return answer;
  const std::lock_guard lock(mutex_);
  Buffer* const buffer = find_buffer(a.handle);
  if (buffer == nullptr) return -ENOMEM;
  for (; a.n_success < a.n_devices; ++a.n_success) {
    const Gpu* const gpu = find_gpu(ids[a.n_success]);
    if (gpu == nullptr) return -EINVAL;
    unmap(*buffer, gpu->number);
  }
  return 0;
}

// All GPUs reach what one of them maps.
IoctlResult Driver::map(Buffer& buffer, unsigned gpu) {
  if (buffer.mapped == 0 && buffer.file >= 0) {
    if (!map_at(buffer.va, buffer.bytes, buffer.file, buffer.offset) ||
        (buffer.has(kAqlQueue) &&
         !map_at(buffer.va + buffer.bytes, buffer.bytes, buffer.file, buffer.offset)))
      return -ENOMEM;
    machine_.memory.add(buffer.va, buffer.bytes);
  }
  if (buffer.mapped == 0 && buffer.has(kUser)) {
    if (buffer.user != buffer.va && !isa::add_alias(buffer.va, buffer.bytes, buffer.user))
      return -ENOMEM;
    machine_.memory.add(buffer.va, buffer.bytes);
  }
  buffer.mapped |= 1u << gpu;
  return 0;
}

// The program's own mapping stays; the thunk takes its addresses back itself.
void Driver::unmap(Buffer& buffer, unsigned gpu) {
  const std::uint32_t before = buffer.mapped;
  buffer.mapped &= ~(1u << gpu);
  if (before == 0 || buffer.mapped != 0) return;
  if (buffer.file < 0 && !buffer.has(kUser)) return;
  isa::remove_alias(buffer.va);
  machine_.code.forget(buffer.va);
  machine_.memory.remove(buffer.va);
}

}  // namespace vitamin::soft::amdgpu::kfd
