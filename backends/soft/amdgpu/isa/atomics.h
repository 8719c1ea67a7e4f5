// SPDX-License-Identifier: Apache-2.0
//
// Read-modify-write operations on a word of memory, atomic between queues and with the host.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

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

// F for each active lane at the address that at(lane) gives, with the data in the rows from `data`
// on. What was there goes to `to`, where the instruction returns it. A null address: nothing
// happens, and zero was there. kSwapsIf: the word behind the data is what memory must hold.
template <auto F, class T, bool kSwapsIf, class At>
void each_lane_atomically(Wave& wave, const Instruction& instruction, unsigned data, unsigned to,
                          At at) {
  constexpr unsigned kWords = sizeof(T) / 4;
  alignas(64) std::uint32_t words[2][kLanes] = {};
  const auto element = [&](unsigned lane, unsigned part) {
    T value = 0;
    for (unsigned word = 0; word < kWords; ++word)
      value |= static_cast<T>(wave.row(data + part * kWords + word)[lane]) << (32 * (word % 2));
    return value;
  };
  each_active_lane(wave, [&](unsigned lane) {
    T* const memory = reinterpret_cast<T*>(at(lane));
    if (memory == nullptr) return;
    const T value = element(lane, 0);
    T old;
    if constexpr (kSwapsIf)
      old = compare_and_swap(memory, value, element(lane, 1));
    else
      old = update<F>(memory, value);
    words[0][lane] = static_cast<std::uint32_t>(old);
    if (kWords == 2) words[1][lane] = static_cast<std::uint32_t>(std::uint64_t{old} >> 32);
  });
  if (!instruction.returns) return;
  for (unsigned word = 0; word < kWords; ++word) write_row(wave, to + word, words[word]);
}

template <class T, class Add>
void each_integer_atomic(const std::string& suffix, Add add) {
  add.template operator()<kExchange<T>, T, false>("swap" + suffix);
  add.template operator()<kAdd<T>, T, false>("add" + suffix);
  add.template operator()<kSubtract<T>, T, false>("sub" + suffix);
  add.template operator()<kAnd<T>, T, false>("and" + suffix);
  add.template operator()<kOr<T>, T, false>("or" + suffix);
  add.template operator()<kXor<T>, T, false>("xor" + suffix);
  add.template operator()<kUnsignedMin<T>, T, false>("umin" + suffix);
  add.template operator()<kUnsignedMax<T>, T, false>("umax" + suffix);
  add.template operator()<kSignedMin<T>, T, false>("smin" + suffix);
  add.template operator()<kSignedMax<T>, T, false>("smax" + suffix);
  add.template operator()<kIncrement<T>, T, false>("inc" + suffix);
  add.template operator()<kDecrement<T>, T, false>("dec" + suffix);
  add.template operator()<kExchange<T>, T, true>("cmpswap" + suffix);
}

// Calls add<F, T, kSwapsIf>(name) for each operation on global memory.
template <class Add>
void each_atomic(Add add) {
  using U32 = std::uint32_t;
  using U64 = std::uint64_t;
  each_integer_atomic<U32>("", add);
  each_integer_atomic<U64>("_x2", add);
  add.template operator()<kRealAdd<U32, float>, U32, false>("add_f32");
  add.template operator()<kRealAdd<U64, double>, U64, false>("add_f64");
  add.template operator()<kRealMin<U64, double>, U64, false>("min_f64");
  add.template operator()<kRealMax<U64, double>, U64, false>("max_f64");
  add.template operator()<kRealMin<U32, float>, U32, false>("fmin");
  add.template operator()<kRealMax<U32, float>, U32, false>("fmax");
  add.template operator()<kPackedHalfAdd, U32, false>("pk_add_f16");
}

}  // namespace vitamin::soft::amdgpu::isa
