// SPDX-License-Identifier: Apache-2.0
//
// IEEE binary16 and bfloat16 in portable kernels (kernel.h), for storage: arithmetic is done in
// float. Conversions round to nearest even and are the same code on every device.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__) || defined(__HIP__)
#define VITAMIN_HOST_DEVICE __host__ __device__
#else
#define VITAMIN_HOST_DEVICE
#endif

namespace vitamin::kernel {

VITAMIN_HOST_DEVICE inline std::uint32_t float_bits(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
VITAMIN_HOST_DEVICE inline float bits_float(std::uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

struct Bfloat16 {
  std::uint16_t bits;
};
struct Half {
  std::uint16_t bits;
};

VITAMIN_HOST_DEVICE inline float to_float(Bfloat16 value) {
  return bits_float(std::uint32_t{value.bits} << 16);
}

VITAMIN_HOST_DEVICE inline Bfloat16 to_bfloat16(float value) {
  const std::uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)  // NaN: keep the sign, make it quiet
    return Bfloat16{static_cast<std::uint16_t>(bits >> 16 | 0x40u)};
  return Bfloat16{static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

VITAMIN_HOST_DEVICE inline float to_float(Half value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = value.bits >> 10 & 0x1fu;
  const std::uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0x1f) return bits_float(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24, exact
  return bits_float(sign | float_bits(magnitude));
}

VITAMIN_HOST_DEVICE inline Half to_half(float value) {
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return Half{static_cast<std::uint16_t>(sign | 0x7e00u)};
  // 65520 is the smallest value that rounds to infinity.
  if (magnitude >= 0x477ff000u) return Half{static_cast<std::uint16_t>(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {
    // Below 2^-14 the result is subnormal: adding 0.5 leaves exactly its bits at the end of a
    // float, rounded to nearest even by the addition itself.
    const std::uint32_t sum = float_bits(bits_float(magnitude) + 0.5f);
    return Half{static_cast<std::uint16_t>(sign | (sum - 0x3f000000u))};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return Half{static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

}  // namespace vitamin::kernel
