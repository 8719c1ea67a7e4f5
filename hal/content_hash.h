// SPDX-License-Identifier: Apache-2.0
//
// Hashes the contents of an operation: arguments, attributes, nodes of a graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hal/fnv1a.h"

namespace vitamin::hal {

// FNV-1a over eight bytes at a time: fast enough for argument buffers and copies of megabytes. Not
// cryptographic.
class ContentHash {
 public:
  void add(std::uint64_t word) { state_ = fnv1a_add(state_, mixed(word)); }
  void bytes(const void* data, std::size_t count) {
    const auto* at = static_cast<const unsigned char*>(data);
    for (; count >= 8; at += 8, count -= 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, at, 8);
      add(word);
    }
    std::uint64_t rest = count;
    for (std::size_t i = 0; i < count; ++i) rest = rest << 8 | at[i];
    add(rest);
  }
  std::uint64_t value() const { return mixed(state_); }

 private:
  static std::uint64_t mixed(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  std::uint64_t state_ = kFnv1aBasis;
};

// Hashes kernel arguments or attributes. The caller of a backend passes the function, because it
// may have to leave addresses out: they differ between runs (runtime/audit/argument_hash.h).
using ArgumentHash = std::uint64_t (*)(const void* bytes, std::size_t count);

}  // namespace vitamin::hal
