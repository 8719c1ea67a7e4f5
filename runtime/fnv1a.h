// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace vitamin::runtime {

// The same everywhere, for ever: what is in files is checked by it, and kernels are known by it.
constexpr std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}
static_assert(fnv1a("a") == 0xaf63dc4c8601ec8cULL);

}  // namespace vitamin::runtime
