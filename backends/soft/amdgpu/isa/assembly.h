// SPDX-License-Identifier: Apache-2.0
//
// What LLVM's text of an instruction says: mnemonic, operands, modifiers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backends/soft/amdgpu/isa/instruction.h"

namespace vitamin::soft::amdgpu::isa {

// An operand as it stands in the text: constants are not bits yet, since their meaning depends on
// the type that the instruction reads.
struct Word {
  Operand operand;
  std::string_view constant;
};

struct Parsed {
  std::string name;  // without the encoding's suffix
  bool sdwa = false, understood = true;
  std::vector<Word> words;
};

// Collects the modifiers behind the operands.
struct Modifiers {
  explicit Modifiers(Instruction& into) : instruction(into) {}

  Instruction& instruction;
  std::array<Operand::Select, 2> source_select{};
  LanePermutation permutation;
  bool permutes = false, signs_rest = false, global_share = false;
  std::uint64_t row_mask = 0xf, bank_mask = 0xf;

  bool take(std::string_view text);  // false: unknown

 private:
  bool take_flag(std::string_view text);
  bool take_permutation(std::string_view name, std::string_view value);
  template <class From>
  void permute(From&& from) {
    permutes = true;
    for (int lane = 0; lane < 64; ++lane)
      permutation.source[static_cast<std::size_t>(lane)] = static_cast<std::int8_t>(from(lane));
  }
};

// Of one operation; the words refer to `text`.
Parsed parse(std::string_view text, Modifiers& modifiers);

// A constant as the hardware expands it for a source of this type: inline integers fill the width
// with their sign, real constants take the source's format, a literal of 32 bits is the upper half
// of a double and the lower half of a 64-bit integer.
std::uint64_t constant_bits(std::string_view text, OperandType type);

}  // namespace vitamin::soft::amdgpu::isa
