// SPDX-License-Identifier: Apache-2.0
//
// Integer, bit and carry arithmetic of vector registers.
#include <algorithm>
#include <bit>
#include <limits>

#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

using U16 = std::uint16_t;
using I16 = std::int16_t;
using U32 = std::uint32_t;
using I32 = std::int32_t;
using U64 = std::uint64_t;
using I64 = std::int64_t;

constexpr U32 unsigned24(U32 x) { return x & 0xffffff; }
constexpr I32 signed24(U32 x) { return static_cast<I32>(x << 8) >> 8; }
constexpr I32 as_signed(U32 x) { return static_cast<I32>(x); }
constexpr U32 low(U64 x) { return static_cast<U32>(x); }

constexpr U32 reverse_bits(U32 x) {
  x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1;
  x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
  x = (x >> 4 & 0x0f0f0f0f) | (x & 0x0f0f0f0f) << 4;
  return __builtin_bswap32(x);
}

constexpr U32 extract(U32 x, U32 at, U32 count) {
  count &= 31;
  return count == 0 ? 0 : x >> (at & 31) & ((1u << count) - 1);
}

constexpr I32 extract_signed(U32 x, U32 at, U32 count) {
  at &= 31, count &= 31;
  if (count == 0) return 0;
  if (at + count >= 32) return as_signed(x) >> at;
  return as_signed(x << (32 - at - count)) >> (32 - count);
}

// Four bytes picked out of eight by the bytes of `selector`; v_perm_b32.
constexpr U32 pick_bytes(U32 high, U32 low_word, U32 selector) {
  const U64 all = static_cast<U64>(high) << 32 | low_word;
  U32 result = 0;
  for (unsigned at = 0; at < 4; ++at) {
    const U32 pick = selector >> (8 * at) & 0xff;
    U64 byte = 0xff;
    if (pick < 8)
      byte = all >> (8 * pick) & 0xff;
    else if (pick < 12)
      byte = (all >> (16 * (pick - 8) + 15) & 1) != 0 ? 0xff : 0;
    else if (pick == 12)
      byte = 0;
    result |= low(byte) << (8 * at);
  }
  return result;
}

// The value that T can hold next to `value`.
template <class T>
constexpr T limited(I64 value) {
  constexpr I64 kLeast = std::numeric_limits<T>::min(), kMost = std::numeric_limits<T>::max();
  return static_cast<T>(std::max(kLeast, std::min(value, kMost)));
}

template <class T>
constexpr T median(T a, T b, T c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

enum class Carry { kOut, kInOut };

// v_add_co, v_sub_co, v_subrev_co and their carry-in forms: dst, carry out, x, y[, carry in].
template <int kSign, bool kReversed, Carry kCarry>
void carry_arithmetic(Wave& wave, const Instruction& instruction) {
  alignas(64) U32 scratch[2][kLanes];
  const U32* x = source_row<4>(wave, instruction.operand[2], 0, scratch[0]);
  const U32* y = source_row<4>(wave, instruction.operand[3], 0, scratch[1]);
  if (kReversed) std::swap(x, y);
  // All ones, which is -1, where the lane has a carry.
  alignas(64) U32 in[kLanes] = {}, out[kLanes], words[kLanes];
  if (kCarry == Carry::kInOut) expand_mask(mask_operand(wave, instruction.operand[4]), in);
  each_lane(wave.width, [&](std::ptrdiff_t lane) {
    const U32 a = x[lane], b = y[lane], carry = in[lane];
    words[lane] = kSign > 0 ? a + b - carry : a - b + carry;
    const bool beyond = kSign > 0 ? words[lane] < a : a < b;
    const bool by_carry = kSign > 0 ? words[lane] == a : a == b;
    out[lane] = (beyond ? ~0u : 0u) | (by_carry ? carry : 0u);
  });
  U32* const to = wave.row(instruction.operand[0].reg);
  if (instruction.shaped) shape(instruction, OperandType::kB32, to, words);
  write_lanes(wave, to, [&](std::ptrdiff_t lane) { return words[lane]; });
  wave.set_mask64(instruction.operand[1].reg, mask_of_words(out, wave.width) & wave.exec());
}

// v_mad_u64_u32 and v_mad_i64_i32: dst, carry out, x, y, addend.
template <class T, class Wide>
void multiply_add_wide(Wave& wave, const Instruction& instruction) {
  const unsigned reg = instruction.operand[0].reg;
  alignas(64) U32 words[2][kLanes] = {};
  U64 carry = 0;
  each_active_lane(wave, [&](unsigned lane) {
    const auto x = static_cast<T>(lane_word(wave, instruction.operand[2], lane));
    const auto y = static_cast<T>(lane_word(wave, instruction.operand[3], lane));
    const auto product = static_cast<U64>(static_cast<Wide>(x) * static_cast<Wide>(y));
    const U64 sum = product + lane_pair(wave, instruction.operand[4], lane);
    carry |= static_cast<U64>(sum < product) << lane;
    words[0][lane] = low(sum);
    words[1][lane] = low(sum >> 32);
  });
  write_row(wave, reg, words[0]);
  write_row(wave, reg + 1, words[1]);
  wave.set_mask64(instruction.operand[1].reg, carry);
}

// v_lshl_add_u64. AMD documents shifts of 0 to 4 and not what more give.
void shift_add_wide(Wave& wave, const Instruction& instruction) {
  constexpr U32 kMost = 4;
  each_active_lane(wave, [&](unsigned lane) {
    const U32 shift = lane_word(wave, instruction.operand[2], lane);
    if (shift > kMost)
      throw Fault("the software GPU does not know the result of '" + instruction.text +
                  "' with a shift of " + std::to_string(shift));
  });
  lanes<[](U64 x, U32 n, U64 y) { return (x << (n & 7)) + y; }>(wave, instruction);
}

template <std::size_t kBytes>
void select_by_mask(Wave& wave, const Instruction& instruction) {
  alignas(64) U32 scratch[2][2][kLanes];
  const U32* const otherwise = source_row<kBytes>(wave, instruction.operand[1], 0, scratch[0][0]);
  const U32* const chosen = source_row<kBytes>(wave, instruction.operand[2], 0, scratch[1][0]);
  alignas(64) U32 mask[kLanes];
  expand_mask(mask_operand(wave, instruction.operand[3]), mask);
  U32* const to = wave.row(instruction.operand[0].reg);
  const auto word = [&](std::ptrdiff_t lane) {
    return (chosen[lane] & mask[lane]) | (otherwise[lane] & ~mask[lane]);
  };
  if (!instruction.shaped) return write_lanes(wave, to, word);
  U32* const words = scratch[0][1];
  each_lane(wave.width, [&](std::ptrdiff_t lane) { words[lane] = word(lane); });
  shape(instruction, OperandType::kB32, to, words);
  write_row(wave, instruction.operand[0].reg, words);
}

void add_carries(InstructionSet& set) {
  const auto add = [&](std::initializer_list<const char*> names, Execute execute) {
    for (const char* name : names)
      set.add(name, {.execute = execute,
                     .first_source = 2,
                     .sources = {OperandType::kB32, OperandType::kB32},
                     .result = OperandType::kB32});
  };
  add({"v_add_co_u32"}, carry_arithmetic<1, false, Carry::kOut>);
  add({"v_sub_co_u32"}, carry_arithmetic<-1, false, Carry::kOut>);
  add({"v_subrev_co_u32"}, carry_arithmetic<-1, true, Carry::kOut>);
  add({"v_addc_co_u32", "v_add_co_ci_u32"}, carry_arithmetic<1, false, Carry::kInOut>);
  add({"v_subb_co_u32", "v_sub_co_ci_u32"}, carry_arithmetic<-1, false, Carry::kInOut>);
  add({"v_subbrev_co_u32", "v_subrev_co_ci_u32"}, carry_arithmetic<-1, true, Carry::kInOut>);
  const Definition wide{.first_source = 2,
                        .sources = {OperandType::kB32, OperandType::kB32, OperandType::kB64},
                        .result = OperandType::kB64};
  Definition unsigned_form = wide, signed_form = wide;
  unsigned_form.execute = multiply_add_wide<U32, U64>;
  signed_form.execute = multiply_add_wide<I32, I64>;
  set.add("v_mad_u64_u32", unsigned_form);
  set.add("v_mad_i64_i32", signed_form);
  set.add("v_cndmask_b32", {.execute = select_by_mask<4>,
                            .sources = {OperandType::kF32, OperandType::kF32, OperandType::kB32},
                            .result = OperandType::kB32});
  set.add("v_cndmask_b16", {.execute = select_by_mask<2>,
                            .sources = {OperandType::kF16, OperandType::kF16, OperandType::kB32},
                            .result = OperandType::kB16});
}

void add_bits(InstructionSet& set) {
  set.add("v_mov_b32", per_lane<[](U32 x) { return x; }>());
  set.add("v_accvgpr_read_b32", per_lane<[](U32 x) { return x; }>());
  set.add("v_accvgpr_write_b32", per_lane<[](U32 x) { return x; }>());
  set.add("v_accvgpr_mov_b32", per_lane<[](U32 x) { return x; }>());
  set.add("v_mov_b64", per_lane<[](U64 x) { return x; }>());
  set.add("v_not_b32", per_lane<[](U32 x) { return ~x; }>());
  set.add("v_bfrev_b32", per_lane<[](U32 x) { return reverse_bits(x); }>());
  const Definition leading =
      per_lane<[](U32 x) { return x == 0 ? ~0u : U32(std::countl_zero(x)); }>();
  const Definition leading_sign = per_lane<[](U32 x) {
    const U32 y = as_signed(x) < 0 ? ~x : x;
    return y == 0 ? ~0u : U32(std::countl_zero(y));
  }>();
  const Definition trailing =
      per_lane<[](U32 x) { return x == 0 ? ~0u : U32(std::countr_zero(x)); }>();
  set.add("v_ffbh_u32", leading);
  set.add("v_ffbh_i32", leading_sign);
  set.add("v_ffbl_b32", trailing);
  set.add("v_and_b32", per_lane<[](U32 x, U32 y) { return x & y; }>());
  set.add("v_or_b32", per_lane<[](U32 x, U32 y) { return x | y; }>());
  set.add("v_xor_b32", per_lane<[](U32 x, U32 y) { return x ^ y; }>());
  set.add("v_xnor_b32", per_lane<[](U32 x, U32 y) { return ~(x ^ y); }>());
  set.add("v_and_or_b32", per_lane<[](U32 x, U32 y, U32 z) { return (x & y) | z; }>());
  set.add("v_or3_b32", per_lane<[](U32 x, U32 y, U32 z) { return x | y | z; }>());
  set.add("v_xor3_b32", per_lane<[](U32 x, U32 y, U32 z) { return x ^ y ^ z; }>());
  set.add("v_bfi_b32", per_lane<[](U32 x, U32 y, U32 z) { return (x & y) | (~x & z); }>());
  set.add("v_bfm_b32", per_lane<[](U32 x, U32 y) { return ((1u << (x & 31)) - 1) << (y & 31); }>());
  set.add("v_bfe_u32", per_lane<[](U32 x, U32 y, U32 z) { return extract(x, y, z); }>());
  set.add("v_bfe_i32", per_lane<[](U32 x, U32 y, U32 z) { return extract_signed(x, y, z); }>());
  set.add("v_bcnt_u32_b32", per_lane<[](U32 x, U32 y) { return U32(std::popcount(x)) + y; }>());
  set.add("v_alignbit_b32", per_lane<[](U32 x, U32 y, U16 z) {
            return low((static_cast<U64>(x) << 32 | y) >> (z & 31));
          }>());
  set.add("v_alignbyte_b32", per_lane<[](U32 x, U32 y, U16 z) {
            return low((static_cast<U64>(x) << 32 | y) >> (8 * (z & 3)));
          }>());
  set.add("v_perm_b32", per_lane<[](U32 x, U32 y, U32 z) { return pick_bytes(x, y, z); }>());
}

void add_shifts(InstructionSet& set) {
  set.add("v_lshlrev_b32", per_lane<[](U32 x, U32 y) { return y << (x & 31); }>());
  set.add("v_lshrrev_b32", per_lane<[](U32 x, U32 y) { return (y >> (x & 31)); }>());
  set.add("v_ashrrev_i32", per_lane<[](U32 x, I32 y) { return (y >> (x & 31)); }>());
  set.add("v_lshlrev_b64", per_lane<[](U32 x, U64 y) { return y << (x & 63); }>());
  set.add("v_lshrrev_b64", per_lane<[](U32 x, U64 y) { return (y >> (x & 63)); }>());
  set.add("v_ashrrev_i64", per_lane<[](U32 x, I64 y) { return (y >> (x & 63)); }>());
  set.add("v_lshl_or_b32", per_lane<[](U32 x, U32 y, U32 z) { return x << (y & 31) | z; }>());
  set.add("v_lshl_add_u32", per_lane<[](U32 x, U32 y, U32 z) { return (x << (y & 31)) + z; }>());
  Definition wide = per_lane<[](U64, U32, U64 y) { return y; }>();
  wide.execute = shift_add_wide;
  set.add("v_lshl_add_u64", wide);
  set.add("v_add_lshl_u32", per_lane<[](U32 x, U32 y, U32 z) { return (x + y) << (z & 31); }>());
  set.add("v_xad_u32", per_lane<[](U32 x, U32 y, U32 z) { return (x ^ y) + z; }>());
}

// Additions and subtractions have other names on gfx10, and saturate under the clamp modifier.
void add_saturating(InstructionSet& set, const char* gfx9, const char* gfx10, Definition definition,
                    const Definition& saturating) {
  definition.saturating = saturating.execute;
  set.add(gfx9, definition);
  set.add(gfx10, definition);
}

void add_arithmetic(InstructionSet& set) {
  const Definition add = per_lane<[](U32 x, U32 y) { return x + y; }>();
  const Definition subtract = per_lane<[](U32 x, U32 y) { return x - y; }>();
  const Definition reversed = per_lane<[](U32 x, U32 y) { return y - x; }>();
  add_saturating(set, "v_add_u32", "v_add_nc_u32", add,
                 per_lane<[](U32 x, U32 y) { return limited<U32>(I64{x} + y); }>());
  add_saturating(set, "v_sub_u32", "v_sub_nc_u32", subtract,
                 per_lane<[](U32 x, U32 y) { return limited<U32>(I64{x} - y); }>());
  add_saturating(set, "v_subrev_u32", "v_subrev_nc_u32", reversed,
                 per_lane<[](U32 x, U32 y) { return limited<U32>(I64{y} - x); }>());
  add_saturating(set, "v_add_i32", "v_add_nc_i32", add,
                 per_lane<[](I32 x, I32 y) { return limited<I32>(I64{x} + y); }>());
  add_saturating(set, "v_sub_i32", "v_sub_nc_i32", subtract,
                 per_lane<[](I32 x, I32 y) { return limited<I32>(I64{x} - y); }>());
  set.add("v_add3_u32", per_lane<[](U32 x, U32 y, U32 z) { return x + y + z; }>());
  set.add("v_mul_lo_u32", per_lane<[](U32 x, U32 y) { return x * y; }>());
  set.add("v_mul_hi_u32", per_lane<[](U32 x, U32 y) { return low(U64{x} * y >> 32); }>());
  set.add("v_mul_hi_i32", per_lane<[](I32 x, I32 y) { return low(U64(I64{x} * y) >> 32); }>());
  set.add("v_mul_u32_u24", per_lane<[](U32 x, U32 y) { return unsigned24(x) * unsigned24(y); }>());
  set.add("v_mul_hi_u32_u24",
          per_lane<[](U32 x, U32 y) { return low(U64{unsigned24(x)} * unsigned24(y) >> 32); }>());
  set.add("v_mul_i32_i24",
          per_lane<[](U32 x, U32 y) { return U32(signed24(x)) * U32(signed24(y)); }>());
  set.add("v_mul_hi_i32_i24",
          per_lane<[](I32 x, I32 y) { return low(U64(I64{signed24(x)} * signed24(y)) >> 32); }>());
  set.add("v_mad_u32_u24",
          per_lane<[](U32 x, U32 y, U32 z) { return unsigned24(x) * unsigned24(y) + z; }>());
  set.add("v_mad_i32_i24",
          per_lane<[](U32 x, U32 y, U32 z) { return U32(signed24(x)) * U32(signed24(y)) + z; }>());
  set.add("v_min_u32", per_lane<[](U32 x, U32 y) { return std::min(x, y); }>());
  set.add("v_max_u32", per_lane<[](U32 x, U32 y) { return std::max(x, y); }>());
  set.add("v_min_i32", per_lane<[](I32 x, I32 y) { return std::min(x, y); }>());
  set.add("v_max_i32", per_lane<[](I32 x, I32 y) { return std::max(x, y); }>());
  set.add("v_min3_u32",
          per_lane<[](U32 x, U32 y, U32 z) { return std::min(x, std::min(y, z)); }>());
  set.add("v_max3_u32",
          per_lane<[](U32 x, U32 y, U32 z) { return std::max(x, std::max(y, z)); }>());
  set.add("v_min3_i32",
          per_lane<[](I32 x, I32 y, I32 z) { return std::min(x, std::min(y, z)); }>());
  set.add("v_max3_i32",
          per_lane<[](I32 x, I32 y, I32 z) { return std::max(x, std::max(y, z)); }>());
  set.add("v_med3_i32", per_lane<[](I32 x, I32 y, I32 z) { return median(x, y, z); }>());
  set.add("v_med3_u32", per_lane<[](U32 x, U32 y, U32 z) { return median(x, y, z); }>());
  set.add("v_sad_u32",
          per_lane<[](U32 x, U32 y, U32 z) { return std::max(x, y) - std::min(x, y) + z; }>());
  set.add("v_mad_u32_u16", per_lane<[](U16 x, U16 y, U32 z) { return U32{x} * U32{y} + z; }>());
  set.add("v_mad_i32_i16",
          per_lane<[](I16 x, I16 y, U32 z) { return U32(I32{x} * I32{y}) + z; }>());
}

void add_short(InstructionSet& set) {
  const Definition add = per_lane<[](U16 x, U16 y) { return U16(x + y); }>();
  const Definition subtract = per_lane<[](U16 x, U16 y) { return U16(x - y); }>();
  add_saturating(set, "v_add_u16", "v_add_nc_u16", add,
                 per_lane<[](U16 x, U16 y) { return limited<U16>(I64{x} + y); }>());
  add_saturating(set, "v_sub_u16", "v_sub_nc_u16", subtract,
                 per_lane<[](U16 x, U16 y) { return limited<U16>(I64{x} - y); }>());
  add_saturating(set, "v_add_i16", "v_add_nc_i16", add,
                 per_lane<[](I16 x, I16 y) { return limited<I16>(I64{x} + y); }>());
  add_saturating(set, "v_sub_i16", "v_sub_nc_i16", subtract,
                 per_lane<[](I16 x, I16 y) { return limited<I16>(I64{x} - y); }>());
  set.add("v_subrev_u16", per_lane<[](U16 x, U16 y) { return U16(y - x); }>());
  set.add("v_mul_lo_u16", per_lane<[](U16 x, U16 y) { return U16(U32{x} * U32{y}); }>());
  set.add("v_mad_u16", per_lane<[](U16 x, U16 y, U16 z) { return U16(U32{x} * U32{y} + z); }>());
  set.add("v_mad_legacy_u16",
          per_lane<[](U16 x, U16 y, U16 z) { return U16(U32{x} * U32{y} + z); }>());
  set.add("v_lshlrev_b16", per_lane<[](U16 x, U16 y) { return U16(U32{y} << (x & 15)); }>());
  set.add("v_lshrrev_b16", per_lane<[](U16 x, U16 y) { return U16(y >> (x & 15)); }>());
  set.add("v_ashrrev_i16", per_lane<[](U16 x, I16 y) { return I16(y >> (x & 15)); }>());
  set.add("v_min_u16", per_lane<[](U16 x, U16 y) { return std::min(x, y); }>());
  set.add("v_max_u16", per_lane<[](U16 x, U16 y) { return std::max(x, y); }>());
  set.add("v_min_i16", per_lane<[](I16 x, I16 y) { return std::min(x, y); }>());
  set.add("v_max_i16", per_lane<[](I16 x, I16 y) { return std::max(x, y); }>());
  set.add("v_sat_pk_u8_i16", per_lane<[](U32 x) {
            const auto clip = [](U32 half) {
              const I32 value = static_cast<I16>(half);
              return static_cast<U32>(value < 0 ? 0 : value > 255 ? 255 : value);
            };
            return U16(clip(x & 0xffff) | clip(x >> 16) << 8);
          }>());
}

}  // namespace

void add_vector_integer(InstructionSet& set) {
  add_bits(set);
  add_shifts(set);
  add_arithmetic(set);
  add_short(set);
  add_carries(set);
}

}  // namespace vitamin::soft::amdgpu::isa
