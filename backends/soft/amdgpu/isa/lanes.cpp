// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

float scale_and_clamp(const Instruction& instruction, float value) {
  value *= instruction.output_scale == 0 ? 0.5f : static_cast<float>(instruction.output_scale);
  if (!instruction.clamp) return value;
  return value > 0 ? (value < 1 ? value : 1.0f) : 0.0f;
}

std::uint32_t modify_output(const Instruction& instruction, OperandType type, std::uint32_t word) {
  if (type == OperandType::kF32)
    return std::bit_cast<std::uint32_t>(scale_and_clamp(instruction, std::bit_cast<float>(word)));
  const auto half = std::bit_cast<Half>(static_cast<std::uint16_t>(word));
  return std::bit_cast<std::uint16_t>(
      static_cast<Half>(scale_and_clamp(instruction, static_cast<float>(half))));
}

std::uint32_t place_result(const Instruction& instruction, std::uint32_t old, std::uint32_t word) {
  using Select = Operand::Select;
  const Select select = instruction.result_select;
  if (select == Select::kWhole) return word;
  const bool half = select >= Select::kWord0;
  const unsigned index =
      static_cast<unsigned>(select) - static_cast<unsigned>(half ? Select::kWord0 : Select::kByte0);
  const unsigned shift = index * (half ? 16 : 8);
  const std::uint32_t part = (half ? 0xffffu : 0xffu) << shift;
  return (word << shift & part) | (instruction.preserve_rest ? old & ~part : 0);
}

std::uint32_t select_part(std::uint32_t word, const Operand& operand) {
  using Select = Operand::Select;
  if (operand.select == Select::kWhole) return word;
  if (operand.select >= Select::kWord0) {
    const std::uint32_t part = operand.select == Select::kWord1 ? word >> 16 : word & 0xffff;
    return operand.sign_extend ? static_cast<std::uint32_t>(static_cast<std::int16_t>(part)) : part;
  }
  const unsigned byte =
      static_cast<unsigned>(operand.select) - static_cast<unsigned>(Select::kByte0);
  const std::uint32_t part = word >> (8 * byte) & 0xff;
  return operand.sign_extend ? static_cast<std::uint32_t>(static_cast<std::int8_t>(part)) : part;
}

// A row's word as the operand's modifiers say. Sign operations change the word that holds the sign.
std::uint32_t modify_source(std::uint32_t word, const Operand& operand, unsigned part,
                            std::size_t bytes) {
  word = select_part(word, operand);
  if (bytes == 8 && part == 0) return word;
  const std::uint32_t sign = bytes == 2 ? 1u << 15 : 1u << 31;
  if (operand.absolute) word &= ~sign;
  if (operand.negate) word ^= sign;
  return word;
}

}  // namespace

void Wave::expand_exec() {
  expanded_ = exec();
  expand_mask(expanded_, words_.data());
}

const std::uint32_t* fill_row(Wave& wave, const Operand& operand, unsigned part, std::size_t bytes,
                              std::uint32_t* scratch) {
  if (operand.kind == Operand::Kind::kVector) {
    const std::uint32_t* const row = wave.row(operand.reg + part);
    if (operand.select == Operand::Select::kWhole) {
      // What modify_source() clears and flips, found once.
      const std::uint32_t kept =
          modify_source(~0u, operand, part, bytes) ^ modify_source(0, operand, part, bytes);
      const std::uint32_t flipped = modify_source(0, operand, part, bytes);
      for (unsigned lane = 0; lane < kLanes; ++lane) scratch[lane] = (row[lane] & kept) ^ flipped;
      return scratch;
    }
    for (unsigned lane = 0; lane < kLanes; ++lane)
      scratch[lane] = modify_source(row[lane], operand, part, bytes);
    return scratch;
  }
  std::uint32_t word = operand.kind == Operand::Kind::kScalar
                           ? wave.scalar[operand.reg + part]
                           : static_cast<std::uint32_t>(operand.bits >> (32 * part));
  if (operand.modified()) word = modify_source(word, operand, part, bytes);
  std::fill_n(scratch, kLanes, word);
  return scratch;
}

std::uint64_t constant_value(const Operand& operand, std::size_t bytes) {
  std::uint64_t value = 0;
  for (unsigned part = 0; part < 2; ++part) {
    const auto word = static_cast<std::uint32_t>(operand.bits >> (32 * part));
    value |= static_cast<std::uint64_t>(modify_source(word, operand, part, bytes)) << (32 * part);
  }
  return value;
}

void shape(const Instruction& instruction, OperandType type, const std::uint32_t* old,
           std::uint32_t* words) {
  const bool real = type == OperandType::kF32 || type == OperandType::kF16;
  const bool modifies = real && (instruction.clamp || instruction.output_scale != 1);
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const std::uint32_t word =
        modifies ? modify_output(instruction, type, words[lane]) : words[lane];
    words[lane] = place_result(instruction, old[lane], word);
  }
}

}  // namespace vitamin::soft::amdgpu::isa
