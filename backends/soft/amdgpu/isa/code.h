// SPDX-License-Identifier: Apache-2.0
//
// Decoded instructions by address, and kernels by descriptor. Code lives in allocations of device
// memory; a region mirrors one of them. Any number of threads may look up; decoding is serialised.
#pragma once

#include <atomic>
#include <cstdint>
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

// An instruction at its place. It is compared with the bytes there once for each dispatch, because
// the runtime loads a new module where an old one was, without freeing the memory between.
struct PlacedInstruction {
  PlacedInstruction(Instruction decoded, std::uint64_t pc, std::uint64_t epoch)
      : instruction(std::move(decoded)), end(pc + instruction.size), checked(epoch) {}

  const Instruction instruction;
  const std::uint64_t end;                  // the address behind it
  mutable std::atomic<std::uint64_t> checked;  // the last dispatch that compared it
  // What was found at `end`; null: nothing yet. It may have been replaced since.
  mutable std::atomic<const PlacedInstruction*> next{nullptr};
};

class CodeRegion {
 public:
  CodeRegion(std::uint64_t begin, std::uint64_t bytes, Decoder& decoder);

  bool contains(std::uint64_t pc) const { return pc - begin_ < bytes_; }
  // The instruction at `pc`, which lies inside, for a dispatch of that epoch.
  const PlacedInstruction& at(std::uint64_t pc, std::uint64_t epoch) {
    const PlacedInstruction* found = slots_[(pc - begin_) / 4].load(std::memory_order_acquire);
    if (found != nullptr && found->checked.load(std::memory_order_relaxed) >= epoch) [[likely]]
      return *found;
    return check(found, pc, epoch);
  }

 private:
  // `found`: what was there before, or null.
  const PlacedInstruction& check(const PlacedInstruction* found, std::uint64_t pc,
                                 std::uint64_t epoch);

  std::uint64_t begin_, bytes_;
  Decoder& decoder_;
  std::unique_ptr<std::atomic<const PlacedInstruction*>[]> slots_;
  std::mutex mutex_;
  std::deque<PlacedInstruction> decoded_;  // never shrinks: waves hold pointers
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

  // A dispatch sees the code that is there when it begins, and what is written later may or may not
  // be seen by it. Its number is higher than that of every dispatch before.
  std::uint64_t begin_dispatch() { return epoch_.fetch_add(1, std::memory_order_acq_rel) + 1; }

  // Throws Fault for an address outside every allocation.
  CodeRegion& region_of(std::uint64_t pc);
  void forget(std::uint64_t begin);  // the allocation was freed

 private:
  std::atomic<std::uint64_t> epoch_{0};
  std::unique_ptr<Decoder> decoder_;
  std::function<Extent(std::uint64_t)> extent_of_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::unique_ptr<CodeRegion>> regions_;  // by begin
  std::vector<std::unique_ptr<CodeRegion>> retired_;
};

}  // namespace vitamin::soft::amdgpu::isa
