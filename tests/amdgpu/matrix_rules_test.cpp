// SPDX-License-Identifier: Apache-2.0
//
// Matrix instructions against a plain product on the host. Where elements lie is written down here
// as AMD's Matrix Instruction Calculator prints it, apart from the interpreter. Encodings are
// LLVM's. Elements are small integers, so that every order of summation gives the same bits.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/amdgpu/instruction_rules.h"
#include "tests/seed.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

enum class Format { kF32, kF64, kF16, kBf16, kI8 };
constexpr unsigned kFirstAccumulator = 256;  // the row of a0

// An MFMA: its encoding and LLVM's text, the extents of i and j, of k, the number of blocks, how
// many elements of A a lane holds. Registers: D, A, B, C.
struct Mfma {
  Code code;
  std::string text;
  Format format;
  unsigned rows, depth, blocks, in_lane;
  unsigned d = 0, a = 128, b = 132, c = 32;
};

std::string registers(unsigned first, unsigned count) {
  const std::string name = std::to_string(first);
  return count == 1 ? "v" + name : "v[" + name + ":" + std::to_string(first + count - 1) + "]";
}

// With the registers above. `operation`: the upper half of the encoding's first word.
Mfma plain(U32 operation, const std::string& name, Format format, unsigned rows, unsigned depth,
           unsigned blocks, unsigned in_lane) {
  constexpr unsigned kBytes[] = {4, 8, 2, 2, 1};
  const unsigned width = kBytes[static_cast<unsigned>(format)] * in_lane / 4;
  const unsigned sums = rows * rows * blocks / kLanes * (format == Format::kF64 ? 2 : 1);
  const std::string text = name + " " + registers(0, sums) + ", " + registers(128, width) + ", " +
                           registers(132, width) + ", " + registers(32, sums);
  return {{operation << 16, 0x04830980}, text, format, rows, depth, blocks, in_lane};
}

struct InRegister {
  unsigned reg, lane;
};

InRegister place_of_sum(const Mfma& mfma, unsigned block, unsigned i, unsigned j) {
  if (mfma.format == Format::kF64)
    return mfma.rows == 16 ? InRegister{2 * (i / 4), 16 * (i % 4) + j}
                           : InRegister{0, 16 * (i % 4) + 4 * block + j};
  if (mfma.rows == 32) return {16 * block + 4 * (i / 8) + i % 4, 32 * (i / 4) % 64 + j};
  if (mfma.rows == 16) return {4 * block + i % 4, 16 * (i / 4) + j};
  return {i, 4 * block + j};
}

// Of A[i][k]; B[k][j] lies where A[j][k] would.
unsigned lane_of_source(const Mfma& mfma, unsigned block, unsigned i, unsigned k) {
  if (mfma.format == Format::kF64) return mfma.rows * block + 16 * k + i;
  return mfma.blocks > 1 ? mfma.rows * block + i : mfma.rows * (k / mfma.in_lane) + i;
}

U64 bits_in(Format format, int value) {
  switch (format) {
    case Format::kF32:
      return std::bit_cast<U32>(static_cast<float>(value));
    case Format::kF64:
      return std::bit_cast<U64>(static_cast<double>(value));
    case Format::kF16:
      return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
    case Format::kBf16:
      return std::bit_cast<U32>(static_cast<float>(value)) >> 16;
    default:
      return static_cast<std::uint8_t>(value);
  }
}

// Which elements of A and B modifiers choose: 2^CBSZ blocks read block ABID among them, and a
// quarter of the lanes of B is replaced by another one.
struct Detour {
  unsigned group = 1, chosen = 0;  // 2^CBSZ, ABID
  std::vector<unsigned> quarters{0, 1, 2, 3};
};

class Product {
 public:
  Product(Rules& rules, const Mfma& mfma, U64 seed) : rules_(rules), mfma_(mfma), random_(seed) {
    a_ = fill(mfma.a);
    b_ = fill(mfma.b);
    each_sum([&](unsigned block, unsigned i, unsigned j) {
      const int value = small();
      c_.push_back(value);
      const auto [reg, lane] = place_of_sum(mfma_, block, i, j);
      set(mfma_.c + reg, lane, value);
    });
  }

  // Whether D is A * B + C.
  bool is_right(const Detour& detour = {}) {
    bool right = true;
    std::size_t at = 0;
    each_sum([&](unsigned block, unsigned i, unsigned j) {
      int sum = c_[at++];
      const unsigned from = block / detour.group * detour.group + detour.chosen;
      for (unsigned k = 0; k < mfma_.depth; ++k) {
        const unsigned lane = lane_of_source(mfma_, block, j, k);
        const unsigned b_lane = detour.quarters[lane / 16] * 16 + lane % 16;
        sum += a_[lane_of_source(mfma_, from, i, k)][k % mfma_.in_lane] *
               b_[b_lane][k % mfma_.in_lane];
      }
      const auto [reg, lane] = place_of_sum(mfma_, block, i, j);
      right = right && is(mfma_.d + reg, lane, sum);
    });
    return right;
  }

 private:
  using Elements = std::vector<std::vector<int>>;  // by lane

  int small() { return static_cast<int>(random_.below(16)) - 8; }

  Elements fill(unsigned reg) {
    constexpr unsigned kWidths[] = {32, 64, 16, 16, 8};
    const unsigned bits = kWidths[static_cast<unsigned>(mfma_.format)];
    Elements elements(kLanes);
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      U64 packed = 0;
      for (unsigned at = 0; at < mfma_.in_lane; ++at) {
        elements[lane].push_back(small());
        packed |= bits_in(mfma_.format, elements[lane].back()) << (bits * at);
      }
      rules_.row(reg, lane) = static_cast<U32>(packed);
      if (bits * mfma_.in_lane > 32) rules_.row(reg + 1, lane) = static_cast<U32>(packed >> 32);
    }
    return elements;
  }

  template <class Body>
  void each_sum(Body&& body) {
    for (unsigned block = 0; block < mfma_.blocks; ++block)
      for (unsigned i = 0; i < mfma_.rows; ++i)
        for (unsigned j = 0; j < mfma_.rows; ++j) body(block, i, j);
  }

  U64 sum_bits(int value) {
    if (mfma_.format == Format::kI8) return static_cast<U32>(value);
    return bits_in(mfma_.format == Format::kF64 ? Format::kF64 : Format::kF32, value);
  }
  void set(unsigned reg, unsigned lane, int value) {
    rules_.row(reg, lane) = static_cast<U32>(sum_bits(value));
    if (mfma_.format == Format::kF64)
      rules_.row(reg + 1, lane) = static_cast<U32>(sum_bits(value) >> 32);
  }
  bool is(unsigned reg, unsigned lane, int value) {
    if (mfma_.format == Format::kF64) return rules_.pair(reg, lane) == sum_bits(value);
    return rules_.row(reg, lane) == sum_bits(value);
  }

  Rules& rules_;
  const Mfma& mfma_;
  Random random_;
  Elements a_, b_;
  std::vector<int> c_;
};

void check_product(const char* processor, const Mfma& mfma, const Detour& detour = {}) {
  INFO(mfma.text);
  Rules rules(processor);
  Product product(rules, mfma, test::seed(1));
  CHECK(rules.run(mfma.code, mfma.text.c_str()).empty());  // with one lane in exec
  CHECK(product.is_right(detour));
}

void check_products(const char* processor, const std::vector<Mfma>& cases) {
  for (const Mfma& mfma : cases) check_product(processor, mfma);
}

constexpr Format kF32 = Format::kF32, kF64 = Format::kF64, kF16 = Format::kF16;
constexpr Format kBf16 = Format::kBf16, kI8 = Format::kI8;

TEST_CASE("MFMA takes A, B, C and D in vector and accumulation registers") {
  constexpr unsigned kAcc = kFirstAccumulator;
  Mfma all = plain(0xd3c0, "v_mfma_f32_32x32x1f32", kF32, 32, 1, 2, 1);
  all.code = {0xd3c08000, 0x1c830980};
  all.text = "v_mfma_f32_32x32x1f32 a[0:31], a128, a132, a[32:63]";
  all.d = kAcc, all.a = kAcc + 128, all.b = kAcc + 132, all.c = kAcc + 32;
  Mfma sources = plain(0xd3c1, "v_mfma_f32_16x16x1f32", kF32, 16, 1, 4, 1);
  sources.code = {0xd3c10000, 0x0c830980};
  sources.text = "v_mfma_f32_16x16x1f32 v[0:15], a128, v132, v[32:47]";
  sources.a = kAcc + 128;
  Mfma sums = plain(0xd3c2, "v_mfma_f32_4x4x1f32", kF32, 4, 1, 16, 1);
  sums.code = {0xd3c28000, 0x04830980};
  sums.text = "v_mfma_f32_4x4x1f32 a[0:3], v128, v132, a[32:35]";
  sums.d = kAcc, sums.c = kAcc + 32;
  check_products("gfx90a", {all, sources, sums});
}

TEST_CASE("MFMA of gfx90a multiplies blocks of matrices") {
  check_products("gfx90a", {plain(0xd3c0, "v_mfma_f32_32x32x1f32", kF32, 32, 1, 2, 1),
                            plain(0xd3c1, "v_mfma_f32_16x16x1f32", kF32, 16, 1, 4, 1),
                            plain(0xd3c2, "v_mfma_f32_4x4x1f32", kF32, 4, 1, 16, 1),
                            plain(0xd3c4, "v_mfma_f32_32x32x2f32", kF32, 32, 2, 1, 1),
                            plain(0xd3c5, "v_mfma_f32_16x16x4f32", kF32, 16, 4, 1, 1),
                            plain(0xd3c8, "v_mfma_f32_32x32x4f16", kF16, 32, 4, 2, 4),
                            plain(0xd3c9, "v_mfma_f32_16x16x4f16", kF16, 16, 4, 4, 4),
                            plain(0xd3ca, "v_mfma_f32_4x4x4f16", kF16, 4, 4, 16, 4),
                            plain(0xd3cc, "v_mfma_f32_32x32x8f16", kF16, 32, 8, 1, 4),
                            plain(0xd3cd, "v_mfma_f32_16x16x16f16", kF16, 16, 16, 1, 4),
                            plain(0xd3d0, "v_mfma_i32_32x32x4i8", kI8, 32, 4, 2, 4),
                            plain(0xd3d1, "v_mfma_i32_16x16x4i8", kI8, 16, 4, 4, 4),
                            plain(0xd3d2, "v_mfma_i32_4x4x4i8", kI8, 4, 4, 16, 4),
                            plain(0xd3d4, "v_mfma_i32_32x32x8i8", kI8, 32, 8, 1, 4),
                            plain(0xd3d5, "v_mfma_i32_16x16x16i8", kI8, 16, 16, 1, 4),
                            plain(0xd3e3, "v_mfma_f32_32x32x4bf16_1k", kBf16, 32, 4, 2, 4),
                            plain(0xd3e4, "v_mfma_f32_16x16x4bf16_1k", kBf16, 16, 4, 4, 4),
                            plain(0xd3e5, "v_mfma_f32_4x4x4bf16_1k", kBf16, 4, 4, 16, 4),
                            plain(0xd3e6, "v_mfma_f32_32x32x8bf16_1k", kBf16, 32, 8, 1, 4),
                            plain(0xd3e7, "v_mfma_f32_16x16x16bf16_1k", kBf16, 16, 16, 1, 4),
                            plain(0xd3e8, "v_mfma_f32_32x32x2bf16", kBf16, 32, 2, 2, 2),
                            plain(0xd3e9, "v_mfma_f32_16x16x2bf16", kBf16, 16, 2, 4, 2),
                            plain(0xd3eb, "v_mfma_f32_4x4x2bf16", kBf16, 4, 2, 16, 2),
                            plain(0xd3ec, "v_mfma_f32_32x32x4bf16", kBf16, 32, 4, 1, 2),
                            plain(0xd3ed, "v_mfma_f32_16x16x8bf16", kBf16, 16, 8, 1, 2),
                            plain(0xd3ee, "v_mfma_f64_16x16x4f64", kF64, 16, 4, 1, 1),
                            plain(0xd3ef, "v_mfma_f64_4x4x4f64", kF64, 4, 4, 4, 1)});
}

TEST_CASE("MFMA of gfx942 has instructions of its own for bytes and bfloat16") {
  check_products("gfx940", {plain(0xd3d6, "v_mfma_i32_32x32x16_i8", kI8, 32, 16, 1, 8),
                            plain(0xd3d7, "v_mfma_i32_16x16x32_i8", kI8, 16, 32, 1, 8),
                            plain(0xd3dd, "v_mfma_f32_32x32x4_2b_bf16", kBf16, 32, 4, 2, 4),
                            plain(0xd3de, "v_mfma_f32_16x16x4_4b_bf16", kBf16, 16, 4, 4, 4),
                            plain(0xd3df, "v_mfma_f32_4x4x4_16b_bf16", kBf16, 4, 4, 16, 4),
                            plain(0xd3e0, "v_mfma_f32_32x32x8_bf16", kBf16, 32, 8, 1, 4),
                            plain(0xd3e1, "v_mfma_f32_16x16x16_bf16", kBf16, 16, 16, 1, 4),
                            plain(0xd3ee, "v_mfma_f64_16x16x4_f64", kF64, 16, 4, 1, 1),
                            plain(0xd3ef, "v_mfma_f64_4x4x4_4b_f64", kF64, 4, 4, 4, 1)});
}

TEST_CASE("C and D of gfx942 are in accumulation registers where ACC_CD says so") {
  // LLVM 15 prints accumulation registers in both cases.
  for (const U32 accumulates : {0u, 1u}) {
    Mfma mfma = plain(0xd3c5, "v_mfma_f32_16x16x4f32", kF32, 16, 4, 1, 1);
    mfma.code.first |= accumulates << 15;
    mfma.text = "v_mfma_f32_16x16x4f32 a[0:3], v128, v132, a[32:35]";
    mfma.d += kFirstAccumulator * accumulates, mfma.c += kFirstAccumulator * accumulates;
    check_product("gfx940", mfma);
  }
}

TEST_CASE("the mnemonics of both parts name all matrix instructions of them") {
  const InstructionSet set;
  for (const char* name :
       {"v_mfma_f32_32x32x1_2b_f32", "v_mfma_f32_16x16x1_4b_f32", "v_mfma_f32_4x4x1_16b_f32",
        "v_mfma_f32_32x32x2_f32", "v_mfma_f32_32x32x4_2b_f16", "v_mfma_f32_16x16x4_4b_f16",
        "v_mfma_f32_4x4x4_16b_f16", "v_mfma_f32_32x32x8_f16", "v_mfma_f32_16x16x16_f16",
        "v_mfma_i32_32x32x4_2b_i8", "v_mfma_i32_16x16x4_4b_i8", "v_mfma_i32_4x4x4_16b_i8"})
    CHECK_MESSAGE(set.find(name) != nullptr, name);
}

TEST_CASE("CBSZ and ABID choose one block of A for a group of blocks") {
  const struct {
    Mfma mfma;
    U32 cbsz, abid;
  } kCases[] = {{plain(0xd3c0, "v_mfma_f32_32x32x1f32", kF32, 32, 1, 2, 1), 1, 0},
                {plain(0xd3c0, "v_mfma_f32_32x32x1f32", kF32, 32, 1, 2, 1), 1, 1},
                {plain(0xd3c1, "v_mfma_f32_16x16x1f32", kF32, 16, 1, 4, 1), 1, 1},
                {plain(0xd3c9, "v_mfma_f32_16x16x4f16", kF16, 16, 4, 4, 4), 2, 3},
                {plain(0xd3d2, "v_mfma_i32_4x4x4i8", kI8, 4, 4, 16, 4), 3, 5}};
  for (auto [mfma, cbsz, abid] : kCases) {
    mfma.code.first |= cbsz << 8 | abid << 11;
    mfma.text += " cbsz:" + std::to_string(cbsz);
    if (abid != 0) mfma.text += " abid:" + std::to_string(abid);
    check_product("gfx90a", mfma, {.group = 1u << cbsz, .chosen = abid});
  }
}

TEST_CASE("BLGP takes quarters of the lanes of B from other quarters") {
  const std::vector<unsigned> kQuarters[] = {{0, 1, 0, 1}, {2, 3, 2, 3}, {1, 2, 3, 0}, {0, 0, 0, 0},
                                             {1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}};
  for (U32 pattern = 1; pattern < 8; ++pattern) {
    Mfma mfma = plain(0xd3c5, "v_mfma_f32_16x16x4f32", kF32, 16, 4, 1, 1);
    mfma.code.second |= pattern << 29;
    mfma.text += " blgp:" + std::to_string(pattern);
    check_product("gfx90a", mfma, {.quarters = kQuarters[pattern - 1]});
  }
}

TEST_CASE("C may be a constant, which the type of the sums expands") {
  Rules rules("gfx90a");
  for (unsigned lane = 0; lane < kLanes; ++lane)
    for (unsigned reg = 128; reg < 134; ++reg) rules.row(reg, lane) = 0;
  CHECK(rules.run(0xd3c50000, 0x03cb0980, "v_mfma_f32_16x16x4f32 v[0:3], v128, v132, 1.0").empty());
  CHECK(rules.row(3, 63) == 0x3f800000);
  CHECK(rules.run(0xd3c50000, 0x020f0980, "v_mfma_f32_16x16x4f32 v[0:3], v128, v132, 3").empty());
  CHECK(rules.row(0, 5) == 3);
  CHECK(rules.run(0xd3d50000, 0x03170980, "v_mfma_i32_16x16x16i8 v[0:3], v128, v132, -5").empty());
  CHECK(rules.row(2, 17) == 0xfffffffb);
  CHECK(
      rules.run(0xd3ef0000, 0x03df0980, "v_mfma_f64_4x4x4f64 v[0:1], v[128:129], v[132:133], -4.0")
          .empty());
  CHECK(rules.pair(0, 40) == std::bit_cast<U64>(-4.0));
}

TEST_CASE("D may lie where the sources do") {
  Rules rules("gfx90a");
  const auto fill = [&](unsigned d, unsigned a, unsigned b) {
    for (unsigned lane = 0; lane < kLanes; ++lane)
      for (unsigned at = 0; at < 4; ++at) {
        const U32 value = std::bit_cast<U32>(static_cast<float>((lane * 5 + at * 3) % 11));
        rules.row(d + at, lane) = value;
        if (at >= 2) rules.row(at == 2 ? a : b, lane) = value;
      }
  };
  fill(32, 128, 132);
  CHECK(rules.run(0xd3c50000, 0x04830980, "v_mfma_f32_16x16x4f32 v[0:3], v128, v132, v[32:35]")
            .empty());
  const std::vector<U32> apart(&rules.row(0), &rules.row(4));
  fill(0, 2, 3);
  CHECK(rules.run(0xd3c50000, 0x04020702, "v_mfma_f32_16x16x4f32 v[0:3], v2, v3, v[0:3]").empty());
  CHECK(std::equal(apart.begin(), apart.end(), &rules.row(0)));
}

TEST_CASE("products are added by fused multiply-add in the order of k") {
  Rules rules("gfx90a");
  const auto sum_of = [&](const std::array<float, 4>& a, float b, float c) {
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      rules.row(128, lane) = std::bit_cast<U32>(a[lane / 16]);
      rules.row(132, lane) = std::bit_cast<U32>(b);
      for (unsigned at = 0; at < 4; ++at) rules.row(32 + at, lane) = std::bit_cast<U32>(c);
    }
    CHECK(rules.run(0xd3c50000, 0x04830980, "v_mfma_f32_16x16x4f32 v[0:3], v128, v132, v[32:35]")
              .empty());
    return std::bit_cast<float>(rules.row(1, 33));
  };
  constexpr float kLarge = 1 << 24;
  CHECK(sum_of({kLarge, 1, -kLarge, 1}, 1, 0) == 1);
  CHECK(sum_of({1, kLarge, -kLarge, 1}, 1, 0) == 1);
  CHECK(sum_of({1, 1, kLarge, -kLarge}, 1, 0) == 2);
  const float above_one = 1 + std::ldexp(1.0f, -12);
  CHECK(sum_of({above_one, 0, 0, 0}, above_one, -1 - std::ldexp(1.0f, -11)) ==
        std::ldexp(1.0f, -24));
}

TEST_CASE("sums of integers wrap") {
  Rules rules("gfx90a");
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    rules.row(128, lane) = lane < 16 ? 1 : 0;
    rules.row(132, lane) = 0x7f;
    rules.row(32, lane) = 0x7fffffff;
  }
  CHECK(rules.run(0xd3d50000, 0x04830980, "v_mfma_i32_16x16x16i8 v[0:3], v128, v132, v[32:35]")
            .empty());
  CHECK(rules.row(0, 0) == 0x7fffffffu + 0x7f);
}

void check_refused(Rules& rules, const Code& code, const std::string& text, const char* what) {
  CHECK(rules.run(code, text.c_str()) ==
        std::string("the software GPU does not know ") + what + " in '" + text + "'");
}

TEST_CASE("modifiers and registers that a matrix instruction does not have are refused") {
  Rules rules("gfx90a");
  check_refused(rules, {0xd3c08200, 0x04030980},
                "v_mfma_f32_32x32x1f32 a[0:31], v128, v132, a[0:31] cbsz:2", "CBSZ or ABID");
  check_refused(rules, {0xd3c40100, 0x04830980},
                "v_mfma_f32_32x32x2f32 v[0:15], v128, v132, v[32:47] cbsz:1", "CBSZ or ABID");
  check_refused(rules, {0xd3c08800, 0x04030980},
                "v_mfma_f32_32x32x1f32 a[0:31], v128, v132, a[0:31] abid:1", "CBSZ or ABID");
  check_refused(rules, {0xd3ef0000, 0x24830980},
                "v_mfma_f64_4x4x4f64 v[0:1], v[128:129], v[132:133], v[32:33] blgp:1", "BLGP");
  check_refused(rules, {0xd3c50000, 0x04820200}, "v_mfma_f32_16x16x4f32 v[0:3], s0, v1, v[32:35]",
                "a scalar register");
}

TEST_CASE("matrix instructions of gfx942 that are not there are refused") {
  Rules rules("gfx940");
  check_refused(rules, {0xd3e00000, 0x24830980},
                "v_mfma_f32_32x32x8_bf16 v[0:15], v[128:129], v[132:133], v[32:47] blgp:1", "BLGP");
  rules.refused(0xd3ef0000, 0x24830980,
                "v_mfma_f64_4x4x4_4b_f64 v[0:1], v[128:129], v[132:133], v[32:33] neg:[1,0,0]");
  rules.refused(0xd3be0000, 0x04830980,
                "v_mfma_f32_16x16x8_xf32 v[0:3], v[128:129], v[132:133], v[32:35]");
  rules.refused(0xd3e20000, 0x04170980,
                "v_smfmac_f32_16x16x32_f16 v[0:3], v[128:129], v[132:135], v5");
}

// v_wmma_* of A in v[0:7], B in v[8:15], C and D in v[16:23].
struct Wmma {
  Code code;
  const char* text;
  unsigned bits;  // of an element of A and B
  U32 (*source)(int value);
  U32 (*sum)(int value);
  int least = -8;  // of an element
};

U32 half_bits(int value) { return static_cast<U32>(bits_in(Format::kF16, value)); }
U32 bfloat_bits(int value) { return static_cast<U32>(bits_in(Format::kBf16, value)); }
U32 single_bits(int value) { return static_cast<U32>(bits_in(Format::kF32, value)); }
U32 byte_bits(int value) { return static_cast<std::uint8_t>(value); }
U32 nibble_bits(int value) { return static_cast<U32>(value) & 15; }
U32 word_bits(int value) { return static_cast<U32>(value); }

using Square = std::array<std::array<int, 16>, 16>;

class WaveProduct {
 public:
  WaveProduct(Rules& rules, const Wmma& wmma) : rules_(rules), wmma_(wmma) {
    Random random(test::seed(4));
    rules.exec = rules.subject.wave().width == 64 ? ~0ull : 0xffffffff;
    for (Square* square : {&a, &b, &c})
      for (auto& row : *square)
        for (int& value : row) value = static_cast<int>(random.below(16)) + wmma.least;
  }

  // `shift`: of the half of C's registers that is used; the rest of C and D is `rest`.
  std::string run(unsigned shift = 0, U32 rest = 0) {
    const unsigned width = rules_.subject.wave().width, in_word = 32 / wmma_.bits;
    for (unsigned reg = 0; reg < 16 / in_word; ++reg)
      for (unsigned lane = 0; lane < width; ++lane) {
        U32 &left = rules_.row(reg, lane), &right = rules_.row(8 + reg, lane);
        left = right = 0;
        for (unsigned at = 0; at < in_word; ++at) {
          left |= wmma_.source(a[lane % 16][reg * in_word + at]) << wmma_.bits * at;
          right |= wmma_.source(b[reg * in_word + at][lane % 16]) << wmma_.bits * at;
        }
      }
    each_sum([&](unsigned i, unsigned j, U32& word) { word = wmma_.sum(c[i][j]) << shift | rest; });
    return rules_.run(wmma_.code, wmma_.text);
  }

  bool is_right(unsigned shift = 0, U32 rest = 0) {
    bool right = true;
    each_sum([&](unsigned i, unsigned j, const U32& word) {
      int sum = c[i][j];
      for (unsigned k = 0; k < 16; ++k) sum += a[i][k] * b[k][j];
      right = right && word == (wmma_.sum(sum) << shift | rest);
    });
    return right;
  }

  Square a{}, b{}, c{};

 private:
  template <class Body>
  void each_sum(Body&& body) {
    const unsigned width = rules_.subject.wave().width;
    for (unsigned i = 0; i < 16; ++i)
      for (unsigned j = 0; j < 16; ++j)
        body(i, j, rules_.row(16 + (width == 32 ? i / 2 : i / 4), 16 * i % width + j));
  }

  Rules& rules_;
  const Wmma& wmma_;
};

const Wmma kSingleOfHalves{{0xcc404010, 0x1c421100},
                           "v_wmma_f32_16x16x16_f16 v[16:23], v[0:7], v[8:15], v[16:23]",
                           16,
                           half_bits,
                           single_bits};
const Wmma kHalfOfHalves{{0xcc424010, 0x1c421100},
                         "v_wmma_f16_16x16x16_f16 v[16:23], v[0:7], v[8:15], v[16:23]",
                         16,
                         half_bits,
                         half_bits};
const Wmma kUpperOfBfloat{{0xcc436010, 0x1c421100},
                          "v_wmma_bf16_16x16x16_bf16 v[16:23], v[0:7], v[8:15], v[16:23] "
                          "op_sel:[0,0,1]",
                          16,
                          bfloat_bits,
                          bfloat_bits,
                          0};

TEST_CASE("WMMA multiplies matrices of 16 rows in waves of 32 and of 64 lanes") {
  const Wmma kCases[] = {
      kSingleOfHalves,
      {{0xcc414010, 0x1c421100},
       "v_wmma_f32_16x16x16_bf16 v[16:23], v[0:7], v[8:15], v[16:23]",
       16,
       bfloat_bits,
       single_bits},
      {{0xcc444010, 0x7c421100},
       "v_wmma_i32_16x16x16_iu8 v[16:23], v[0:3], v[8:11], v[16:23] neg_lo:[1,1,0]",
       8,
       byte_bits,
       word_bits},
      {{0xcc444010, 0x1c421100},
       "v_wmma_i32_16x16x16_iu8 v[16:23], v[0:3], v[8:11], v[16:23]",
       8,
       byte_bits,
       word_bits,
       240},
      {{0xcc454010, 0x7c421100},
       "v_wmma_i32_16x16x16_iu4 v[16:23], v[0:1], v[8:9], v[16:23] neg_lo:[1,1,0]",
       4,
       nibble_bits,
       word_bits},
      {{0xcc454010, 0x1c421100},
       "v_wmma_i32_16x16x16_iu4 v[16:23], v[0:1], v[8:9], v[16:23]",
       4,
       nibble_bits,
       word_bits,
       0}};
  for (const Wmma& wmma : kCases)
    for (const unsigned width : {32u, 64u}) {
      INFO(wmma.text << " of " << width);
      Rules rules("gfx1100", width);
      WaveProduct product(rules, wmma);
      CHECK(product.run().empty());
      CHECK(product.is_right());
    }
}

TEST_CASE("WMMA with results of 16 bits leaves the other half of a register alone") {
  Rules rules("gfx1100", 32);
  WaveProduct lower(rules, kHalfOfHalves), upper(rules, kUpperOfBfloat);
  CHECK(lower.run(0, 0xabcd0000).empty());
  CHECK(lower.is_right(0, 0xabcd0000));
  for (auto& row : upper.a) row.fill(1);  // sums below 256, which bfloat16 holds
  for (auto& row : upper.b)
    for (int& value : row) value %= 8;
  CHECK(upper.run(16, 0x1234).empty());
  CHECK(upper.is_right(16, 0x1234));
}

TEST_CASE("WMMA negates halves of A and B, takes the magnitude of C and negates it") {
  Rules rules("gfx1100", 32);
  Wmma wmma = kSingleOfHalves;
  wmma.code = {0xcc404610, 0xbc421100};
  wmma.text =
      "v_wmma_f32_16x16x16_f16 v[16:23], v[0:7], v[8:15], v[16:23] neg_lo:[1,0,1] "
      "neg_hi:[0,1,1]";
  WaveProduct product(rules, wmma);
  CHECK(product.run().empty());
  for (unsigned row = 0; row < 16; ++row)
    for (unsigned at = 0; at < 16; ++at) {
      if (at % 2 == 0) product.a[row][at] *= -1;
      if (row % 2 == 1) product.b[row][at] *= -1;
      product.c[row][at] = -std::abs(product.c[row][at]);
    }
  CHECK(product.is_right());
}

TEST_CASE("sums of integers of WMMA stop at their limits under the clamp modifier") {
  Rules rules("gfx1100", 32);
  const Wmma wmma{
      {0xcc44c010, 0x7c421100},
      "v_wmma_i32_16x16x16_iu8 v[16:23], v[0:3], v[8:11], v[16:23] neg_lo:[1,1,0] clamp",
      8,
      byte_bits,
      word_bits};
  WaveProduct product(rules, wmma);
  for (auto& row : product.a) row.fill(2);
  for (auto& row : product.b) row.fill(3);
  for (auto& row : product.c) row.fill(0x7fffffff - 50);
  CHECK(product.run().empty());
  CHECK(rules.row(16) == 0x7fffffff);
  for (auto& row : product.c) row.fill(0x7fffffff - 96);
  CHECK(product.run().empty());
  CHECK(product.is_right());
}

TEST_CASE("WMMA whose result is not known is refused") {
  Rules rules("gfx1100", 32);
  WaveProduct product(rules, kSingleOfHalves);
  CHECK(product.run().empty());
  rules.row(3, 20) ^= 1;
  check_refused(rules, kSingleOfHalves.code, kSingleOfHalves.text,
                "lanes that differ from their copies");
  rules.exec = 0xffff;
  check_refused(rules, kSingleOfHalves.code, kSingleOfHalves.text, "lanes that take no part");
  rules.exec = 0xffffffff;
  check_refused(rules, {0xcc444110, 0x1c421100},
                "v_wmma_i32_16x16x16_iu8 v[16:23], v[0:3], v[8:11], v[16:23] neg_hi:[1,0,0]",
                "neg_lo or neg_hi");
}

}  // namespace
}  // namespace vitamin::soft::amdgpu::isa
