// SPDX-License-Identifier: Apache-2.0
//
// FNV-1a: checks files and names kernels. Not for what an attacker chooses.
#pragma once

#include <cstdint>
#include <string_view>

namespace vitamin::hal {

inline constexpr std::uint64_t kFnv1aBasis = 0xcbf29ce484222325ULL;  // the hash of nothing

// One step of the hash. `value`: a byte of a text; a whole word only for what stays on one machine.
constexpr std::uint64_t fnv1a_add(std::uint64_t hash, std::uint64_t value) {
  return (hash ^ value) * 0x100000001b3ULL;
}

// The same everywhere, for ever: what is in files is checked by it, and kernels are known by it.
constexpr std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = kFnv1aBasis;
  for (const char c : text) hash = fnv1a_add(hash, static_cast<unsigned char>(c));
  return hash;
}
static_assert(fnv1a("a") == 0xaf63dc4c8601ec8cULL);

// The same in 32 bits.
constexpr std::uint32_t fnv1a_32(std::string_view text) {
  std::uint32_t hash = 2166136261U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return hash;
}
static_assert(fnv1a_32("a") == 0xe40c292cU);

}  // namespace vitamin::hal
