// SPDX-License-Identifier: Apache-2.0
#include "interpose/libcudart/memory.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "interpose/handle_map.h"
#include "interpose/libcudart/manual_overrides.h"

namespace vitamin::interpose {

struct PoolRecord {
  CUmemoryPool handle = nullptr;
  DeviceQuotas* quotas = nullptr;  // null: memory of the host
  int ordinal = -1;
  bool created = false;  // by the application, which may destroy it
  bool destroyed = false;
  std::uint64_t covered = 0;    // is charged for
  std::uint64_t in_flight = 0;  // part of that, for calls that are being made
  std::uint64_t blocks = 0;     // given out and not freed, of a pool that the application made
};

constinit std::atomic<bool> pools_may_shrink{false};

namespace {

constinit HandleMap<PoolRecord> pools;
constinit std::mutex pools_mutex;  // of what the records say; no call of the driver waits in it

std::uint64_t attribute_of(CUmemoryPool pool, CUmemPool_attribute attribute) {
  std::uint64_t value = 0;
  return VITAMIN_REAL(cuMemPoolGetAttribute)(pool, attribute, &value) == CUDA_SUCCESS ? value : 0;
}
std::uint64_t reserved_of(CUmemoryPool pool) {
  return attribute_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

int current_ordinal() {
  CUdevice device = -1;
  return VITAMIN_REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS ? device : -1;
}

// The device of a stream argument.
int ordinal_of_stream(CUstream stream, bool per_thread) {
  if (const StreamRecord* record = known_stream(stream, per_thread);
      record != nullptr && record->context != nullptr)
    return record->context->ordinal;
  CUcontext context = nullptr;
  if (stream == nullptr || stream == kLegacyStream || stream == kThreadStream ||
      VITAMIN_REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
    return current_ordinal();
  const CurrentContext current(context);
  return current_ordinal();
}

bool is_captured(CUstream stream) {
  return captures_open() && stream != nullptr && stream != kLegacyStream &&
         stream != kThreadStream && captures(stream);
}

// The record of a pool that this process allocates from, made if need be. Null: nothing bounds it.
PoolRecord* record_of(CUmemoryPool handle, int ordinal) {
  if (PoolRecord* known = pools.find(handle)) return known->quotas != nullptr ? known : nullptr;
  const std::lock_guard lock(pools_mutex);
  if (PoolRecord* known = pools.find(handle)) return known->quotas != nullptr ? known : nullptr;
  auto* const record = new PoolRecord;
  record->handle = handle;
  record->ordinal = ordinal;
  record->quotas = quotas_of(ordinal);
  // It may have memory of a time before it was seen here.
  if (record->quotas != nullptr) {
    record->covered = reserved_of(handle);
    record->quotas->charge_unasked(record->covered);
  }
  pools.insert(handle, record);
  return record->quotas != nullptr ? record : nullptr;
}

// The charge follows what the pool has: down at once, up as far as there is room. False: not all.
bool settle(PoolRecord& pool) {
  if (pool.destroyed) return true;
  const std::uint64_t reserved = reserved_of(pool.handle);
  std::uint64_t back = 0, more = 0;
  {
    const std::lock_guard lock(pools_mutex);
    // A call that is being made may have been served already, or not yet.
    if (pool.covered > reserved + pool.in_flight) {
      back = pool.covered - reserved - pool.in_flight;
      pool.covered -= back;
    } else if (pool.covered < reserved) {
      more = reserved - pool.covered;
    }
  }
  if (back != 0) pool.quotas->give_back(back);
  if (more == 0) return true;
  if (!pool.quotas->charge(more)) return false;
  const std::lock_guard lock(pools_mutex);
  pool.covered += more;
  return true;
}

// What the pool has beyond its charge is counted, whether or not there is room.
void settle_at_any_price(PoolRecord& pool) {
  const std::uint64_t reserved = reserved_of(pool.handle);
  const std::lock_guard lock(pools_mutex);
  if (pool.covered >= reserved) return;
  pool.quotas->charge_unasked(reserved - pool.covered);
  pool.covered = reserved;
}

void landed(PoolRecord& pool, std::uint64_t bytes) {
  const std::lock_guard lock(pools_mutex);
  pool.in_flight -= bytes;
}

// Idle memory of this process's pools goes back to the device, and what is deferred to its streams:
// natively frees that are queued there would be known to the pools by now.
void make_room(const DeviceQuotas& quotas) {
  if (captures_open()) return;
  static_cast<void>(flushed([] { return hal::kNativeOk; }));
  const ReentrancyGuard ours;
  pools.for_each([&](PoolRecord& pool) {
    if (pool.quotas != &quotas || pool.destroyed) return;
    VITAMIN_REAL(cuMemPoolTrimTo)(pool.handle, 0);
    settle(pool);
  });
}

std::uint64_t channel_bytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    default:
      return 4;  // and more than the packed and normalised ones take
  }
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
  std::map<CUmemGenericAllocationHandle, Physical*> by_handle;
  std::map<CUdeviceptr, Mapping> mapped;
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

std::optional<MemoryFacts> memory_facts(int ordinal) {
  MemoryFacts facts;
  std::size_t total = 0;
  CUuuid uuid{};
  if (VITAMIN_REAL(cuDeviceTotalMem_v2)(&total, ordinal) != CUDA_SUCCESS ||
      VITAMIN_REAL(cuDeviceGetUuid_v2)(&uuid, ordinal) != CUDA_SUCCESS)
    return std::nullopt;
  facts.total = total;
  char text[48] = "GPU-";
  char* at = text + 4;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) *at++ = '-';
    at += std::snprintf(at, 3, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
  }
  facts.uuid = text;
  return facts;
}

Spot current_spot() {
  const int ordinal = current_ordinal();
  if (ordinal < 0) return {};
  Spot spot;
  spot.quotas = quotas_of(ordinal);
  if (spot.quotas != nullptr) VITAMIN_REAL(cuCtxGetCurrent)(&spot.context);
  return spot;
}

bool reserve(DeviceQuotas& quotas, std::uint64_t bytes) {
  if (quotas.charge(bytes)) return true;
  make_room(quotas);
  if (quotas.charge(bytes)) return true;
  quotas.explain(bytes);
  return false;
}

void driver_refused(DeviceQuotas& quotas, std::uint64_t bytes) {
  std::size_t available = 0, total = 0;
  if (VITAMIN_REAL(cuMemGetInfo_v2)(&available, &total) == CUDA_SUCCESS)
    quotas.explain_device(bytes, {total, available});
}

std::uint64_t array_bytes(const CUDA_ARRAY_DESCRIPTOR& array) {
  return array_bytes(
      CUDA_ARRAY3D_DESCRIPTOR{array.Width, array.Height, 0, array.Format, array.NumChannels, 0}, 1);
}

std::uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels) {
  constexpr unsigned kWithout = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
  if ((array.Flags & kWithout) != 0) return 0;
  const bool layered = (array.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  std::uint64_t width = array.Width, height = std::max<std::uint64_t>(array.Height, 1),
                depth = std::max<std::uint64_t>(array.Depth, 1), sum = 0;
  for (unsigned level = 0; level < std::max(levels, 1U); ++level) {
    std::uint64_t bytes = channel_bytes(array.Format) * array.NumChannels;
    for (const std::uint64_t extent : {width, height, depth})
      if (__builtin_mul_overflow(bytes, extent, &bytes)) return 0;  // the driver refuses it
    sum += bytes;
    width = std::max<std::uint64_t>(width / 2, 1);
    height = std::max<std::uint64_t>(height / 2, 1);
    if (!layered) depth = std::max<std::uint64_t>(depth / 2, 1);
    if (level > 64) return sum;
  }
  return sum;
}

void memory_freed(const void* key, std::unique_ptr<ChargedMemory> taken, CUresult answer) {
  if (taken == nullptr) {
    // Nothing of ours, or of a pool that is charged as a whole.
    if (pools.size() != 0) pools_may_shrink.store(true, std::memory_order_relaxed);
    return;
  }
  if (answer != CUDA_SUCCESS) return note_charged(key, *taken);
  if (taken->pool == nullptr) return taken->quotas->give_back(taken->bytes);
  pools_may_shrink.store(true, std::memory_order_relaxed);
  auto& pool = *static_cast<PoolRecord*>(taken->pool);
  std::uint64_t back = 0;
  bool ended = false;
  DeviceQuotas* const quotas = pool.quotas;
  {
    const std::lock_guard lock(pools_mutex);
    ended = --pool.blocks == 0 && pool.destroyed;
    // Of a pool that is no more what is left is charged by the piece.
    if (pool.destroyed) back = ended ? pool.covered : std::min(taken->bytes, pool.covered);
    pool.covered -= back;
  }
  if (back != 0) quotas->give_back(back);
  if (ended) delete &pool;
}

CUcontext primary_context(CUdevice device) {
  unsigned flags = 0;
  int active = 0;
  CUcontext context = nullptr;
  if (VITAMIN_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS ||
      active == 0 || VITAMIN_REAL(cuDevicePrimaryCtxRetain)(&context, device) != CUDA_SUCCESS)
    return nullptr;
  VITAMIN_REAL(cuDevicePrimaryCtxRelease_v2)(device);
  return context;
}

// --- pools ---------------------------------------------------------------------------------------

PoolCharge charge_pool(CUmemoryPool handle, std::uint64_t bytes, CUstream stream, bool per_thread) {
  PoolCharge charge{nullptr, bytes, false, is_captured(stream)};
  if (charge.captured) return charge;
  const int ordinal = ordinal_of_stream(stream, per_thread);
  if (handle == nullptr &&
      VITAMIN_REAL(cuDeviceGetMemPool)(&handle, std::max(ordinal, 0)) != CUDA_SUCCESS)
    return charge;
  PoolRecord* const pool = record_of(handle, ordinal);
  if (pool == nullptr) return charge;
  const auto take_off = [&](std::uint64_t charged) {
    const std::lock_guard lock(pools_mutex);
    pool->covered += charged;
    pool->in_flight += charged;
    charge.pool = pool;
    charge.bytes = charged;
    return charge;
  };
  if (pool->quotas->charge(bytes)) return take_off(bytes);
  // The pool may have room for it without any more of the device.
  const std::uint64_t used = attribute_of(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  const std::uint64_t reserved = reserved_of(handle);
  const std::uint64_t grows = used + bytes > reserved ? used + bytes - reserved : 0;
  if (pool->quotas->charge(grows)) return take_off(grows);
  make_room(*pool->quotas);
  if (pool->quotas->charge(bytes)) return take_off(bytes);
  pool->quotas->explain(bytes);
  charge.refused = true;
  return charge;
}

CUresult settle_allocation(const PoolCharge& charge, CUresult answer, CUdeviceptr* address,
                           CUstream stream) {
  if (charge.pool == nullptr) return answer;
  PoolRecord& pool = *charge.pool;
  landed(pool, charge.bytes);
  bool fits = settle(pool);
  if (answer != CUDA_SUCCESS) {
    if (answer == CUDA_ERROR_OUT_OF_MEMORY) driver_refused(*pool.quotas, charge.bytes);
    return answer;
  }
  if (!fits) {
    make_room(*pool.quotas);
    fits = settle(pool);
  }
  if (!fits) {
    // The pool took more of the device than was asked of it, and there is no room for that.
    const ReentrancyGuard ours;
    forget_block(*address);
    VITAMIN_REAL(cuMemFreeAsync)(*address, stream);
    VITAMIN_REAL(cuMemPoolTrimTo)(pool.handle, 0);
    settle(pool);
    settle_at_any_price(pool);
    pools_may_shrink.store(true, std::memory_order_relaxed);
    pool.quotas->explain(charge.bytes);
    *address = 0;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (pool.created) {
    note_charged(address_key(*address), {pool.quotas, charge.bytes, nullptr, &pool});
    const std::lock_guard lock(pools_mutex);
    ++pool.blocks;
  }
  return answer;
}

void settle_pools() {
  const ReentrancyGuard ours;
  bool again = false;
  pools.for_each([&](PoolRecord& pool) {
    if (pool.quotas == nullptr || pool.destroyed) return;
    settle(pool);
    // What is freed already may go back to the device at a later wait.
    again = again || pool.covered > attribute_of(pool.handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  });
  pools_may_shrink.store(again, std::memory_order_relaxed);
}

CUresult pool_create(Via<decltype(::cuMemPoolCreate)> via, CUmemoryPool* pool,
                     const CUmemPoolProps* properties) {
  const CUresult answer = via.real(pool, properties);
  if (no_quotas() || answer != CUDA_SUCCESS) return answer;
  auto* const record = new PoolRecord;
  record->handle = *pool;
  record->created = true;
  if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    record->ordinal = properties->location.id;
    record->quotas = quotas_of(record->ordinal);
  }
  pools.insert(*pool, record);
  return answer;
}

CUresult pool_trim(Via<decltype(::cuMemPoolTrimTo)> via, CUmemoryPool pool, std::size_t keep) {
  const CUresult answer = Flushed::run(via, pool, keep);
  if (no_quotas()) return answer;
  PoolRecord* const record = pools.find(pool);
  if (record != nullptr && record->quotas != nullptr) settle(*record);
  return answer;
}

CUresult pool_destroy(Via<decltype(::cuMemPoolDestroy)> via, CUmemoryPool pool) {
  if (no_quotas()) return Flushed::run(via, pool);
  PoolRecord* const record = pools.erase(pool);
  const std::uint64_t used = attribute_of(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  const CUresult answer = Flushed::run(via, pool);
  if (record == nullptr) return answer;
  if (answer != CUDA_SUCCESS) {
    pools.insert(pool, record);
    return answer;
  }
  // What is in use stays with the program, and so does the record, until all of it is freed.
  std::uint64_t back = 0;
  bool ended = false;
  DeviceQuotas* const quotas = record->quotas;
  {
    const std::lock_guard lock(pools_mutex);
    record->destroyed = true;
    ended = record->blocks == 0;
    back = record->covered - (ended ? 0 : std::min(record->covered, used));
    record->covered -= back;
  }
  if (back != 0 && quotas != nullptr) quotas->give_back(back);
  if (ended) delete record;
  return answer;
}

// --- physical memory -----------------------------------------------------------------------------

CUresult physical_create(Via<decltype(::cuMemCreate)> via, CUmemGenericAllocationHandle* handle,
                         std::size_t bytes, const CUmemAllocationProp* properties,
                         unsigned long long flags) {
  const auto call = [&] { return via.real(handle, bytes, properties, flags); };
  if (no_quotas() || handle == nullptr || properties == nullptr || bytes == 0 ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return call();
  DeviceQuotas* const quotas = quotas_of(properties->location.id);
  if (quotas == nullptr) return call();
  const CUresult answer = charged(*quotas, bytes, call);
  if (answer != CUDA_SUCCESS) return answer;
  PhysicalMemory& all = physical_memory();
  const std::lock_guard lock(all.mutex);
  all.by_handle[*handle] = new Physical{quotas, bytes};
  return answer;
}

CUresult physical_release(Via<decltype(::cuMemRelease)> via, CUmemGenericAllocationHandle handle) {
  if (no_quotas()) return Flushed::run(via, handle);
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
  const CUresult answer = Flushed::run(via, handle);
  if (memory == nullptr) return answer;
  const std::lock_guard lock(all.mutex);
  if (answer != CUDA_SUCCESS) {
    if (last) all.by_handle[handle] = memory;
    return answer;
  }
  --memory->handles;
  give_back_if_unused(memory);
  return answer;
}

CUresult physical_retain(Via<decltype(::cuMemRetainAllocationHandle)> via,
                         CUmemGenericAllocationHandle* handle, void* address) {
  const CUresult answer = via.real(handle, address);
  if (no_quotas() || answer != CUDA_SUCCESS) return answer;
  PhysicalMemory& all = physical_memory();
  const std::lock_guard lock(all.mutex);
  const auto at = reinterpret_cast<CUdeviceptr>(address);
  auto mapping = all.mapped.upper_bound(at);
  if (mapping == all.mapped.begin()) return answer;
  --mapping;
  if (at - mapping->first >= mapping->second.bytes) return answer;
  all.by_handle[*handle] = mapping->second.memory;
  ++mapping->second.memory->handles;
  return answer;
}

// Memory of this process that comes back to it is held once more.
CUresult physical_import(Via<decltype(::cuMemImportFromShareableHandle)> via,
                         CUmemGenericAllocationHandle* handle, void* shared,
                         CUmemAllocationHandleType type) {
  const CUresult answer = via.real(handle, shared, type);
  if (no_quotas() || answer != CUDA_SUCCESS) return answer;
  PhysicalMemory& all = physical_memory();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.by_handle.find(*handle); found != all.by_handle.end())
    ++found->second->handles;
  return answer;
}

CUresult physical_map(Via<decltype(::cuMemMap)> via, CUdeviceptr address, std::size_t bytes,
                      std::size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags) {
  const CUresult answer = via.real(address, bytes, offset, handle, flags);
  if (no_quotas() || answer != CUDA_SUCCESS) return answer;
  PhysicalMemory& all = physical_memory();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_handle.find(handle);
  if (found == all.by_handle.end()) return answer;
  ++found->second->mappings;
  all.mapped[address] = {bytes, found->second};
  return answer;
}

CUresult physical_unmap(Via<decltype(::cuMemUnmap)> via, CUdeviceptr address, std::size_t bytes) {
  if (no_quotas()) return Flushed::run(via, address, bytes);
  PhysicalMemory& all = physical_memory();
  std::map<CUdeviceptr, Mapping> taken;
  {
    const std::lock_guard lock(all.mutex);
    auto at = all.mapped.lower_bound(address);
    while (at != all.mapped.end() && at->first - address < bytes)
      taken.insert(all.mapped.extract(at++));
  }
  const CUresult answer = Flushed::run(via, address, bytes);
  const std::lock_guard lock(all.mutex);
  if (answer != CUDA_SUCCESS) {
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

std::uint64_t bounded_total(CUdevice device, std::uint64_t real) {
  DeviceQuotas* const quotas = quotas_of(device);
  return quotas != nullptr ? quotas->bounded({real, real}).total : real;
}

}  // namespace vitamin::interpose
