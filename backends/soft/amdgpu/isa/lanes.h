// SPDX-License-Identifier: Apache-2.0
//
// How a vector instruction is made from a function of one lane: lanes<[](float a, float b) {…}>.
// The argument types say how sources are read, the result type how it is written. The loop over
// lanes has no branch, so the compiler turns it into host vector instructions.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "backends/soft/amdgpu/isa/instruction_set.h"
#include "backends/soft/amdgpu/isa/wave.h"

namespace vitamin::soft::amdgpu::isa {

using Half = _Float16;

template <class T>
constexpr Type type_of() {
  if constexpr (std::is_same_v<T, float>) return Type::kF32;
  if constexpr (std::is_same_v<T, double>) return Type::kF64;
  if constexpr (std::is_same_v<T, Half>) return Type::kF16;
  if constexpr (sizeof(T) == 2) return Type::kB16;
  if constexpr (sizeof(T) == 8) return Type::kB64;
  return Type::kB32;
}

constexpr std::uint64_t kSignBits[] = {0, 0, 1u << 15, 0, 1u << 31, 0, 0, 0, 1ull << 63};

inline std::uint32_t select_part(std::uint32_t word, const Operand& operand) {
  using Select = Operand::Select;
  if (operand.select == Select::kWhole) return word;
  if (operand.select >= Select::kWord0) {
    const std::uint32_t part = operand.select == Select::kWord1 ? word >> 16 : word & 0xffff;
    return operand.sign_extend ? static_cast<std::uint32_t>(static_cast<std::int16_t>(part)) : part;
  }
  const unsigned byte =
      static_cast<unsigned>(operand.select) - static_cast<unsigned>(Select::kByte0);
  const std::uint32_t part = word >> (8 * byte) & 0xff;
  return operand.sign_extend ? static_cast<std::uint32_t>(static_cast<std::int8_t>(part)) : part;
}

// Sign operations on the word that holds the sign bit of a `bytes` wide source.
inline std::uint32_t apply_signs(std::uint32_t word, const Operand& operand, std::size_t bytes) {
  const std::uint32_t sign = bytes == 2 ? 1u << 15 : 1u << 31;
  return (word & ~(operand.absolute ? sign : 0u)) ^ (operand.negate ? sign : 0u);
}

// `part` 1 is the upper half of a 64-bit source.
template <std::size_t kBytes>
inline std::uint32_t modified_word(std::uint32_t word, const Operand& operand, unsigned part) {
  if (!operand.modified()) return word;
  word = select_part(word, operand);
  return kBytes < 8 || part == 1 ? apply_signs(word, operand, kBytes) : word;
}

// A source that has one value for all lanes.
inline std::uint32_t uniform_word(const Wave& wave, const Operand& operand, unsigned part) {
  return operand.kind == Operand::Kind::kScalar
             ? wave.scalar[operand.reg + part]
             : static_cast<std::uint32_t>(operand.bits >> (32 * part));
}

// One 32-bit row of a source: the register itself where it can be read as it is, otherwise
// `scratch`, filled.
template <std::size_t kBytes>
inline const std::uint32_t* source_row(Wave& wave, const Operand& operand, unsigned part,
                                       std::uint32_t* scratch) {
  if (operand.kind != Operand::Kind::kVector) {
    std::fill_n(scratch, kLanes,
                modified_word<kBytes>(uniform_word(wave, operand, part), operand, part));
    return scratch;
  }
  const std::uint32_t* const row = wave.row(operand.reg + part);
  if (!operand.modified()) return row;
  if (operand.select == Operand::Select::kWhole) {
    if (kBytes == 8 && part == 0) return row;
    for (unsigned lane = 0; lane < kLanes; ++lane)
      scratch[lane] = apply_signs(row[lane], operand, kBytes);
  } else {
    for (unsigned lane = 0; lane < kLanes; ++lane)
      scratch[lane] = modified_word<kBytes>(row[lane], operand, part);
  }
  return scratch;
}

template <class T>
inline T from_words(std::uint32_t low, std::uint32_t high) {
  if constexpr (sizeof(T) == 8)
    return std::bit_cast<T>(low | static_cast<std::uint64_t>(high) << 32);
  else if constexpr (sizeof(T) == 2)
    return std::bit_cast<T>(static_cast<std::uint16_t>(low));
  else
    return std::bit_cast<T>(low);
}

// A source that lies in rows: in any form, and as whole vector registers.
template <class T>
class Rows {
 public:
  Rows(Wave& wave, const Operand& operand, std::uint32_t (*scratch)[kLanes])
      : low_(source_row<sizeof(T)>(wave, operand, 0, scratch[0])),
        high_(sizeof(T) == 8 ? source_row<sizeof(T)>(wave, operand, 1, scratch[1]) : nullptr) {}
  Rows(Wave& wave, const Operand& operand)
      : low_(wave.row(operand.reg)), high_(sizeof(T) == 8 ? wave.row(operand.reg + 1u) : nullptr) {}

  T operator[](unsigned lane) const {
    return from_words<T>(low_[lane], sizeof(T) == 8 ? high_[lane] : 0);
  }

 private:
  const std::uint32_t* low_;
  const std::uint32_t* high_;
};

// A source without modifiers that has one value for all lanes.
template <class T>
class Uniform {
 public:
  Uniform(const Wave& wave, const Operand& operand)
      : value_(from_words<T>(uniform_word(wave, operand, 0),
                             sizeof(T) == 8 ? uniform_word(wave, operand, 1) : 0)) {}

  T operator[](unsigned) const { return value_; }

 private:
  T value_;
};

template <class T>
inline std::uint32_t result_word(T value) {
  if constexpr (sizeof(T) == 2)
    return std::bit_cast<std::uint16_t>(value);
  else
    return std::bit_cast<std::uint32_t>(value);
}

// Output modifiers, then the part of the destination that is written.
void shape(const Instruction& instruction, Type type, const std::uint32_t* old,
           std::uint32_t* words);

// Calls body(lane) for all lanes of the wave. A wave has 32 or 64 lanes, so the inner loop has no rest
// and becomes host vector instructions; `body` must not carry anything from lane to lane.
template <class Body>
inline void each_lane(unsigned width, Body&& body) {
  constexpr unsigned kStep = 32;
  for (unsigned first = 0; first < width; first += kStep)
#pragma GCC ivdep
    for (unsigned lane = first; lane < first + kStep; ++lane) body(lane);
}

// Writes word(lane) to the destination row where the lane is active.
template <class Word>
inline void write_lanes(Wave& wave, unsigned reg, Word&& word) {
  std::uint32_t* const to = wave.row(reg);
  if (wave.all_active()) {
    each_lane(wave.width, [&](unsigned lane) { to[lane] = word(lane); });
  } else {
    const std::uint32_t* const mask = wave.lane_words();
    each_lane(wave.width, [&](unsigned lane) {
      to[lane] = (word(lane) & mask[lane]) | (to[lane] & ~mask[lane]);
    });
  }
}

inline void write_row(Wave& wave, unsigned reg, const std::uint32_t* words) {
  write_lanes(wave, reg, [=](unsigned lane) { return words[lane]; });
}

template <class F>
struct Signature;
template <class C, class R, class... A>
struct Signature<R (C::*)(A...) const> {
  using Result = R;
  using Arguments = std::tuple<A...>;
  static constexpr std::size_t kCount = sizeof...(A);
};
template <auto F>
using SignatureOf = Signature<decltype(&decltype(F)::operator())>;

// Writes F of the sources to the destination.
template <auto F, class R, class... S>
inline void apply(Wave& wave, unsigned reg, const S&... source) {
  if constexpr (sizeof(R) == 8) {
    std::uint32_t* const low = wave.row(reg);
    std::uint32_t* const high = wave.row(reg + 1);
    const std::uint32_t* const mask = wave.lane_words();
    each_lane(wave.width, [&](unsigned lane) {
      const auto bits = std::bit_cast<std::uint64_t>(F(source[lane]...));
      low[lane] = (static_cast<std::uint32_t>(bits) & mask[lane]) | (low[lane] & ~mask[lane]);
      high[lane] =
          (static_cast<std::uint32_t>(bits >> 32) & mask[lane]) | (high[lane] & ~mask[lane]);
    });
  } else {
    write_lanes(wave, reg, [=](unsigned lane) { return result_word(F(source[lane]...)); });
  }
}

// The three forms of an instruction; see Definition.
template <auto F, class R, class Arguments>
struct Forms;

template <auto F, class R, class A, class... More>
struct Forms<F, R, std::tuple<A, More...>> {
  template <std::size_t... K>
  static void any(Wave& wave, const Instruction& instruction, std::index_sequence<K...>) {
    alignas(64) std::uint32_t scratch[sizeof...(K) + 1][2][kLanes];
    const Rows<A> first(wave, instruction.operand[1], scratch[0]);
    const std::tuple<Rows<More>...> more{
        Rows<More>(wave, instruction.operand[K + 2], scratch[K + 1])...};
    const unsigned reg = instruction.operand[0].reg;
    if constexpr (sizeof(R) < 8) {
      if (instruction.shaped) {
        alignas(64) std::uint32_t words[kLanes];
        for (unsigned lane = 0; lane < kLanes; ++lane)
          words[lane] = result_word(F(first[lane], std::get<K>(more)[lane]...));
        shape(instruction, type_of<R>(), wave.row(reg), words);
        write_row(wave, reg, words);
        return;
      }
    }
    apply<F, R>(wave, reg, first, std::get<K>(more)...);
  }
  template <class First, std::size_t... K>
  static void whole(Wave& wave, const Instruction& instruction, std::index_sequence<K...>) {
    apply<F, R>(wave, instruction.operand[0].reg, First(wave, instruction.operand[1]),
                Rows<More>(wave, instruction.operand[K + 2])...);
  }

  static void execute(Wave& wave, const Instruction& instruction) {
    any(wave, instruction, std::index_sequence_for<More...>());
  }
  static void of_rows(Wave& wave, const Instruction& instruction) {
    whole<Rows<A>>(wave, instruction, std::index_sequence_for<More...>());
  }
  static void of_value_and_rows(Wave& wave, const Instruction& instruction) {
    whole<Uniform<A>>(wave, instruction, std::index_sequence_for<More...>());
  }
};

template <class... A>
constexpr std::array<Type, 4> types_of(std::tuple<A...>*) {
  return {type_of<A>()...};
}

// The definition of an instruction whose lanes are independent.
template <auto F>
Definition per_lane(bool accumulates = false) {
  using S = SignatureOf<F>;
  using Form = Forms<F, typename S::Result, typename S::Arguments>;
  return {.execute = Form::execute,
          .of_rows = Form::of_rows,
          .of_value_and_rows = Form::of_value_and_rows,
          .first_source = 1,
          .sources = types_of(static_cast<typename S::Arguments*>(nullptr)),
          .result = type_of<typename S::Result>(),
          .accumulates = accumulates};
}

// One source of one lane, for instructions that are not worth a vector loop.
inline std::uint32_t lane_word(Wave& wave, const Operand& operand, unsigned lane,
                               unsigned part = 0) {
  switch (operand.kind) {
    case Operand::Kind::kVector:
      return wave.row(operand.reg + part)[lane];
    case Operand::Kind::kScalar:
      return wave.scalar[operand.reg + part];
    default:
      return static_cast<std::uint32_t>(operand.bits >> (32 * part));
  }
}

inline std::uint64_t lane_pair(Wave& wave, const Operand& operand, unsigned lane) {
  return lane_word(wave, operand, lane) |
         static_cast<std::uint64_t>(lane_word(wave, operand, lane, 1)) << 32;
}

// A bit for each of the words, which are zero or all ones.
inline std::uint64_t mask_of(const std::uint32_t* words, unsigned width) {
  std::uint64_t mask = 0;
  for (unsigned lane = 0; lane < width; lane += 8) {
    const __m256i eight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + lane));
    const auto bits = static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(eight)));
    mask |= std::uint64_t{bits} << lane;
  }
  return mask;
}

// A lane mask that an instruction reads, for example the carry of v_addc.
inline std::uint64_t mask_operand(const Wave& wave, const Operand& operand) {
  return operand.kind == Operand::Kind::kScalar ? wave.mask64(operand.reg) : operand.bits;
}

template <class Body>
inline void each_active_lane(const Wave& wave, Body&& body) {
  for (std::uint64_t left = wave.exec(); left != 0; left &= left - 1)
    body(static_cast<unsigned>(std::countr_zero(left)));
}

}  // namespace vitamin::soft::amdgpu::isa
