// SPDX-License-Identifier: Apache-2.0
//
// One decoded instruction. Everything that a wave needs at run time is resolved once, at decoding:
// which function executes it, its registers, its constants as bits, its modifiers as flags.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace vitamin::soft::amdgpu::isa {

struct Wave;
struct Instruction;
struct OperationPair;

using Execute = void (*)(Wave&, const Instruction&);

// How the bits of a source are read. It decides what a constant such as "1.0" or "0x40490fdb"
// means.
enum class OperandType : std::uint8_t { kNone, kB32, kF32, kB64, kF64, kB16, kF16, kPackedF16 };

constexpr bool is_wide(OperandType type) {
  return type == OperandType::kB64 || type == OperandType::kF64;
}

struct Operand {
  enum class Kind : std::uint8_t { kNone, kVector, kScalar, kConstant };
  enum class Select : std::uint8_t { kWhole, kByte0, kByte1, kByte2, kByte3, kWord0, kWord1 };

  Kind kind = Kind::kNone;
  Select select = Select::kWhole;  // SDWA, and the half that op_sel names in 16-bit instructions
  bool negate = false, absolute = false, sign_extend = false;
  bool plain_row = false;  // a vector register, read as it is
  std::uint16_t reg = 0;   // row of the vector file, or number of the scalar register
  std::uint16_t count = 1;
  std::uint64_t bits = 0;  // constants
  // A constant as vector instructions read it: a row of lower halves, then one of upper halves,
  // modifiers applied. The decoder owns them.
  const std::uint32_t* rows = nullptr;

  bool modified() const { return negate || absolute || sign_extend || select != Select::kWhole; }
};

// Data-parallel primitives: where a lane takes its first source from.
struct LanePermutation {
  std::array<std::int8_t, 64> source{};  // -1: from outside the row
  std::uint64_t enabled = ~0ull;         // row_mask and bank_mask
  bool zero_invalid = false;             // bound_ctrl
  bool fetch_inactive = false;
  bool wide = false;  // a source of 64 bits
};

struct Instruction {
  static constexpr unsigned kMaxOperands = 6;

  Execute execute = nullptr;
  Execute inner = nullptr;  // what `execute` wraps: the instruction without its lane permutation
  std::uint64_t raw = 0;    // the first two dwords, as encoded
  std::uint32_t raw_high = 0;
  std::uint32_t size = 4;  // bytes
  std::uint8_t operands = 0;
  bool shaped = false;  // the result passes through shape() before it is written
  bool clamp = false, returns = false, per_lane_offset = false, per_lane_index = false;
  std::uint8_t output_scale = 1;  // 1, 2, 4; 0 is a half
  std::uint8_t op_sel = 0, op_sel_hi = 0xff, neg_lo = 0, neg_hi = 0;
  Operand::Select result_select = Operand::Select::kWhole;
  bool preserve_rest = false;  // of a partly written destination
  std::int32_t offset = 0, offset1 = 0;
  std::array<Operand, kMaxOperands> operand{};
  const LanePermutation* permutation = nullptr;
  const OperationPair* pair = nullptr;
  std::string text;  // for messages

  std::uint32_t immediate16() const { return static_cast<std::uint32_t>(raw & 0xffff); }
};

// Of an instruction that holds two operations, VOPD of gfx11. The first one's result goes to
// kPermutedRow, and from there to the row `first_result`.
struct OperationPair {
  Instruction first, second;
  std::uint16_t first_result = 0;
};

}  // namespace vitamin::soft::amdgpu::isa
