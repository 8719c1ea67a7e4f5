// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "backends/soft/amdgpu/isa/wave.h"
#include "backends/soft/amdgpu/machine.h"
#include "backends/soft/amdgpu/thunk.h"

namespace vitamin::soft::amdgpu {
namespace {

constexpr std::uint64_t kPage = 4096, kLargePage = 2 << 20;

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) {
  return (value + to - 1) & ~(to - 1);
}

// What a handle says.
struct SharedPiece {
  std::uint32_t process, file;
  std::uint64_t offset, bytes;
  std::uint32_t of_runtime;  // it puts a small allocation's place in a larger one here
  std::uint32_t node;
};
static_assert(sizeof(SharedPiece) == sizeof(HsaSharedMemoryHandle));

// Large allocations are aligned as the driver aligns them; the runtime's own allocator counts on
// it.
std::uint64_t alignment_of(std::uint64_t bytes) { return bytes >= kLargePage ? kLargePage : kPage; }

// Addresses that nothing else has, aligned.
void* reserve(std::uint64_t bytes, std::uint64_t alignment) {
  void* raw = ::mmap(nullptr, bytes + alignment, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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

// Memory at `at`, or, where that is null, anywhere. `file` < 0: of nobody else.
void* map(void* at, std::uint64_t bytes, int file, std::uint64_t offset) {
  if (at == nullptr) at = reserve(bytes, alignment_of(bytes));
  if (at == nullptr) return nullptr;
  const int kind = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const result = ::mmap(at, bytes, PROT_READ | PROT_WRITE, kind | MAP_NORESERVE | MAP_FIXED,
                              file, file < 0 ? 0 : static_cast<off_t>(offset));
  return result == MAP_FAILED ? nullptr : result;
}

}  // namespace

std::uint64_t Allocation::device_address() const {
  return registered() ? begin | isa::kUserAddressTag : begin;
}

// Wants the lock.
int Memory::file() {
  if (file_ < 0) file_ = ::memfd_create("vitamin-video-memory", MFD_CLOEXEC);
  return file_;
}

void* Memory::allocate(std::uint32_t node, std::uint64_t bytes, HsaMemFlags flags, void* at) {
  bytes = round_up(bytes, kPage);
  const std::lock_guard lock(mutex_);
  Allocation made{.bytes = bytes, .node = node, .flags = flags, .type = HSA_POINTER_ALLOCATED};
  if (node != kCpuNode) {
    if (file() < 0 || ::ftruncate(file_, static_cast<off_t>(file_bytes_ + bytes)) != 0)
      return nullptr;
    made.offset = file_bytes_;
    file_bytes_ += bytes;
  }
  void* const result = map(at, bytes, made.offset == Allocation::kNoFile ? -1 : file_, made.offset);
  if (result == nullptr) return nullptr;
  made.begin = reinterpret_cast<std::uint64_t>(result);
  allocations_[made.begin] = made;
  return result;
}

void Memory::free(void* at, std::uint64_t bytes) {
  bytes = round_up(bytes, kPage);
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(reinterpret_cast<std::uint64_t>(at));
  if (found != allocations_.end()) {
    if (found->second.offset != Allocation::kNoFile)
      ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(found->second.offset),
                  static_cast<off_t>(found->second.bytes));
    allocations_.erase(found);
  }
  ::munmap(at, bytes);
}

bool Memory::share(std::uint64_t begin, HsaSharedMemoryHandle& handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(begin);
  if (found == allocations_.end() || found->second.offset == Allocation::kNoFile) return false;
  const SharedPiece piece{.process = static_cast<std::uint32_t>(::getpid()),
                          .file = static_cast<std::uint32_t>(file_),
                          .offset = found->second.offset,
                          .bytes = found->second.bytes,
                          .of_runtime = 0,
                          .node = found->second.node};
  std::memcpy(&handle, &piece, sizeof piece);
  return true;
}

std::optional<Allocation> Memory::map_shared(const HsaSharedMemoryHandle& handle) {
  SharedPiece piece{};
  std::memcpy(&piece, &handle, sizeof piece);
  const std::string name =
      "/proc/" + std::to_string(piece.process) + "/fd/" + std::to_string(piece.file);
  const int file = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  struct stat status {};
  void* result = nullptr;
  // The number may be another file's by now; beyond a file's end there is no memory.
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
      piece.offset + piece.bytes <= static_cast<std::uint64_t>(status.st_size))
    result = map(nullptr, piece.bytes, file, piece.offset);
  ::close(file);
  if (result == nullptr) return std::nullopt;
  const std::lock_guard lock(mutex_);
  Allocation made{.begin = reinterpret_cast<std::uint64_t>(result),
                  .bytes = piece.bytes,
                  .node = piece.node,
                  .type = HSA_POINTER_REGISTERED_SHARED};
  allocations_[made.begin] = made;
  return made;
}

void Memory::add_user(void* at, std::uint64_t bytes, HsaMemFlags flags) {
  const auto begin = reinterpret_cast<std::uint64_t>(at);
  const std::lock_guard lock(mutex_);
  if (find_locked(begin) != allocations_.end()) return;
  allocations_[begin] = {
      .begin = begin, .bytes = bytes, .flags = flags, .type = HSA_POINTER_REGISTERED_USER};
}

void Memory::forget(void* at) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(reinterpret_cast<std::uint64_t>(at) & ~isa::kUserAddressTag);
  if (found == allocations_.end() || found->second.type == HSA_POINTER_ALLOCATED) return;
  if (!found->second.registered()) ::munmap(at, found->second.bytes);
  allocations_.erase(found);
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

using vitamin::soft::amdgpu::machine;

VITAMIN_THUNK hsaKmtAllocMemory(HSAuint32 node, HSAuint64 bytes, HsaMemFlags flags,
                                void** address) {
  void* const at = flags.ui32.FixedAddress != 0 ? *address : nullptr;
  void* const result = machine().memory.allocate(node, bytes, flags, at);
  if (result == nullptr) return HSAKMT_STATUS_NO_MEMORY;
  *address = result;
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtFreeMemory(void* address, HSAuint64 bytes) {
  machine().code.forget(reinterpret_cast<std::uint64_t>(address));
  machine().memory.free(address, bytes);
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtRegisterMemoryWithFlags(void* address, HSAuint64 bytes, HsaMemFlags flags) {
  machine().memory.add_user(address, bytes, flags);
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtDeregisterMemory(void* address) {
  machine().memory.forget(address);
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtMapMemoryToGPU(void* address, HSAuint64, HSAuint64* device_address) {
  if (device_address == nullptr) return HSAKMT_STATUS_SUCCESS;
  const auto at = reinterpret_cast<std::uint64_t>(address);
  const auto found = machine().memory.find(at);
  *device_address =
      found && found->registered() ? at | vitamin::soft::amdgpu::isa::kUserAddressTag : at;
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtMapMemoryToGPUNodes(void* address, HSAuint64 bytes, HSAuint64* device_address,
                                        HsaMemMapFlags, HSAuint64, HSAuint32*) {
  return hsaKmtMapMemoryToGPU(address, bytes, device_address);
}

VITAMIN_THUNK hsaKmtUnmapMemoryToGPU(void*) { return HSAKMT_STATUS_SUCCESS; }

VITAMIN_THUNK hsaKmtShareMemory(void* address, HSAuint64, HsaSharedMemoryHandle* handle) {
  return machine().memory.share(reinterpret_cast<std::uint64_t>(address), *handle)
             ? HSAKMT_STATUS_SUCCESS
             : HSAKMT_STATUS_INVALID_PARAMETER;
}

VITAMIN_THUNK hsaKmtRegisterSharedHandle(const HsaSharedMemoryHandle* handle, void** address,
                                         HSAuint64* bytes) {
  const auto mapped = machine().memory.map_shared(*handle);
  if (!mapped) return HSAKMT_STATUS_INVALID_HANDLE;
  *address = reinterpret_cast<void*>(mapped->begin);
  *bytes = mapped->bytes;
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtRegisterSharedHandleToNodes(const HsaSharedMemoryHandle* handle, void** address,
                                                HSAuint64* bytes, HSAuint64, HSAuint32*) {
  return hsaKmtRegisterSharedHandle(handle, address, bytes);
}

VITAMIN_THUNK hsaKmtQueryPointerInfo(const void* pointer, HsaPointerInfo* info) {
  // Every GPU reaches all memory.
  static const std::vector<HSAuint32> mapped_nodes = [] {
    std::vector<HSAuint32> nodes;
    for (const auto& gpu : machine().gpus)
      nodes.push_back(vitamin::soft::amdgpu::kFirstGpuNode + gpu->number);
    return nodes;
  }();
  std::memset(info, 0, sizeof *info);
  const auto found = machine().memory.find(reinterpret_cast<std::uint64_t>(pointer));
  info->Type = HSA_POINTER_UNKNOWN;
  if (!found) return HSAKMT_STATUS_ERROR;
  info->Type = found->type;
  info->Node = found->node;
  info->MemFlags = found->flags;
  info->CPUAddress = reinterpret_cast<void*>(found->begin);
  info->GPUAddress = found->device_address();
  info->SizeInBytes = found->bytes;
  info->NMappedNodes = static_cast<HSAuint32>(mapped_nodes.size());
  info->MappedNodes = mapped_nodes.data();
  info->UserData = found->user_data;
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtSetMemoryUserData(const void* pointer, void* user_data) {
  return machine().memory.set_user_data(reinterpret_cast<std::uint64_t>(pointer), user_data)
             ? HSAKMT_STATUS_SUCCESS
             : HSAKMT_STATUS_ERROR;
}
