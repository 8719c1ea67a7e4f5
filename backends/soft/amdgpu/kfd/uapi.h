// SPDX-License-Identifier: Apache-2.0
//
// The kernel's interface: linux/kfd_ioctl.h of the machine, and what is newer than Debian 12's or
// is in AMD's own driver packages only.
#pragma once

#include <linux/kfd_ioctl.h>

#include <cstddef>
#include <cstdint>

#include "backends/soft/amdgpu/kfd/include/drm/drm.h"

namespace vitamin::soft::amdgpu::kfd {

// Of Linux 6.1: before EXPORT_DMABUF (1.12) and RUNTIME_ENABLE (1.13).
inline constexpr std::uint32_t kMajorVersion = 1, kMinorVersion = 11;

// The event page of a process holds one word of 64 bits for each event.
inline constexpr std::size_t kEventPageBytes = KFD_SIGNAL_EVENT_LIMIT * sizeof(std::uint64_t);

struct ExportDmabuf {  // AMDKFD_IOC_EXPORT_DMABUF, 0x24, Linux 6.3
  std::uint64_t handle;
  std::uint32_t flags, dmabuf_fd;
};

// AMDKFD_IOC_SVM, 0x20, with as many attributes as this driver takes: five, and one for each GPU,
// are all that a call can need.
struct SvmCall {
  std::uint64_t start, size;
  std::uint32_t op, nattr;
  kfd_ioctl_svm_attribute attributes[61];
};

// Legacy IPC of AMD's driver packages; Linux itself never had it. ROCm shares device memory by it
// up to 5.x.
struct IpcImportHandle {  // AMDKFD_IOC_IPC_IMPORT_HANDLE, 0x80
  std::uint64_t handle, va_addr, mmap_offset;
  std::uint32_t share_handle[4];
  std::uint32_t gpu_id, flags;
};
struct IpcExportHandle {  // AMDKFD_IOC_IPC_EXPORT_HANDLE, 0x81
  std::uint64_t handle;
  std::uint32_t share_handle[4];
  std::uint32_t gpu_id, flags;
};
static_assert(offsetof(SvmCall, attributes) == sizeof(kfd_ioctl_svm_args) &&
              sizeof(ExportDmabuf) == 16 && sizeof(IpcImportHandle) == 48 &&
              sizeof(IpcExportHandle) == 32);

// The largest array that the kernel allocates for a call (KMALLOC_MAX_SIZE of x86-64); a call that
// names a larger one gets ENOMEM.
inline constexpr std::size_t kKernelArrayBytes = 4 << 20;

// The kernel's own number for "operation is not supported"; no header for programs has it.
inline constexpr int kNotSupported = 524;

// Copies from and to memory that the caller names; false where there is none (EFAULT).
bool copy_in(void* to, std::uint64_t from, std::size_t bytes);
bool copy_out(std::uint64_t to, const void* from, std::size_t bytes);
// Whether the address can be one of user space at all, as the kernel's access_ok.
inline constexpr std::uint64_t kUserEnd = 1ull << 47;
constexpr bool may_be_user(std::uint64_t address) { return address < kUserEnd; }

}  // namespace vitamin::soft::amdgpu::kfd
