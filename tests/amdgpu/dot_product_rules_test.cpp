// SPDX-License-Identifier: Apache-2.0
//
// Single instructions: dot products of the parts that have them. Encodings are LLVM's.
#include <bit>
#include <string>
#include <utility>

#include "tests/amdgpu/instruction_rules.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

// Sources in v1, v2 and v3, the result in v0.
class DotProduct : public Rules {
 public:
  explicit DotProduct(const char* processor, unsigned width = 64) : Rules(processor, width) {}

  // The result of lane 0, or nothing but the reason.
  U32 of(const Code& code, const char* text, U32 x, U32 y, U32 z) {
    row(1) = x, row(2) = y, row(3) = z;
    CHECK(run(code, text) == "");
    return row(0);
  }
  float real_of(const Code& code, const char* text, U32 x, U32 y, float z) {
    return std::bit_cast<float>(of(code, text, x, y, std::bit_cast<U32>(z)));
  }
};

constexpr U32 kHalfTwo = 0x4000, kHalfThree = 0x4200, kHalfFour = 0x4400, kHalfFive = 0x4500;
constexpr U32 kLeft = kHalfThree << 16 | kHalfTwo, kRight = kHalfFive << 16 | kHalfFour;

TEST_CASE("dot products of halves are sums of single precision") {
  DotProduct dot("gfx90a");
  const Code code{0xd3a34000, 0x1c0e0501};
  CHECK(dot.real_of(code, "v_dot2_f32_f16 v0, v1, v2, v3", kLeft, kRight, 0.5f) == 23.5f);
  CHECK(dot.real_of({0xd3a3c000, 0x1c0e0501}, "v_dot2_f32_f16 v0, v1, v2, v3 clamp", kLeft, kRight,
                    0.5f) == 1);
  CHECK(dot.real_of({0xd3a34800, 0x140e0501},
                    "v_dot2_f32_f16 v0, v1, v2, v3 op_sel:[1,0,0] op_sel_hi:[0,1,1]", kLeft, kRight,
                    0) == 3 * 4 + 2 * 5);
  CHECK(dot.real_of({0xd3a34200, 0x3c0e0501},
                    "v_dot2_f32_f16 v0, v1, v2, v3 neg_lo:[1,0,0] neg_hi:[0,1,0]", kLeft, kRight,
                    1) == 1 - 8 - 15);
  const char* const negates_sum = "v_dot2_f32_f16 v0, v1, v2, v3 neg_lo:[0,0,1]";
  CHECK(dot.run(0xd3a34000, 0x9c0e0501, negates_sum) ==
        std::string("the software GPU does not know the modifiers of '") + negates_sum + "'");
  // The lower halves come first: 2^24 + 1 is not a float.
  constexpr U32 kLarge = 0x6c00;  // 4096
  CHECK(dot.real_of(code, "v_dot2_f32_f16 v0, v1, v2, v3", 0x3c00 | kLarge << 16,
                    0x3c00 | kLarge << 16, -16777216.0f) == 1);
  CHECK(dot.real_of(code, "v_dot2_f32_f16 v0, v1, v2, v3", 0x3c00 << 16 | kLarge,
                    0x3c00 << 16 | (kLarge ^ 0x8000), 16777216.0f) == 1);
  CHECK(dot.real_of(code, "v_dot2_f32_f16 v0, v1, v2, v3", 0x3c00 | kLarge << 16,
                    0x3c00 | (kLarge ^ 0x8000) << 16, 16777216.0f) == 0);
}

TEST_CASE("dot products of integers wrap or stop at their limits") {
  const struct {
    const char *processor, *name;
    Code code;
  } kBytes[] = {{"gfx90a", "v_dot4_i32_i8", {0xd3a84000, 0x1c0e0501}},
                {"gfx1030", "v_dot4_i32_i8", {0xcc164000, 0x1c0e0501}}};
  for (const auto& [processor, name, code] : kBytes) {
    DotProduct dot(processor);
    const std::string text = std::string(name) + " v0, v1, v2, v3", clamped = text + " clamp";
    CHECK(dot.of(code, text.c_str(), 0x80ff0203, 0x80010405, 7) == 7 + 15 + 8 - 1 + 16384);
    CHECK(dot.of(code, text.c_str(), 0x00000001, 0x00000001, 0x7fffffff) == 0x80000000);
    const Code saturates{code.first | 0x8000, code.second};
    CHECK(dot.of(saturates, clamped.c_str(), 1, 1, 0x7fffffff) == 0x7fffffff);
    CHECK(dot.of(saturates, clamped.c_str(), 1, 0xff, 0x80000000) == 0x80000000);
  }
  DotProduct dot("gfx90a");
  CHECK(dot.of({0xd3a84000, 0x1a160501}, "v_dot4_i32_i8 v0, v1, v2, 5", 2, 3, 0) == 11);
  CHECK(dot.of({0xd3a94000, 0x1c0e0501}, "v_dot4_u32_u8 v0, v1, v2, v3", 0x80ff0203, 0x80010405,
               7) == 7 + 15 + 8 + 255 + 16384);
  CHECK(dot.of({0xd3a9c000, 0x1c0e0501}, "v_dot4_u32_u8 v0, v1, v2, v3 clamp", 1, 1, ~0u) == ~0u);
  CHECK(dot.of({0xd3aa4000, 0x1c0e0501}, "v_dot8_i32_i4 v0, v1, v2, v3", 0x800000f2, 0x80000013,
               1) == 1 + 6 - 1 + 64);
  CHECK(dot.of({0xd3ab4000, 0x1c0e0501}, "v_dot8_u32_u4 v0, v1, v2, v3", 0x800000f2, 0x80000013,
               1) == 1 + 6 + 15 + 64);
  CHECK(dot.of({0xd3a64000, 0x1c0e0501}, "v_dot2_i32_i16 v0, v1, v2, v3", 0xffff0002, 0x00030004,
               1) == 1 + 8 - 3);
  CHECK(dot.of({0xd3a74000, 0x1c0e0501}, "v_dot2_u32_u16 v0, v1, v2, v3", 0xffff0002, 0x00030004,
               1) == 1 + 8 + 3 * 0xffff);
  CHECK(dot.of({0xd3a64800, 0x1c0e0501}, "v_dot2_i32_i16 v0, v1, v2, v3 op_sel:[1,0,0]", 0xffff0002,
               0x00030004, 1) == 1u - 4 - 3);
}

TEST_CASE("the short dot products add to their destination, through a permutation of lanes too") {
  DotProduct dot("gfx90a");
  const auto accumulated = [&](U32 first, const char* text, U32 x, U32 y, U32 sum) {
    dot.row(0) = sum;
    return dot.of({first}, text, x, y, 0);
  };
  CHECK(std::bit_cast<float>(accumulated(0x6e000501, "v_dot2c_f32_f16_e32 v0, v1, v2", kLeft,
                                         kRight, std::bit_cast<U32>(1.0f))) == 24);
  CHECK(accumulated(0x70000501, "v_dot2c_i32_i16_e32 v0, v1, v2", 0xffff0002, 0x00030004, 1) == 6);
  CHECK(accumulated(0x72000501, "v_dot4c_i32_i8_e32 v0, v1, v2", 0xff02, 0x0103, 1) == 6);
  CHECK(accumulated(0x74000501, "v_dot8c_i32_i4_e32 v0, v1, v2", 0xf2, 0x13, 1) == 6);
  dot.row(1, 1) = 4, dot.exec = 3;
  dot.row(0) = 1;
  CHECK(dot.of({0x720004fa, 0xff00b101},
               "v_dot4c_i32_i8_dpp v0, v1, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf", 9, 5,
               0) == 21);
}

TEST_CASE("dot products of gfx11 say by neg_lo which source is signed") {
  DotProduct dot("gfx1100", 32);
  const auto of_bytes = [&](U32 signs, const char* modifier) {
    const std::string text = std::string("v_dot4_i32_iu8 v0, v1, v2, v3") + modifier;
    return dot.of({0xcc164000, 0x1c0e0501 | signs << 29}, text.c_str(), 0xff, 0xfe, 0);
  };
  CHECK(of_bytes(0, "") == 255 * 254);
  CHECK(of_bytes(1, " neg_lo:[1,0,0]") == 0u - 254);
  CHECK(of_bytes(2, " neg_lo:[0,1,0]") == 0u - 510);
  CHECK(of_bytes(3, " neg_lo:[1,1,0]") == 2);
  CHECK(dot.of({0xcc184000, 0x7c0e0501}, "v_dot8_i32_iu4 v0, v1, v2, v3 neg_lo:[1,1,0]", 0xf, 0xe,
               0) == 2);
  CHECK(dot.of({0xcc16c000, 0x3c0e0501}, "v_dot4_i32_iu8 v0, v1, v2, v3 neg_lo:[1,0,0] clamp", 1, 1,
               0x7fffffff) == 0x7fffffff);
  dot.row(0) = std::bit_cast<U32>(1.0f), dot.row(5) = 77;
  CHECK(std::bit_cast<float>(dot.of({0xcb100501, 0x00020105},
                                    "v_dual_dot2acc_f32_f16 v0, v1, v2 :: v_dual_mov_b32 v3, v5",
                                    kLeft, kRight, 0)) == 24);
  CHECK(dot.row(3) == 77);
}

TEST_CASE("modifiers that a dot product of integers does not have are refused") {
  DotProduct dot("gfx90a");
  for (const auto& [code, text] :
       {std::pair{Code{0xd3a84000, 0x3c0e0501}, "v_dot4_i32_i8 v0, v1, v2, v3 neg_lo:[1,0,0]"},
        std::pair{Code{0xd3a84800, 0x1c0e0501}, "v_dot4_i32_i8 v0, v1, v2, v3 op_sel:[1,0,0]"},
        std::pair{Code{0xd3a64000, 0x3c0e0501}, "v_dot2_i32_i16 v0, v1, v2, v3 neg_lo:[1,0,0]"}})
    CHECK(dot.run(code, text) ==
          std::string("the software GPU does not know the modifiers of '") + text + "'");
}

TEST_CASE("dot products of bfloat16 and with results of 16 bits are refused") {
  Rules rules("gfx1100", 32);
  rules.refused(0xcc1a4000, 0x1c0e0501, "v_dot2_f32_bf16 v0, v1, v2, v3");
}

}  // namespace
}  // namespace vitamin::soft::amdgpu::isa
