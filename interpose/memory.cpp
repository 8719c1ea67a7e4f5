// SPDX-License-Identifier: Apache-2.0
#include "interpose/memory.h"

#include <algorithm>
#include <map>

#include "interpose/handle_map.h"
#include VITAMIN_VENDOR_HOOKS

namespace vitamin::interpose {

struct PoolRecord {
  MemoryPool handle = nullptr;
  ReservedMemory memory;  // without quotas: memory of the host
  bool created = false;   // by the application, which may destroy it
  bool destroyed = false;
  std::uint64_t blocks = 0;  // given out and not freed, of a pool that the application made
};

constinit std::atomic<bool> pools_may_shrink{false};

namespace {

constinit HandleMap<PoolRecord> pools;
constinit std::mutex pools_mutex;  // of what the records say; no call of the vendor waits in it

bool is_captured(NativeStream stream) {
  return captures_open() && stream != nullptr && stream != kLegacyStream &&
         stream != kThreadStream && captures(stream);
}

// The device that a pool is on which the application did not make: it is a default pool. `ordinal`:
// of the device that the stream is on, where the vendor does not tell.
int device_of_default(MemoryPool handle, int ordinal) {
  for (int device = 0; device < kMaxContexts; ++device) {
    const auto pool = default_pool_of_device(device);
    if (!pool) break;
    if (*pool == handle) return device;
  }
  return ordinal;
}

// The record of a pool that this process allocates from, made if need be. Null: nothing bounds it.
// Work of any device may allocate from a pool: the one that it is on is charged.
PoolRecord* record_of(MemoryPool handle, int ordinal) {
  const auto bounded = [](PoolRecord* known) {
    return known->memory.quotas() != nullptr ? known : nullptr;
  };
  if (PoolRecord* known = pools.find(handle)) return bounded(known);
  const std::lock_guard lock(pools_mutex);
  if (PoolRecord* known = pools.find(handle)) return bounded(known);
  auto* const record = new PoolRecord;
  record->handle = handle;
  record->memory.begin(quotas_of(device_of_default(handle, ordinal)));
  // It may have memory of a time before it was seen here.
  if (record->memory.quotas() != nullptr)
    record->memory.settle_at_any_price(pool_memory(handle, Figure::kReserved));
  pools.insert(handle, record);
  return bounded(record);
}

// False: the pool has more than there is room for.
bool settle(PoolRecord& pool) {
  return pool.destroyed || pool.memory.settle(pool_memory(pool.handle, Figure::kReserved));
}

// --- physical memory -----------------------------------------------------------------------------

struct Physical {
  DeviceQuotas* quotas;
  std::uint64_t bytes;
  unsigned handles = 1;
  unsigned mappings = 0;
};
struct Mapping {
  std::uint64_t bytes;
  Physical* memory;
};
struct PhysicalMemory {
  std::mutex mutex;
  std::map<PhysicalHandle, Physical*> by_handle;
  std::map<std::uintptr_t, Mapping> mapped;
};
// Never destroyed: programs free memory after static destructors ran.
PhysicalMemory& physical_memory() {
  static auto* const all = new PhysicalMemory;
  return *all;
}

void give_back_if_unused(Physical* memory) {
  if (memory->handles != 0 || memory->mappings != 0) return;
  memory->quotas->give_back(memory->bytes);
  delete memory;
}

}  // namespace

// --- charges -------------------------------------------------------------------------------------

void make_room(const DeviceQuotas& quotas) {
  if (captures_open()) return;
  flush_deferred();
  const ReentrancyGuard ours;
  pools.for_each([&](PoolRecord& pool) {
    if (pool.memory.quotas() != &quotas || pool.destroyed) return;
    trim_pool(pool.handle);
    settle(pool);
  });
  trim_graphs_of(quotas);
}

Spot current_spot() {
  const int ordinal = current_ordinal();
  if (ordinal < 0) return {};
  Spot spot;
  spot.quotas = quotas_of(ordinal);
  if (spot.quotas != nullptr) spot.context = native_current_context();
  return spot;
}

bool reserve(DeviceQuotas& quotas, std::uint64_t bytes) {
  if (quotas.charge(bytes)) return true;
  make_room(quotas);
  if (quotas.charge(bytes)) return true;
  quotas.explain(bytes);
  return false;
}

void vendor_refused(DeviceQuotas& quotas, std::uint64_t bytes) {
  const DeviceQuotas::View real = native_memory();
  if (real.total != 0) quotas.explain_device(bytes, real);
}

std::uint64_t array_bytes(const ArrayShape& shape) {
  std::uint64_t width = shape.width, height = std::max<std::uint64_t>(shape.height, 1),
                depth = std::max<std::uint64_t>(shape.depth, 1), sum = 0;
  for (unsigned level = 0; level < std::max(shape.levels, 1U); ++level) {
    std::uint64_t bits = shape.element;
    for (const std::uint64_t extent : {width, height, depth})
      if (__builtin_mul_overflow(bits, extent, &bits)) return 0;  // the vendor refuses it
    sum += bits / 8 + (bits % 8 != 0 ? 1 : 0);
    width = std::max<std::uint64_t>(width / 2, 1);
    height = std::max<std::uint64_t>(height / 2, 1);
    if (!shape.layered) depth = std::max<std::uint64_t>(depth / 2, 1);
    if (level > 64) return sum;
  }
  return sum;
}

void memory_freed(const void* key, std::unique_ptr<ChargedMemory> taken, ApiStatus answer) {
  if (taken == nullptr) {
    // Nothing of ours, or of a pool that is charged as a whole.
    if (pools.size() != 0) pools_may_shrink.store(true, std::memory_order_relaxed);
    return;
  }
  if (answer != kSuccess) return note_charged(key, *taken);
  if (taken->pool == nullptr) return taken->quotas->give_back(taken->bytes);
  pools_may_shrink.store(true, std::memory_order_relaxed);
  auto& pool = *static_cast<PoolRecord*>(taken->pool);
  bool ended = false, destroyed = false;
  {
    const std::lock_guard lock(pools_mutex);
    destroyed = pool.destroyed;
    ended = --pool.blocks == 0 && destroyed;
  }
  // Of a pool that is no more what is left is charged by the piece.
  if (destroyed) pool.memory.release(ended ? ~std::uint64_t{0} : taken->bytes);
  if (ended) delete &pool;
}

// --- pools ---------------------------------------------------------------------------------------

PoolCharge charge_pool(std::optional<MemoryPool> handle, std::uint64_t bytes, NativeStream stream,
                       bool per_thread) {
  PoolCharge charge{nullptr, bytes, false};
  if (is_captured(stream)) return charge;  // the memory is a graph's
  const int ordinal = ordinal_of(stream, per_thread);
  if (!handle) handle = pool_of_device(std::max(ordinal, 0));
  if (!handle || *handle == nullptr) return charge;
  PoolRecord* const pool = record_of(*handle, ordinal);
  if (pool == nullptr) return charge;
  charge.pool = pool;
  if (pool->memory.charge(bytes)) return charge;
  // The pool may have room for it without any more of the device.
  const std::uint64_t used = pool_memory(*handle, Figure::kUsed);
  const std::uint64_t reserved = pool_memory(*handle, Figure::kReserved);
  charge.bytes = used + bytes > reserved ? used + bytes - reserved : 0;
  if (pool->memory.charge(charge.bytes)) return charge;
  charge.bytes = bytes;
  make_room(*pool->memory.quotas());
  if (pool->memory.charge(bytes)) return charge;
  pool->memory.quotas()->explain(bytes);
  charge.refused = true;
  return charge;
}

ApiStatus settle_allocation(const PoolCharge& charge, ApiStatus answer, DeviceAddress* address,
                            NativeStream stream) {
  if (charge.pool == nullptr) return answer;
  PoolRecord& pool = *charge.pool;
  DeviceQuotas& quotas = *pool.memory.quotas();
  pool.memory.landed(charge.bytes);
  bool fits = settle(pool);
  if (answer != kSuccess) {
    if (answer == kOutOfMemory) vendor_refused(quotas, charge.bytes);
    return answer;
  }
  if (!fits) {
    make_room(quotas);
    fits = settle(pool);
  }
  if (!fits) {
    // The pool took more of the device than was asked of it, and there is no room for that.
    const ReentrancyGuard ours;
    forget_block(reinterpret_cast<std::uintptr_t>(address_key(*address)));
    free_natively(*address, stream);
    trim_pool(pool.handle);
    settle(pool);
    pool.memory.settle_at_any_price(pool_memory(pool.handle, Figure::kReserved));
    pools_may_shrink.store(true, std::memory_order_relaxed);
    quotas.explain(charge.bytes);
    *address = DeviceAddress{};
    return kOutOfMemory;
  }
  if (pool.created) {
    note_charged(address_key(*address), {&quotas, charge.bytes, NativeContext{}, &pool});
    const std::lock_guard lock(pools_mutex);
    ++pool.blocks;
  }
  return answer;
}

void settle_pools() {
  const ReentrancyGuard ours;
  bool again = false;
  pools.for_each([&](PoolRecord& pool) {
    if (pool.memory.quotas() == nullptr || pool.destroyed) return;
    settle(pool);
    // What is freed already may go back to the device at a later wait.
    again = again || pool.memory.covered() > pool_memory(pool.handle, Figure::kUsed);
  });
  pools_may_shrink.store(again, std::memory_order_relaxed);
}

ApiStatus pool_create(EntryPoint<ApiStatus(MemoryPool*, const PoolProperties*)> entry,
                      MemoryPool* pool, const PoolProperties* properties) {
  const ApiStatus answer = entry.real(pool, properties);
  if (no_quotas() || answer != kSuccess) return answer;
  auto* const record = new PoolRecord;
  record->handle = *pool;
  record->created = true;
  record->memory.begin(quotas_of(device_of(*properties)));
  pools.insert(*pool, record);
  return answer;
}

ApiStatus pool_trim(EntryPoint<ApiStatus(MemoryPool, std::size_t)> entry, MemoryPool pool,
                    std::size_t keep) {
  const ApiStatus answer = Flushed::run(entry, pool, keep);
  if (no_quotas()) return answer;
  PoolRecord* const record = pools.find(pool);
  if (record != nullptr && record->memory.quotas() != nullptr) settle(*record);
  return answer;
}

ApiStatus pool_destroy(EntryPoint<ApiStatus(MemoryPool)> entry, MemoryPool pool) {
  if (no_quotas()) return Flushed::run(entry, pool);
  PoolRecord* const record = pools.erase(pool);
  const std::uint64_t used = pool_memory(pool, Figure::kUsed);
  const ApiStatus answer = Flushed::run(entry, pool);
  if (record == nullptr) return answer;
  if (answer != kSuccess) {
    pools.insert(pool, record);
    return answer;
  }
  // What is in use stays with the program, and so does the record, until all of it is freed.
  bool ended = false;
  {
    const std::lock_guard lock(pools_mutex);
    record->destroyed = true;
    ended = record->blocks == 0;
  }
  const std::uint64_t covered = record->memory.covered();
  record->memory.release(ended ? covered : covered - std::min(covered, used));
  if (ended) delete record;
  return answer;
}

// --- physical memory -----------------------------------------------------------------------------

ApiStatus physical_create(EntryPoint<ApiStatus(PhysicalHandle*, std::size_t,
                                               const PhysicalProperties*, unsigned long long)>
                              entry,
                          PhysicalHandle* handle, std::size_t bytes,
                          const PhysicalProperties* properties, unsigned long long flags) {
  const auto call = [&] { return entry.real(handle, bytes, properties, flags); };
  if (no_quotas() || handle == nullptr || properties == nullptr || bytes == 0) return call();
  DeviceQuotas* const quotas = quotas_of(device_of(*properties));
  if (quotas == nullptr) return call();
  const ApiStatus answer = charged(*quotas, bytes, call);
  if (answer != kSuccess) return answer;
  PhysicalMemory& all = physical_memory();
  const std::lock_guard lock(all.mutex);
  all.by_handle[*handle] = new Physical{quotas, bytes};
  return answer;
}

ApiStatus physical_release(EntryPoint<ApiStatus(PhysicalHandle)> entry, PhysicalHandle handle) {
  if (no_quotas()) return Flushed::run(entry, handle);
  PhysicalMemory& all = physical_memory();
  Physical* memory = nullptr;
  bool last = false;
  {
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.by_handle.find(handle); found != all.by_handle.end()) {
      memory = found->second;
      last = memory->handles == 1;
      // Before the call: the next owner of the same handle finds none.
      if (last) all.by_handle.erase(found);
    }
  }
  const ApiStatus answer = Flushed::run(entry, handle);
  if (memory == nullptr) return answer;
  const std::lock_guard lock(all.mutex);
  if (answer != kSuccess) {
    if (last) all.by_handle[handle] = memory;
    return answer;
  }
  --memory->handles;
  give_back_if_unused(memory);
  return answer;
}

ApiStatus physical_retain(EntryPoint<ApiStatus(PhysicalHandle*, void*)> entry,
                          PhysicalHandle* handle, void* address) {
  const ApiStatus answer = entry.real(handle, address);
  if (no_quotas() || answer != kSuccess) return answer;
  PhysicalMemory& all = physical_memory();
  const std::lock_guard lock(all.mutex);
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  auto mapping = all.mapped.upper_bound(at);
  if (mapping == all.mapped.begin()) return answer;
  --mapping;
  if (at - mapping->first >= mapping->second.bytes) return answer;
  all.by_handle[*handle] = mapping->second.memory;
  ++mapping->second.memory->handles;
  return answer;
}

// Memory of this process that comes back to it is held once more.
ApiStatus physical_import(EntryPoint<ApiStatus(PhysicalHandle*, void*, ShareableType)> entry,
                          PhysicalHandle* handle, void* shared, ShareableType type) {
  const ApiStatus answer = entry.real(handle, shared, type);
  if (no_quotas() || answer != kSuccess) return answer;
  PhysicalMemory& all = physical_memory();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.by_handle.find(*handle); found != all.by_handle.end())
    ++found->second->handles;
  return answer;
}

ApiStatus physical_map(EntryPoint<ApiStatus(DeviceAddress, std::size_t, std::size_t, PhysicalHandle,
                                            unsigned long long)>
                           entry,
                       DeviceAddress address, std::size_t bytes, std::size_t offset,
                       PhysicalHandle handle, unsigned long long flags) {
  const ApiStatus answer = entry.real(address, bytes, offset, handle, flags);
  if (no_quotas() || answer != kSuccess) return answer;
  PhysicalMemory& all = physical_memory();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_handle.find(handle);
  if (found == all.by_handle.end()) return answer;
  ++found->second->mappings;
  all.mapped[reinterpret_cast<std::uintptr_t>(address_key(address))] = {bytes, found->second};
  return answer;
}

ApiStatus physical_unmap(EntryPoint<ApiStatus(DeviceAddress, std::size_t)> entry,
                         DeviceAddress address, std::size_t bytes) {
  if (no_quotas()) return Flushed::run(entry, address, bytes);
  PhysicalMemory& all = physical_memory();
  std::map<std::uintptr_t, Mapping> taken;
  {
    const std::lock_guard lock(all.mutex);
    const auto first = reinterpret_cast<std::uintptr_t>(address_key(address));
    auto at = all.mapped.lower_bound(first);
    while (at != all.mapped.end() && at->first - first < bytes)
      taken.insert(all.mapped.extract(at++));
  }
  const ApiStatus answer = Flushed::run(entry, address, bytes);
  const std::lock_guard lock(all.mutex);
  if (answer != kSuccess) {
    all.mapped.merge(taken);
    return answer;
  }
  for (const auto& [start, mapping] : taken) {
    --mapping.memory->mappings;
    give_back_if_unused(mapping.memory);
  }
  return answer;
}

// --- queries -------------------------------------------------------------------------------------

DeviceQuotas::View bounded_here(DeviceQuotas::View real) {
  DeviceQuotas* const quotas = quotas_of(current_ordinal());
  if (quotas == nullptr) return real;
  settle_pools();
  return quotas->bounded(real);
}

std::uint64_t bounded_total(int ordinal, std::uint64_t real) {
  DeviceQuotas* const quotas = quotas_of(ordinal);
  return quotas != nullptr ? quotas->bounded({real, real}).total : real;
}

}  // namespace vitamin::interpose
