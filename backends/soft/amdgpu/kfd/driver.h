// SPDX-License-Identifier: Apache-2.0
//
// amdkfd for one process: what each ioctl on /dev/kfd answers, over the machine that machine.h
// describes. Answers and errors are those of Linux 6.1 (drivers/gpu/drm/amd/amdkfd), 0 or -errno.
//
// Threads: any. One lock, as the kernel's process mutex; a wait for events does not hold it.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "backends/soft/amdgpu/kfd/uapi.h"
#include "backends/soft/amdgpu/machine.h"

namespace vitamin::soft::amdgpu::kfd {

using IoctlResult = long;  // of an ioctl: 0 or -errno

// GPU n has this number in sysfs and in every ioctl.
inline constexpr std::uint32_t kFirstGpuId = 1001;
constexpr std::uint32_t gpu_id(unsigned gpu) { return kFirstGpuId + gpu; }

// Copy engines of each GPU for PCI Express; those for XGMI are the part's. They are not
// over-subscribed: each queue has a place of its own.
inline constexpr unsigned kCopyEngines = 2, kQueuesPerCopyEngine = 8;

// A buffer object. Its place in a file is what is mapped at `va` when a GPU maps it.
struct Buffer {
  std::uint32_t gpu = 0, flags = 0;
  std::uint64_t va = 0, bytes = 0;
  int file = -1;             // -1: memory of the program's own, or nothing that is mapped here
  bool file_is_ours = true;  // else opened for an import, and closed with it
  std::uint64_t offset = 0;
  std::uint64_t user = 0;    // of memory of the program's own: its address
  std::uint32_t mapped = 0;  // a bit for each GPU

  bool has(std::uint32_t flag) const { return (flags & flag) != 0; }
};

struct QueueRecord {
  unsigned gpu = 0;
  std::uint32_t type = 0;  // KFD_IOC_QUEUE_TYPE_
  bool gws = false;        // has the GPU's global wave synchronisation
};

// What is known of a range of the process's memory; the defaults are the kernel's.
struct SvmRange {
  std::uint64_t bytes = 0;
  std::uint32_t preferred = KFD_IOCTL_SVM_LOCATION_UNDEFINED, prefetched = preferred;
  std::uint32_t access = 0, in_place = 0;  // a bit for each GPU
  std::uint32_t flags = KFD_IOCTL_SVM_FLAG_HOST_ACCESS | KFD_IOCTL_SVM_FLAG_COHERENT;
  std::uint8_t granularity = 9;  // of a migration: 2^N pages
};

// While one lives, this thread runs the driver's code and may hold the driver's lock: a function of
// libc that it calls must not enter the driver again.
class DriverScope {
 public:
  DriverScope() : before_(active_) { active_ = true; }
  ~DriverScope() { active_ = before_; }
  DriverScope(const DriverScope&) = delete;
  DriverScope& operator=(const DriverScope&) = delete;
  static bool active() { return active_; }

 private:
  static inline thread_local bool active_ = false;
  bool before_;
};

class Driver {
 public:
  // Of this process. Made when /dev/kfd is opened first, and never destroyed.
  static Driver& instance();
  // Whether this process is a child by fork of the one that made it. The kernel refuses calls
  // through a descriptor of the parent's.
  bool is_of_parent() const { return ::getpid() != process_; }

  // One ioctl, with the size that the caller's number names: structures grow at their ends, so less
  // is filled up with zeros and more is ignored.
  IoctlResult ioctl(unsigned number, std::size_t bytes, void* argument);

  // device.cpp
  IoctlResult get_version(kfd_ioctl_get_version_args& a);
  IoctlResult set_memory_policy(kfd_ioctl_set_memory_policy_args& a);
  IoctlResult get_clock_counters(kfd_ioctl_get_clock_counters_args& a);
  IoctlResult get_apertures(kfd_ioctl_get_process_apertures_args& a);
  IoctlResult get_apertures_new(kfd_ioctl_get_process_apertures_new_args& a);
  IoctlResult get_tile_config(kfd_ioctl_get_tile_config_args& a);
  IoctlResult set_scratch_backing(kfd_ioctl_set_scratch_backing_va_args& a);
  IoctlResult set_trap_handler(kfd_ioctl_set_trap_handler_args& a);
  IoctlResult acquire_vm(kfd_ioctl_acquire_vm_args& a);
  IoctlResult set_xnack_mode(kfd_ioctl_set_xnack_mode_args& a);
  IoctlResult available_memory(kfd_ioctl_get_available_memory_args& a);

  // memory.cpp
  IoctlResult alloc_memory(kfd_ioctl_alloc_memory_of_gpu_args& a);
  IoctlResult free_memory(kfd_ioctl_free_memory_of_gpu_args& a);
  IoctlResult map_memory(kfd_ioctl_map_memory_to_gpu_args& a);
  IoctlResult unmap_memory(kfd_ioctl_unmap_memory_from_gpu_args& a);

  // svm.cpp
  IoctlResult svm(SvmCall& a);
  // The process is about to unmap memory: its attributes end with it. No effect before the first
  // attribute, nor within a call of the driver's.
  static void unmapped(std::uint64_t begin, std::uint64_t bytes);

  // sharing.cpp
  IoctlResult get_dmabuf_info(kfd_ioctl_get_dmabuf_info_args& a);
  IoctlResult import_dmabuf(kfd_ioctl_import_dmabuf_args& a);
  IoctlResult export_dmabuf(ExportDmabuf& a);
  IoctlResult ipc_import(IpcImportHandle& a);
  IoctlResult ipc_export(IpcExportHandle& a);

  // queues.cpp
  IoctlResult create_queue(kfd_ioctl_create_queue_args& a);
  IoctlResult destroy_queue(kfd_ioctl_destroy_queue_args& a);
  IoctlResult update_queue(kfd_ioctl_update_queue_args& a);
  IoctlResult set_cu_mask(kfd_ioctl_set_cu_mask_args& a);
  IoctlResult alloc_queue_gws(kfd_ioctl_alloc_queue_gws_args& a);

  // events.cpp
  IoctlResult create_event(kfd_ioctl_create_event_args& a);
  IoctlResult destroy_event(kfd_ioctl_destroy_event_args& a);
  IoctlResult set_event(kfd_ioctl_set_event_args& a);
  IoctlResult reset_event(kfd_ioctl_reset_event_args& a);
  IoctlResult wait_events(kfd_ioctl_wait_events_args& a);

 private:
  using SvmRanges = std::map<std::uint64_t, SvmRange>;  // by beginning; they do not overlap

  Driver();
  Gpu* find_gpu(std::uint32_t id) const;  // null: the driver has no such GPU
  std::size_t count_queues(unsigned gpu, std::optional<std::uint32_t> type = {}) const;
  // 0 when the process has a VM on the GPU, else what the kernel answers.
  IoctlResult bound(const Gpu& gpu, IoctlResult otherwise) const;
  Buffer* find_buffer(std::uint64_t handle);
  std::uint64_t add_buffer(const Buffer& buffer);
  // The count that the buffer is charged to; null: to none.
  std::uint64_t* used_bytes(const Buffer& buffer);
  bool has_room_for(const Buffer& buffer);
  // More of the file behind the render nodes: where it begins. Nothing: there is no more.
  std::optional<std::uint64_t> add_memory(std::uint64_t bytes);
  IoctlResult map(Buffer& buffer, unsigned gpu);
  void unmap(Buffer& buffer, unsigned gpu);
  // The GPUs that a call to map or unmap names.
  IoctlResult devices(std::uint64_t handle, std::uint64_t array, std::uint32_t count,
                      std::uint32_t done, std::vector<std::uint32_t>& ids) const;

  IoctlResult set_svm(const SvmCall& a);
  IoctlResult get_svm(SvmCall& a);
  bool has_attributes(std::uint64_t begin, std::uint64_t bytes);
  IoctlResult svm_range_answer(std::uint64_t begin, std::uint64_t bytes) const;
  std::optional<std::uint32_t> gpu_named_by(const kfd_ioctl_svm_attribute& attribute) const;
  std::pair<SvmRanges::iterator, SvmRanges::iterator> split_at(std::uint64_t begin,
                                                               std::uint64_t end);
  SvmRange common_svm(std::uint64_t begin, std::uint64_t end, std::uint32_t& all_flags);

  Machine& machine_;
  const pid_t process_ = ::getpid();
  mutable std::mutex mutex_;
  // By GPU on which the process has a VM: the open file of the render node that it was acquired by.
  std::map<unsigned, std::uint64_t> render_files_;
  std::map<std::uint64_t, Buffer> buffers_;  // by handle
  std::uint32_t next_buffer_ = 1;
  // Of the file behind the render nodes. No buffer lies at its beginning: 0 is no mmap offset.
  std::uint64_t memory_bytes_ = 1 << 20;
  std::map<unsigned, std::uint64_t> used_;  // bytes of video memory, by GPU
  std::uint64_t used_system_ = 0;           // bytes of GTT and of registered memory
  SvmRanges svm_;
  std::map<std::uint32_t, QueueRecord> queues_;
  std::uint64_t event_page_ = 0;  // its handle; 0: not set
  bool own_event_page_ = false;   // the driver's own is used
};

}  // namespace vitamin::soft::amdgpu::kfd
