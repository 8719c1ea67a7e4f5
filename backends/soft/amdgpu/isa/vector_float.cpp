// SPDX-License-Identifier: Apache-2.0
//
// Single precision and conversions. Results are those of IEEE arithmetic in round-to-nearest with
// denormals kept, the mode that hipcc's kernels run in; transcendentals are the host's, so their
// last bit may differ from the hardware's.
#include <bit>
#include <cmath>
#include <limits>

#include "backends/soft/amdgpu/isa/floating_point.h"
#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

using U32 = std::uint32_t;
using I32 = std::int32_t;

constexpr float kTwoPi = 6.283185307179586f;

I32 saturate(float x) {
  if (x != x) return 0;
  if (x >= 2147483648.0f) return std::numeric_limits<I32>::max();
  return x <= -2147483648.0f ? std::numeric_limits<I32>::min() : static_cast<I32>(x);
}

U32 saturate_unsigned(float x) {
  if (!(x > 0)) return 0;
  return x >= 4294967296.0f ? std::numeric_limits<U32>::max() : static_cast<U32>(x);
}

bool finite(float x) { return std::isfinite(x); }

// The middle of v_fma_mix: a source that op_sel_hi marks is the half that op_sel names.
float mixed_source(Wave& wave, const Instruction& instruction, unsigned at, unsigned lane) {
  const Operand& operand = instruction.operand[at];
  // Unlike in packed instructions, nothing is marked when the text names no op_sel_hi.
  const unsigned marks = instruction.op_sel_hi == 0xff ? 0u : instruction.op_sel_hi;
  const bool half = (marks >> (at - 1) & 1) != 0;
  const U32 word = lane_word(wave, operand, lane);
  float value = std::bit_cast<float>(word);
  if (half) {
    const bool upper = (instruction.op_sel >> (at - 1) & 1) != 0;
    value = static_cast<float>(
        std::bit_cast<Half>(static_cast<std::uint16_t>(upper ? word >> 16 : word)));
  }
  if (operand.absolute) value = std::fabs(value);
  return operand.negate ? -value : value;
}

enum class MixResult { kSingle, kLowHalf, kHighHalf };

template <MixResult kResult>
void multiply_add_mixed(Wave& wave, const Instruction& instruction) {
  U32* const to = wave.row(instruction.operand[0].reg);
  each_active_lane(wave, [&](unsigned lane) {
    float value = multiply_add(mixed_source(wave, instruction, 1, lane),
                               mixed_source(wave, instruction, 2, lane),
                               mixed_source(wave, instruction, 3, lane));
    if (instruction.clamp) value = value > 0 ? (value < 1 ? value : 1.0f) : 0.0f;
    const U32 half = std::bit_cast<std::uint16_t>(static_cast<Half>(value));
    if (kResult == MixResult::kSingle) to[lane] = std::bit_cast<U32>(value);
    if (kResult == MixResult::kLowHalf) to[lane] = (to[lane] & 0xffff0000) | half;
    if (kResult == MixResult::kHighHalf) to[lane] = (to[lane] & 0xffff) | half << 16;
  });
}

// Two single-precision lanes in one instruction of gfx90a: op_sel says which register of a pair the
// lower half reads and op_sel_hi which one the upper half does. A move has one source for each
// half, and op_sel names the registers of both.
enum class Pair { kAdd, kMultiply, kFma, kMove };

template <Pair kOperation>
void paired(Wave& wave, const Instruction& instruction) {
  const unsigned sources = kOperation == Pair::kFma ? 3 : 2;
  const unsigned reg = instruction.operand[0].reg;
  alignas(64) U32 words[2][kLanes] = {};
  each_active_lane(wave, [&](unsigned lane) {
    for (unsigned half = 0; half < 2; ++half) {
      float value[3] = {};
      for (unsigned at = 0; at < sources; ++at) {
        const Operand& operand = instruction.operand[at + 1];
        const bool lower = half == 0 || kOperation == Pair::kMove;
        const unsigned sel = lower ? instruction.op_sel : instruction.op_sel_hi;
        const unsigned neg = half == 0 ? instruction.neg_lo : instruction.neg_hi;
        const bool constant = operand.kind == Operand::Kind::kConstant;
        const unsigned part = constant ? 0 : sel >> at & 1;
        U32 word = lane_word(wave, operand, lane, part);
        if ((neg >> at & 1) != 0) word ^= 1u << 31;
        value[at] = std::bit_cast<float>(word);
      }
      float result = value[0];
      if (kOperation == Pair::kAdd) result = sum(value[0], value[1]);
      if (kOperation == Pair::kMultiply) result = product(value[0], value[1]);
      if (kOperation == Pair::kFma) result = multiply_add(value[0], value[1], value[2]);
      if (kOperation == Pair::kMove) result = value[half];
      if (instruction.clamp) result = result > 0 ? (result < 1 ? result : 1.0f) : 0.0f;
      words[half][lane] = std::bit_cast<U32>(result);
    }
  });
  write_row(wave, reg, words[0]);
  write_row(wave, reg + 1, words[1]);
}

// dst, flag, x, denominator, numerator. Sources are scaled so that the quotient neither overflows
// nor loses bits on the way; v_div_fixup computes the exact quotient here, so no scale is needed.
void divide_scale_float(Wave& wave, const Instruction& instruction) {
  alignas(64) U32 scratch[kLanes];
  write_row(wave, instruction.operand[0].reg,
            source_row<4>(wave, instruction.operand[2], 0, scratch));
  wave.set_mask64(instruction.operand[1].reg, 0);
}

void add_basic(InstructionSet& set) {
  set.add("v_add_f32", per_lane<[](float x, float y) { return sum(x, y); }>());
  set.add("v_sub_f32", per_lane<[](float x, float y) { return x - y; }>());
  set.add("v_subrev_f32", per_lane<[](float x, float y) { return y - x; }>());
  set.add("v_mul_f32", per_lane<[](float x, float y) { return product(x, y); }>());
  set.add("v_mul_legacy_f32",
          per_lane<[](float x, float y) { return x == 0 || y == 0 ? 0.0f : product(x, y); }>());
  set.add("v_min_f32", per_lane<[](float x, float y) { return minimum(x, y); }>());
  set.add("v_max_f32", per_lane<[](float x, float y) { return maximum(x, y); }>());
  set.add("v_min3_f32",
          per_lane<[](float x, float y, float z) { return minimum(minimum(x, y), z); }>());
  set.add("v_max3_f32",
          per_lane<[](float x, float y, float z) { return maximum(maximum(x, y), z); }>());
  set.add("v_med3_f32", per_lane<[](float x, float y, float z) {
            return maximum(minimum(x, y), minimum(maximum(x, y), z));
          }>());
  const Definition fused =
      per_lane<[](float x, float y, float z) { return multiply_add(x, y, z); }>();
  for (const char* name : {"v_fma_f32", "v_fmaak_f32"}) set.add(name, fused);
  set.add("v_fmamk_f32", fused);
  set.add("v_fmac_f32",
          per_lane<[](float x, float y, float z) { return multiply_add(x, y, z); }>(true));
  set.add("v_mad_f32", per_lane<[](float x, float y, float z) { return sum(product(x, y), z); }>());
  set.add("v_madak_f32",
          per_lane<[](float x, float y, float z) { return sum(product(x, y), z); }>());
  set.add("v_madmk_f32",
          per_lane<[](float x, float y, float z) { return sum(product(x, y), z); }>());
  set.add("v_mac_f32",
          per_lane<[](float x, float y, float z) { return sum(product(x, y), z); }>(true));
}

void add_functions(InstructionSet& set) {
  const Definition reciprocal = per_lane<[](float x) { return 1.0f / x; }>();
  set.add("v_rcp_f32", reciprocal);
  set.add("v_rcp_iflag_f32", reciprocal);
  set.add("v_rsq_f32", per_lane<[](float x) { return 1.0f / std::sqrt(x); }>());
  set.add("v_sqrt_f32", per_lane<[](float x) { return std::sqrt(x); }>());
  set.add("v_exp_f32", per_lane<[](float x) { return std::exp2(x); }>());
  set.add("v_log_f32", per_lane<[](float x) { return std::log2(x); }>());
  set.add("v_sin_f32", per_lane<[](float x) { return std::sin(x * kTwoPi); }>());
  set.add("v_cos_f32", per_lane<[](float x) { return std::cos(x * kTwoPi); }>());
  set.add("v_floor_f32", per_lane<[](float x) { return std::floor(x); }>());
  set.add("v_ceil_f32", per_lane<[](float x) { return std::ceil(x); }>());
  set.add("v_trunc_f32", per_lane<[](float x) { return std::trunc(x); }>());
  set.add("v_rndne_f32", per_lane<[](float x) { return std::nearbyint(x); }>());
  set.add("v_fract_f32", per_lane<[](float x) { return x - std::floor(x); }>());
  set.add("v_ldexp_f32", per_lane<[](float x, I32 n) { return std::ldexp(x, n); }>());
  set.add("v_frexp_mant_f32", per_lane<[](float x) {
            int exponent = 0;
            return finite(x) ? std::frexp(x, &exponent) : x;
          }>());
  set.add("v_frexp_exp_i32_f32", per_lane<[](float x) {
            int exponent = 0;
            if (finite(x)) std::frexp(x, &exponent);
            return I32{exponent};
          }>());
}

void add_division(InstructionSet& set) {
  set.add("v_div_scale_f32", {.execute = divide_scale_float,
                              .first_source = 2,
                              .sources = {OperandType::kF32, OperandType::kF32, OperandType::kF32},
                              .result = OperandType::kF32});
  set.add("v_div_fmas_f32",
          per_lane<[](float x, float y, float z) { return multiply_add(x, y, z); }>());
  set.add("v_div_fixup_f32", per_lane<[](float, float denominator, float numerator) {
            return numerator / denominator;
          }>());
}

void add_conversions(InstructionSet& set) {
  set.add("v_cvt_f32_u32", per_lane<[](U32 x) { return static_cast<float>(x); }>());
  set.add("v_cvt_f32_i32", per_lane<[](I32 x) { return static_cast<float>(x); }>());
  set.add("v_cvt_u32_f32", per_lane<[](float x) { return saturate_unsigned(x); }>());
  set.add("v_cvt_i32_f32", per_lane<[](float x) { return saturate(x); }>());
  set.add("v_cvt_flr_i32_f32", per_lane<[](float x) { return saturate(std::floor(x)); }>());
  set.add("v_cvt_rpi_i32_f32", per_lane<[](float x) { return saturate(std::floor(x + 0.5f)); }>());
  set.add("v_cvt_f32_ubyte0", per_lane<[](U32 x) { return static_cast<float>(x & 0xff); }>());
  set.add("v_cvt_f32_ubyte1", per_lane<[](U32 x) { return static_cast<float>(x >> 8 & 0xff); }>());
  set.add("v_cvt_f32_ubyte2", per_lane<[](U32 x) { return static_cast<float>(x >> 16 & 0xff); }>());
  set.add("v_cvt_f32_ubyte3", per_lane<[](U32 x) { return static_cast<float>(x >> 24); }>());
  set.add("v_cvt_f32_f64", per_lane<[](double x) { return static_cast<float>(x); }>());
  set.add("v_cvt_f32_f16", per_lane<[](Half x) { return static_cast<float>(x); }>());
  set.add("v_cvt_f16_f32", per_lane<[](float x) { return static_cast<Half>(x); }>());
}

}  // namespace

void add_vector_float(InstructionSet& set) {
  add_basic(set);
  add_functions(set);
  add_division(set);
  add_conversions(set);
  const auto mixed = [&](const char* name, Execute execute) {
    set.add(name, {.execute = execute,
                   .sources = {OperandType::kF32, OperandType::kF32, OperandType::kF32}});
  };
  for (const std::string prefix : {"v_fma_", "v_mad_"}) {
    mixed((prefix + "mix_f32").c_str(), multiply_add_mixed<MixResult::kSingle>);
    mixed((prefix + "mixlo_f16").c_str(), multiply_add_mixed<MixResult::kLowHalf>);
    mixed((prefix + "mixhi_f16").c_str(), multiply_add_mixed<MixResult::kHighHalf>);
  }
  mixed("v_pk_add_f32", paired<Pair::kAdd>);
  mixed("v_pk_mul_f32", paired<Pair::kMultiply>);
  mixed("v_pk_fma_f32", paired<Pair::kFma>);
  // A move has no clamp modifier; its result's type makes the decoder refuse one.
  set.add("v_pk_mov_b32", {.execute = paired<Pair::kMove>,
                           .sources = {OperandType::kF32, OperandType::kF32},
                           .result = OperandType::kB64});
}

}  // namespace vitamin::soft::amdgpu::isa
