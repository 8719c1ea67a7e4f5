// SPDX-License-Identifier: Apache-2.0
//
// From bytes to an Instruction, through LLVM's disassembler. LLVM knows every encoding of every
// part; its text is a documented, stable form, and it is read once for each instruction of a
// kernel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "backends/soft/amdgpu/isa/instruction.h"
#include "backends/soft/amdgpu/isa/instruction_set.h"
#include "backends/soft/amdgpu/isa/wave.h"

namespace vitamin::soft::amdgpu::isa {

struct Modifiers;

class Decoder {
 public:
  // `processor` as LLVM names it. `preserves_halves`: a 16-bit result, and a load into one half of
  // a register, leave the other half alone (gfx10, gfx11), instead of clearing it (gfx9; loads
  // where registers have ECC).
  Decoder(const char* processor, bool preserves_halves);
  ~Decoder();

  // Always succeeds: an instruction that is unknown faults when it is executed, not before.
  // `available`: bytes that may be read at `pc`.
  Instruction decode(std::uint64_t pc, std::uint64_t available);

 private:
  // A value in every lane: lower halves, upper halves.
  struct alignas(64) ConstantRows {
    std::uint32_t low[kLanes], high[kLanes];
  };
  using Bytes = std::array<std::uint8_t, 20>;  // of the longest instruction

  std::string disassemble(Bytes& bytes, std::uint64_t pc, std::size_t& size);  // size 0: it cannot
  void settle(Instruction& instruction, std::string_view text);
  void settle_pair(Instruction& instruction, std::size_t separator);
  void settle_constants(Instruction& instruction, const Definition& definition);
  void settle_permutation(Instruction& instruction, Operand& source, bool wide,
                          const Modifiers& modifiers);

  void* disassembler_ = nullptr;
  bool preserves_halves_, gfx11_, says_accumulators_;
  InstructionSet set_;
  std::mutex mutex_;
  std::deque<LanePermutation> permutations_;
  std::deque<OperationPair> pairs_;
  std::map<std::uint64_t, ConstantRows> constants_;  // by value
};

}  // namespace vitamin::soft::amdgpu::isa
