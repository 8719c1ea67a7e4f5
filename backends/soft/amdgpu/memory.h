// SPDX-License-Identifier: Apache-2.0
//
// Allocations and registered user memory of one process, and allocations of others that they share.
// Thread-safe.
//
// Memory of a GPU is a piece of a file without a name, which other processes of the user may map
// through /proc when they have a handle (its place in the file). Pieces are never used twice.
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

  std::uint64_t offset = kNoFile;  // in the file

  static constexpr std::uint64_t kNoFile = ~0ull;
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
  void forget(void* at);  // user memory, or what another process shares
  std::optional<Allocation> find(std::uint64_t address) const;  // of either kind of address
  bool set_user_data(std::uint64_t address, void* user_data);
  // For another process: false where there is no such allocation, or the process has ended.
  bool share(std::uint64_t begin, HsaSharedMemoryHandle& handle) const;
  std::optional<Allocation> map_shared(const HsaSharedMemoryHandle& handle);

 private:
  int file();
  std::map<std::uint64_t, Allocation>::const_iterator find_locked(std::uint64_t address) const;

  mutable std::mutex mutex_;
  std::map<std::uint64_t, Allocation> allocations_;
  int file_ = -1;
  std::uint64_t file_bytes_ = 0;
};

}  // namespace vitamin::soft::amdgpu
