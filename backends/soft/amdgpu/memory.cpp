// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/memory.h"

#include <sys/mman.h>

#include <cstring>

#include "backends/soft/amdgpu/device.h"
#include "backends/soft/amdgpu/isa/wave.h"
#include "backends/soft/amdgpu/thunk.h"

namespace vitamin::soft::amdgpu {
namespace {

constexpr std::uint64_t kPage = 4096, kLargePage = 2 << 20;

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) {
  return (value + to - 1) & ~(to - 1);
}

// Large allocations are aligned as the driver aligns them; the runtime's own allocator counts on
// it.
void* map_aligned(std::uint64_t bytes, std::uint64_t alignment) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* raw = ::mmap(nullptr, bytes + alignment, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::uint8_t*>(raw);
  auto* const aligned = begin + (round_up(reinterpret_cast<std::uint64_t>(raw), alignment) -
                                 reinterpret_cast<std::uint64_t>(raw));
  if (aligned > begin) ::munmap(begin, static_cast<std::size_t>(aligned - begin));
  std::uint8_t* const end = begin + bytes + alignment;
  if (end > aligned + bytes)
    ::munmap(aligned + bytes, static_cast<std::size_t>(end - aligned - bytes));
  return aligned;
}

}  // namespace

std::uint64_t Allocation::device_address() const {
  return registered() ? begin | isa::kUserAddressTag : begin;
}

void* Memory::allocate(std::uint32_t node, std::uint64_t bytes, HsaMemFlags flags, void* at) {
  bytes = round_up(bytes, kPage);
  void* result = nullptr;
  if (at != nullptr) {
    result = ::mmap(at, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (result == MAP_FAILED) return nullptr;
  } else {
    result = map_aligned(bytes, bytes >= kLargePage ? kLargePage : kPage);
    if (result == nullptr) return nullptr;
  }
  const auto begin = reinterpret_cast<std::uint64_t>(result);
  const std::lock_guard lock(mutex_);
  allocations_[begin] = {
      .begin = begin, .bytes = bytes, .node = node, .flags = flags, .type = HSA_POINTER_ALLOCATED};
  return result;
}

void Memory::free(void* at, std::uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    allocations_.erase(reinterpret_cast<std::uint64_t>(at));
  }
  ::munmap(at, round_up(bytes, kPage));
}

void Memory::add_user(void* at, std::uint64_t bytes, HsaMemFlags flags) {
  const auto begin = reinterpret_cast<std::uint64_t>(at);
  const std::lock_guard lock(mutex_);
  if (find_locked(begin) != allocations_.end()) return;
  allocations_[begin] = {
      .begin = begin, .bytes = bytes, .flags = flags, .type = HSA_POINTER_REGISTERED_USER};
}

void Memory::remove_user(void* at) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(reinterpret_cast<std::uint64_t>(at) & ~isa::kUserAddressTag);
  if (found != allocations_.end() && found->second.registered()) allocations_.erase(found);
}

std::map<std::uint64_t, Allocation>::const_iterator Memory::find_locked(
    std::uint64_t address) const {
  address &= ~isa::kUserAddressTag;
  auto found = allocations_.upper_bound(address);
  if (found == allocations_.begin()) return allocations_.end();
  --found;
  return address - found->first < found->second.bytes ? found : allocations_.end();
}

std::optional<Allocation> Memory::find(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  const auto found = find_locked(address);
  if (found == allocations_.end()) return std::nullopt;
  return found->second;
}

bool Memory::set_user_data(std::uint64_t address, void* user_data) {
  const std::lock_guard lock(mutex_);
  const auto found = find_locked(address);
  if (found == allocations_.end()) return false;
  allocations_[found->first].user_data = user_data;
  return true;
}

}  // namespace vitamin::soft::amdgpu

using vitamin::soft::amdgpu::device;

VITAMIN_THUNK hsaKmtAllocMemory(HSAuint32 node, HSAuint64 bytes, HsaMemFlags flags,
                                void** address) {
  void* const at = flags.ui32.FixedAddress != 0 ? *address : nullptr;
  void* const result = device().memory.allocate(node, bytes, flags, at);
  if (result == nullptr) return HSAKMT_STATUS_NO_MEMORY;
  *address = result;
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtFreeMemory(void* address, HSAuint64 bytes) {
  device().code.forget(reinterpret_cast<std::uint64_t>(address));
  device().memory.free(address, bytes);
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtRegisterMemoryWithFlags(void* address, HSAuint64 bytes, HsaMemFlags flags) {
  device().memory.add_user(address, bytes, flags);
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtDeregisterMemory(void* address) {
  device().memory.remove_user(address);
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtMapMemoryToGPU(void* address, HSAuint64, HSAuint64* device_address) {
  if (device_address == nullptr) return HSAKMT_STATUS_SUCCESS;
  const auto at = reinterpret_cast<std::uint64_t>(address);
  const auto found = device().memory.find(at);
  *device_address =
      found && found->registered() ? at | vitamin::soft::amdgpu::isa::kUserAddressTag : at;
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtMapMemoryToGPUNodes(void* address, HSAuint64 bytes, HSAuint64* device_address,
                                        HsaMemMapFlags, HSAuint64, HSAuint32*) {
  return hsaKmtMapMemoryToGPU(address, bytes, device_address);
}

VITAMIN_THUNK hsaKmtUnmapMemoryToGPU(void*) { return HSAKMT_STATUS_SUCCESS; }

VITAMIN_THUNK hsaKmtQueryPointerInfo(const void* pointer, HsaPointerInfo* info) {
  static const HSAuint32 mapped_nodes[] = {vitamin::soft::amdgpu::kGpuNode};
  std::memset(info, 0, sizeof *info);
  const auto found = device().memory.find(reinterpret_cast<std::uint64_t>(pointer));
  info->Type = HSA_POINTER_UNKNOWN;
  if (!found) return HSAKMT_STATUS_ERROR;
  info->Type = found->type;
  info->Node = found->node;
  info->MemFlags = found->flags;
  info->CPUAddress = reinterpret_cast<void*>(found->begin);
  info->GPUAddress = found->device_address();
  info->SizeInBytes = found->bytes;
  info->NMappedNodes = 1;
  info->MappedNodes = mapped_nodes;
  info->UserData = found->user_data;
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtSetMemoryUserData(const void* pointer, void* user_data) {
  return device().memory.set_user_data(reinterpret_cast<std::uint64_t>(pointer), user_data)
             ? HSAKMT_STATUS_SUCCESS
             : HSAKMT_STATUS_ERROR;
}
