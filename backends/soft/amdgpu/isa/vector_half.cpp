// SPDX-License-Identifier: Apache-2.0
//
// Half precision: single, and two in a register.
#include <algorithm>
#include <bit>
#include <cmath>

#include "backends/soft/amdgpu/isa/floating_point.h"
#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

using U16 = std::uint16_t;
using I16 = std::int16_t;
using U32 = std::uint32_t;

Half half(float x) { return static_cast<Half>(x); }
float single(Half x) { return static_cast<float>(x); }

// One rounding: the product of two halves and a third fit a double exactly enough that rounding it
// to a half is the fused result.
Half fused(Half x, Half y, Half z) {
  return static_cast<Half>(
      sum(product(static_cast<double>(x), static_cast<double>(y)), static_cast<double>(z)));
}

// The half of one packed source that a half of the result reads.
U16 packed_source(Wave& wave, const Instruction& instruction, unsigned at, unsigned half_index,
                  unsigned lane, bool real) {
  const unsigned sel = half_index == 0 ? instruction.op_sel : instruction.op_sel_hi;
  const unsigned neg = half_index == 0 ? instruction.neg_lo : instruction.neg_hi;
  const U32 word = lane_word(wave, instruction.operand[at + 1], lane);
  U16 part = static_cast<U16>((sel >> at & 1) != 0 ? word >> 16 : word);
  if (real && (neg >> at & 1) != 0) part = static_cast<U16>(part ^ 0x8000);
  return part;
}

// A packed instruction from a function of one half.
template <auto F>
void packed(Wave& wave, const Instruction& instruction) {
  using S = SignatureOf<F>;
  using T = typename S::Result;
  constexpr bool kReal = std::is_same_v<T, Half>;
  alignas(64) U32 words[kLanes] = {};
  each_active_lane(wave, [&](unsigned lane) {
    for (unsigned index = 0; index < 2; ++index) {
      T value[S::kCount];
      for (unsigned at = 0; at < S::kCount; ++at)
        value[at] = std::bit_cast<T>(packed_source(wave, instruction, at, index, lane, kReal));
      T result;
      if constexpr (S::kCount == 2)
        result = F(value[0], value[1]);
      else
        result = F(value[0], value[1], value[2]);
      if constexpr (kReal)
        if (instruction.clamp) result = maximum(minimum(result, Half(1)), Half(0));
      words[lane] |= static_cast<U32>(std::bit_cast<U16>(result)) << (16 * index);
    }
  });
  write_row(wave, instruction.operand[0].reg, words);
}

// An integer one under the clamp modifier is refused unless it has a saturating form.
template <auto F>
Definition packed_definition(Execute saturating = nullptr) {
  constexpr bool kReal = std::is_same_v<typename SignatureOf<F>::Result, Half>;
  constexpr OperandType kType = kReal ? OperandType::kPackedF16 : OperandType::kB32;
  return {.execute = packed<F>,
          .sources = {kType, kType, kType},
          .result = kReal ? OperandType::kNone : OperandType::kB32,
          .saturating = saturating};
}

I16 limited(int value) { return static_cast<I16>(std::clamp(value, -32768, 32767)); }

void add_single_halves(InstructionSet& set) {
  set.add("v_add_f16", per_lane<[](Half x, Half y) { return half(sum(single(x), single(y))); }>());
  set.add("v_sub_f16", per_lane<[](Half x, Half y) { return half(single(x) - single(y)); }>());
  set.add("v_subrev_f16", per_lane<[](Half x, Half y) { return half(single(y) - single(x)); }>());
  set.add("v_mul_f16",
          per_lane<[](Half x, Half y) { return half(product(single(x), single(y))); }>());
  set.add("v_min_f16", per_lane<[](Half x, Half y) { return minimum(x, y); }>());
  set.add("v_max_f16", per_lane<[](Half x, Half y) { return maximum(x, y); }>());
  const Definition multiply_add = per_lane<[](Half x, Half y, Half z) { return fused(x, y, z); }>();
  for (const char* name : {"v_fma_f16", "v_fmaak_f16", "v_fmamk_f16"}) set.add(name, multiply_add);
  set.add("v_fmac_f16", per_lane<[](Half x, Half y, Half z) { return fused(x, y, z); }>(true));
  set.add("v_rcp_f16", per_lane<[](Half x) { return half(1.0f / single(x)); }>());
  set.add("v_rsq_f16", per_lane<[](Half x) { return half(1.0f / std::sqrt(single(x))); }>());
  set.add("v_sqrt_f16", per_lane<[](Half x) { return half(std::sqrt(single(x))); }>());
  set.add("v_exp_f16", per_lane<[](Half x) { return half(std::exp2(single(x))); }>());
  set.add("v_log_f16", per_lane<[](Half x) { return half(std::log2(single(x))); }>());
  set.add("v_floor_f16", per_lane<[](Half x) { return half(std::floor(single(x))); }>());
  set.add("v_ceil_f16", per_lane<[](Half x) { return half(std::ceil(single(x))); }>());
  set.add("v_trunc_f16", per_lane<[](Half x) { return half(std::trunc(single(x))); }>());
  set.add("v_rndne_f16", per_lane<[](Half x) { return half(std::nearbyint(single(x))); }>());
  set.add("v_div_fixup_f16", per_lane<[](Half, Half denominator, Half numerator) {
            return half(single(numerator) / single(denominator));
          }>());
  set.add("v_cvt_f16_u16", per_lane<[](U16 x) { return half(static_cast<float>(x)); }>());
  set.add("v_cvt_f16_i16", per_lane<[](I16 x) { return half(static_cast<float>(x)); }>());
  set.add("v_cvt_u16_f16", per_lane<[](Half x) {
            const float value = single(x);
            return static_cast<U16>(minimum(maximum(value, 0.0f), 65535.0f));
          }>());
  set.add("v_cvt_i16_f16", per_lane<[](Half x) {
            const float value = single(x);
            return static_cast<I16>(value != value ? 0.0f : std::clamp(value, -32768.0f, 32767.0f));
          }>());
}

void add_packing(InstructionSet& set) {
  set.add("v_pack_b32_f16", per_lane<[](Half x, Half y) {
            return static_cast<U32>(std::bit_cast<U16>(x)) | static_cast<U32>(std::bit_cast<U16>(y))
                                                                 << 16;
          }>());
  // Rounds towards zero, unlike v_cvt_f16_f32.
  set.add("v_cvt_pkrtz_f16_f32", per_lane<[](float x, float y) {
            const auto truncated = [](float value) {
              const Half nearest = static_cast<Half>(value);
              U16 bits = std::bit_cast<U16>(nearest);
              if (std::fabs(value) < std::fabs(single(nearest))) --bits;
              return static_cast<U32>(bits);
            };
            return truncated(x) | truncated(y) << 16;
          }>());
  set.add("v_pk_add_f16",
          packed_definition<[](Half x, Half y) { return half(sum(single(x), single(y))); }>());
  set.add("v_pk_mul_f16",
          packed_definition<[](Half x, Half y) { return half(product(single(x), single(y))); }>());
  set.add("v_pk_min_f16", packed_definition<[](Half x, Half y) { return minimum(x, y); }>());
  set.add("v_pk_max_f16", packed_definition<[](Half x, Half y) { return maximum(x, y); }>());
  set.add("v_pk_fma_f16",
          packed_definition<[](Half x, Half y, Half z) { return fused(x, y, z); }>());
  set.add("v_pk_add_u16", packed_definition<[](U16 x, U16 y) { return U16(x + y); }>(
                              packed<[](U16 x, U16 y) { return U16(std::min(x + y, 0xffff)); }>));
  set.add("v_pk_sub_u16", packed_definition<[](U16 x, U16 y) { return U16(x - y); }>(
                              packed<[](U16 x, U16 y) { return U16(std::max(x - y, 0)); }>));
  set.add("v_pk_add_i16", packed_definition<[](U16 x, U16 y) { return U16(x + y); }>(
                              packed<[](I16 x, I16 y) { return limited(x + y); }>));
  set.add("v_pk_sub_i16", packed_definition<[](U16 x, U16 y) { return U16(x - y); }>(
                              packed<[](I16 x, I16 y) { return limited(x - y); }>));
  set.add("v_pk_mul_lo_u16",
          packed_definition<[](U16 x, U16 y) { return U16(U32{x} * U32{y}); }>());
  set.add("v_pk_mad_u16",
          packed_definition<[](U16 x, U16 y, U16 z) { return U16(U32{x} * U32{y} + z); }>());
  set.add("v_pk_lshlrev_b16",
          packed_definition<[](U16 x, U16 y) { return U16(U32{y} << (x & 15)); }>());
  set.add("v_pk_lshrrev_b16", packed_definition<[](U16 x, U16 y) { return U16(y >> (x & 15)); }>());
  set.add("v_pk_ashrrev_i16", packed_definition<[](I16 x, I16 y) { return I16(y >> (x & 15)); }>());
  set.add("v_pk_min_u16", packed_definition<[](U16 x, U16 y) { return std::min(x, y); }>());
  set.add("v_pk_max_u16", packed_definition<[](U16 x, U16 y) { return std::max(x, y); }>());
  set.add("v_pk_min_i16", packed_definition<[](I16 x, I16 y) { return std::min(x, y); }>());
  set.add("v_pk_max_i16", packed_definition<[](I16 x, I16 y) { return std::max(x, y); }>());
}

}  // namespace

void add_vector_half(InstructionSet& set) {
  add_single_halves(set);
  add_packing(set);
}

}  // namespace vitamin::soft::amdgpu::isa
