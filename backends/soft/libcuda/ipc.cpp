// SPDX-License-Identifier: Apache-2.0
//
// IPC handles of memory. A handle says which process has which file open, and where the memory lies
// in it; a page in front of the memory says whether it is still there.
//
// From the documentation: a handle is of memory of cuMemAlloc; a freed and allocated address has
// another handle; a context that opens a handle twice gets the same address and closes it twice;
// one context a device opens what another process has. Its codes, that a process cannot open its
// own handle, that a pointer into an allocation exports all of it, and what is left of memory whose
// owner freed it or ended: from an H200 (tests/differential/ipc_rules.cpp).
#include "backends/soft/libcuda/ipc.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "backends/soft/ledger.h"
#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/memory.h"
#include "hal/file_memory.h"
#include "hal/process_stat.h"

namespace vitamin::soft::driver {
namespace {

constexpr std::size_t kFilePage = hal::kMemoryPage;
constexpr unsigned char kOverwritten = 0xdd;                // as Engine::free_memory
constexpr std::uint64_t kHandleMagic = 0x656c646e61684956;  // "VIhandle"

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kFilePage - 1) / kFilePage * kFilePage;
}

// In the page in front of memory that is there.
struct SharedHeader {
  std::uint64_t magic, bytes;
};

struct SharedHandle {
  std::uint64_t magic;
  SharedPlace place;
  std::uint64_t bytes;
};
static_assert(sizeof(SharedHandle) <= sizeof(CUipcMemHandle));

std::uint64_t start_of_process(std::int64_t process) {
  const auto stat = hal::process_stat(static_cast<pid_t>(process));
  return stat && stat->state != 'Z' && stat->state != 'X' ? stat->start : 0;
}

// Maps what a handle names. Null: it is not there any more.
void* map_shared(const SharedHandle& handle) {
  const SharedPlace& place = handle.place;
  if (start_of_process(place.process) != place.started) return nullptr;
  const std::string path =
      "/proc/" + std::to_string(place.process) + "/fd/" + std::to_string(place.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  SharedHeader header{};
  void* memory = MAP_FAILED;
  const auto offset = static_cast<off_t>(place.offset);
  if (hal::read_at(file, &header, sizeof header, offset - static_cast<off_t>(kFilePage)) &&
      header.magic == kHandleMagic && header.bytes == handle.bytes)
    memory = ::mmap(nullptr, whole_pages(handle.bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file,
                    offset);
  ::close(file);
  return memory == MAP_FAILED ? nullptr : memory;
}

// What this process has open of a place.
MemoryAllocation* opened_of(const SharedPlace& place) {
  for (auto& [base, allocation] : driver().allocations)
    if (allocation.kind == MemoryKind::kOpened && allocation.shared->place == place)
      return &allocation;
  return nullptr;
}

SharedMemoryKey key_of(const SharedPlace& place) {
  return {place.process, place.started, place.offset};
}

ResidencyLedger* ledger_of(const MemoryAllocation& allocation) {
  return allocation.context->device->engine->ledger();
}

}  // namespace

SharedHeap::~SharedHeap() {
  if (file_ >= 0) ::close(file_);
}

void* SharedHeap::allocate(std::size_t bytes, SharedPlace* place) {
  const hal::FileSignalGuard guard;
  if (file_ < 0) file_ = ::memfd_create("device-memory", MFD_CLOEXEC);
  const SharedHeader header{kHandleMagic, bytes};
  const std::uint64_t offset = end_ + kFilePage;
  if (file_ < 0 || !hal::set_file_size(file_, offset + whole_pages(bytes)) ||
      ::pwrite(file_, &header, sizeof header, static_cast<off_t>(end_)) != sizeof header)
    return nullptr;
  void* const memory = ::mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_SHARED,
                              file_, static_cast<off_t>(offset));
  if (memory == MAP_FAILED) return nullptr;
  end_ = offset + whole_pages(bytes);
  place->file = file_;
  place->offset = offset;
  return memory;
}

void SharedHeap::free(void* address, std::size_t bytes, const SharedPlace& place, bool open) {
  const auto header = static_cast<off_t>(place.offset - kFilePage);
  ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, header, kFilePage);
  if (open) {
    ::munmap(address, whole_pages(bytes));
    return;
  }
  // Pages that nothing was written to are not there, and stay so.
  const auto begin = static_cast<off_t>(place.offset);
  const off_t end = begin + static_cast<off_t>(whole_pages(bytes));
  for (off_t at = ::lseek(file_, begin, SEEK_DATA); at >= 0 && at < end;) {
    const off_t hole = std::min(::lseek(file_, at, SEEK_HOLE), end);
    if (hole <= at) break;
    std::memset(static_cast<char*>(address) + (at - begin), kOverwritten,
                static_cast<std::size_t>(hole - at));
    at = ::lseek(file_, hole, SEEK_DATA);
  }
  ::munmap(address, whole_pages(bytes));
  ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin,
              static_cast<off_t>(whole_pages(bytes)));
}

CUresult allocate_shareable(Device& device, std::size_t bytes, void** address,
                            std::shared_ptr<SharedMemory>* shared) {
  Engine& engine = *device.engine;
  if (engine.ledger() == nullptr) return result_of(engine.allocate(bytes, address));
  if (const CUresult error = result_of(engine.take_memory(bytes)); error != CUDA_SUCCESS)
    return error;
  if (device.heap == nullptr) device.heap = std::make_shared<SharedHeap>();
  auto made = std::make_shared<SharedMemory>();
  *address = device.heap->allocate(bytes, &made->place);
  if (*address != nullptr) {
    *shared = std::move(made);
    return CUDA_SUCCESS;
  }
  // A limit on the size of files keeps no program from its device.
  engine.give_memory(bytes);
  return result_of(engine.allocate(bytes, address));
}

void free_shareable(const MemoryAllocation& allocation) {
  Device& device = *allocation.context->device;
  void* const address = reinterpret_cast<void*>(allocation.base);
  if (allocation.shared == nullptr) {
    device.engine->free_memory(address);
    return;
  }
  const SharedPlace& place = allocation.shared->place;
  bool open = false;
  if (allocation.shared->exported) {
    ledger_of(allocation)->add_shared(-1);
    open = ledger_of(allocation)->leave_shared(key_of(place));
  }
  device.heap->free(address, allocation.bytes, place, open);
  device.engine->give_memory(allocation.bytes);
}

void unmap_opened(const MemoryAllocation& allocation) {
  auto* const memory = reinterpret_cast<void*>(allocation.base);
  const std::size_t bytes = whole_pages(allocation.bytes);
  // What no process has any more goes from the owner's file, too.
  if (ledger_of(allocation)->close_shared(key_of(allocation.shared->place)))
    ::madvise(memory, bytes, MADV_REMOVE);
  ::munmap(memory, bytes);
  ledger_of(allocation)->add_shared(-1);
}

// ---------------------------------------------------------------------------------- entry points

CUresult api::cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  const MemoryAllocation* allocation = find_allocation(static_cast<std::uintptr_t>(pointer));
  if (handle == nullptr || allocation == nullptr || allocation->kind != MemoryKind::kDevice)
    return CUDA_ERROR_INVALID_VALUE;
  if (allocation->shared == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  SharedMemory& shared = *allocation->shared;
  if (!shared.exported) {
    shared.exported = true;
    shared.place.process = ::getpid();
    shared.place.started = start_of_process(::getpid());
    shared.place.device = allocation->context->device->number;
    ledger_of(*allocation)->add_shared(1);
  }
  const SharedHandle made{kHandleMagic, shared.place, allocation->bytes};
  std::memset(handle->reserved, 0, sizeof handle->reserved);
  std::memcpy(handle->reserved, &made, sizeof made);
  return CUDA_SUCCESS;
}

CUresult api::cuIpcOpenMemHandle_v2(CUdeviceptr* pointer, CUipcMemHandle exported, unsigned flags) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  if (pointer == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    return CUDA_ERROR_INVALID_VALUE;
  ResidencyLedger* const ledger = context->device->engine->ledger();
  if (ledger == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  SharedHandle handle{};
  std::memcpy(&handle, exported.reserved, sizeof handle);
  if (handle.magic != kHandleMagic) return CUDA_ERROR_INVALID_VALUE;
  if (handle.place.process == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  if (MemoryAllocation* const open = opened_of(handle.place); open != nullptr) {
    if (open->context != context->root) return CUDA_ERROR_INVALID_HANDLE;
    ++open->shared->opened;
    *pointer = static_cast<CUdeviceptr>(open->base);
    return CUDA_SUCCESS;
  }
  // Open before it is looked for: from then on its owner leaves it as it is.
  if (!ledger->open_shared(key_of(handle.place), handle.bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  void* const memory = map_shared(handle);
  if (memory == nullptr) {
    ledger->close_shared(key_of(handle.place));
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto base = reinterpret_cast<std::uintptr_t>(memory);
  MemoryAllocation& allocation = publish(base, handle.bytes, MemoryKind::kOpened, context->root, 0);
  allocation.shared = std::make_shared<SharedMemory>();
  allocation.shared->place = handle.place;
  allocation.shared->opened = 1;
  ledger->add_shared(1);
  *pointer = static_cast<CUdeviceptr>(base);
  return CUDA_SUCCESS;
}

CUresult api::cuIpcCloseMemHandle(CUdeviceptr pointer) {
  const auto base = static_cast<std::uintptr_t>(pointer);
  {
    const std::lock_guard lock(driver().mutex);
    const auto found = driver().allocations.find(base);
    if (found != driver().allocations.end() && found->second.kind == MemoryKind::kOpened &&
        found->second.shared->opened > 1) {
      --found->second.shared->opened;
      return CUDA_SUCCESS;
    }
  }
  return free_synchronously(base, CUDA_ERROR_INVALID_VALUE,
                            [](MemoryKind kind) { return kind == MemoryKind::kOpened; });
}

}  // namespace vitamin::soft::driver
