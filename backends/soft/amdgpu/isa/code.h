// SPDX-License-Identifier: Apache-2.0
//
// Decoded instructions by address, and kernels by descriptor. Code lives in allocations of device
// memory; a region mirrors one of them. Any number of threads may look up; decoding is serialised.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/soft/amdgpu/isa/instruction.h"
#include "backends/soft/amdgpu/isa/wave.h"

namespace vitamin::soft::amdgpu::isa {

class Decoder;

class CodeRegion {
 public:
  CodeRegion(std::uint64_t begin, std::uint64_t bytes, Decoder& decoder);

  bool contains(std::uint64_t pc) const { return pc - begin_ < bytes_; }
  // The instruction at `pc`, which lies inside. Code that was replaced in place is decoded again:
  // the runtime loads a new module where an old one was, without freeing the memory between.
  const Instruction& at(std::uint64_t pc) {
    const Instruction* found = slots_[(pc - begin_) / 4].load(std::memory_order_acquire);
    if (found != nullptr && is_current(*found, pc)) [[likely]]
      return *found;
    return decode(pc);
  }

 private:
  template <class T>
  static T load(std::uint64_t address) {
    T value;
    std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof value);
    return value;
  }
  static bool is_current(const Instruction& instruction, std::uint64_t pc) {
    if (instruction.size == 4) return load<std::uint32_t>(pc) == instruction.raw;
    return load<std::uint64_t>(pc) == instruction.raw &&
           (instruction.size == 8 || load<std::uint32_t>(pc + 8) == instruction.raw_high);
  }
  const Instruction& decode(std::uint64_t pc);

  std::uint64_t begin_, bytes_;
  Decoder& decoder_;
  std::unique_ptr<std::atomic<const Instruction*>[]> slots_;
  std::mutex mutex_;
  std::deque<Instruction> decoded_;  // never shrinks: waves hold pointers
};

class CodeCache {
 public:
  struct Extent {
    std::uint64_t begin = 0, bytes = 0;
  };
  // `extent_of` gives the allocation around an address; bytes == 0: there is none.
  CodeCache(const char* processor, bool preserves_halves,
            std::function<Extent(std::uint64_t)> extent_of);
  ~CodeCache();

  // Throws Fault for an address outside every allocation.
  CodeRegion& region_of(std::uint64_t pc);
  void forget(std::uint64_t begin);  // the allocation was freed

 private:
  std::unique_ptr<Decoder> decoder_;
  std::function<Extent(std::uint64_t)> extent_of_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::unique_ptr<CodeRegion>> regions_;  // by begin
  std::vector<std::unique_ptr<CodeRegion>> retired_;
};

}  // namespace vitamin::soft::amdgpu::isa
