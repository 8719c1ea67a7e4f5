// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic whose bits do not depend on how it is compiled. IEEE 754 leaves open which NaN comes
// out of an operation with several, and a compiler swaps the operands of the host's commutative
// instructions as it likes; here it is the first one, made quiet.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace vitamin::soft::amdgpu::isa {

// `result`, which is what the other operands make of it, unless `x` is a NaN.
template <class T>
inline T unless_nan(T x, T result) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>);
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  constexpr Bits kQuiet = Bits{1} << (sizeof(T) == 8 ? 51 : 22);
  return x != x ? std::bit_cast<T>(std::bit_cast<Bits>(x) | kQuiet) : result;
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

// The number, if the other one is a NaN.
template <class T>
inline T minimum(T x, T y) {
  return x != x ? y : y != y ? x : x < y ? x : y;
}

template <class T>
inline T maximum(T x, T y) {
  return x != x ? y : y != y ? x : x > y ? x : y;
}

}  // namespace vitamin::soft::amdgpu::isa
