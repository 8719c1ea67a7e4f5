// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/memory.h"

#include <iterator>

namespace vitamin::soft::amdgpu {

void Memory::add(std::uint64_t begin, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!find_locked(begin)) ranges_[begin] = bytes;
}

void Memory::remove(std::uint64_t begin) {
  const std::lock_guard lock(mutex_);
  ranges_.erase(begin);
}

void Memory::split(std::uint64_t at) {
  const std::lock_guard lock(mutex_);
  const auto around = find_locked(at);
  if (!around || around->begin == at) return;
  ranges_[around->begin] = at - around->begin;
  ranges_[at] = around->begin + around->bytes - at;
}

std::optional<MappedRange> Memory::find(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  return find_locked(address);
}

std::optional<MappedRange> Memory::find_locked(std::uint64_t address) const {
  const auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return std::nullopt;
  const auto& [begin, bytes] = *std::prev(after);
  if (address - begin >= bytes) return std::nullopt;
  return MappedRange{begin, bytes};
}

}  // namespace vitamin::soft::amdgpu
