// SPDX-License-Identifier: Apache-2.0
//
// Matrix instructions: v_mfma_* of gfx90a and gfx942, v_wmma_* of gfx1100. The lane and register
// that hold an element, CBSZ, ABID, BLGP and the bits that negate are those of AMD's Matrix
// Instruction Calculator (github.com/ROCm/amd_matrix_instruction_calculator) for CDNA2, CDNA3 and
// RDNA3. MFMA ignores EXEC ("AMD Instinct MI200" Instruction Set Architecture).
//
// No document says in which order the hardware adds the products of one element and where it
// rounds. Here D starts as C and takes one fused multiply-add for each k, in ascending order. WMMA
// with results of 16 bits sums in single precision and rounds once, at the end. Denormals are kept
// on all parts; MI200 flushes those of 16-bit sources and of their sums.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "backends/soft/amdgpu/isa/floating_point.h"
#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

using U16 = std::uint16_t;
using U32 = std::uint32_t;
using U64 = std::uint64_t;
using I32 = std::int32_t;
using I64 = std::int64_t;

[[noreturn]] void refuse(const std::string& what, const Instruction& instruction) {
  throw Fault("the software GPU does not know " + what + " in '" + instruction.text + "'");
}

// LLVM reads scalar registers from encodings that the hardware does not have.
void check_registers(const Instruction& instruction) {
  using Kind = Operand::Kind;
  for (const unsigned source : {1, 2, 3}) {
    const Kind kind = instruction.operand[source].kind;
    if (kind != Kind::kVector && (source != 3 || kind != Kind::kConstant))
      refuse("a scalar register", instruction);
  }
}

float negated_if(bool negate, float value) { return negate ? -value : value; }

// Elements of A and B: their width in a register, their value in the type of the sums. `modified`:
// a neg bit of WMMA, which makes an integer signed.
struct Single {
  static constexpr const char* kName = "f32";
  static constexpr unsigned kBits = 32;
  using Sum = float;
  static float value(U32 bits) { return std::bit_cast<float>(bits); }
};
struct Double {
  static constexpr const char* kName = "f64";
  static constexpr unsigned kBits = 64;
  using Sum = double;
};
struct HalfPrecision {
  static constexpr const char* kName = "f16";
  static constexpr unsigned kBits = 16;
  using Sum = float;
  static float value(U32 bits, bool modified = false) {
    return negated_if(modified, static_cast<float>(std::bit_cast<Half>(static_cast<U16>(bits))));
  }
  static U16 rounded(float value) { return std::bit_cast<U16>(static_cast<Half>(value)); }
};
struct Bfloat {
  static constexpr const char* kName = "bf16";
  static constexpr unsigned kBits = 16;
  using Sum = float;
  static float value(U32 bits, bool modified = false) {
    return negated_if(modified, std::bit_cast<float>(bits << 16));
  }
  static U16 rounded(float value) {
    const U32 bits = std::bit_cast<U32>(value);
    if (value != value) return static_cast<U16>(bits >> 16 | 1u << 6);
    return static_cast<U16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even
  }
};
template <unsigned kWidth>
struct Integer {
  static constexpr const char* kName = "i8";
  static constexpr unsigned kBits = kWidth;
  using Sum = I32;
  static I32 value(U32 bits, bool modified = true) {
    constexpr unsigned kUnused = 32 - kWidth;
    return modified ? static_cast<I32>(bits << kUnused) >> kUnused
                    : static_cast<I32>(bits << kUnused >> kUnused);
  }
};

float add_product(float x, float y, float sum) { return multiply_add(x, y, sum); }
double add_product(double x, double y, double sum) { return multiply_add(x, y, sum); }
// Wraps.
I32 add_product(I32 x, I32 y, I32 sum) {
  return static_cast<I32>(static_cast<U32>(sum) + static_cast<U32>(x * y));
}
I64 add_product(I32 x, I32 y, I64 sum) { return sum + I64{x} * y; }

// a[i][k] * b[k][j] + sums[i][j] of one block.
template <std::size_t kRows, std::size_t kDepth, class Value, class Sum>
void multiply_block(const Value (&a)[kRows][kDepth], const Value (&b)[kDepth][kRows],
                    Sum (&sums)[kRows][kRows]) {
  for (std::size_t i = 0; i < kRows; ++i)
    for (std::size_t k = 0; k < kDepth; ++k)
      for (std::size_t j = 0; j < kRows; ++j)
        sums[i][j] = add_product(a[i][k], b[k][j], sums[i][j]);
}

// A has `rows` rows, B as many columns; `depth` is the extent of k.
struct Shape {
  unsigned rows, depth, blocks;
  bool swizzles = true;  // BLGP takes lanes of B from elsewhere
};

// Element `at` of those that a lane holds.
template <class T>
typename T::Sum lane_element(Wave& wave, const Operand& operand, unsigned lane, unsigned at) {
  if constexpr (T::kBits == 64) {
    return std::bit_cast<double>(lane_pair(wave, operand, lane));
  } else {
    constexpr unsigned kInWord = 32 / T::kBits;
    const U32 word = wave.row(operand.reg + at / kInWord)[lane];
    return T::value(word >> T::kBits * (at % kInWord));
  }
}

// What the fields CBSZ, ABID and BLGP of an MFMA say of the elements of A and B.
class Swizzle {
 public:
  Swizzle(const Instruction& instruction, const Shape& shape)
      : group_(1u << (instruction.raw >> 8 & 7)),
        block_(static_cast<unsigned>(instruction.raw >> 11 & 15)),
        lanes_(static_cast<unsigned>(instruction.raw >> 61)) {
    if (group_ > shape.blocks || block_ >= group_) refuse("CBSZ or ABID", instruction);
    if (lanes_ != 0 && !shape.swizzles) refuse("BLGP", instruction);
  }

  // Groups of 2^CBSZ blocks read block ABID of their group.
  unsigned block_of_a(unsigned block) const { return block / group_ * group_ + block_; }

  unsigned lane_of_b(unsigned lane) const {
    constexpr unsigned kHalf = kLanes / 2, kQuarter = kLanes / 4;
    switch (lanes_) {
      case 0:
        return lane;
      case 1:
      case 2:
        return lane % kHalf + kHalf * (lanes_ - 1);
      case 3:
        return (lane + kQuarter) % kLanes;
      default:
        return lane % kQuarter + kQuarter * (lanes_ - 4);
    }
  }

 private:
  unsigned group_, block_, lanes_;
};

// Where the columns of one row of C and D begin: they are neighbouring lanes of one register, or of
// a pair of registers for 64 bits.
struct Place {
  unsigned reg, lane;
};

template <class T, Shape kShape>
constexpr Place place_of(unsigned block, unsigned row) {
  if constexpr (T::kBits == 64) {
    return {row / 4 * 2, kLanes / 4 * (row % 4) + kShape.rows * block};
  } else {
    constexpr unsigned kAcross = kLanes / kShape.rows;  // rows that one register holds
    const unsigned four = block * (kShape.rows / 4) + row / 4;
    return {four / kAcross * 4 + row % 4, four % kAcross * kShape.rows};
  }
}

template <class Sum>
Sum lane_sum(Wave& wave, const Operand& operand, unsigned reg, unsigned lane) {
  if constexpr (sizeof(Sum) == 8) {
    if (operand.kind != Operand::Kind::kVector) return std::bit_cast<Sum>(operand.bits);
    const U64 high = wave.row(operand.reg + reg + 1)[lane];
    return std::bit_cast<Sum>(wave.row(operand.reg + reg)[lane] | high << 32);
  } else {
    if (operand.kind != Operand::Kind::kVector)
      return std::bit_cast<Sum>(static_cast<U32>(operand.bits));
    return std::bit_cast<Sum>(wave.row(operand.reg + reg)[lane]);
  }
}

template <class Sum>
void set_lane_sum(Wave& wave, unsigned reg, unsigned lane, Sum value) {
  if constexpr (sizeof(Sum) == 8) {
    const auto bits = std::bit_cast<U64>(value);
    wave.row(reg)[lane] = static_cast<U32>(bits);
    wave.row(reg + 1)[lane] = static_cast<U32>(bits >> 32);
  } else {
    wave.row(reg)[lane] = std::bit_cast<U32>(value);
  }
}

// D = A * B + C for each block, v_mfma_*.
template <class T, Shape kShape>
void multiply(Wave& wave, const Instruction& instruction) {
  using Sum = typename T::Sum;
  constexpr unsigned kRows = kShape.rows, kDepth = kShape.depth, kBlocks = kShape.blocks;
  constexpr unsigned kInLane = kRows * kDepth * kBlocks / kLanes;
  const Operand &a = instruction.operand[1], &b = instruction.operand[2];
  const Operand& c = instruction.operand[3];
  check_registers(instruction);
  const Swizzle swizzle(instruction, kShape);
  const auto lane_of = [](unsigned row, unsigned block, unsigned k) {
    return row + kRows * (block + kBlocks * (k / kInLane));
  };
  alignas(64) Sum sums[kBlocks][kRows][kRows];
  for (unsigned block = 0; block < kBlocks; ++block) {
    alignas(64) Sum left[kRows][kDepth], right[kDepth][kRows];
    for (unsigned row = 0; row < kRows; ++row)
      for (unsigned k = 0; k < kDepth; ++k) {
        const unsigned from_a = lane_of(row, swizzle.block_of_a(block), k);
        const unsigned from_b = swizzle.lane_of_b(lane_of(row, block, k));
        left[row][k] = lane_element<T>(wave, a, from_a, k % kInLane);
        right[k][row] = lane_element<T>(wave, b, from_b, k % kInLane);
      }
    for (unsigned row = 0; row < kRows; ++row) {
      const auto [reg, lane] = place_of<T, kShape>(block, row);
      for (unsigned column = 0; column < kRows; ++column)
        sums[block][row][column] = lane_sum<Sum>(wave, c, reg, lane + column);
    }
    multiply_block(left, right, sums[block]);
  }
  // D may lie where A, B or C do.
  for (unsigned block = 0; block < kBlocks; ++block)
    for (unsigned row = 0; row < kRows; ++row) {
      const auto [reg, lane] = place_of<T, kShape>(block, row);
      for (unsigned column = 0; column < kRows; ++column)
        set_lane_sum(wave, instruction.operand[0].reg + reg, lane + column,
                     sums[block][row][column]);
    }
}

template <class Sum>
constexpr OperandType type_of_sum() {
  return std::is_same_v<Sum, I32> ? OperandType::kB32 : type_of<Sum>();
}

// "v_mfma_f32_32x32x4", what `joins` the type to it, "f16".
template <class T>
std::string name_of(const Shape& shape, const std::string& joins) {
  const std::string rows = std::to_string(shape.rows);
  const char* const sums = std::is_same_v<typename T::Sum, I32>      ? "i32"
                           : std::is_same_v<typename T::Sum, double> ? "f64"
                                                                     : "f32";
  return std::string("v_mfma_") + sums + "_" + rows + "x" + rows + "x" +
         std::to_string(shape.depth) + joins + T::kName;
}

// gfx942's name, which says how many blocks there are.
template <class T>
std::string later_name_of(const Shape& shape) {
  return name_of<T>(shape, shape.blocks == 1 ? "_" : "_" + std::to_string(shape.blocks) + "b_");
}

template <class T, Shape kShape>
Definition definition_of() {
  return {.execute = multiply<T, kShape>,
          .sources = {OperandType::kB32, OperandType::kB32, type_of_sum<typename T::Sum>()}};
}

// An instruction of both parts, under the names of each.
template <class T, Shape... kShapes>
void add_for_both(InstructionSet& set) {
  (set.add(name_of<T>(kShapes, ""), definition_of<T, kShapes>()), ...);
  (set.add(later_name_of<T>(kShapes), definition_of<T, kShapes>()), ...);
}
template <class T, Shape... kShapes>
void add_for_gfx90a(InstructionSet& set) {
  (set.add(name_of<T>(kShapes, ""), definition_of<T, kShapes>()), ...);
}
template <class T, Shape... kShapes>
void add_for_gfx942(InstructionSet& set) {
  (set.add(later_name_of<T>(kShapes), definition_of<T, kShapes>()), ...);
}

void add_block_matrices(InstructionSet& set) {
  add_for_both<Single, Shape{32, 1, 2}, Shape{16, 1, 4}, Shape{4, 1, 16}, Shape{32, 2, 1},
               Shape{16, 4, 1}>(set);
  add_for_both<HalfPrecision, Shape{32, 4, 2}, Shape{16, 4, 4}, Shape{4, 4, 16}, Shape{32, 8, 1},
               Shape{16, 16, 1}>(set);
  add_for_both<Integer<8>, Shape{32, 4, 2}, Shape{16, 4, 4}, Shape{4, 4, 16}>(set);
  add_for_gfx90a<Integer<8>, Shape{32, 8, 1}, Shape{16, 16, 1}>(set);
  add_for_gfx942<Integer<8>, Shape{32, 16, 1, false}, Shape{16, 32, 1, false}>(set);
  add_for_both<Double, Shape{16, 4, 1, false}, Shape{4, 4, 4, false}>(set);
  add_for_gfx90a<Bfloat, Shape{32, 2, 2}, Shape{16, 2, 4}, Shape{4, 2, 16}, Shape{32, 4, 1},
                 Shape{16, 8, 1}>(set);
  add_for_gfx942<Bfloat, Shape{32, 4, 2}, Shape{16, 4, 4}, Shape{4, 4, 16}, Shape{32, 8, 1, false},
                 Shape{16, 16, 1, false}>(set);
  // Those of gfx942 with the swizzles of gfx90a.
  const auto add_1k = [&](const char* shape, const Definition& definition) {
    set.add(std::string("v_mfma_f32_") + shape + "bf16_1k", definition);
  };
  add_1k("32x32x4", definition_of<Bfloat, Shape{32, 4, 2}>());
  add_1k("16x16x4", definition_of<Bfloat, Shape{16, 4, 4}>());
  add_1k("4x4x4", definition_of<Bfloat, Shape{4, 4, 16}>());
  add_1k("32x32x8", definition_of<Bfloat, Shape{32, 8, 1}>());
  add_1k("16x16x16", definition_of<Bfloat, Shape{16, 16, 1}>());
}

// The 16 x 16 elements of A or B by row and k, or by column and k: each lane of 16 holds one row,
// and every 16 lanes hold the same.
constexpr unsigned kSide = 16;

template <class T, class Value>
void read_wave_source(Wave& wave, const Instruction& instruction, unsigned source,
                      Value (&elements)[kSide][kSide]) {
  constexpr unsigned kInWord = 32 / T::kBits;
  const Operand& operand = instruction.operand[1 + source];
  const bool low = (instruction.neg_lo >> source & 1) != 0;
  const bool high = T::kBits == 16 ? (instruction.neg_hi >> source & 1) != 0 : low;
  for (unsigned reg = 0; reg < kSide / kInWord; ++reg) {
    const U32* const row = wave.row(operand.reg + reg);
    for (unsigned lane = kSide; lane < wave.width; ++lane)
      if (row[lane] != row[lane % kSide])
        refuse("lanes that differ from their copies", instruction);
    for (unsigned lane = 0; lane < kSide; ++lane)
      for (unsigned at = 0; at < kInWord; ++at)
        elements[lane][reg * kInWord + at] =
            T::value(row[lane] >> T::kBits * at, at % 2 == 0 ? low : high);
  }
}

// What C and D hold. `upper`: op_sel chose the upper halves of the registers.
struct SingleSum {
  using Sum = float;
  static Sum value(U32 word, bool) { return std::bit_cast<float>(word); }
  static U32 word(Sum sum, U32, const Instruction&, bool) { return std::bit_cast<U32>(sum); }
};
template <class T>
struct HalfSum {
  using Sum = float;
  static Sum value(U32 word, bool upper) { return T::value(upper ? word >> 16 : word & 0xffff); }
  static U32 word(Sum sum, U32 old, const Instruction&, bool upper) {
    const U32 half = T::rounded(sum);
    return upper ? (old & 0xffff) | half << 16 : (old & 0xffff0000) | half;
  }
};
struct IntegerSum {
  using Sum = I64;
  static Sum value(U32 word, bool) { return static_cast<I32>(word); }
  static U32 word(Sum sum, U32, const Instruction& instruction, bool) {
    using Limits = std::numeric_limits<I32>;
    if (instruction.clamp) sum = std::clamp<Sum>(sum, Limits::min(), Limits::max());
    return static_cast<U32>(sum);
  }
};

// D = A * B + C of 16 x 16 matrices, v_wmma_*. C takes the upper neg bits as "absolute".
template <class T, class S>
void multiply_wave(Wave& wave, const Instruction& instruction) {
  using Sum = typename S::Sum;
  constexpr bool kReal = std::is_same_v<Sum, float>;
  constexpr bool kHalves = kReal && !std::is_same_v<S, SingleSum>;
  const Operand& c = instruction.operand[3];
  const bool upper = (instruction.op_sel >> 2 & 1) != 0;
  const bool negate = (instruction.neg_lo >> 2 & 1) != 0;
  const bool absolute = (instruction.neg_hi >> 2 & 1) != 0;
  check_registers(instruction);
  if (!wave.all_active()) refuse("lanes that take no part", instruction);
  if ((instruction.op_sel & 3) != 0 || (upper && !kHalves)) refuse("op_sel", instruction);
  if (!kReal && (negate || instruction.neg_hi != 0)) refuse("neg_lo or neg_hi", instruction);
  if (kReal && instruction.clamp) refuse("clamp", instruction);
  const bool constant = c.kind != Operand::Kind::kVector;
  if (constant && c.bits != 0 && std::is_same_v<S, HalfSum<Bfloat>>)
    refuse("a constant of bfloat16", instruction);
  alignas(64) typename T::Sum a[kSide][kSide], columns[kSide][kSide], b[kSide][kSide];
  read_wave_source<T>(wave, instruction, 0, a);
  read_wave_source<T>(wave, instruction, 1, columns);
  const unsigned across = wave.width / kSide;  // rows of C that one register holds
  alignas(64) Sum sums[kSide][kSide];
  for (unsigned i = 0; i < kSide; ++i)
    for (unsigned j = 0; j < kSide; ++j) {
      b[i][j] = columns[j][i];
      const unsigned lane = i % across * kSide + j;
      Sum sum = constant ? S::value(static_cast<U32>(c.bits), false)
                         : S::value(wave.row(c.reg + i / across)[lane], upper);
      if constexpr (kReal) sum = negated_if(negate, absolute ? std::fabs(sum) : sum);
      sums[i][j] = sum;
    }
  multiply_block(a, b, sums);
  for (unsigned i = 0; i < kSide; ++i)
    for (unsigned j = 0; j < kSide; ++j) {
      U32& to = wave.row(instruction.operand[0].reg + i / across)[i % across * kSide + j];
      to = S::word(sums[i][j], to, instruction, upper);
    }
}

// `saturating`: the clamp modifier is for integers, whose type makes the decoder ask for it.
template <class T, class S>
Definition wave_definition(OperandType sums) {
  constexpr bool kInteger = std::is_same_v<S, IntegerSum>;
  return {.execute = multiply_wave<T, S>,
          .sources = {OperandType::kB32, OperandType::kB32, sums},
          .result = kInteger ? OperandType::kB32 : OperandType::kNone,
          .saturating = kInteger ? multiply_wave<T, S> : nullptr};
}

void add_wave_matrices(InstructionSet& set) {
  const auto add = [&](const char* name, const Definition& definition) {
    set.add(std::string("v_wmma_") + name, definition);
  };
  add("f32_16x16x16_f16", wave_definition<HalfPrecision, SingleSum>(OperandType::kF32));
  add("f32_16x16x16_bf16", wave_definition<Bfloat, SingleSum>(OperandType::kF32));
  add("f16_16x16x16_f16",
      wave_definition<HalfPrecision, HalfSum<HalfPrecision>>(OperandType::kPackedF16));
  add("bf16_16x16x16_bf16", wave_definition<Bfloat, HalfSum<Bfloat>>(OperandType::kB32));
  add("i32_16x16x16_iu8", wave_definition<Integer<8>, IntegerSum>(OperandType::kB32));
  add("i32_16x16x16_iu4", wave_definition<Integer<4>, IntegerSum>(OperandType::kB32));
}

}  // namespace

void add_matrix(InstructionSet& set) {
  add_block_matrices(set);
  add_wave_matrices(set);
}

}  // namespace vitamin::soft::amdgpu::isa
