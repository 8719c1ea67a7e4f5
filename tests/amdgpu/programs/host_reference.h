// SPDX-License-Identifier: Apache-2.0
//
// What kernels of kernels.hip.cpp compute, on the host.
#pragma once

#include <cstdint>

inline std::uint64_t mix_on_host(std::uint64_t x, std::uint64_t y) {
  const auto sx = static_cast<std::int64_t>(x);
  const auto narrow = static_cast<std::int32_t>(x);
  std::uint64_t r = x * y + x / y + x % y;
  r ^= static_cast<std::uint64_t>(sx / 77 + sx % 1001);
  std::uint32_t reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1) << (31 - bit);
  r += __builtin_popcountll(x) + __builtin_clzll(y) + __builtin_ffsll(sx) + reversed;
  r ^= (x << (y & 63)) | (y >> (x & 31)) | static_cast<std::uint64_t>(sx >> (y & 15));
  const std::uint64_t both = (x & 0xffffffff) | y << 32;
  std::uint32_t picked = 0;
  for (int at = 0; at < 4; ++at)
    picked |= (both >> (8 * (0x3715 >> (4 * at) & 7)) & 0xff) << (8 * at);
  r += static_cast<std::uint32_t>(((x & 0xffffffff) * (y & 0xffffffff) >> 32) + picked);
  r += static_cast<std::uint64_t>(narrow / 13 - narrow % 7) * static_cast<std::uint8_t>(x >> 9);
  switch (x % 7) {
    case 0:
      r += 11;
      break;
    case 1:
      r *= 3;
      break;
    case 2:
      r ^= y;
      break;
    case 3:
      r -= 5;
      break;
    case 4:
      r = ~r;
      break;
    default:
      r += static_cast<std::uint16_t>(y) * static_cast<std::int16_t>(x);
  }
  return r;
}

inline int collatz_on_host(int n) {
  return n <= 1 ? 0 : 1 + collatz_on_host(n % 2 == 0 ? n / 2 : 3 * n + 1);
}
