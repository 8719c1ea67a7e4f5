// SPDX-License-Identifier: Apache-2.0
//
// The calls that take device memory, give it back or say how much there is, bounded by quotas
// (quotas.h). Each treatment here stands around the one that the call has without a quota, and is
// nothing but that where there is none.
//
//   linear memory, arrays   charged with the size that is asked for; returned when they are freed
//                           or their context ends
//   physical memory (VMM)   charged by the creation to the device that it names; returned when
//                           neither a handle nor a mapping of it is left
//   pools                   charged with what the pool has reserved of the device: as much more as
//                           an allocation asks for before it, what the pool says after it
//   graphs                  allocation nodes, in the same way: before an upload or a launch as
//                           much more as it may add, after it what the device has reserved for
//                           graphs
//
// memory.txt of a vendor's directory classifies every function that has to do with device memory.
#pragma once

#include "interpose/array_shape.h"
#include "interpose/call_wrappers.h"
#include "interpose/graphs.h"
#include "interpose/quotas.h"

namespace vitamin::interpose {

// --- by the vendor -------------------------------------------------------------------------------

int current_ordinal();  // of the device that is current; below 0: none
int ordinal_of(NativeStream stream, bool per_thread);
// What the device that is current has; of total 0: unknown.
DeviceQuotas::View native_memory();

enum class Figure : std::uint8_t { kReserved, kUsed };
std::uint64_t pool_memory(MemoryPool pool, Figure figure);
// The pool that allocations without a pool come from.
std::optional<MemoryPool> pool_of_device(int ordinal);
// The pool that a device has from the beginning; empty: there is no such device, or no pools.
std::optional<MemoryPool> default_pool_of_device(int ordinal);
void trim_pool(MemoryPool pool);
// The device that memory of these properties is on; below 0: none.
int device_of(const PoolProperties& properties);
int device_of(const PhysicalProperties& properties);

// Of the device's memory for graphs.
std::uint64_t graph_memory(int ordinal, Figure figure);
void trim_graph_memory(int ordinal);
// What an allocation node takes, or what a free node frees.
struct MemoryNode {
  enum class Kind : std::uint8_t { kNone, kAllocates, kFrees } kind = Kind::kNone;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  int ordinal = -1;
};
MemoryNode memory_node(GraphNode node);
void free_natively(DeviceAddress address);
void free_natively(DeviceAddress address, NativeStream stream);

// --- charged with what is asked for --------------------------------------------------------------

// The call as it came.
struct Natively {
  template <class Result, class... Args>
  static Result run(EntryPoint<Result(Args...)> entry, Args... args) {
    return entry.real(args...);
  }
};

// The quotas of the device that is current, and the context; no quotas: none hold there.
struct Spot {
  DeviceQuotas* quotas = nullptr;
  NativeContext context{};
};
Spot current_spot();

// Charges, after idle memory of this process's pools was given back if need be. False: refused.
bool reserve(DeviceQuotas& quotas, std::uint64_t bytes);
// The vendor refused what was reserved.
void vendor_refused(DeviceQuotas& quotas, std::uint64_t bytes);

// Idle memory of this process's pools and graphs goes back to the device, and what is deferred to
// its streams: natively frees that are queued there would be known to the pools by now.
void make_room(const DeviceQuotas& quotas);
void trim_graphs_of(const DeviceQuotas& quotas);  // the graphs' part of that

// `expected`: bytes that are charged; the caller says what was got where the call succeeds.
template <class Call>
ApiStatus charged_as_expected(DeviceQuotas& quotas, std::uint64_t expected, const Call& call) {
  if (!reserve(quotas, expected)) return kOutOfMemory;
  const ApiStatus answer = call();
  if (answer == kSuccess) return answer;
  quotas.uncharge(expected);
  if (answer == kOutOfMemory) vendor_refused(quotas, expected);
  return answer;
}
template <class Call>
ApiStatus charged(DeviceQuotas& quotas, std::uint64_t bytes, const Call& call) {
  const ApiStatus answer = charged_as_expected(quotas, bytes, call);
  if (answer == kSuccess) quotas.got(bytes);
  return answer;
}

template <class Handle>
const void* address_key(Handle handle) {
  if constexpr (std::is_pointer_v<Handle>)
    return handle;
  else
    return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(handle));
}

// (address, bytes, ...)
template <class Inner>
struct Charges {
  template <class Address, class Bytes, class... Rest>
  static ApiStatus run(EntryPoint<ApiStatus(Address*, Bytes, Rest...)> entry, Address* address,
                       Bytes bytes, Rest... rest) {
    // What the vendor refuses for its arguments is its to refuse.
    if (no_quotas() || address == nullptr || bytes == 0)
      return Inner::run(entry, address, bytes, rest...);
    const Spot spot = current_spot();
    if (spot.quotas == nullptr) return Inner::run(entry, address, bytes, rest...);
    const ApiStatus answer =
        charged(*spot.quotas, bytes, [&] { return Inner::run(entry, address, bytes, rest...); });
    if (answer == kSuccess)
      note_charged(address_key(*address), {spot.quotas, bytes, spot.context, nullptr});
    return answer;
  }
};

// Rows of which the vendor chooses the pitch. `call` makes the call; `address` and `pitch` say then
// what it answered.
template <class Call, class Address, class Pitch>
ApiStatus charged_rows(std::uint64_t width, std::uint64_t rows, const Call& call,
                       const Address& address, const Pitch& pitch) {
  // What CUDA's drivers choose (512 on all that were asked); the charge is corrected by what this
  // one did.
  constexpr std::uint64_t kPitch = 512;
  if (no_quotas() || width == 0 || rows == 0) return call();
  const Spot spot = current_spot();
  std::uint64_t expected = 0;
  if (spot.quotas == nullptr ||
      __builtin_mul_overflow((width + kPitch - 1) / kPitch * kPitch, rows, &expected))
    return call();  // more than any device has
  const ApiStatus answer = charged_as_expected(*spot.quotas, expected, call);
  if (answer != kSuccess) return answer;
  const std::uint64_t bytes = std::uint64_t{pitch} * rows;
  if (bytes < expected) spot.quotas->uncharge(expected - bytes);
  if (bytes > expected && !spot.quotas->charge(bytes - expected)) {
    spot.quotas->uncharge(expected);
    spot.quotas->explain(bytes);
    free_natively(address);
    return kOutOfMemory;
  }
  spot.quotas->got(bytes);
  note_charged(address_key(address), {spot.quotas, bytes, spot.context, nullptr});
  return answer;
}

// (address, pitch, width, height, ...)
template <class Inner>
struct ChargesPitched {
  template <class Address, class Bytes, class... Rest>
  static ApiStatus run(EntryPoint<ApiStatus(Address*, Bytes*, Bytes, Bytes, Rest...)> entry,
                       Address* address, Bytes* pitch, Bytes width, Bytes height, Rest... rest) {
    const auto call = [&] { return Inner::run(entry, address, pitch, width, height, rest...); };
    if (address == nullptr || pitch == nullptr) return call();
    return charged_rows(width, height, call, *address, *pitch);
  }
};

// 0: nothing, or more than any device has.
std::uint64_t array_bytes(const ArrayShape& shape);

// (handle, description, ...): `array_shape` by the vendor.
template <class Inner>
struct ChargesArray {
  template <class Handle, class Description, class... Rest>
  static ApiStatus run(EntryPoint<ApiStatus(Handle*, Description*, Rest...)> entry, Handle* handle,
                       Description* description, Rest... rest) {
    const auto call = [&] { return Inner::run(entry, handle, description, rest...); };
    if (no_quotas() || handle == nullptr || description == nullptr) return call();
    const Spot spot = current_spot();
    const std::uint64_t bytes = array_bytes(array_shape(*description, rest...));
    if (spot.quotas == nullptr || bytes == 0) return call();
    const ApiStatus answer = charged(*spot.quotas, bytes, call);
    if (answer == kSuccess)
      note_charged(address_key(*handle), {spot.quotas, bytes, spot.context, nullptr});
    return answer;
  }
};

// After the vendor's answer to a call that frees.
void memory_freed(const void* key, std::unique_ptr<ChargedMemory> taken, ApiStatus answer);

// (address or handle[, stream]): gives back what was charged for it.
template <class Inner>
struct GivesBack {
  template <class Handle, class... Stream>
  static ApiStatus run(EntryPoint<ApiStatus(Handle, Stream...)> entry, Handle handle,
                       Stream... stream) {
    if (no_quotas() || handle == Handle{}) return Inner::run(entry, handle, stream...);
    std::unique_ptr<ChargedMemory> taken = take_charged(address_key(handle));
    const ApiStatus answer = Inner::run(entry, handle, stream...);
    memory_freed(address_key(handle), std::move(taken), answer);
    return answer;
  }
};

// --- physical memory -----------------------------------------------------------------------------

ApiStatus physical_create(EntryPoint<ApiStatus(PhysicalHandle*, std::size_t,
                                               const PhysicalProperties*, unsigned long long)>
                              entry,
                          PhysicalHandle* handle, std::size_t bytes,
                          const PhysicalProperties* properties, unsigned long long flags);
ApiStatus physical_release(EntryPoint<ApiStatus(PhysicalHandle)> entry, PhysicalHandle handle);
ApiStatus physical_retain(EntryPoint<ApiStatus(PhysicalHandle*, void*)> entry,
                          PhysicalHandle* handle, void* address);
ApiStatus physical_import(EntryPoint<ApiStatus(PhysicalHandle*, void*, ShareableType)> entry,
                          PhysicalHandle* handle, void* shared, ShareableType type);
ApiStatus physical_map(EntryPoint<ApiStatus(DeviceAddress, std::size_t, std::size_t, PhysicalHandle,
                                            unsigned long long)>
                           entry,
                       DeviceAddress address, std::size_t bytes, std::size_t offset,
                       PhysicalHandle handle, unsigned long long flags);
ApiStatus physical_unmap(EntryPoint<ApiStatus(DeviceAddress, std::size_t)> entry,
                         DeviceAddress address, std::size_t bytes);

// --- pools ---------------------------------------------------------------------------------------

struct PoolRecord;
// A charge for what a pool may take for an allocation.
struct PoolCharge {
  PoolRecord* pool = nullptr;  // null: nothing bounds it
  std::uint64_t bytes = 0;
  bool refused = false;
};
// Without a pool: the one that the stream's device allocates from.
PoolCharge charge_pool(std::optional<MemoryPool> pool, std::uint64_t bytes, NativeStream stream,
                       bool per_thread);
// After the vendor's answer: what the pool has now. Not kSuccess: it took more than there is room
// for, and what it gave was given back.
ApiStatus settle_allocation(const PoolCharge& charge, ApiStatus answer, DeviceAddress* address,
                            NativeStream stream);
// All pools: what they have now.
void settle_pools();
// Memory of pools may have been given back to the device since they were settled.
extern constinit std::atomic<bool> pools_may_shrink;

template <class... Args>
std::optional<MemoryPool> pool_argument(Args... args) {
  std::optional<MemoryPool> pool;
  const auto take = [&](auto argument) {
    if constexpr (std::is_same_v<decltype(argument), MemoryPool>) pool = argument;
  };
  (take(args), ...);
  return pool;
}

// (address, bytes, [pool,] stream)
template <class Inner>
struct ChargesPool {
  template <class... Rest>
  static ApiStatus run(EntryPoint<ApiStatus(DeviceAddress*, std::size_t, Rest...)> entry,
                       DeviceAddress* address, std::size_t bytes, Rest... rest) {
    if (no_quotas() || address == nullptr || bytes == 0)
      return Inner::run(entry, address, bytes, rest...);
    const NativeStream stream = stream_of(rest...);
    const PoolCharge charge = charge_pool(pool_argument(rest...), bytes, stream, entry.per_thread);
    if (charge.refused) return kOutOfMemory;
    return settle_allocation(charge, Inner::run(entry, address, bytes, rest...), address, stream);
  }
};

// After a wait of the host, or a call that shrinks pools.
template <class Inner>
struct Settles {
  template <class... Args>
  static ApiStatus run(EntryPoint<ApiStatus(Args...)> entry, Args... args) {
    const ApiStatus answer = Inner::run(entry, args...);
    if (pools_may_shrink.load(std::memory_order_relaxed)) settle_pools();
    return answer;
  }
};

ApiStatus pool_create(EntryPoint<ApiStatus(MemoryPool*, const PoolProperties*)> entry,
                      MemoryPool* pool, const PoolProperties* properties);
ApiStatus pool_trim(EntryPoint<ApiStatus(MemoryPool, std::size_t)> entry, MemoryPool pool,
                    std::size_t keep);
ApiStatus pool_destroy(EntryPoint<ApiStatus(MemoryPool)> entry, MemoryPool pool);

// --- graphs --------------------------------------------------------------------------------------

struct GraphCharge {
  int ordinal = -1;
  const void* user = nullptr;
  std::uint64_t bytes = 0;
};
struct GraphCharges {
  std::vector<GraphCharge> devices;
  bool refused = false;
};
// For an upload or a launch of the executable in the stream.
GraphCharges charge_graph(GraphExec executable, NativeStream stream);
// For one of a graph that becomes an executable.
GraphCharges charge_graph_of(Graph graph, NativeStream stream);
ApiStatus settle_graph(const GraphCharges& charges, ApiStatus answer);
// The executable was made of the graph: what its nodes take.
void note_graph_memory(GraphExec executable, Graph graph);
void forget_graph_memory(GraphExec executable);

// (executable, stream)
template <class Inner>
struct ChargesGraph {
  static ApiStatus run(EntryPoint<ApiStatus(GraphExec, NativeStream)> entry, GraphExec executable,
                       NativeStream stream) {
    if (no_quotas()) return Inner::run(entry, executable, stream);
    const GraphCharges charges = charge_graph(executable, stream);
    if (charges.refused) return kOutOfMemory;
    return settle_graph(charges, Inner::run(entry, executable, stream));
  }
};

// (executable, graph, ...)
template <class Inner>
struct ChargesInstantiation {
  template <class... Rest>
  static ApiStatus run(EntryPoint<ApiStatus(GraphExec*, Graph, Rest...)> entry,
                       GraphExec* executable, Graph graph, Rest... rest) {
    if (no_quotas()) return Inner::run(entry, executable, graph, rest...);
    GraphCharges charges;
    if (const auto stream = uploads_to(rest...)) charges = charge_graph_of(graph, *stream);
    if (charges.refused) return kOutOfMemory;
    const ApiStatus answer = settle_graph(charges, Inner::run(entry, executable, graph, rest...));
    if (answer == kSuccess) note_graph_memory(*executable, graph);
    return answer;
  }
};

// (executable): what it had stays with the device until that is trimmed.
template <class Inner>
struct ForgetsGraphMemory {
  static ApiStatus run(EntryPoint<ApiStatus(GraphExec)> entry, GraphExec executable) {
    if (!no_quotas()) forget_graph_memory(executable);
    return Inner::run(entry, executable);
  }
};

ApiStatus graph_trim(EntryPoint<ApiStatus(int)> entry, int ordinal);

// --- queries -------------------------------------------------------------------------------------

DeviceQuotas::View bounded_here(DeviceQuotas::View real);
std::uint64_t bounded_total(int ordinal, std::uint64_t real);

template <class Bytes>
ApiStatus memory_info(EntryPoint<ApiStatus(Bytes*, Bytes*)> entry, Bytes* available, Bytes* total) {
  if (no_quotas()) return entry.real(available, total);
  Bytes real_available = 0, real_total = 0;
  const ApiStatus answer = entry.real(&real_available, &real_total);
  // What the vendor does with null pointers is its own.
  if (answer != kSuccess || available == nullptr || total == nullptr)
    return entry.real(available, total);
  const DeviceQuotas::View view = bounded_here({real_total, real_available});
  *available = static_cast<Bytes>(view.free);
  *total = static_cast<Bytes>(view.total);
  return answer;
}

template <class Bytes>
ApiStatus total_memory(EntryPoint<ApiStatus(Bytes*, int)> entry, Bytes* bytes, int ordinal) {
  const ApiStatus answer = entry.real(bytes, ordinal);
  if (!no_quotas() && answer == kSuccess && bytes != nullptr)
    *bytes = static_cast<Bytes>(bounded_total(ordinal, *bytes));
  return answer;
}

}  // namespace vitamin::interpose
