// SPDX-License-Identifier: Apache-2.0
//
// Between lanes, and between lanes and scalar registers.
#include <bit>

#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

using U32 = std::uint32_t;

void read_first_lane(Wave& wave, const Instruction& instruction) {
  const std::uint64_t exec = wave.exec();
  const unsigned lane = exec == 0 ? 0 : static_cast<unsigned>(std::countr_zero(exec));
  wave.scalar[instruction.operand[0].reg] = lane_word(wave, instruction.operand[1], lane);
}

void read_lane(Wave& wave, const Instruction& instruction) {
  const unsigned lane = lane_word(wave, instruction.operand[2], 0) & (wave.width - 1);
  wave.scalar[instruction.operand[0].reg] = lane_word(wave, instruction.operand[1], lane);
}

void write_lane(Wave& wave, const Instruction& instruction) {
  const unsigned lane = lane_word(wave, instruction.operand[2], 0) & (wave.width - 1);
  wave.row(instruction.operand[0].reg)[lane] = lane_word(wave, instruction.operand[1], 0);
}

// How many lanes before this one are set in a mask; the mask comes in two halves.
template <unsigned kFirst>
void count_lanes_before(Wave& wave, const Instruction& instruction) {
  alignas(64) U32 words[kLanes] = {};
  for (unsigned lane = 0; lane < wave.width; ++lane) {
    const std::uint64_t before = (1ull << lane) - 1;
    const auto window = static_cast<U32>(before >> kFirst);
    words[lane] =
        static_cast<U32>(std::popcount(lane_word(wave, instruction.operand[1], lane) & window)) +
        lane_word(wave, instruction.operand[2], lane);
  }
  write_row(wave, instruction.operand[0].reg, words);
}

void permute_row16(Wave& wave, const Instruction& instruction, bool crosses) {
  alignas(64) U32 words[kLanes] = {};
  const U32* const from = wave.row(instruction.operand[1].reg);
  const std::uint64_t selectors =
      lane_word(wave, instruction.operand[2], 0) |
      static_cast<std::uint64_t>(lane_word(wave, instruction.operand[3], 0)) << 32;
  for (unsigned lane = 0; lane < wave.width; ++lane) {
    const unsigned in_row = static_cast<unsigned>(selectors >> (4 * (lane % 16)) & 15);
    const unsigned row = crosses ? lane / 16 ^ 1 : lane / 16;
    words[lane] = from[row * 16 + in_row];
  }
  write_row(wave, instruction.operand[0].reg, words);
}

void permute_lane16(Wave& wave, const Instruction& instruction) {
  permute_row16(wave, instruction, false);
}
void permute_lanex16(Wave& wave, const Instruction& instruction) {
  permute_row16(wave, instruction, true);
}

void nothing(Wave&, const Instruction&) {}

}  // namespace

void add_vector_lane(InstructionSet& set) {
  const std::array<OperandType, 4> words{OperandType::kB32, OperandType::kB32, OperandType::kB32};
  set.add("v_nop", {.execute = nothing});
  set.add("v_readfirstlane_b32", {.execute = read_first_lane, .sources = words});
  set.add("v_readlane_b32", {.execute = read_lane, .sources = words});
  set.add("v_writelane_b32", {.execute = write_lane, .sources = words});
  set.add("v_mbcnt_lo_u32_b32", {.execute = count_lanes_before<0>, .sources = words});
  set.add("v_mbcnt_hi_u32_b32", {.execute = count_lanes_before<32>, .sources = words});
  set.add("v_permlane16_b32", {.execute = permute_lane16, .sources = words});
  set.add("v_permlanex16_b32", {.execute = permute_lanex16, .sources = words});
}

}  // namespace vitamin::soft::amdgpu::isa
