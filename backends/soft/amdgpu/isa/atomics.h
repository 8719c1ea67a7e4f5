// SPDX-License-Identifier: Apache-2.0
//
// Read-modify-write operations on a word of memory, atomic between queues and with the host.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "backends/soft/amdgpu/isa/floating_point.h"
#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {

// Replaces *at by F(*at, value) and returns what was there.
template <auto F, class T>
T update(T* at, T value) {
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(at, &old, F(old, value), false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST)) {
  }
  return old;
}

template <class T>
T compare_and_swap(T* at, T value, T expected) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}

// As functions of the word in memory and the operand; one definition for every address space.
template <class T>
constexpr auto kAdd = [](T x, T y) { return T(x + y); };
template <class T>
constexpr auto kSubtract = [](T x, T y) { return T(x - y); };
template <class T>
constexpr auto kReverseSubtract = [](T x, T y) { return T(y - x); };
template <class T>
constexpr auto kExchange = [](T, T y) { return y; };
template <class T>
constexpr auto kAnd = [](T x, T y) { return T(x & y); };
template <class T>
constexpr auto kOr = [](T x, T y) { return T(x | y); };
template <class T>
constexpr auto kXor = [](T x, T y) { return T(x ^ y); };
template <class T>
constexpr auto kUnsignedMin = [](T x, T y) { return x < y ? x : y; };
template <class T>
constexpr auto kUnsignedMax = [](T x, T y) { return x > y ? x : y; };
template <class T>
constexpr auto kSignedMin = [](T x, T y) {
  using S = std::make_signed_t<T>;
  return S(x) < S(y) ? x : y;
};
template <class T>
constexpr auto kSignedMax = [](T x, T y) {
  using S = std::make_signed_t<T>;
  return S(x) > S(y) ? x : y;
};
template <class T>
constexpr auto kIncrement = [](T x, T y) { return x >= y ? T(0) : T(x + 1); };
template <class T>
constexpr auto kDecrement = [](T x, T y) { return x == 0 || x > y ? y : T(x - 1); };
template <class T, class Real>
constexpr auto kRealAdd =
    [](T x, T y) { return std::bit_cast<T>(sum(std::bit_cast<Real>(x), std::bit_cast<Real>(y))); };
template <class T, class Real>
constexpr auto kRealMin = [](T x, T y) {
  return std::bit_cast<T>(minimum(std::bit_cast<Real>(x), std::bit_cast<Real>(y)));
};
template <class T, class Real>
constexpr auto kRealMax = [](T x, T y) {
  return std::bit_cast<T>(maximum(std::bit_cast<Real>(x), std::bit_cast<Real>(y)));
};
constexpr auto kPackedHalfAdd = [](std::uint32_t x, std::uint32_t y) {
  const auto add = [](std::uint32_t a, std::uint32_t b) {
    const auto single = [](std::uint32_t bits) {
      return static_cast<float>(std::bit_cast<Half>(static_cast<std::uint16_t>(bits)));
    };
    const auto result = static_cast<Half>(sum(single(a), single(b)));
    return static_cast<std::uint32_t>(std::bit_cast<std::uint16_t>(result));
  };
  return add(x, y) | add(x >> 16, y >> 16) << 16;
};

}  // namespace vitamin::soft::amdgpu::isa
