// SPDX-License-Identifier: Apache-2.0
//
// A hash of argument bytes by which two runs of one program are compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hal/content_hash.h"

namespace vitamin::runtime {

// Whether eight aligned bytes of arguments are left out of comparisons between runs, since
// addresses differ from run to run. Addresses of x86-64, and of the devices that share its address
// space, lie in [2^32, 2^57); doubles and small numbers do not. Two small numbers side by side, as
// a kernel's parameter structure has them (an SM count beside a split count), would: they are told
// by both halves being small. An address that looks like that is compared, and would be reported
// where it differs. Of an address the lowest bits are compared (kStableAddressBits): what shuffles
// addresses moves whole pages, and a number that was taken for one shows there.
constexpr bool looks_like_address(std::uint64_t word) {
  const std::uint64_t high = word >> 32, low = word & 0xffffffff;
  return high != 0 && word >> 57 == 0 && !(high < (1U << 14) && low < (1U << 20));
}
inline constexpr std::uint64_t kStableAddressBits = 0xf;

// Of argument bytes, without what looks like an address. A hal::ArgumentHash.
inline std::uint64_t argument_hash(const void* data, std::size_t count) {
  const auto* at = static_cast<const std::byte*>(data);
  hal::ContentHash hash;
  for (; count >= 8; at += 8, count -= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    hash.add(looks_like_address(word) ? word & kStableAddressBits : word);
  }
  hash.bytes(at, count);
  return hash.value();
}

}  // namespace vitamin::runtime
