// SPDX-License-Identifier: Apache-2.0
//
// Device addresses of memory that the program registered, where the driver gave it an address of
// its own: an access is led to the program's address. Everything else is at the address at which
// the host has it. Any thread; lookups take no lock.
#pragma once

#include <atomic>
#include <cstdint>

namespace vitamin::soft::amdgpu::isa {

// Between the first and the last alias; outside it an address is no alias. Changed under a lock.
struct AliasRange {
  std::atomic<std::uint64_t> begin{~0ull}, end{0};
};
extern constinit AliasRange alias_range;

std::uint64_t find_alias(std::uint64_t address);  // the host's address, or `address`

// False: there are too many.
bool add_alias(std::uint64_t address, std::uint64_t bytes, std::uint64_t host);
void remove_alias(std::uint64_t address);  // which need not be one

// False: every address from `first` to `last` is that of its memory.
inline bool may_have_alias(std::uint64_t first, std::uint64_t last) {
  return last >= alias_range.begin.load(std::memory_order_relaxed) &&
         first < alias_range.end.load(std::memory_order_relaxed);
}

inline std::uint64_t host_address(std::uint64_t address) {
  return may_have_alias(address, address) ? find_alias(address) : address;
}

}  // namespace vitamin::soft::amdgpu::isa
