// SPDX-License-Identifier: Apache-2.0
//
// How a vector instruction is made from a function of one lane: lanes<[](float a, float b) {…}>.
// The argument types say how sources are read, the result type how it is written. The loop over
// lanes has no branch, so the compiler turns it into host vector instructions.
#pragma once

#include <immintrin.h>

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
  if (operand.absolute) word &= ~sign;
  if (operand.negate) word ^= sign;
  return word;
}

template <std::size_t kBytes>
const std::uint32_t* made_row(Wave& wave, const Operand& operand, unsigned part,
                              std::uint32_t* scratch) {
  const bool signs_here = kBytes < 8 || part == 1;
  if (operand.kind == Operand::Kind::kVector) {
    const std::uint32_t* const row = wave.row(operand.reg + part);
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      const std::uint32_t word = select_part(row[lane], operand);
      scratch[lane] = signs_here ? apply_signs(word, operand, kBytes) : word;
    }
    return scratch;
  }
  std::uint32_t word = operand.kind == Operand::Kind::kScalar
                           ? wave.scalar[operand.reg + part]
                           : static_cast<std::uint32_t>(operand.bits >> (32 * part));
  if (operand.modified()) {
    word = select_part(word, operand);
    if (signs_here) word = apply_signs(word, operand, kBytes);
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) scratch[lane] = word;
  return scratch;
}

// One 32-bit row of a source: the register itself where it can be read as it is, otherwise
// `scratch`, filled. `part` 1 is the upper half of a 64-bit source.
template <std::size_t kBytes>
inline const std::uint32_t* source_row(Wave& wave, const Operand& operand, unsigned part,
                                       std::uint32_t* scratch) {
  return operand.direct ? wave.row(operand.reg + part)
                        : made_row<kBytes>(wave, operand, part, scratch);
}

template <class T>
class Source {
 public:
  Source(Wave& wave, const Operand& operand, std::uint32_t (*scratch)[kLanes])
      : low_(source_row<sizeof(T)>(wave, operand, 0, scratch[0])),
        high_(sizeof(T) == 8 ? source_row<sizeof(T)>(wave, operand, 1, scratch[1]) : nullptr) {}

  T operator[](unsigned lane) const {
    if constexpr (sizeof(T) == 8)
      return std::bit_cast<T>(low_[lane] | static_cast<std::uint64_t>(high_[lane]) << 32);
    else if constexpr (sizeof(T) == 2)
      return std::bit_cast<T>(static_cast<std::uint16_t>(low_[lane]));
    else
      return std::bit_cast<T>(low_[lane]);
  }

 private:
  const std::uint32_t* low_;
  const std::uint32_t* high_;
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

// Writes one word a lane to the destination row where the lane is active.
inline void write_row(Wave& wave, unsigned reg, const std::uint32_t* words) {
  std::uint32_t* const to = wave.row(reg);
  const std::uint32_t* const mask = wave.lane_words();
  for (unsigned lane = 0; lane < kLanes; ++lane)
    to[lane] = (words[lane] & mask[lane]) | (to[lane] & ~mask[lane]);
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

// Waves are 32 or 64 lanes wide: a loop over this many needs no test for a rest.
constexpr unsigned kStep = 32;

template <auto F, std::size_t kFirst, class R, class... A, std::size_t... K>
inline void run_lanes(Wave& wave, const Instruction& instruction, std::tuple<A...>*,
                      std::index_sequence<K...>) {
  alignas(64) std::uint32_t scratch[sizeof...(A) + 1][2][kLanes];
  const std::tuple<Source<A>...> source{
      Source<A>(wave, instruction.operand[kFirst + K], scratch[K])...};
  const unsigned reg = instruction.operand[0].reg;
  const unsigned width = wave.width;
  if constexpr (sizeof(R) == 8) {
    const std::uint32_t* const mask = wave.lane_words();
    std::uint32_t* const low = wave.row(reg);
    std::uint32_t* const high = wave.row(reg + 1);
#pragma GCC ivdep
    for (unsigned lane = 0; lane < width; ++lane) {
      const auto bits = std::bit_cast<std::uint64_t>(F(std::get<K>(source)[lane]...));
      const auto low_word = static_cast<std::uint32_t>(bits);
      const auto high_word = static_cast<std::uint32_t>(bits >> 32);
      low[lane] = (low_word & mask[lane]) | (low[lane] & ~mask[lane]);
      high[lane] = (high_word & mask[lane]) | (high[lane] & ~mask[lane]);
    }
  } else {
    if (!instruction.shaped) [[likely]] {
      std::uint32_t* const to = wave.row(reg);
      if (wave.all_active()) [[likely]] {
        for (unsigned first = 0; first < width; first += kStep)
#pragma GCC ivdep
          for (unsigned lane = first; lane < first + kStep; ++lane)
            to[lane] = result_word(F(std::get<K>(source)[lane]...));
        return;
      }
      const std::uint32_t* const mask = wave.lane_words();
      for (unsigned first = 0; first < width; first += kStep)
#pragma GCC ivdep
        for (unsigned lane = first; lane < first + kStep; ++lane) {
          const std::uint32_t word = result_word(F(std::get<K>(source)[lane]...));
          to[lane] = (word & mask[lane]) | (to[lane] & ~mask[lane]);
        }
      return;
    }
    std::uint32_t* const words = scratch[sizeof...(A)][0];
    for (unsigned lane = 0; lane < width; ++lane)
      words[lane] = result_word(F(std::get<K>(source)[lane]...));
    shape(instruction, type_of<R>(), wave.row(reg), words);
    write_row(wave, reg, words);
  }
}

template <auto F, std::size_t kFirst = 1>
void lanes(Wave& wave, const Instruction& instruction) {
  using S = SignatureOf<F>;
  run_lanes<F, kFirst, typename S::Result>(wave, instruction,
                                           static_cast<typename S::Arguments*>(nullptr),
                                           std::make_index_sequence<S::kCount>());
}

template <class... A>
constexpr std::array<Type, 4> types_of(std::tuple<A...>*) {
  return {type_of<A>()...};
}

// The definition of an instruction whose lanes are independent.
template <auto F>
Definition per_lane(bool accumulates = false) {
  using S = SignatureOf<F>;
  return {.execute = lanes<F>,
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
    const __m256i eight = _mm256_load_si256(reinterpret_cast<const __m256i*>(words + lane));
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
