// SPDX-License-Identifier: Apache-2.0
//
// Memory: who owns an address, and what kind of memory it is.
#pragma once

#include "backends/soft/libcuda/driver.h"

namespace vitamin::soft::driver {

// What the copy rules ask about an address.
enum class Place : std::uint8_t { kPageable, kPinned, kDevice };
Place place_of(const void* address);
// Whether [address, address + bytes) lies inside one allocation.
bool inside_allocation(const void* address, std::size_t bytes);

// What is allocated from now on.
MemoryAllocation& publish(std::uintptr_t base, std::size_t bytes, MemoryKind kind, Context* context,
                          unsigned flags);

void make_default_pool(Device& device);
// Memory of the current context's device; no capture may be open.
CUresult allocate_on_device(CUdeviceptr* pointer, std::size_t bytes, MemoryKind kind,
                            unsigned flags);
// Frees of every sort: check, wait for the whole address space (as the native calls do), free.
// `when_unknown`: the answer where no allocation begins at `base`, or none that is accepted.
CUresult free_synchronously(std::uintptr_t base, CUresult when_unknown,
                            bool (*accepts)(MemoryKind));

// A context's own allocations; pools belong to the device and stay.
void free_context_memory(Context& context);
// A stream that goes away: blocks that it is freeing are no longer its private reserve.
void forget_pool_frees(Stream& stream);
// A freed pool allocation, after its stream's work or the whole context's is done.
void return_to_pool(Pool& pool, std::uintptr_t base);

}  // namespace vitamin::soft::driver
