// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

float scale_and_clamp(const Instruction& instruction, float value) {
  value *= instruction.output_scale == 0 ? 0.5f : static_cast<float>(instruction.output_scale);
  if (!instruction.clamp) return value;
  return value > 0 ? (value < 1 ? value : 1.0f) : 0.0f;
}

std::uint32_t modify_output(const Instruction& instruction, Type type, std::uint32_t word) {
  if (type == Type::kF32)
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

}  // namespace

void shape(const Instruction& instruction, Type type, const std::uint32_t* old,
           std::uint32_t* words) {
  const bool real = type == Type::kF32 || type == Type::kF16;
  const bool modifies = real && (instruction.clamp || instruction.output_scale != 1);
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const std::uint32_t word =
        modifies ? modify_output(instruction, type, words[lane]) : words[lane];
    words[lane] = place_result(instruction, old[lane], word);
  }
}

}  // namespace vitamin::soft::amdgpu::isa
