// SPDX-License-Identifier: Apache-2.0
//
// Double precision.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "backends/soft/amdgpu/isa/floating_point.h"
#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

using U32 = std::uint32_t;
using I32 = std::int32_t;
using U64 = std::uint64_t;

// 2/pi: the 1201 bits behind the point, then zeros.
constexpr std::array<U64, 19> kTwoOverPi = {
    0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561,
    0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484,
    0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b, 0x1ff897ffde05980f,
    0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d, 0x7527bac7ebe5f17b,
    0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b0000};

// v_trig_preop_f64 ("RDNA3" Instruction Set Architecture): 53 bits of 2/pi. The reduction of x by
// pi/2 multiplies x by three such segments. Those of a large x begin later, because what lies
// before them makes multiples of four, and are scaled up for the largest x, so that none is
// denormal.
double segment_of_two_over_pi(double x, U32 segment) {
  constexpr int kSegmentBits = 53, kLarge = 1077, kLargest = 1968, kScaledUp = 128;
  const auto exponent = static_cast<int>(std::bit_cast<U64>(x) >> 52 & 0x7ff);
  const int first = static_cast<int>(segment & 31) * kSegmentBits + std::max(exponent - kLarge, 0);
  const auto word_at = [](int at) {
    return at < static_cast<int>(kTwoOverPi.size()) ? kTwoOverPi[static_cast<std::size_t>(at)] : 0;
  };
  const int at = first / 64, shift = first % 64;
  const U64 window =
      shift == 0 ? word_at(at) : word_at(at) << shift | word_at(at + 1) >> (64 - shift);
  return std::ldexp(static_cast<double>(window >> (64 - kSegmentBits)),
                    -kSegmentBits - first + (exponent >= kLargest ? kScaledUp : 0));
}

I32 saturate(double x) {
  if (x != x) return 0;
  if (x >= 2147483647.0) return std::numeric_limits<I32>::max();
  return x <= -2147483648.0 ? std::numeric_limits<I32>::min() : static_cast<I32>(x);
}

U32 saturate_unsigned(double x) {
  if (!(x > 0)) return 0;
  return x >= 4294967295.0 ? std::numeric_limits<U32>::max() : static_cast<U32>(x);
}

// As in single precision: v_div_fixup_f64 computes the exact quotient.
void divide_scale_double(Wave& wave, const Instruction& instruction) {
  alignas(64) U32 scratch[2][kLanes], upper[kLanes];
  const unsigned reg = instruction.operand[0].reg;
  const U32* const low = source_row<8>(wave, instruction.operand[2], 0, scratch[0]);
  // The destination's lower row may be the source's upper one.
  std::copy_n(source_row<8>(wave, instruction.operand[2], 1, scratch[1]), kLanes, upper);
  write_row(wave, reg, low);
  write_row(wave, reg + 1, upper);
  wave.set_mask64(instruction.operand[1].reg, 0);
}

}  // namespace

void add_vector_double(InstructionSet& set) {
  set.add("v_add_f64", per_lane<[](double x, double y) { return sum(x, y); }>());
  set.add("v_mul_f64", per_lane<[](double x, double y) { return product(x, y); }>());
  set.add("v_min_f64", per_lane<[](double x, double y) { return minimum(x, y); }>());
  set.add("v_max_f64", per_lane<[](double x, double y) { return maximum(x, y); }>());
  set.add("v_fma_f64",
          per_lane<[](double x, double y, double z) { return multiply_add(x, y, z); }>());
  set.add("v_fmac_f64",
          per_lane<[](double x, double y, double z) { return multiply_add(x, y, z); }>(true));
  set.add("v_rcp_f64", per_lane<[](double x) { return 1.0 / x; }>());
  set.add("v_rsq_f64", per_lane<[](double x) { return 1.0 / std::sqrt(x); }>());
  set.add("v_sqrt_f64", per_lane<[](double x) { return std::sqrt(x); }>());
  set.add("v_floor_f64", per_lane<[](double x) { return std::floor(x); }>());
  set.add("v_ceil_f64", per_lane<[](double x) { return std::ceil(x); }>());
  set.add("v_trunc_f64", per_lane<[](double x) { return std::trunc(x); }>());
  set.add("v_rndne_f64", per_lane<[](double x) { return std::nearbyint(x); }>());
  set.add("v_fract_f64", per_lane<[](double x) { return x - std::floor(x); }>());
  set.add("v_trig_preop_f64",
          per_lane<[](double x, U32 segment) { return segment_of_two_over_pi(x, segment); }>());
  set.add("v_ldexp_f64", per_lane<[](double x, I32 n) { return std::ldexp(x, n); }>());
  set.add("v_frexp_mant_f64", per_lane<[](double x) {
            int exponent = 0;
            return std::isfinite(x) ? std::frexp(x, &exponent) : x;
          }>());
  set.add("v_frexp_exp_i32_f64", per_lane<[](double x) {
            int exponent = 0;
            if (std::isfinite(x)) std::frexp(x, &exponent);
            return I32{exponent};
          }>());
  set.add("v_div_scale_f64", {.execute = divide_scale_double,
                              .first_source = 2,
                              .sources = {OperandType::kF64, OperandType::kF64, OperandType::kF64},
                              .result = OperandType::kF64});
  set.add("v_div_fmas_f64",
          per_lane<[](double x, double y, double z) { return multiply_add(x, y, z); }>());
  set.add("v_div_fixup_f64", per_lane<[](double, double denominator, double numerator) {
            return numerator / denominator;
          }>());
  set.add("v_cvt_f64_f32", per_lane<[](float x) { return static_cast<double>(x); }>());
  set.add("v_cvt_f64_u32", per_lane<[](U32 x) { return static_cast<double>(x); }>());
  set.add("v_cvt_f64_i32", per_lane<[](I32 x) { return static_cast<double>(x); }>());
  set.add("v_cvt_u32_f64", per_lane<[](double x) { return saturate_unsigned(x); }>());
  set.add("v_cvt_i32_f64", per_lane<[](double x) { return saturate(x); }>());
}

}  // namespace vitamin::soft::amdgpu::isa
