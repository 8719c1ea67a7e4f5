// SPDX-License-Identifier: Apache-2.0
//
// The one mixing function of the software device: seeded choices, block orders, trace hashes.
// Not for untrusted input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace vitamin::soft {

// A bijection of 64-bit words that spreads every input bit (Stafford's variant 13).
constexpr std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9;
  x ^= x >> 27;
  x *= 0x94d049bb133111eb;
  return x ^ x >> 31;
}

constexpr std::uint64_t combine(std::uint64_t seed, std::uint64_t value) {
  return mix(seed * 0x9e3779b97f4a7c15 + value + 0x632be59bd9b4e019);
}

inline std::uint64_t hash_bytes(const void* data, std::size_t bytes, std::uint64_t seed = 0) {
  const auto* at = static_cast<const unsigned char*>(data);
  std::uint64_t hash = combine(seed, bytes);
  for (; bytes >= 8; bytes -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    hash = combine(hash, word);
  }
  std::uint64_t word = 0;
  if (bytes != 0) std::memcpy(&word, at, bytes);
  return combine(hash, word);
}

// A small seeded generator: a counter through mix().
class Random {
 public:
  explicit constexpr Random(std::uint64_t seed) : state_(mix(seed + 0x9e3779b97f4a7c15)) {}
  constexpr std::uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15); }
  // In [0, bound). bound > 0 and below 2^32.
  constexpr std::uint64_t below(std::uint64_t bound) { return ((next() >> 32) * bound) >> 32; }

 private:
  std::uint64_t state_;
};

}  // namespace vitamin::soft
