// SPDX-License-Identifier: Apache-2.0
//
// Dot products of the elements of two registers, added to a third source: v_dot2, v_dot4, v_dot8.
// Integers are exact. No document says where v_dot2_f32_f16 rounds; here it is a fused multiply-add
// for the lower halves, then one for the upper halves, and denormals are kept.
#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "backends/soft/amdgpu/isa/floating_point.h"
#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

using U16 = std::uint16_t;
using U32 = std::uint32_t;
using I32 = std::int32_t;
using I64 = std::int64_t;

[[noreturn]] void refuse_modifiers(const Instruction& instruction) {
  throw Fault("the software GPU does not know the modifiers of '" + instruction.text + "'");
}

float half_at(U32 word, unsigned shift) {
  return static_cast<float>(std::bit_cast<Half>(static_cast<U16>(word >> shift)));
}

constexpr auto kDotOfHalves = [](U32 x, U32 y, float sum) {
  const float lower = multiply_add(half_at(x, 0), half_at(y, 0), sum);
  return multiply_add(half_at(x, 16), half_at(y, 16), lower);
};

template <unsigned kBits, bool kSigned>
I64 element(U32 word, unsigned at) {
  const U32 top = word >> at << (32 - kBits);
  return kSigned ? I64{static_cast<I32>(top) >> (32 - kBits)} : I64{top >> (32 - kBits)};
}

struct Signs {
  bool x, y, sum;
};

// Elements of kBits bits. The sum wraps, or stops at its limits.
template <unsigned kBits, Signs kSigned, bool kSaturates>
constexpr auto kDotOfIntegers = [](U32 x, U32 y, U32 z) {
  I64 sum = element<32, kSigned.sum>(z, 0);
  for (unsigned at = 0; at < 32; at += kBits)
    sum += element<kBits, kSigned.x>(x, at) * element<kBits, kSigned.y>(y, at);
  using Limits = std::numeric_limits<std::conditional_t<kSigned.sum, I32, U32>>;
  if (kSaturates) sum = std::clamp(sum, I64{Limits::min()}, I64{Limits::max()});
  return static_cast<U32>(sum);
};

constexpr Signs signs_of(bool all) { return {all, all, all}; }

bool has_modifiers(const Instruction& instruction) {
  return (instruction.op_sel & 3) != 0 || (instruction.op_sel_hi & 3) != 3 ||
         instruction.neg_lo != 0 || instruction.neg_hi != 0;
}

template <Execute kExecute>
void without_modifiers(Wave& wave, const Instruction& instruction) {
  if (has_modifiers(instruction)) refuse_modifiers(instruction);
  kExecute(wave, instruction);
}

// Source `at` of two halves as op_sel, op_sel_hi, neg_lo and neg_hi say.
U32 arranged(const Instruction& instruction, unsigned at, U32 word) {
  const auto bit = [&](std::uint8_t bits) { return static_cast<U32>(bits >> at & 1); };
  const U32 lower = word >> 16 * bit(instruction.op_sel) & 0xffff;
  const U32 upper = word >> 16 * bit(instruction.op_sel_hi) & 0xffff;
  return (upper << 16 | lower) ^ (bit(instruction.neg_hi) << 31 | bit(instruction.neg_lo) << 15);
}

// A dot product of two halves. Integers have no negation.
template <auto F>
void with_halves(Wave& wave, const Instruction& instruction) {
  using S = SignatureOf<F>;
  using Result = typename S::Result;
  if (!has_modifiers(instruction)) return lanes<F>(wave, instruction);
  const unsigned negated = instruction.neg_lo | instruction.neg_hi;
  if (negated > 3 || (negated != 0 && type_of<Result>() != OperandType::kF32))
    refuse_modifiers(instruction);
  alignas(64) U32 words[kLanes] = {};
  each_active_lane(wave, [&](unsigned lane) {
    const auto source = [&](unsigned at) {
      return lane_word(wave, instruction.operand[1 + at], lane);
    };
    const auto sum = std::bit_cast<std::tuple_element_t<2, typename S::Arguments>>(source(2));
    words[lane] = result_word(
        F(arranged(instruction, 0, source(0)), arranged(instruction, 1, source(1)), sum));
  });
  const unsigned reg = instruction.operand[0].reg;
  if (instruction.shaped) shape(instruction, type_of<Result>(), wave.row(reg), words);
  write_row(wave, reg, words);
}

// neg_lo says which of the two sources are signed.
template <unsigned kBits, bool kSaturates>
void with_signs(Wave& wave, const Instruction& instruction) {
  if ((instruction.op_sel & 3) != 0 || (instruction.op_sel_hi & 3) != 3 ||
      instruction.neg_hi != 0 || instruction.neg_lo > 3)
    refuse_modifiers(instruction);
  constexpr Execute kBySigns[] = {
      lanes<kDotOfIntegers<kBits, Signs{false, false, true}, kSaturates>>,
      lanes<kDotOfIntegers<kBits, Signs{true, false, true}, kSaturates>>,
      lanes<kDotOfIntegers<kBits, Signs{false, true, true}, kSaturates>>,
      lanes<kDotOfIntegers<kBits, Signs{true, true, true}, kSaturates>>};
  kBySigns[instruction.neg_lo](wave, instruction);
}

Definition integers(Execute wrapping, Execute saturating) {
  return {.execute = wrapping,
          .sources = {OperandType::kB32, OperandType::kB32, OperandType::kB32},
          .result = OperandType::kB32,
          .saturating = saturating};
}

template <unsigned kBits, bool kSigned>
Definition dot_of_elements() {
  return integers(without_modifiers<lanes<kDotOfIntegers<kBits, signs_of(kSigned), false>>>,
                  without_modifiers<lanes<kDotOfIntegers<kBits, signs_of(kSigned), true>>>);
}

template <bool kSigned>
Definition dot_of_words() {
  return integers(with_halves<kDotOfIntegers<16, signs_of(kSigned), false>>,
                  with_halves<kDotOfIntegers<16, signs_of(kSigned), true>>);
}

}  // namespace

void add_dot_product(InstructionSet& set) {
  Definition halves = per_lane<kDotOfHalves>(true);
  halves.sources = {OperandType::kPackedF16, OperandType::kPackedF16, OperandType::kF32};
  for (const char* name : {"v_dot2c_f32_f16", "v_dot2acc_f32_f16"}) set.add(name, halves);
  halves.accumulates = false;
  halves.execute = with_halves<kDotOfHalves>;
  set.add("v_dot2_f32_f16", halves);
  set.add("v_dot2_i32_i16", dot_of_words<true>());
  set.add("v_dot2_u32_u16", dot_of_words<false>());
  set.add("v_dot4_i32_i8", dot_of_elements<8, true>());
  set.add("v_dot4_u32_u8", dot_of_elements<8, false>());
  set.add("v_dot8_i32_i4", dot_of_elements<4, true>());
  set.add("v_dot8_u32_u4", dot_of_elements<4, false>());
  set.add("v_dot4_i32_iu8", integers(with_signs<8, false>, with_signs<8, true>));
  set.add("v_dot8_i32_iu4", integers(with_signs<4, false>, with_signs<4, true>));
  set.add("v_dot2c_i32_i16", per_lane<kDotOfIntegers<16, signs_of(true), false>>(true));
  set.add("v_dot4c_i32_i8", per_lane<kDotOfIntegers<8, signs_of(true), false>>(true));
  set.add("v_dot8c_i32_i4", per_lane<kDotOfIntegers<4, signs_of(true), false>>(true));
}

}  // namespace vitamin::soft::amdgpu::isa
