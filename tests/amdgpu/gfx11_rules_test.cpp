// SPDX-License-Identifier: Apache-2.0
//
// What gfx11 has beyond the other parts: halves of registers as operands, two operations in an
// instruction, other names. Encodings are those of LLVM 21, which has them all.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/amdgpu/instruction_rules.h"
#include "tests/seed.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

constexpr const char* kGfx11 = "gfx1100";
constexpr U32 kOne = 0x3c00, kTwo = 0x4000, kThree = 0x4200, kFour = 0x4400;  // as halves

class Rdna3 : public Rules {
 public:
  Rdna3() : Rules(kGfx11, 32) {}

  bool does(const Code& code, const char* text) { return run(code, text).empty(); }
  float real(unsigned reg) { return std::bit_cast<float>(row(reg)); }
  void set_real(unsigned reg, float value) { row(reg) = std::bit_cast<U32>(value); }
};

constexpr U32 halves(U32 upper, U32 lower) { return upper << 16 | lower; }

TEST_CASE("VOP1, VOP2 and VOPC of gfx11 name a half by bit 7 of a register's number") {
  Rdna3 rules;
  rules.row(0) = halves(7, 9);
  rules.row(1) = halves(kFour, kOne), rules.row(2) = halves(kTwo, kThree);
  rules.row(129) = rules.row(130) = halves(5, 5);  // what the numbers would mean before gfx11
  // v0.h, v1.l, v2.h
  CHECK(rules.does({0x65010501}, "v_add_f16_e32 v128, v1, v130"));
  CHECK(rules.row(0) == halves(kThree, 9));
  rules.set_real(1, 4);
  CHECK(rules.does({0x7f001501}, "v_cvt_f16_f32_e32 v128, v1"));
  CHECK(rules.row(0) == halves(kFour, 9));
  rules.row(1) = halves(kTwo, kOne);
  CHECK(rules.does({0x6d000581}, "v_fmac_f16_e32 v128, v129, v2"));  // v0.h += v1.h * v2.l
  CHECK(rules.row(0) == halves(0x4900, 9));                          // 2 * 3 + 4
  rules.row(1) = halves(3, 8), rules.row(2) = halves(1, 4);
  CHECK(rules.does({0x7c720581}, "v_cmp_lt_u16_e32 vcc_lo, v129, v2"));  // v1.h, v2.l
  CHECK((rules.scalar(kVcc) & 1) == 1);
  rules.row(1) = halves(0xfc00, 0), rules.row(2) = halves(1 << 2, 0);  // -inf, its class
  CHECK(rules.does({0x7cfb0581}, "v_cmp_class_f16_e32 vcc_lo, v129, v130"));
  CHECK((rules.scalar(kVcc) & 1) == 1);
}

TEST_CASE("VOP3 of gfx11 names halves by op_sel, whether or not LLVM prints it") {
  Rdna3 rules;
  rules.row(0) = halves(7, 9);
  rules.row(1) = halves(kFour, kOne), rules.row(2) = halves(kTwo, kThree);
  // v0.h, v1.l, v2.h
  CHECK(rules.does({0xd5325000, 0x00020501}, "v_add_f16_e64 v0, v1, v2"));
  CHECK(rules.row(0) == halves(kThree, 9));
  rules.row(3) = halves(0x8000, 0x1fff), rules.row(2) = halves(1, 2);
  CHECK(rules.does({0xd7395002, 0x0002068d}, "v_lshrrev_b16 v2, 13, v3"));  // v2.h, 13, v3.h
  CHECK(rules.row(2) == halves(4, 2));
  rules.row(3) = halves(0xf0f0, 0), rules.row(4) = halves(0, 0x3333);
  CHECK(rules.does({0xd7624802, 0x00020903}, "v_and_b16 v2, v3, v4"));  // v2.h, v3.h, v4.l
  CHECK(rules.row(2) == halves(0x3030, 2));
  rules.row(1) = 1, rules.row(2) = 0, rules.row(3) = halves(4, 8);
  CHECK(rules.does({0xd6162000, 0x040e0501}, "v_alignbit_b32 v0, v1, v2, v3"));  // v3.h
  CHECK(rules.row(0) == 1u << 28);
  rules.row(1) = halves(3, 8), rules.row(200) = halves(1, 4);
  CHECK(rules.does({0xd4390804, 0x00039101}, "v_cmp_lt_u16_e64 s4, v1, v200"));  // v1.h, v200.l
  CHECK((rules.scalar(4) & 1) == 1);
  rules.row(201) = halves(kTwo, kOne);
  CHECK(rules.does({0xd58b0800, 0x000001c9}, "v_cvt_f32_f16_e64 v0, v201"));  // v201.h
  CHECK(rules.real(0) == 2);
  rules.row(0) = halves(7, 9), rules.row(1) = halves(1, 2), rules.row(2) = halves(3, 4);
  rules.scalar(4) = 1;
  CHECK(rules.does({0xd65d5000, 0x00120501}, "v_cndmask_b16 v0, v1, v2, s4"));  // v0.h, v1.l, v2.h
  CHECK(rules.row(0) == halves(3, 9));
  rules.scalar(4) = 0;
  CHECK(rules.does({0xd65d5000, 0x00120501}, "v_cndmask_b16 v0, v1, v2, s4"));
  CHECK(rules.row(0) == halves(2, 9));
}

TEST_CASE("v_mov_b16, which LLVM 15 does not know, moves a half or a constant") {
  Rdna3 rules;
  rules.row(0) = halves(7, 9), rules.row(1) = halves(1, 2), rules.row(200) = halves(5, 6);
  CHECK(rules.does({0x7f003901}, "v_mov_b16_e32 v128, v1"));  // v0.h, v1.l
  CHECK(rules.row(0) == halves(2, 9));
  CHECK(rules.does({0xd59c08c8, 0x00000101}, "v_mov_b16_e64 v200, v1"));  // v200.l, v1.h
  CHECK(rules.row(200) == halves(5, 1));
  CHECK(rules.does({0x7e0038ff, 0x00001234}, "v_mov_b16_e32 v0, 0x1234"));
  CHECK(rules.row(0) == halves(2, 0x1234));
  CHECK(rules.subject.decode({0x7f003901, 0, 0, 0}).raw == 0x7f003901);
  Decoder older("gfx1030", true);
  const std::array<U32, 4> code{0x7f003901, 0, 0, 0};
  CHECK(older.decode(reinterpret_cast<U64>(code.data()), sizeof code).text.starts_with("("));
}

TEST_CASE("a permutation of lanes takes the half that is named from the other lane") {
  Rdna3 rules;
  rules.exec = 3;
  for (unsigned lane = 0; lane < 2; ++lane) {
    rules.row(0, lane) = halves(7, 9);
    rules.row(1, lane) = halves(lane == 0 ? kOne : kTwo, 0), rules.row(2, lane) = halves(0, kTwo);
  }
  CHECK(rules.does({0x650004fa, 0xff00b181},
                   "v_add_f16_dpp v128, v129, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf"));
  CHECK(rules.row(0, 0) == halves(kFour, 9));
  CHECK(rules.row(0, 1) == halves(kThree, 9));
  rules.set_real(1, 10), rules.set_real(2, 1), rules.exec = 1;
  rules.row(1, 1) = std::bit_cast<U32>(20.0f), rules.exec = 3;
  CHECK(rules.does({0xd5030000, 0x400204fa, 0xff015101},
                   "v_add_f32_e64_dpp v0, v1, -v2 row_share:1 row_mask:0xf bank_mask:0xf"));
  CHECK(rules.real(0) == 19);
  const char* const activates =
      "v_cmpx_eq_u32_e64_dpp v1, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf";
  CHECK_FALSE(rules.does({0xd4ca007e, 0x000204fa, 0xff00b101}, activates));
}

TEST_CASE("both operations of an instruction read before either writes") {
  Rdna3 rules;
  rules.exec = 1;
  rules.row(0) = 5, rules.row(1) = 6;
  rules.row(0, 1) = 50, rules.row(1, 1) = 60;
  CHECK(rules.does({0xca100101, 0x00000100}, "v_dual_mov_b32 v0, v1 :: v_dual_mov_b32 v1, v0"));
  CHECK(rules.row(0) == 6);
  CHECK(rules.row(1) == 5);
  CHECK(rules.row(0, 1) == 50);  // not active
  CHECK(rules.row(1, 1) == 60);
  for (unsigned reg = 0; reg < 4; ++reg) rules.set_real(reg, static_cast<float>(reg + 1));
  CHECK(rules.does({0xc8080501, 0x00000700},
                   "v_dual_fmac_f32 v0, v1, v2 :: v_dual_add_f32 v1, v0, v3"));
  CHECK(rules.real(0) == 7);  // 2 * 3 + 1
  CHECK(rules.real(1) == 5);  // 1 + 4
  rules.row(0) = 1, rules.row(1) = 2, rules.row(2) = 3, rules.row(3) = 8;
  rules.scalar(kVcc) = 1;
  const Code selects{0xca620501, 0x00000700};
  const char* const text = "v_dual_cndmask_b32 v0, v1, v2 :: v_dual_lshlrev_b32 v1, v0, v3";
  CHECK(rules.does(selects, text));
  CHECK(rules.row(0) == 3);
  CHECK(rules.row(1) == 16);
  rules.scalar(kVcc) = 0;
  CHECK(rules.does(selects, text));
  CHECK(rules.row(0) == 16);
}

TEST_CASE("both operations have the literal, and other names than alone") {
  Rdna3 rules;
  rules.set_real(1, 2), rules.set_real(2, 3);
  CHECK(rules.does({0xc8500501, 0x000200ff, 0x41200000},
                   "v_dual_fmaak_f32 v0, v1, v2, 0x41200000 :: v_dual_mov_b32 v3, 0x41200000"));
  CHECK(rules.real(0) == 16);
  CHECK(rules.real(3) == 10);
  rules.set_real(1, 0), rules.set_real(2, INFINITY), rules.set_real(4, 1), rules.set_real(5, 5);
  CHECK(rules.does({0xc9cc0501, 0x00020b04},
                   "v_dual_mul_dx9_zero_f32 v0, v1, v2 :: v_dual_subrev_f32 v3, v4, v5"));
  CHECK(rules.real(0) == 0);
  CHECK(rules.real(3) == 4);
}

TEST_CASE("what gfx11 has and the interpreter would have to guess is refused") {
  Rdna3 rules;
  rules.refused(0xd6660000, 0x040e0501, "v_dot2_f16_f16 v0, v1, v2, v3");
  CHECK(rules.run({0xbe804d82}, "s_sendmsg_rtn_b64 s[0:1], sendmsg(MSG_RTN_GET_TMA)") ==
        "the software GPU does not know the message 130");
  CHECK(rules.run({0xb880f814}, "s_getreg_b32 s0, hwreg(HW_REG_FLAT_SCR_LO)") ==
        "the software GPU does not know the hardware register 20");
}

TEST_CASE("waits and hints of gfx11 change nothing, and a message asks for the time") {
  Rdna3 rules;
  const auto before = rules.subject.wave().scalar;
  CHECK(rules.does({0xbf870111},
                   "s_delay_alu instid0(VALU_DEP_1) | instskip(NEXT) | instid1(VALU_DEP_2)"));
  CHECK(rules.does({0xbf840001}, "s_set_inst_prefetch_distance 0x1"));
  CHECK(rules.does({0xbfb60003}, "s_sendmsg sendmsg(MSG_DEALLOC_VGPRS)"));
  CHECK(rules.does({0xbf880fff}, "s_waitcnt_depctr 0xfff"));
  CHECK(rules.does({0xbc7c0000}, "s_waitcnt_vscnt null, 0x0"));
  rules.subject.wave().set_exec(before[kExec]);
  CHECK(rules.subject.wave().scalar == before);
  const auto now = [&] {
    CHECK(rules.does({0xbe804d83}, "s_sendmsg_rtn_b64 s[0:1], sendmsg(MSG_RTN_GET_REALTIME)"));
    return rules.subject.wave().pair(0);
  };
  const U64 first = now();
  CHECK(first != 0);
  CHECK(now() >= first);
}

TEST_CASE("an engine of gfx1100 has a number of three bits") {
  Rdna3 rules;
  rules.subject.wave().hardware_id1 = 5 << 18;
  CHECK(rules.does({0xb8801497}, "s_getreg_b32 s0, hwreg(HW_REG_HW_ID1, 18, 3)"));
  CHECK(rules.scalar(0) == 5);
}

TEST_CASE("a comparing exchange in shared memory of gfx11 has the new word first") {
  Rdna3 rules;
  rules.row(1) = 8, rules.row(2) = 77, rules.row(3) = 5;
  auto& lds = rules.subject.wave().group->lds;
  const auto word = [&] {
    U32 value;
    std::memcpy(&value, lds.data() + 8, 4);
    return value;
  };
  const U32 five = 5;
  std::memcpy(lds.data() + 8, &five, 4);
  const Code code{0xd8c00000, 0x00030201};
  CHECK(rules.does(code, "ds_cmpstore_rtn_b32 v0, v1, v2, v3"));
  CHECK(word() == 77);
  CHECK(rules.row(0) == 5);
  CHECK(rules.does(code, "ds_cmpstore_rtn_b32 v0, v1, v2, v3"));
  CHECK(word() == 77);
  CHECK(rules.row(0) == 77);
}

TEST_CASE("limits in two steps") {
  Rdna3 rules;
  rules.set_real(1, 7), rules.set_real(2, 3), rules.set_real(3, 5);
  CHECK(rules.does({0xd65f0000, 0x040e0501}, "v_minmax_f32 v0, v1, v2, v3"));
  CHECK(rules.real(0) == 5);
  rules.row(1) = ~0u, rules.row(2) = 2, rules.row(3) = 1;
  CHECK(rules.does({0xd6640000, 0x040e0501}, "v_maxmin_i32 v0, v1, v2, v3"));
  CHECK(rules.row(0) == 1);
}

// 2/pi in fixed point, from pi = 16 atan(1/5) - 4 atan(1/239): numbers of 1,344 bits, the highest
// word first.
constexpr std::size_t kWords = 42, kWhole = 1;  // words before the point
using Fixed = std::array<U32, kWords>;

Fixed divided(Fixed x, U32 by) {
  U64 rest = 0;
  for (U32& word : x) {
    rest = rest << 32 | word;
    word = static_cast<U32>(rest / by);
    rest %= by;
  }
  return x;
}

// x + y, or x - y.
Fixed combined(Fixed x, const Fixed& y, bool add) {
  U64 carry = add ? 0 : 1;
  for (std::size_t at = kWords; at-- > 0;) {
    const U64 sum = U64{x[at]} + (add ? y[at] : ~y[at]) + carry;
    x[at] = static_cast<U32>(sum);
    carry = sum >> 32;
  }
  return x;
}

Fixed multiple_of_arctangent(U32 multiple, U32 inverse) {
  Fixed term{}, sum{};
  term[0] = multiple;
  term = divided(term, inverse);
  bool add = true;
  for (U32 odd = 1; term != Fixed{}; odd += 2, add = !add) {
    sum = combined(sum, divided(term, odd), add);
    term = divided(term, inverse * inverse);
  }
  return sum;
}

// The bits behind the point, one after the other, by long division.
std::vector<bool> bits_of_two_over_pi(std::size_t count) {
  const Fixed pi = combined(multiple_of_arctangent(16, 5), multiple_of_arctangent(4, 239), false);
  Fixed rest{};
  rest[kWhole - 1] = 2;
  std::vector<bool> bits;
  while (bits.size() < count) {
    rest = combined(rest, rest, true);
    bits.push_back(rest >= pi);
    if (bits.back()) rest = combined(rest, pi, false);
  }
  return bits;
}

TEST_CASE("v_trig_preop_f64 gives 53 bits of 2/pi, later ones for a large source") {
  constexpr std::size_t kBits = 1201;
  std::vector<bool> bits = bits_of_two_over_pi(kBits);
  bits.resize(4000);
  Rdna3 rules;
  for (const int exponent : {-1022, 0, 54, 55, 300, 944, 945, 1023}) {
    for (U32 segment = 0; segment < 32; ++segment) {
      rules.set_pair(2, std::bit_cast<U64>(-std::ldexp(1.5, exponent)));
      rules.row(4) = segment | 32;
      CHECK(rules.does({0xd72f0000, 0x00020902}, "v_trig_preop_f64 v[0:1], v[2:3], v4"));
      const int first = static_cast<int>(segment) * 53 + std::max(exponent - 54, 0);
      double expected = 0;
      for (int at = first; at < first + 53; ++at)
        if (bits[static_cast<std::size_t>(at)]) expected += std::ldexp(1.0, first - at - 1);
      expected = std::ldexp(expected, (exponent >= 945 ? 128 : 0) - first);
      INFO("exponent " << exponent << ", segment " << segment);
      CHECK(std::bit_cast<double>(rules.pair(0)) == expected);
    }
  }
}

TEST_CASE("v_trig_preop_f64 is the same on each part") {
  for (const auto& [processor, first] :
       {std::pair{"gfx90a", 0xd2920000u}, {"gfx940", 0xd2920000u}, {"gfx1030", 0xd5740000u}}) {
    Rules rules(processor);
    rules.set_pair(2, std::bit_cast<U64>(1.0));
    CHECK(rules.run(first, 0x00010102, "v_trig_preop_f64 v[0:1], v[2:3], 0").empty());
    CHECK(rules.pair(0) == 0x3fe45f306dc9c882);  // 2/pi, cut off after 53 bits
  }
}

}  // namespace
}  // namespace vitamin::soft::amdgpu::isa
