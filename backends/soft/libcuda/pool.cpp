// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered allocation. An allocation answers at once; what makes it usable is its place in
// the stream. A freed block may be handed out again
//   * to its own stream at once, because later work there runs behind the free;
//   * to any stream when the free's place in its stream has been reached.
// A free that runs is visible: the block is overwritten. So a free that reaches an idle stream
// while another stream still uses the block corrupts that user, as it does on real hardware once
// the block has a new owner.

#include <algorithm>
#include <cstring>

#include "backends/soft/libcuda/capture.h"
#include "backends/soft/libcuda/command.h"
#include "backends/soft/libcuda/driver.h"
#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/events.h"
#include "backends/soft/libcuda/graph_memory.h"
#include "backends/soft/libcuda/memory.h"

namespace vitamin::soft::driver {
namespace {

constexpr std::size_t kBlockGranularity = 512;
constexpr std::size_t kPoolPiece = std::size_t{32} << 20;  // what a pool takes from the device
constexpr int kFreedByte = 0xdd;

void count_use(Pool& pool, std::size_t bytes) {
  pool.used += bytes;
  pool.used_high = std::max(pool.used_high, pool.used);
}

// The smallest block that fits and that `stream` may have now.
std::map<std::uintptr_t, PoolBlock>::iterator find_block(Pool& pool, std::size_t bytes,
                                                         const Stream& stream) {
  auto best = pool.blocks.end();
  for (auto at = pool.blocks.begin(); at != pool.blocks.end(); ++at) {
    const PoolBlock& block = at->second;
    const bool reusable =
        block.state == PoolBlock::State::kFree ||
        (block.state == PoolBlock::State::kFreeing && block.freeing_on == &stream);
    if (!reusable || block.bytes < bytes) continue;
    if (best == pool.blocks.end() || block.bytes < best->second.bytes) best = at;
  }
  return best;
}

// Waits for what is in the other streams of an address space. Measured: a pool that needs more
// memory from the device waits for them, but not for the stream that asks, and not when that one is
// the legacy stream.
CUresult wait_for_others(std::unique_lock<std::mutex>& lock, const Stream& asking) {
  if (asking.kind == StreamClass::kLegacy) return CUDA_SUCCESS;
  Device& device = *asking.context->device;
  const Context& root = *asking.context->root;
  std::vector<std::pair<QueueRef, std::uint64_t>> tails;
  const auto collect = [&](const Context& context) {
    for (const Stream* stream : context.streams)
      if (stream != &asking)
        tails.emplace_back(stream->queue, device.engine->last_ticket(stream->queue.get()));
  };
  collect(root);
  for (const Context* child : root.children) collect(*child);
  lock.unlock();
  CUresult waited = CUDA_SUCCESS;
  for (const auto& [queue, ticket] : tails)
    if (waited == CUDA_SUCCESS) waited = wait_for_ticket(device, queue, ticket);
  lock.lock();
  return waited;
}

CUresult add_block(Pool& pool, std::size_t bytes) {
  void* address = nullptr;
  if (const CUresult error = result_of(pool.device->engine->allocate(bytes, &address));
      error != CUDA_SUCCESS)
    return error;
  PoolBlock& block = pool.blocks[reinterpret_cast<std::uintptr_t>(address)];
  block.bytes = bytes;
  block.state = PoolBlock::State::kFree;
  pool.reserved += bytes;
  pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
  return CUDA_SUCCESS;
}

// A pool that may not grow hands out what another stream is still to free: the asking stream waits
// for that (measured), and for nothing that came into the other stream later.
CUresult take_freeing_block(Pool& pool, std::size_t bytes, Stream& stream) {
  if (pool.attributes[CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES] == 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  for (auto& [base, block] : pool.blocks) {
    if (block.state != PoolBlock::State::kFreeing || block.bytes < bytes ||
        block.freeing_on == nullptr)
      continue;
    if (const int status = stream.engine().wait(stream.queue.get(), block.freed.get());
        status != kOk)
      return result_of(status);
    stream.work_ticket = stream.engine().last_ticket(stream.queue.get());
    block.freeing_on = &stream;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// Makes sure that find_block() will find something.
CUresult provide_block(std::unique_lock<std::mutex>& lock, Pool& pool, std::size_t bytes,
                       Stream& stream) {
  if (find_block(pool, bytes, stream) != pool.blocks.end()) return CUDA_SUCCESS;
  if (pool.properties.maxSize != 0 && pool.reserved + bytes > pool.properties.maxSize)
    return take_freeing_block(pool, bytes, stream);
  if (pool.reserved + bytes > pool.capacity) {
    if (const CUresult error = wait_for_others(lock, stream); error != CUDA_SUCCESS) return error;
    pool.capacity = pool.reserved + std::max(bytes, kPoolPiece);
  }
  return add_block(pool, bytes);
}

CUresult allocate(CUdeviceptr* pointer, std::size_t bytes, Pool* pool, CUstream handle) {
  std::unique_lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (const CUresult error = resolve_stream(handle, &stream); error != CUDA_SUCCESS) return error;
  if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) {  // measured: nothing is allocated
    *pointer = 0;
    return CUDA_SUCCESS;
  }
  if (pool == nullptr) pool = stream->context->device->current_pool;
  if (stream->capture != nullptr) return capture_allocation(*stream, bytes, pointer);
  if (const CUresult error = forbid_in_capture(nullptr); error != CUDA_SUCCESS) return error;
  if (const CUresult error = admit_to_stream(*stream); error != CUDA_SUCCESS) return error;
  const std::size_t rounded =
      (bytes + kBlockGranularity - 1) / kBlockGranularity * kBlockGranularity;
  if (const CUresult error = provide_block(lock, *pool, rounded, *stream); error != CUDA_SUCCESS)
    return error;
  // An allocation puts nothing into its stream: the legacy stream's is no barrier (measured).
  const auto block = find_block(*pool, rounded, *stream);
  block->second.state = PoolBlock::State::kUsed;
  block->second.freeing_on = nullptr;
  count_use(*pool, block->second.bytes);
  MemoryAllocation allocation;
  allocation.base = block->first;
  allocation.bytes = bytes;
  allocation.kind = MemoryKind::kPool;
  allocation.context = stream->context->root;
  allocation.id = driver().next_id++;
  allocation.pool = pool;
  driver().allocations[block->first] = allocation;
  *pointer = static_cast<CUdeviceptr>(block->first);
  return CUDA_SUCCESS;
}

// The free's place in its stream has been reached.
void finish_free(Pool& pool, std::uintptr_t base) {
  const std::lock_guard lock(driver().mutex);
  const auto found = pool.blocks.find(base);
  if (found == pool.blocks.end()) return;
  PoolBlock& block = found->second;
  std::memset(reinterpret_cast<void*>(base), kFreedByte, block.bytes);
  if (--block.frees_in_flight == 0 && block.state == PoolBlock::State::kFreeing) {
    block.state = PoolBlock::State::kFree;
    block.freeing_on = nullptr;
  }
}

Pool* find_pool(CUmemoryPool handle) { return driver().find<Pool>(handle, Kind::kPool); }

CUmemoryPool handle_of(Pool* pool) { return reinterpret_cast<CUmemoryPool>(pool); }

Pool* make_pool(Device& device, const CUmemPoolProps& properties) {
  auto pool = std::make_unique<Pool>();
  pool->device = &device;
  pool->properties = properties;
  pool->attributes = {{CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 1},
                      {CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 1},
                      {CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 1},
                      {CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0}};
  return driver().own(std::move(pool), Kind::kPool);
}

void trim(Pool& pool, std::size_t keep) {
  for (auto at = pool.blocks.begin(); at != pool.blocks.end() && pool.reserved > keep;) {
    if (at->second.state != PoolBlock::State::kFree) {
      ++at;
      continue;
    }
    pool.reserved -= at->second.bytes;
    pool.device->engine->free_memory(reinterpret_cast<void*>(at->first));
    at = pool.blocks.erase(at);
  }
}

bool is_flag(CUmemPool_attribute attribute) {
  return attribute == CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
         attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC ||
         attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

}  // namespace

void make_default_pool(Device& device) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device.ordinal;
  device.default_pool = device.current_pool = make_pool(device, properties);
}

void return_to_pool(Pool& pool, std::uintptr_t base) {
  const auto found = pool.blocks.find(base);
  if (found == pool.blocks.end()) return;
  std::memset(reinterpret_cast<void*>(base), kFreedByte, found->second.bytes);
  found->second.state = PoolBlock::State::kFree;
  found->second.freeing_on = nullptr;
  pool.used -= found->second.bytes;
}

void forget_pool_frees(Stream& stream) {
  for (Pool* pool : driver().all<Pool>(Kind::kPool))
    for (auto& [base, block] : pool->blocks)
      if (block.freeing_on == &stream) block.freeing_on = nullptr;
}

CUresult api::cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream stream) {
  return allocate(pointer, bytes, nullptr, stream);
}

CUresult api::cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t bytes, CUmemoryPool handle,
                                      CUstream stream) {
  Pool* pool;
  {
    const std::lock_guard lock(driver().mutex);
    pool = find_pool(handle);
  }
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return allocate(pointer, bytes, pool, stream);
}

CUresult api::cuMemFreeAsync(CUdeviceptr pointer, CUstream handle) {
  std::unique_lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (const CUresult error = resolve_stream(handle, &stream); error != CUDA_SUCCESS) return error;
  if (pointer == 0) return CUDA_SUCCESS;
  if (stream->capture != nullptr) return capture_free(*stream, pointer);
  if (const CUresult error = forbid_in_capture(nullptr); error != CUDA_SUCCESS) return error;
  if (const CUresult error = admit_to_stream(*stream); error != CUDA_SUCCESS) return error;
  const auto found = driver().allocations.find(static_cast<std::uintptr_t>(pointer));
  if (found != driver().allocations.end() && found->second.kind == MemoryKind::kGraph)
    return free_graph_allocation(found->first, stream);
  if (found == driver().allocations.end() || found->second.kind != MemoryKind::kPool)
    return CUDA_ERROR_INVALID_VALUE;
  Pool& pool = *found->second.pool;
  const std::uintptr_t base = found->first;
  const CUresult freed = result_of(stream->engine().work(
      stream->queue.get(), [&pool, base] { finish_free(pool, base); }, 0));
  if (freed != CUDA_SUCCESS) return freed;
  driver().allocations.erase(found);
  PoolBlock& block = pool.blocks.at(base);
  if (pool.properties.maxSize != 0) {
    block.freed = make_native(stream->engine());
    if (block.freed == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    if (const int status = stream->engine().record(stream->queue.get(), block.freed.get());
        status != kOk)
      return result_of(status);
  }
  stream->work_ticket = stream->engine().last_ticket(stream->queue.get());
  block.state = PoolBlock::State::kFreeing;
  block.freeing_on = stream;
  ++block.frees_in_flight;
  pool.used -= block.bytes;
  return CUDA_SUCCESS;
}

// ----------------------------------------------------------------------------------------- pools

CUresult api::cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* properties) {
  const std::lock_guard lock(driver().mutex);
  if (handle == nullptr || properties == nullptr ||
      properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
  Device* device = driver().device(properties->location.id);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = handle_of(make_pool(*device, *properties));
  return CUDA_SUCCESS;
}

CUresult api::cuMemPoolDestroy(CUmemoryPool handle) {
  const std::lock_guard lock(driver().mutex);
  Pool* pool = find_pool(handle);
  if (pool == nullptr || pool == pool->device->default_pool) return CUDA_ERROR_INVALID_VALUE;
  if (pool->device->current_pool == pool) pool->device->current_pool = pool->device->default_pool;
  trim(*pool, 0);
  // Blocks still in use, or on their way, keep the pool's object; its handle is gone.
  driver().forget(pool);
  if (pool->blocks.empty()) delete pool;
  return CUDA_SUCCESS;
}

CUresult api::cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  const std::lock_guard lock(driver().mutex);
  Pool* pool = find_pool(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  trim(*pool, keep);
  return CUDA_SUCCESS;
}

CUresult api::cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                    void* value) {
  const std::lock_guard lock(driver().mutex);
  Pool* pool = find_pool(handle);
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (is_flag(attribute)) {
    int flag;
    std::memcpy(&flag, value, sizeof flag);
    pool->attributes[attribute] = flag != 0 ? 1 : 0;
    return CUDA_SUCCESS;
  }
  std::uint64_t number;
  std::memcpy(&number, value, sizeof number);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool->attributes[attribute] = number;
      return CUDA_SUCCESS;
    // The high-water marks can be reset and not set.
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (number != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->reserved_high = pool->reserved;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (number != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->used_high = pool->used;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult api::cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                    void* value) {
  const std::lock_guard lock(driver().mutex);
  Pool* pool = find_pool(handle);
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (is_flag(attribute)) {
    const int flag = static_cast<int>(pool->attributes[attribute]);
    std::memcpy(value, &flag, sizeof flag);
    return CUDA_SUCCESS;
  }
  std::uint64_t number = 0;
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      number = pool->attributes[attribute];
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      number = pool->reserved;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      number = pool->reserved_high;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      number = pool->used;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      number = pool->used_high;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(value, &number, sizeof number);
  return CUDA_SUCCESS;
}

CUresult api::cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* access, size_t count) {
  const std::lock_guard lock(driver().mutex);
  return find_pool(handle) == nullptr || (count != 0 && access == nullptr)
             ? CUDA_ERROR_INVALID_VALUE
             : CUDA_SUCCESS;
}

CUresult api::cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle,
                                 CUmemLocation* location) {
  const std::lock_guard lock(driver().mutex);
  if (flags == nullptr || location == nullptr || find_pool(handle) == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}

CUresult api::cuDeviceGetDefaultMemPool(CUmemoryPool* handle, CUdevice ordinal) {
  const std::lock_guard lock(driver().mutex);
  const Device* device = driver().device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = handle_of(device->default_pool);
  return CUDA_SUCCESS;
}

CUresult api::cuDeviceGetMemPool(CUmemoryPool* handle, CUdevice ordinal) {
  const std::lock_guard lock(driver().mutex);
  const Device* device = driver().device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = handle_of(device->current_pool);
  return CUDA_SUCCESS;
}

CUresult api::cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
  const std::lock_guard lock(driver().mutex);
  Device* device = driver().device(ordinal);
  Pool* pool = find_pool(handle);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (pool == nullptr || pool->device != device) return CUDA_ERROR_INVALID_VALUE;
  device->current_pool = pool;
  return CUDA_SUCCESS;
}

}  // namespace vitamin::soft::driver
