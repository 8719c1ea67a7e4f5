// SPDX-License-Identifier: Apache-2.0
//
// Which addresses the GPUs of one process reach. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace vitamin::soft::amdgpu {

struct MappedRange {
  std::uint64_t begin = 0, bytes = 0;
};

class Memory {
 public:
  // No effect where `begin` lies in a range already.
  void add(std::uint64_t begin, std::uint64_t bytes);
  void remove(std::uint64_t begin);  // of a range; none begins there: no effect
  void split(std::uint64_t at);      // the range around it into two, which begin and end there
  std::optional<MappedRange> find(std::uint64_t address) const;

 private:
  std::optional<MappedRange> find_locked(std::uint64_t address) const;

  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> ranges_;  // bytes, by begin
};

}  // namespace vitamin::soft::amdgpu
