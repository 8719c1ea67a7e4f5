// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic whose bits do not depend on how it is compiled. IEEE 754 leaves open which NaN comes
// out of an operation with several, and a compiler swaps the operands of the host's commutative
// instructions as it likes; here it is the first one, made quiet. Minima and maxima have the rule
// of the hardware.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace vitamin::soft::amdgpu::isa {

template <class T>
struct Format;
template <>
struct Format<_Float16> {
  using Bits = std::uint16_t;
  static constexpr Bits kQuiet = 1u << 9;
};
template <>
struct Format<float> {
  using Bits = std::uint32_t;
  static constexpr Bits kQuiet = 1u << 22;
};
template <>
struct Format<double> {
  using Bits = std::uint64_t;
  static constexpr Bits kQuiet = 1ull << 51;
};

template <class T>
inline auto bits_of(T x) {
  return std::bit_cast<typename Format<T>::Bits>(x);
}

template <class T>
inline T quieted(T nan) {
  using Bits = typename Format<T>::Bits;
  return std::bit_cast<T>(static_cast<Bits>(bits_of(nan) | Format<T>::kQuiet));
}

// Whether `x` is a signalling NaN. `&`, not `&&`: a branch keeps the loop over the lanes from
// becoming host vector instructions.
template <class T>
inline bool signals(T x) {
  return (x != x) & ((bits_of(x) & Format<T>::kQuiet) == 0);
}

// `result`, which is what the other operands make of it, unless `x` is a NaN.
template <class T>
inline T unless_nan(T x, T result) {
  return x != x ? quieted(x) : result;
}

template <class T>
inline T sum(T x, T y) {
  return unless_nan(x, x + y);
}

template <class T>
inline T product(T x, T y) {
  return unless_nan(x, x * y);
}

// One rounding.
template <class T>
inline T multiply_add(T x, T y, T z) {
  return unless_nan(x, unless_nan(y, std::fma(x, y, z)));
}

// `chosen`, if both are numbers; else the first NaN that signals, made quiet, or the number beside
// a quiet one ("Vega" Instruction Set Architecture, V_MIN_F32, in IEEE mode).
template <class T>
inline T of_numbers(T x, T y, T chosen) {
  const T number = x != x ? y : y != y ? x : chosen;
  return signals(x) ? quieted(x) : signals(y) ? quieted(y) : number;
}

// Zeros are ordered by their signs: values that are equal differ in nothing else.
template <class T>
inline T minimum(T x, T y) {
  const auto either = static_cast<typename Format<T>::Bits>(bits_of(x) | bits_of(y));
  const T equal = std::bit_cast<T>(either);
  return of_numbers(x, y, x == y ? equal : x < y ? x : y);
}

template <class T>
inline T maximum(T x, T y) {
  const auto both = static_cast<typename Format<T>::Bits>(bits_of(x) & bits_of(y));
  const T equal = std::bit_cast<T>(both);
  return of_numbers(x, y, x == y ? equal : x > y ? x : y);
}

}  // namespace vitamin::soft::amdgpu::isa
