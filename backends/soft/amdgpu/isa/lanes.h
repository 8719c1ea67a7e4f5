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
constexpr OperandType type_of() {
  if constexpr (std::is_same_v<T, float>) return OperandType::kF32;
  if constexpr (std::is_same_v<T, double>) return OperandType::kF64;
  if constexpr (std::is_same_v<T, Half>) return OperandType::kF16;
  if constexpr (sizeof(T) == 2) return OperandType::kB16;
  if constexpr (sizeof(T) == 8) return OperandType::kB64;
  return OperandType::kB32;
}

// One row of a source of `bytes` bytes that is neither a plain row nor a constant: `scratch`,
// filled.
const std::uint32_t* fill_row(Wave& wave, const Operand& operand, unsigned part, std::size_t bytes,
                              std::uint32_t* scratch);
// A constant source, its modifiers applied.
std::uint64_t constant_value(const Operand& operand, std::size_t bytes);

// One 32-bit row of a source: where it lies if it can be read as it is, otherwise `scratch`,
// filled. `part` 1 is the upper half of a 64-bit source.
template <std::size_t kBytes>
inline const std::uint32_t* source_row(Wave& wave, const Operand& operand, unsigned part,
                                       std::uint32_t* scratch) {
  if (operand.plain_row) [[likely]]
    return wave.row(operand.reg + part);
  if (operand.rows != nullptr) return operand.rows + part * kLanes;
  return fill_row(wave, operand, part, kBytes, scratch);
}

template <class T>
class Source {
 public:
  Source(Wave& wave, const Operand& operand, std::uint32_t (*scratch)[kLanes])
      : low_(source_row<sizeof(T)>(wave, operand, 0, scratch[0])),
        high_(sizeof(T) == 8 ? source_row<sizeof(T)>(wave, operand, 1, scratch[1]) : nullptr) {}

  T operator[](std::ptrdiff_t lane) const {
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
void shape(const Instruction& instruction, OperandType type, const std::uint32_t* old,
           std::uint32_t* words);

// Writes word(lane) to the destination row where the lane is active.
template <class Word>
inline void write_lanes(Wave& wave, std::uint32_t* to, Word&& word) {
  if (wave.all_active()) {
    each_lane(wave.width, [&](std::ptrdiff_t lane) { to[lane] = word(lane); });
    return;
  }
  const std::uint32_t* const mask = wave.lane_words();
  each_lane(wave.width, [&](std::ptrdiff_t lane) {
    to[lane] = (word(lane) & mask[lane]) | (to[lane] & ~mask[lane]);
  });
}

// Writes one word a lane to the destination row where the lane is active.
inline void write_row(Wave& wave, unsigned reg, const std::uint32_t* words) {
  write_lanes(wave, wave.row(reg), [&](std::ptrdiff_t lane) { return words[lane]; });
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

template <auto F, std::size_t kFirst, class R, class... A, std::size_t... K>
inline void run_lanes(Wave& wave, const Instruction& instruction, std::tuple<A...>*,
                      std::index_sequence<K...>) {
  alignas(64) std::uint32_t scratch[sizeof...(A) + 1][2][kLanes];
  const std::tuple<Source<A>...> source{
      Source<A>(wave, instruction.operand[kFirst + K], scratch[K])...};
  const unsigned reg = instruction.operand[0].reg;
  if constexpr (sizeof(R) == 8) {
    std::uint32_t* const low = wave.row(reg);
    std::uint32_t* const high = wave.row(reg + 1);
    const auto result = [&](std::ptrdiff_t lane) {
      return std::bit_cast<std::uint64_t>(F(std::get<K>(source)[lane]...));
    };
    if (wave.all_active()) {
      each_lane(wave.width, [&](std::ptrdiff_t lane) {
        const std::uint64_t bits = result(lane);
        low[lane] = static_cast<std::uint32_t>(bits);
        high[lane] = static_cast<std::uint32_t>(bits >> 32);
      });
      return;
    }
    const std::uint32_t* const mask = wave.lane_words();
    each_lane(wave.width, [&](std::ptrdiff_t lane) {
      const std::uint64_t bits = result(lane);
      const auto low_word = static_cast<std::uint32_t>(bits);
      const auto high_word = static_cast<std::uint32_t>(bits >> 32);
      low[lane] = (low_word & mask[lane]) | (low[lane] & ~mask[lane]);
      high[lane] = (high_word & mask[lane]) | (high[lane] & ~mask[lane]);
    });
  } else {
    const auto word = [&](std::ptrdiff_t lane) {
      return result_word(F(std::get<K>(source)[lane]...));
    };
    if (!instruction.shaped) [[likely]] {
      write_lanes(wave, wave.row(reg), word);
      return;
    }
    std::uint32_t* const words = scratch[sizeof...(A)][0];
    each_lane(wave.width, [&](std::ptrdiff_t lane) { words[lane] = word(lane); });
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
constexpr std::array<OperandType, 4> types_of(std::tuple<A...>*) {
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

// A lane mask that an instruction reads, for example the carry of v_addc.
inline std::uint64_t mask_operand(const Wave& wave, const Operand& operand) {
  return operand.kind == Operand::Kind::kScalar ? wave.mask64(operand.reg) : operand.bits;
}

// A bit a lane: the uppermost of its word. The inverse of expand_mask().
inline std::uint64_t mask_of_words(const std::uint32_t* words, unsigned width) {
  std::uint64_t mask = 0;
  for (unsigned lane = 0; lane < width; lane += 8) {
    const __m256 eight = _mm256_load_ps(reinterpret_cast<const float*>(words + lane));
    mask |= static_cast<std::uint64_t>(_mm256_movemask_ps(eight)) << lane;
  }
  return mask;
}

template <class Body>
inline void each_active_lane(const Wave& wave, Body&& body) {
  for (std::uint64_t left = wave.exec(); left != 0; left &= left - 1)
    body(static_cast<unsigned>(std::countr_zero(left)));
}

}  // namespace vitamin::soft::amdgpu::isa
