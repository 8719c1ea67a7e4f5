// SPDX-License-Identifier: Apache-2.0
//
// Single instructions: what gfx942 has beyond gfx90a, what both have alike, and what is refused
// because the interpreter would have to guess. Encodings are LLVM's for gfx940.
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "tests/amdgpu/instruction_rules.h"
#include "tests/seed.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

constexpr const char* kCdna3 = "gfx940";

TEST_CASE("gfx942 shifts by up to four and adds in 64 bits, and more is refused") {
  Rules rules(kCdna3);
  rules.set_pair(4, 0x2000'0000'4000'0001);
  rules.set_pair(6, 0xffff'ffff);
  CHECK(rules.run(0xd2080002, 0x04190704, "v_lshl_add_u64 v[2:3], v[4:5], 3, v[6:7]").empty());
  CHECK(rules.pair(2) == 0x0000'0003'0000'0007);
  const char* const by_register = "v_lshl_add_u64 v[2:3], v[4:5], v8, v[6:7]";
  rules.row(8) = 4;
  CHECK(rules.run(0xd2080002, 0x041a1104, by_register).empty());
  CHECK(rules.pair(2) == 0x0000'0005'0000'000f);
  rules.row(8) = 5;
  CHECK(rules.run(0xd2080002, 0x041a1104, by_register).find("with a shift of 5") !=
        std::string::npos);
}

TEST_CASE("a lane permutation of a source of 64 bits moves both halves") {
  Rules rules(kCdna3);
  rules.exec = ~0ull;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const U64 bits = std::bit_cast<U64>(lane + 0.3);
    rules.row(4, lane) = static_cast<U32>(bits);
    rules.row(5, lane) = static_cast<U32>(bits >> 32);
  }
  const char* const text =
      "v_ceil_f64_dpp v[2:3], v[4:5] row_newbcast:1 row_mask:0xf bank_mask:0xf";
  CHECK(rules.run(0x7e0430fa, 0xff015104, text).empty());
  for (const unsigned lane : {0u, 17u, 63u})
    CHECK(std::bit_cast<double>(rules.pair(2, lane)) == lane / 16 * 16 + 2);
}

TEST_CASE("the high word of a product of 24 bits has the sign of the product") {
  Rules rules("gfx90a");
  const auto product = [&](U32 x, U32 y) {
    rules.row(1) = x, rules.row(2) = y;
    CHECK(rules.run({0x0e060501}, "v_mul_hi_i32_i24_e32 v3, v1, v2").empty());
    return rules.row(3);
  };
  CHECK(product(0x7fffff, 0x7fffff) == 0x3fff);
  CHECK(product(0xab800000, 0x7fffff) == 0xffffc000);  // the bits above the 24th do not count
  CHECK(product(5, 6) == 0);
}

TEST_CASE("atomics change words of a buffer within its range and return what was there") {
  Rules rules("gfx90a");
  std::array<U32, 4> memory = {1, 2, 0xffffffff, 0x3f800000};  // the last: 1.0
  const auto address = reinterpret_cast<U64>(memory.data());
  rules.scalar(8) = static_cast<U32>(address);
  rules.scalar(9) = static_cast<U32>(address >> 32);
  rules.scalar(10) = sizeof memory;
  rules.scalar(11) = 0;
  rules.row(3) = 4, rules.row(4) = 7, rules.row(5) = 2;
  const char* const swap = "buffer_atomic_cmpswap v[4:5], v3, s[8:11], 0 offen glc";
  CHECK(rules.run(0xe1045000, 0x80020403, swap).empty());
  CHECK((memory[1] == 7 && rules.row(4) == 2));
  CHECK(rules.run(0xe1045000, 0x80020403, swap).empty());  // holds 7, not 2
  CHECK((memory[1] == 7 && rules.row(4) == 7));
  rules.row(4) = 5;
  const char* const add = "buffer_atomic_add v4, v3, s[8:11], 0 offen offset:4";
  CHECK(rules.run(0xe1081004, 0x80020403, add).empty());
  CHECK((memory[2] == 4 && rules.row(4) == 5));
  rules.row(3) = 12;
  CHECK(rules.run(0xe1081004, 0x80020403, add).empty());  // behind the buffer
  CHECK(memory[2] == 4);
  rules.row(4) = 0x40000000;  // 2.0
  const char* const real = "buffer_atomic_add_f32 v4, off, s[8:11], 0 offset:12";
  CHECK(rules.run(0xe134000c, 0x80020400, real).empty());
  CHECK(memory[3] == 0x40400000);
}

TEST_CASE("private memory of gfx942 takes a vector and a scalar offset, or none") {
  Rules rules(kCdna3);
  rules.row(1) = 8, rules.scalar(2) = 16, rules.row(2) = 77;
  CHECK(rules.run(0xdc706004, 0x00020201, "scratch_store_dword v1, v2, s2 offset:4").empty());
  U32 stored = 0;
  std::memcpy(&stored, rules.subject.wave().scratch.data() + 28, 4);
  CHECK(stored == 77);
  rules.row(2) = 0;
  CHECK(rules.run(0xdc506004, 0x02020001, "scratch_load_dword v2, v1, s2 offset:4").empty());
  CHECK(rules.row(2) == 77);
  CHECK(rules.run(0xdc704004, 0x007f0200, "scratch_store_dword off, v2, off offset:4").empty());
  std::memcpy(&stored, rules.subject.wave().scratch.data() + 4, 4);
  CHECK(stored == 77);
}

TEST_CASE("a load of half a register clears the other half on gfx90a and gfx942 only") {
  for (const auto& [processor, width, other] :
       {std::tuple{"gfx90a", 64u, 0u}, {kCdna3, 64u, 0u}, {"gfx1030", 32u, 0x7777u}}) {
    Rules rules(processor, width);
    rules.row(0) = 0x77777777, rules.row(0, 1) = 0x12345678, rules.row(1) = 8;
    rules.scalar(kM0) = ~0u;
    const std::uint16_t value = 0x8001;
    std::memcpy(rules.subject.wave().group->lds.data() + 8, &value, 2);
    const bool older = width == 64;
    const char* const lower = "ds_read_u16_d16 v0, v1";
    CHECK(rules.run(older ? 0xd8b40000 : 0xda980000, 0x00000001, lower).empty());
    CHECK(rules.row(0) == (other << 16 | 0x8001));
    rules.row(0) = 0x77777777;
    const char* const upper = "ds_read_u16_d16_hi v0, v1";
    CHECK(rules.run(older ? 0xd8b60000 : 0xda9c0000, 0x00000001, upper).empty());
    CHECK(rules.row(0) == (0x80010000 | other));
    CHECK(rules.row(0, 1) == 0x12345678);  // takes no part
    std::memcpy(reinterpret_cast<void*>(rules.subject.memory()), &value, 2);
    rules.set_pair(2, rules.subject.memory());
    const char* const global = "global_load_short_d16 v0, v[2:3], off";
    rules.row(0) = 0x77777777;
    CHECK(rules.run(0xdc908000, older ? 0x007f0002 : 0x007d0002, global).empty());
    CHECK(rules.row(0) == (other << 16 | 0x8001));
  }
}

TEST_CASE("caches of gfx942 are written back and invalidated at each scope") {
  Rules rules(kCdna3);
  CHECK(rules.run(0xe0a4c000, 0, "buffer_inv sc0 sc1").empty());
  CHECK(rules.run(0xe0a0c000, 0, "buffer_wbl2 sc0 sc1").empty());
}

TEST_CASE("only gfx942 has the register of an XCC's number, and unknown ones are named") {
  Rules cdna3(kCdna3);
  cdna3.subject.wave().xcc_id = 5;
  CHECK(cdna3.run(0xb8801814, 0, "s_getreg_b32 s0, hwreg(HW_REG_XCC_ID, 0, 4)").empty());
  CHECK(cdna3.scalar(0) == 5);
  CHECK(cdna3.run(0xb880f801, 0, "s_getreg_b32 s0, hwreg(HW_REG_MODE)") ==
        "the software GPU does not know the hardware register 1");
}

TEST_CASE("an XCC has no number on gfx90a") {
  Rules rules("gfx90a");
  CHECK(rules.run(0xb8801814, 0, "s_getreg_b32 s0, hwreg(20, 0, 4)") ==
        "the software GPU does not know the hardware register 20");
}

TEST_CASE("packed results stop at their limits under the clamp modifier or are refused") {
  Rules rules(kCdna3);
  rules.row(4) = 0x0001fff0, rules.row(5) = 0x00020020;
  CHECK(rules.run(0xd38ac002, 0x18020b04, "v_pk_add_u16 v2, v4, v5 clamp").empty());
  CHECK(rules.row(2) == 0x0003ffff);
  CHECK(rules.run(0xd38bc002, 0x18020b04, "v_pk_sub_u16 v2, v4, v5 clamp").empty());
  CHECK(rules.row(2) == 0x0000ffd0);
  rules.row(4) = 0x80007fff, rules.row(5) = 0x80000001;
  CHECK(rules.run(0xd382c002, 0x18020b04, "v_pk_add_i16 v2, v4, v5 clamp").empty());
  CHECK(rules.row(2) == 0x80007fff);
  rules.row(5) = 0x0001ffff;
  CHECK(rules.run(0xd383c002, 0x18020b04, "v_pk_sub_i16 v2, v4, v5 clamp").empty());
  CHECK(rules.row(2) == 0x80007fff);
  rules.refused(0xd389c002, 0x1c1a0b04, "v_pk_mad_u16 v2, v4, v5, v6 clamp");
  rules.set_pair(4, 0x40000000'bf800000), rules.set_pair(6, 0x3f800000'00000000);
  CHECK(rules.run(0xd3b2c002, 0x18020d04, "v_pk_add_f32 v[2:3], v[4:5], v[6:7] clamp").empty());
  CHECK(rules.pair(2) == 0x3f800000'00000000);
}

TEST_CASE("what the interpreter would have to guess is refused with its name and bytes") {
  Rules rules(kCdna3);
  rules.refused(0xd2800002, 0x08020d04, "v_add_f64 v[2:3], v[4:5], v[6:7] mul:2");
  rules.refused(0xd8010000, 0x00000100, "ds_add_u32 v0, v1 gds");
  rules.refused(0xd2a20002, 0x00020b04, "v_cvt_pk_fp8_f32 v2, v4, v5");
  rules.refused(0xdd488000, 0x007f0200, "global_atomic_pk_add_bf16 v[0:1], v2, off");
  rules.refused(0xdca88000, 0x007f0000, "global_load_lds_dword v[0:1], off");
}

TEST_CASE("a kernel of another GPU that asks where private memory is fails on gfx942") {
  constexpr U32 kPrivateBuffer = 1 << 0, kFlatScratchInit = 1 << 5;
  for (const U32 properties : {kPrivateBuffer, kFlatScratchInit}) {
    alignas(64) std::array<std::uint8_t, 64> descriptor{};
    std::memcpy(descriptor.data() + 56, &properties, 2);
    Dispatch dispatch;
    dispatch.descriptor = reinterpret_cast<U64>(descriptor.data());
    dispatch.grid = dispatch.block = {64, 1, 1};
    const auto start = [&] { const Workgroup group(dispatch, {}, {}); };
    CHECK_NOTHROW(start());
    dispatch.architected_scratch = true;
    CHECK_THROWS_AS(start(), Fault);
  }
}

// Cache modifiers have other names on gfx942 and the same bits.
std::string as_gfx942(std::string text) {
  constexpr std::pair<const char*, const char*> kNames[] = {
      {" glc", " sc0"}, {" slc", " nt"}, {" scc", " sc1"}};
  for (const auto& [old_name, new_name] : kNames)
    if (const std::size_t at = text.find(old_name); at != std::string::npos)
      text.replace(at, std::strlen(old_name), new_name);
  return text;
}

bool are_alike(const Instruction& a, const Instruction& b) {
  bool alike = a.execute == b.execute && a.inner == b.inner && a.operands == b.operands &&
               a.shaped == b.shaped && a.clamp == b.clamp && a.returns == b.returns &&
               a.per_lane_offset == b.per_lane_offset && a.offset == b.offset &&
               a.offset1 == b.offset1 && a.output_scale == b.output_scale && a.op_sel == b.op_sel &&
               a.op_sel_hi == b.op_sel_hi;
  for (unsigned at = 0; at < a.operands; ++at) {
    const Operand &x = a.operand[at], &y = b.operand[at];
    alike = alike && x.kind == y.kind && x.reg == y.reg && x.count == y.count && x.bits == y.bits &&
            x.select == y.select;
  }
  return alike;
}

TEST_CASE("what gfx90a and gfx942 have in common is one instruction") {
  Decoder older("gfx90a", false), newer(kCdna3, false);
  Random random(test::seed(1));
  unsigned common = 0, modified = 0;
  for (unsigned attempt = 0; attempt < 60'000; ++attempt) {
    std::array<U32, 4> words;
    for (U32& word : words) word = static_cast<U32>(random.next());
    constexpr U32 kEncodings[] = {0xc0000000, 0xd0000000, 0xd8000000, 0xdc000000, 0xe0000000};
    words[0] = (words[0] & 0x03ffffff) | kEncodings[random.below(std::size(kEncodings))];
    if (random.one_in(2)) words[1] &= 0x00ffffff;
    const auto pc = reinterpret_cast<U64>(words.data());
    const Instruction a = older.decode(pc, sizeof words), b = newer.decode(pc, sizeof words);
    if (a.text.starts_with("(") || as_gfx942(a.text) != b.text) continue;
    INFO(a.text << " and " << b.text);
    CHECK(are_alike(a, b));
    ++common;
    modified += a.text != b.text ? 1 : 0;
  }
  CHECK(common > 5000);
  CHECK(modified > 500);
}

}  // namespace
}  // namespace vitamin::soft::amdgpu::isa
