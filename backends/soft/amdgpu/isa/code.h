// SPDX-License-Identifier: Apache-2.0
//
// Decoded instructions by address. Code lives in allocations of device memory; a region mirrors one
// of them. Any number of threads may look up; decoding is serialised.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/soft/amdgpu/isa/instruction.h"
#include "backends/soft/amdgpu/isa/wave.h"

namespace vitamin::soft::amdgpu::isa {

class Decoder;

// Instructions that run one after another: only the last may branch or stop the wave.
class Block {
 public:
  Block(std::uint64_t pc, std::uint64_t available, Decoder& decoder);

  // Whether the memory at `pc` still holds the code that was decoded: the runtime loads a new
  // module where an old one was, without freeing the memory between.
  bool is_current(std::uint64_t pc) const {
    return std::memcmp(reinterpret_cast<const void*>(pc), bytes_.data(), bytes_.size()) == 0;
  }
  const Instruction* const* begin() const { return instructions_.data(); }
  const Instruction* const* end() const { return begin() + instructions_.size(); }
  std::uint64_t bytes() const { return bytes_.size(); }

 private:
  std::vector<const Instruction*> instructions_;
  std::vector<std::uint8_t> bytes_;
};

class CodeRegion {
 public:
  CodeRegion(std::uint64_t begin, std::uint64_t bytes, Decoder& decoder);

  bool contains(std::uint64_t pc) const { return pc - begin_ < bytes_; }
  // The block that begins at `pc`, which lies inside. It lives as long as the region.
  const Block& at(std::uint64_t pc) {
    const Block* found = slots_[(pc - begin_) / 4].load(std::memory_order_acquire);
    if (found != nullptr && found->is_current(pc)) [[likely]]
      return *found;
    return decode(pc);
  }

 private:
  const Block& decode(std::uint64_t pc);

  std::uint64_t begin_, bytes_;
  Decoder& decoder_;
  std::unique_ptr<std::atomic<const Block*>[]> slots_;
  std::mutex mutex_;
  std::deque<Block> blocks_;  // never shrinks: waves hold pointers
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
