// SPDX-License-Identifier: Apache-2.0
//
// The calls of the driver that take device memory, give it back or say how much there is, bounded
// by quotas (interpose/quotas.h). Each treatment here stands around the one that the call has
// without a quota, and is nothing but that where there is none.
//
//   linear memory, arrays   charged with the size that is asked for; returned when they are freed
//                           or their context ends
//   physical memory (VMM)   charged by cuMemCreate to the device that it names; returned when
//                           neither a handle nor a mapping of it is left
//   pools                   charged with what the pool has reserved of the device: as much more as
//                           an allocation asks for before it, what the pool says after it
//
// memory.txt classifies every function of cuda.h that has to do with device memory.
#pragma once

#include "interpose/call_wrappers.h"
#include "interpose/libcudart/vendor_traits.h"
#include "interpose/quotas.h"

namespace vitamin::interpose {

// The call as it came.
struct Natively {
  template <class Result, class... Args>
  static Result run(Via<Result(Args...)> via, Args... args) {
    return via.real(args...);
  }
};

// --- charged with what is asked for --------------------------------------------------------------

// The quotas of the device that is current, and the context; no quotas: none hold there.
struct Spot {
  DeviceQuotas* quotas = nullptr;
  CUcontext context = nullptr;
};
Spot current_spot();

// Charges, after idle memory of this process's pools was given back if need be. False: refused.
bool reserve(DeviceQuotas& quotas, std::uint64_t bytes);
// The driver refused what was reserved.
void driver_refused(DeviceQuotas& quotas, std::uint64_t bytes);

template <class Call>
CUresult charged(DeviceQuotas& quotas, std::uint64_t bytes, const Call& call) {
  if (!reserve(quotas, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult answer = call();
  if (answer == CUDA_SUCCESS) return answer;
  quotas.give_back(bytes);
  if (answer == CUDA_ERROR_OUT_OF_MEMORY) driver_refused(quotas, bytes);
  return answer;
}

template <class Address>
const void* address_key(Address address) {
  return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(address));
}
inline const void* address_key(CUarray array) { return array; }
inline const void* address_key(CUmipmappedArray array) { return array; }

// (address, bytes, ...)
template <class Inner>
struct Charges {
  template <class Address, class Bytes, class... Rest>
  static CUresult run(Via<CUresult(Address*, Bytes, Rest...)> via, Address* address, Bytes bytes,
                      Rest... rest) {
    // What the driver refuses for its arguments is its to refuse.
    if (no_quotas() || address == nullptr || bytes == 0)
      return Inner::run(via, address, bytes, rest...);
    const Spot spot = current_spot();
    if (spot.quotas == nullptr) return Inner::run(via, address, bytes, rest...);
    const CUresult answer =
        charged(*spot.quotas, bytes, [&] { return Inner::run(via, address, bytes, rest...); });
    if (answer == CUDA_SUCCESS)
      note_charged(address_key(*address), {spot.quotas, bytes, spot.context, nullptr});
    return answer;
  }
};

// (address, pitch, width, height, element): the driver chooses the pitch.
template <class Inner>
struct ChargesPitched {
  // What drivers choose (512 on all that were asked); the charge is corrected by what this one did.
  static constexpr std::uint64_t kPitch = 512;

  template <class Address, class Bytes>
  static CUresult run(Via<CUresult(Address*, Bytes*, Bytes, Bytes, unsigned)> via, Address* address,
                      Bytes* pitch, Bytes width, Bytes height, unsigned element) {
    const auto call = [&] { return Inner::run(via, address, pitch, width, height, element); };
    if (no_quotas() || address == nullptr || pitch == nullptr || width == 0 || height == 0)
      return call();
    const Spot spot = current_spot();
    if (spot.quotas == nullptr) return call();
    std::uint64_t expected = 0;
    if (__builtin_mul_overflow((std::uint64_t{width} + kPitch - 1) / kPitch * kPitch,
                               std::uint64_t{height}, &expected))
      return call();  // more than any device has
    const CUresult answer = charged(*spot.quotas, expected, call);
    if (answer != CUDA_SUCCESS) return answer;
    const std::uint64_t bytes = std::uint64_t{*pitch} * height;
    if (bytes < expected) spot.quotas->give_back(expected - bytes);
    if (bytes > expected && !spot.quotas->charge(bytes - expected)) {
      spot.quotas->give_back(expected);
      spot.quotas->explain(bytes);
      give_up(*address);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    note_charged(address_key(*address), {spot.quotas, bytes, spot.context, nullptr});
    return answer;
  }

 private:
  static void give_up(CUdeviceptr address) { VITAMIN_REAL(cuMemFree_v2)(address); }
  static void give_up(CUdeviceptr_v1 address) { VITAMIN_REAL(cuMemFree)(address); }
};

// What the driver takes for an array, as far as it says; 0: nothing (sparse, or mapped later).
std::uint64_t array_bytes(const CUDA_ARRAY_DESCRIPTOR& array);
std::uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels = 1);
inline std::uint64_t array_bytes(const CUDA_ARRAY_DESCRIPTOR_v1& array) {
  return array_bytes(
      CUDA_ARRAY_DESCRIPTOR{array.Width, array.Height, array.Format, array.NumChannels});
}
inline std::uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR_v1& array) {
  return array_bytes(CUDA_ARRAY3D_DESCRIPTOR{array.Width, array.Height, array.Depth, array.Format,
                                             array.NumChannels, array.Flags});
}

// (handle, descriptor[, levels])
template <class Inner>
struct ChargesArray {
  template <class Handle, class Descriptor, class... Levels>
  static CUresult run(Via<CUresult(Handle*, const Descriptor*, Levels...)> via, Handle* handle,
                      const Descriptor* descriptor, Levels... levels) {
    const auto call = [&] { return Inner::run(via, handle, descriptor, levels...); };
    if (no_quotas() || handle == nullptr || descriptor == nullptr) return call();
    const Spot spot = current_spot();
    const std::uint64_t bytes = array_bytes(*descriptor, levels...);
    if (spot.quotas == nullptr || bytes == 0) return call();
    const CUresult answer = charged(*spot.quotas, bytes, call);
    if (answer == CUDA_SUCCESS)
      note_charged(address_key(*handle), {spot.quotas, bytes, spot.context, nullptr});
    return answer;
  }
};

// After the driver's answer to a call that frees.
void memory_freed(const void* key, std::unique_ptr<ChargedMemory> taken, CUresult answer);

// (address or handle[, stream]): gives back what was charged for it.
template <class Inner>
struct GivesBack {
  template <class Handle, class... Stream>
  static CUresult run(Via<CUresult(Handle, Stream...)> via, Handle handle, Stream... stream) {
    if (no_quotas()) return Inner::run(via, handle, stream...);
    std::unique_ptr<ChargedMemory> taken = take_charged(address_key(handle));
    const CUresult answer = Inner::run(via, handle, stream...);
    memory_freed(address_key(handle), std::move(taken), answer);
    return answer;
  }
};

// --- contexts ------------------------------------------------------------------------------------

// (context): its memory is gone with it.
template <class Inner>
struct EndsContext {
  static CUresult run(Via<CUresult(CUcontext)> via, CUcontext context) {
    const CUresult answer = Inner::run(via, context);
    if (!no_quotas() && answer == CUDA_SUCCESS) give_back_context(context);
    return answer;
  }
};
// (device): of its primary context, if that was the last reference.
CUcontext primary_context(CUdevice device);  // null: there is none
template <class Inner>
struct EndsPrimary {
  static CUresult run(Via<CUresult(CUdevice)> via, CUdevice device) {
    if (no_quotas()) return Inner::run(via, device);
    const CUcontext context = primary_context(device);
    const CUresult answer = Inner::run(via, device);
    if (context != nullptr && primary_context(device) == nullptr) give_back_context(context);
    return answer;
  }
};

// --- physical memory -----------------------------------------------------------------------------

CUresult physical_create(Via<decltype(::cuMemCreate)> via, CUmemGenericAllocationHandle* handle,
                         std::size_t bytes, const CUmemAllocationProp* properties,
                         unsigned long long flags);
CUresult physical_release(Via<decltype(::cuMemRelease)> via, CUmemGenericAllocationHandle handle);
CUresult physical_retain(Via<decltype(::cuMemRetainAllocationHandle)> via,
                         CUmemGenericAllocationHandle* handle, void* address);
CUresult physical_import(Via<decltype(::cuMemImportFromShareableHandle)> via,
                         CUmemGenericAllocationHandle* handle, void* shared,
                         CUmemAllocationHandleType type);
CUresult physical_map(Via<decltype(::cuMemMap)> via, CUdeviceptr address, std::size_t bytes,
                      std::size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags);
CUresult physical_unmap(Via<decltype(::cuMemUnmap)> via, CUdeviceptr address, std::size_t bytes);

// --- pools ---------------------------------------------------------------------------------------

struct PoolRecord;
// A charge for what a pool may take for an allocation.
struct PoolCharge {
  PoolRecord* pool = nullptr;  // null: nothing bounds it
  std::uint64_t bytes = 0;
  bool refused = false;
  bool captured = false;  // the memory is a graph's
};
// `pool` null: the one that the stream's device allocates from.
PoolCharge charge_pool(CUmemoryPool pool, std::uint64_t bytes, CUstream stream, bool per_thread);
// After the driver's answer: what the pool has now. Not kSuccess: it took more than there is room
// for, and what it gave was given back.
CUresult settle_allocation(const PoolCharge& charge, CUresult answer, CUdeviceptr* address,
                           CUstream stream);
// All pools: what they have now.
void settle_pools();
// Memory of pools may have been given back to the device since they were settled.
extern constinit std::atomic<bool> pools_may_shrink;

template <class... Args>
CUmemoryPool pool_argument(Args... args) {
  CUmemoryPool pool = nullptr;
  const auto take = [&](auto argument) {
    if constexpr (std::is_same_v<decltype(argument), CUmemoryPool>) pool = argument;
  };
  (take(args), ...);
  return pool;
}

// (address, bytes, [pool,] stream)
template <class Inner>
struct ChargesPool {
  template <class... Rest>
  static CUresult run(Via<CUresult(CUdeviceptr*, std::size_t, Rest...)> via, CUdeviceptr* address,
                      std::size_t bytes, Rest... rest) {
    if (no_quotas() || address == nullptr || bytes == 0)
      return Inner::run(via, address, bytes, rest...);
    const CUstream stream = stream_of(rest...);
    const PoolCharge charge = charge_pool(pool_argument(rest...), bytes, stream, via.per_thread);
    if (charge.refused) return CUDA_ERROR_OUT_OF_MEMORY;
    return settle_allocation(charge, Inner::run(via, address, bytes, rest...), address, stream);
  }
};

// After a wait of the host, or a call that shrinks pools.
template <class Inner>
struct Settles {
  template <class... Args>
  static CUresult run(Via<CUresult(Args...)> via, Args... args) {
    const CUresult answer = Inner::run(via, args...);
    if (pools_may_shrink.load(std::memory_order_relaxed)) settle_pools();
    return answer;
  }
};

CUresult pool_create(Via<decltype(::cuMemPoolCreate)> via, CUmemoryPool* pool,
                     const CUmemPoolProps* properties);
CUresult pool_trim(Via<decltype(::cuMemPoolTrimTo)> via, CUmemoryPool pool, std::size_t keep);
CUresult pool_destroy(Via<decltype(::cuMemPoolDestroy)> via, CUmemoryPool pool);

// --- queries -------------------------------------------------------------------------------------

DeviceQuotas::View bounded_here(DeviceQuotas::View real);
std::uint64_t bounded_total(CUdevice device, std::uint64_t real);

template <class Bytes>
CUresult memory_info(Via<CUresult(Bytes*, Bytes*)> via, Bytes* available, Bytes* total) {
  if (no_quotas()) return via.real(available, total);
  Bytes real_available = 0, real_total = 0;
  const CUresult answer = via.real(&real_available, &real_total);
  // What the driver does with null pointers is its own.
  if (answer != CUDA_SUCCESS || available == nullptr || total == nullptr)
    return via.real(available, total);
  const DeviceQuotas::View view = bounded_here({real_total, real_available});
  *available = static_cast<Bytes>(view.free);
  *total = static_cast<Bytes>(view.total);
  return answer;
}

template <class Bytes>
CUresult total_memory(Via<CUresult(Bytes*, CUdevice)> via, Bytes* bytes, CUdevice device) {
  const CUresult answer = via.real(bytes, device);
  if (!no_quotas() && answer == CUDA_SUCCESS && bytes != nullptr)
    *bytes = static_cast<Bytes>(bounded_total(device, *bytes));
  return answer;
}

}  // namespace vitamin::interpose
