// SPDX-License-Identifier: Apache-2.0
//
// Allocations and registered user memory of one process. Thread-safe.
#pragma once

#include <hsakmt.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace vitamin::soft::amdgpu {

struct Allocation {
  std::uint64_t begin = 0, bytes = 0;
  std::uint32_t node = 0;
  HsaMemFlags flags{};
  HSA_POINTER_TYPE type = HSA_POINTER_UNKNOWN;
  void* user_data = nullptr;

  bool registered() const { return type == HSA_POINTER_REGISTERED_USER; }
  // Registered memory has a device address of its own; see isa::kUserAddressTag.
  std::uint64_t device_address() const;
};

class Memory {
 public:
  // Null: no memory. `at` other than null: there or nowhere.
  void* allocate(std::uint32_t node, std::uint64_t bytes, HsaMemFlags flags, void* at);
  void free(void* at, std::uint64_t bytes);
  void add_user(void* at, std::uint64_t bytes, HsaMemFlags flags);
  void remove_user(void* at);
  std::optional<Allocation> find(std::uint64_t address) const;  // of either kind of address
  bool set_user_data(std::uint64_t address, void* user_data);

 private:
  std::map<std::uint64_t, Allocation>::const_iterator find_locked(std::uint64_t address) const;

  mutable std::mutex mutex_;
  std::map<std::uint64_t, Allocation> allocations_;
};

}  // namespace vitamin::soft::amdgpu
