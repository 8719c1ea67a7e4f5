// SPDX-License-Identifier: Apache-2.0
//
// Allocation, registration, address ranges, pointer attributes, virtual memory management. All
// memory is host memory; what differs is how the copy rules and the free rules treat it.

#include "backends/soft/libcuda/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "backends/soft/libcuda/capture.h"
#include "backends/soft/libcuda/driver.h"
#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/graph_memory.h"
#include "backends/soft/libcuda/ipc.h"

namespace vitamin::soft::driver {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kPitchAlignment = 512;
constexpr std::size_t kVirtualGranularity = std::size_t{2} << 20;

std::size_t round_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

CUdeviceptr pointer_of(std::uintptr_t address) { return static_cast<CUdeviceptr>(address); }

}  // namespace

MemoryAllocation& publish(std::uintptr_t base, std::size_t bytes, MemoryKind kind, Context* context,
                          unsigned flags) {
  MemoryAllocation allocation;
  allocation.base = base;
  allocation.bytes = bytes;
  allocation.kind = kind;
  allocation.context = context;
  allocation.flags = flags;
  allocation.id = driver().next_id++;
  return driver().allocations[base] = allocation;
}

Backing::~Backing() {
  if (fd >= 0) close(fd);
  device->engine->give_memory(bytes);
}

namespace {

// What every allocating call checks first.
CUresult admit(Context** context) {
  if (const CUresult error = current_context(context); error != CUDA_SUCCESS) return error;
  return forbid_in_capture(nullptr);
}

CUresult allocate_on_host(void** pointer, std::size_t bytes, unsigned flags) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = admit(&context); error != CUDA_SUCCESS) return error;
  constexpr unsigned kFlags =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (pointer == nullptr || bytes == 0 || (flags & ~kFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  void* address = mmap(nullptr, round_up(bytes, kPage), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  // Every pinned allocation is mapped into every context of a unified address space.
  publish(reinterpret_cast<std::uintptr_t>(address), bytes, MemoryKind::kHost, context->root,
          flags | CU_MEMHOSTALLOC_DEVICEMAP);
  *pointer = address;
  return CUDA_SUCCESS;
}

// Gives an allocation's memory back. The caller waited for all work that might use it.
void give_back(const MemoryAllocation& allocation) {
  void* address = reinterpret_cast<void*>(allocation.base);
  switch (allocation.kind) {
    case MemoryKind::kDevice:
      free_shareable(allocation);
      break;
    case MemoryKind::kOpened:
      unmap_opened(allocation);
      break;
    case MemoryKind::kManaged:
    case MemoryKind::kArray:
      allocation.context->device->engine->free_memory(address);
      break;
    case MemoryKind::kHost:
      munmap(address, round_up(allocation.bytes, kPage));
      break;
    case MemoryKind::kPool:
      return_to_pool(*allocation.pool, allocation.base);
      break;
    case MemoryKind::kRegistered:
    case MemoryKind::kGraph:
    case MemoryKind::kGlobal:
    case MemoryKind::kVirtual:
      break;
  }
}

// What every freeing call checks first. None needs a current context (measured).
CUresult admit_free() {
  Context* context = nullptr;
  return thread_state().contexts.empty() ? forbid_in_capture(nullptr) : admit(&context);
}

}  // namespace

CUresult allocate_on_device(CUdeviceptr* pointer, std::size_t bytes, MemoryKind kind,
                            unsigned flags) {
  std::unique_lock lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = admit(&context); error != CUDA_SUCCESS) return error;
  // Measured: a launch that waits for room in its stream holds up threads that allocate.
  driver().room.wait(lock, [&] { return context->root->waiting_for_room == 0; });
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  void* address = nullptr;
  std::shared_ptr<SharedMemory> shared;
  Device& where = *context->device;
  if (const CUresult error = kind == MemoryKind::kDevice
                                 ? allocate_shareable(where, bytes, &address, &shared)
                                 : result_of(where.engine->allocate(bytes, &address));
      error != CUDA_SUCCESS)
    return error;
  const auto base = reinterpret_cast<std::uintptr_t>(address);
  publish(base, bytes, kind, context->root, flags).shared = shared;
  *pointer = pointer_of(base);
  return CUDA_SUCCESS;
}

CUresult free_synchronously(std::uintptr_t base, CUresult when_unknown,
                            bool (*accepts)(MemoryKind)) {
  Device* device = nullptr;
  std::vector<std::uint32_t> groups;
  {
    const std::lock_guard lock(driver().mutex);
    if (const CUresult error = admit_free(); error != CUDA_SUCCESS) return error;
    const auto found = driver().allocations.find(base);
    if (found == driver().allocations.end() || !accepts(found->second.kind)) return when_unknown;
    Context* owner = found->second.context;
    device = owner->device;
    groups = family_groups(*owner->root);
  }
  if (const CUresult error = wait_for_groups(*device, groups); error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(driver().mutex);
  const auto found = driver().allocations.find(base);
  if (found == driver().allocations.end()) return when_unknown;
  const MemoryAllocation allocation = found->second;
  driver().allocations.erase(found);
  give_back(allocation);
  return CUDA_SUCCESS;
}

Place place_of(const void* address) {
  const MemoryAllocation* allocation = find_allocation(reinterpret_cast<std::uintptr_t>(address));
  if (allocation == nullptr) return Place::kPageable;
  const bool host =
      allocation->kind == MemoryKind::kHost || allocation->kind == MemoryKind::kRegistered;
  return host ? Place::kPinned : Place::kDevice;
}

bool inside_allocation(const void* address, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const MemoryAllocation* allocation = find_allocation(begin);
  return allocation != nullptr && bytes <= allocation->bytes - (begin - allocation->base);
}

void free_context_memory(Context& context) {
  auto& allocations = driver().allocations;
  for (auto at = allocations.begin(); at != allocations.end();) {
    if (at->second.context != &context || at->second.kind == MemoryKind::kPool ||
        at->second.kind == MemoryKind::kGraph) {
      ++at;
      continue;
    }
    give_back(at->second);
    at = allocations.erase(at);
  }
}

// ------------------------------------------------------------------------------------ allocation

CUresult api::cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  return allocate_on_device(pointer, bytes, MemoryKind::kDevice, 0);
}

CUresult api::cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned flags) {
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  return allocate_on_device(pointer, bytes, MemoryKind::kManaged, flags);
}

CUresult api::cuMemAllocPitch_v2(CUdeviceptr* pointer, size_t* pitch, size_t width, size_t height,
                                 unsigned element) {
  if (pitch == nullptr || width == 0 || height == 0 ||
      (element != 4 && element != 8 && element != 16))
    return CUDA_ERROR_INVALID_VALUE;
  const std::size_t row = round_up(width, kPitchAlignment);
  const CUresult made = allocate_on_device(pointer, row * height, MemoryKind::kDevice, 0);
  if (made == CUDA_SUCCESS) *pitch = row;
  return made;
}

CUresult api::cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  return allocate_on_host(pointer, bytes, flags);
}

CUresult api::cuMemAllocHost_v2(void** pointer, size_t bytes) {
  return allocate_on_host(pointer, bytes, 0);
}

CUresult api::cuMemFree_v2(CUdeviceptr pointer) {
  {
    const std::lock_guard lock(driver().mutex);
    if (const CUresult error = admit_free(); error != CUDA_SUCCESS) return error;
    if (pointer == 0) return CUDA_SUCCESS;
    // Measured: memory of a pool goes back without waiting for work.
    const auto found = driver().allocations.find(static_cast<std::uintptr_t>(pointer));
    if (found != driver().allocations.end() && found->second.kind == MemoryKind::kGraph)
      return free_graph_allocation(found->first, nullptr);
    if (found != driver().allocations.end() && found->second.kind == MemoryKind::kPool) {
      const MemoryAllocation allocation = found->second;
      driver().allocations.erase(found);
      give_back(allocation);
      return CUDA_SUCCESS;
    }
  }
  return free_synchronously(
      static_cast<std::uintptr_t>(pointer), CUDA_ERROR_INVALID_VALUE,
      [](MemoryKind kind) { return kind == MemoryKind::kDevice || kind == MemoryKind::kManaged; });
}

CUresult api::cuMemFreeHost(void* pointer) {
  if (pointer == nullptr) return CUDA_SUCCESS;
  return free_synchronously(reinterpret_cast<std::uintptr_t>(pointer), CUDA_ERROR_INVALID_VALUE,
                            [](MemoryKind kind) { return kind == MemoryKind::kHost; });
}

CUresult api::cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = admit(&context); error != CUDA_SUCCESS) return error;
  constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & ~kFlags) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  const auto base = reinterpret_cast<std::uintptr_t>(pointer);
  const auto next = driver().allocations.lower_bound(base);
  const bool overlaps_next = next != driver().allocations.end() && next->second.base < base + bytes;
  if (find_allocation(base) != nullptr || overlaps_next)
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  publish(base, bytes, MemoryKind::kRegistered, context->root,
          flags | CU_MEMHOSTREGISTER_DEVICEMAP);
  return CUDA_SUCCESS;
}

CUresult api::cuMemHostUnregister(void* pointer) {
  if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto base = reinterpret_cast<std::uintptr_t>(pointer);
  CUresult when_unknown = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  {
    const std::lock_guard lock(driver().mutex);
    if (find_allocation(base) != nullptr) when_unknown = CUDA_ERROR_INVALID_VALUE;  // measured
  }
  return free_synchronously(base, when_unknown,
                            [](MemoryKind kind) { return kind == MemoryKind::kRegistered; });
}

// ---------------------------------------------------------------------------------------- ranges

CUresult api::cuMemGetInfo_v2(size_t* available, size_t* total) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  const Engine& engine = *context->device->engine;
  if (total != nullptr) *total = engine.device().memory_bytes;
  if (available != nullptr) *available = engine.memory_free();
  return CUDA_SUCCESS;
}

CUresult api::cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  const MemoryAllocation* allocation = find_allocation(static_cast<std::uintptr_t>(pointer));
  if (allocation == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = pointer_of(allocation->base);
  if (bytes != nullptr) *bytes = allocation->bytes;
  return CUDA_SUCCESS;
}

CUresult api::cuMemHostGetDevicePointer_v2(CUdeviceptr* device_pointer, void* pointer,
                                           unsigned flags) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  if (device_pointer == nullptr || flags != 0 || place_of(pointer) != Place::kPinned)
    return CUDA_ERROR_INVALID_VALUE;
  *device_pointer = pointer_of(reinterpret_cast<std::uintptr_t>(pointer));
  return CUDA_SUCCESS;
}

CUresult api::cuMemHostGetFlags(unsigned* flags, void* pointer) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  const MemoryAllocation* allocation = find_allocation(reinterpret_cast<std::uintptr_t>(pointer));
  // Measured: of registered memory, too.
  if (flags == nullptr || place_of(pointer) != Place::kPinned) return CUDA_ERROR_INVALID_VALUE;
  *flags = allocation->flags;
  return CUDA_SUCCESS;
}

// ---------------------------------------------------------------------------- pointer attributes

namespace {

template <class T>
CUresult answer(void* data, T value) {
  // NOLINTNEXTLINE(bugprone-sizeof-expression): a pointer is a value here
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

CUresult pointer_attribute(void* data, CUpointer_attribute attribute,
                           const MemoryAllocation& allocation, std::uintptr_t address) {
  const bool host =
      allocation.kind == MemoryKind::kHost || allocation.kind == MemoryKind::kRegistered;
  const bool managed = allocation.kind == MemoryKind::kManaged;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      // Measured: memory of a pool belongs to none.
      return answer(data, allocation.kind == MemoryKind::kPool
                              ? nullptr
                              : reinterpret_cast<CUcontext>(allocation.context));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return answer(data, host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return answer(data, pointer_of(address));
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!host && !managed) return CUDA_ERROR_INVALID_VALUE;
      return answer(data, reinterpret_cast<void*>(address));
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return answer(data, 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return answer(data, static_cast<unsigned long long>(allocation.id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return answer(data, managed ? 1u : 0u);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return answer(data, allocation.context->device->ordinal);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return answer(data, allocation.kind == MemoryKind::kDevice && allocation.shared ? 1u : 0u);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return answer(data, pointer_of(allocation.base));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return answer(data, allocation.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return answer(data, 1u);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return answer(data, std::uint64_t{0});
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return answer(data, 0u);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return answer(data, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return answer(data, reinterpret_cast<CUmemoryPool>(allocation.pool));
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

CUresult api::cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                    CUdeviceptr pointer) {
  const std::lock_guard lock(driver().mutex);
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto address = static_cast<std::uintptr_t>(pointer);
  const MemoryAllocation* allocation = find_allocation(address);
  if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return pointer_attribute(data, attribute, *allocation, address);
}

CUresult api::cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                     CUdeviceptr pointer) {
  const std::lock_guard lock(driver().mutex);
  if (attributes == nullptr || data == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto address = static_cast<std::uintptr_t>(pointer);
  const MemoryAllocation* allocation = find_allocation(address);
  for (unsigned i = 0; i < count; ++i) {
    if (allocation != nullptr &&
        pointer_attribute(data[i], attributes[i], *allocation, address) == CUDA_SUCCESS)
      continue;
    // "If the attribute is not supported for the pointer, a default value is returned."
    const bool ordinal = attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    const bool word = attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ||
                      attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED ||
                      attributes[i] == CU_POINTER_ATTRIBUTE_MAPPED ||
                      attributes[i] == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
    if (ordinal) {
      (void)answer(data[i], -2);
    } else if (word) {
      (void)answer(data[i], 0);
    } else {
      (void)answer(data[i], std::uint64_t{0});
    }
  }
  return CUDA_SUCCESS;
}

CUresult api::cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                    CUdeviceptr pointer) {
  const std::lock_guard lock(driver().mutex);
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
      find_allocation(static_cast<std::uintptr_t>(pointer)) == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

// ------------------------------------------------------------------- virtual memory management

CUresult api::cuMemAddressReserve(CUdeviceptr* pointer, size_t bytes, size_t alignment, CUdeviceptr,
                                  unsigned long long flags) {
  const std::lock_guard lock(driver().mutex);
  if (pointer == nullptr || bytes == 0 || bytes % kVirtualGranularity != 0 || flags != 0 ||
      (alignment & (alignment - 1)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const std::size_t align = std::max(alignment, kVirtualGranularity);
  void* raw =
      mmap(nullptr, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto begin = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t base = round_up(begin, align);
  if (base != begin) munmap(raw, base - begin);
  if (base + bytes != begin + bytes + align)
    munmap(reinterpret_cast<void*>(base + bytes), begin + align - base);
  *pointer = pointer_of(base);
  return CUDA_SUCCESS;
}

CUresult api::cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
  const std::lock_guard lock(driver().mutex);
  if (pointer % kVirtualGranularity != 0 || bytes % kVirtualGranularity != 0)
    return CUDA_ERROR_INVALID_VALUE;
  return munmap(reinterpret_cast<void*>(pointer), bytes) == 0 ? CUDA_SUCCESS
                                                              : CUDA_ERROR_INVALID_VALUE;
}

CUresult api::cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                          const CUmemAllocationProp* properties, unsigned long long flags) {
  const std::lock_guard lock(driver().mutex);
  if (handle == nullptr || properties == nullptr || flags != 0 || bytes == 0 ||
      bytes % kVirtualGranularity != 0 || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
  Device* const device = driver().device(properties->location.id);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  auto memory = std::make_unique<PhysicalMemory>();
  if (const CUresult error = result_of(device->engine->take_memory(bytes)); error != CUDA_SUCCESS)
    return error;
  memory->backing = std::make_shared<Backing>(device, bytes, *properties);
  Backing& backing = *memory->backing;
  backing.fd = memfd_create("device-memory", MFD_CLOEXEC);
  if (backing.fd < 0 || ftruncate(backing.fd, static_cast<off_t>(bytes)) != 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  backing.handle = driver().own(std::move(memory), Kind::kPhysicalMemory);
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(backing.handle);
  return CUDA_SUCCESS;
}

// Mappings keep the memory, and so do other references.
CUresult api::cuMemRelease(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(driver().mutex);
  auto* memory =
      driver().find<PhysicalMemory>(reinterpret_cast<void*>(handle), Kind::kPhysicalMemory);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (--memory->references > 0) return CUDA_SUCCESS;
  memory->backing->handle = nullptr;
  driver().release(memory);
  return CUDA_SUCCESS;
}

CUresult api::cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  const std::lock_guard lock(driver().mutex);
  const MemoryAllocation* mapping = find_allocation(reinterpret_cast<std::uintptr_t>(address));
  if (handle == nullptr || mapping == nullptr || mapping->backing == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  Backing& backing = *mapping->backing;
  if (backing.handle != nullptr) {
    ++driver().find<PhysicalMemory>(backing.handle, Kind::kPhysicalMemory)->references;
  } else {
    auto memory = std::make_unique<PhysicalMemory>();
    memory->backing = mapping->backing;
    backing.handle = driver().own(std::move(memory), Kind::kPhysicalMemory);
  }
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(backing.handle);
  return CUDA_SUCCESS;
}

CUresult api::cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                       CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const std::lock_guard lock(driver().mutex);
  const auto* memory =
      driver().find<PhysicalMemory>(reinterpret_cast<void*>(handle), Kind::kPhysicalMemory);
  if (memory == nullptr || flags != 0 || offset + bytes > memory->backing->bytes || bytes == 0 ||
      bytes % kVirtualGranularity != 0)
    return CUDA_ERROR_INVALID_VALUE;
  void* mapped = mmap(reinterpret_cast<void*>(pointer), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
                      memory->backing->fd, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return CUDA_ERROR_MAP_FAILED;
  Device& device = *memory->backing->device;
  // Mappings have no context of their own; the primary stands for the device.
  Context* owner = device.primary;
  if (owner == nullptr) {
    const auto& stack = thread_state().contexts;
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    owner = stack.back()->root;
  }
  publish(static_cast<std::uintptr_t>(pointer), bytes, MemoryKind::kVirtual, owner, 0);
  driver().allocations[static_cast<std::uintptr_t>(pointer)].backing = memory->backing;
  return CUDA_SUCCESS;
}

CUresult api::cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
  const auto base = static_cast<std::uintptr_t>(pointer);
  if (const CUresult error =
          free_synchronously(base, CUDA_ERROR_INVALID_VALUE,
                             [](MemoryKind kind) { return kind == MemoryKind::kVirtual; });
      error != CUDA_SUCCESS)
    return error;
  void* reserved = mmap(reinterpret_cast<void*>(pointer), bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return reserved == MAP_FAILED ? CUDA_ERROR_UNMAP_FAILED : CUDA_SUCCESS;
}

CUresult api::cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc* access,
                             size_t count) {
  const std::lock_guard lock(driver().mutex);
  if (access == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  int protection = PROT_NONE;
  for (std::size_t i = 0; i < count; ++i) {
    if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ) protection |= PROT_READ;
    if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) protection |= PROT_READ | PROT_WRITE;
  }
  return mprotect(reinterpret_cast<void*>(pointer), bytes, protection) == 0
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult api::cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                             CUdeviceptr pointer) {
  const std::lock_guard lock(driver().mutex);
  if (flags == nullptr || location == nullptr ||
      find_allocation(static_cast<std::uintptr_t>(pointer)) == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}

CUresult api::cuMemGetAllocationGranularity(size_t* granularity,
                                            const CUmemAllocationProp* properties,
                                            CUmemAllocationGranularity_flags) {
  if (granularity == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *granularity = kVirtualGranularity;
  return CUDA_SUCCESS;
}

}  // namespace vitamin::soft::driver
