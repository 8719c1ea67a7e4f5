// SPDX-License-Identifier: Apache-2.0
//
// From device addresses to host memory. Device memory is host memory at the same address, memory
// that the program registered may have another one (alias.h); the
// shared and private apertures of flat addresses lead into the workgroup and into the lane.
#pragma once

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backends/soft/amdgpu/isa/alias.h"
#include "backends/soft/amdgpu/isa/wave.h"

namespace vitamin::soft::amdgpu::isa {

inline std::uint8_t* global_memory(std::uint64_t address) {
  return reinterpret_cast<std::uint8_t*>(host_address(address));
}

// `bytes` of a lane's private memory. Throws Fault outside it.
inline std::uint8_t* private_memory(Wave& wave, unsigned lane, std::uint64_t offset,
                                    unsigned bytes) {
  const std::uint64_t each = wave.group->dispatch.private_bytes;
  if (offset + bytes > each)
    throw Fault("a kernel left its private segment of " + std::to_string(each) + " bytes");
  return wave.scratch.data() + lane * each + offset;
}

// Null outside the workgroup's memory: such reads give zero and such writes have no effect.
inline std::uint8_t* shared_memory(Wave& wave, std::uint64_t offset, unsigned bytes) {
  auto& lds = wave.group->lds;
  return offset + bytes <= lds.size() ? lds.data() + offset : nullptr;
}

// Whether a flat address leads into the workgroup or into the lane.
inline bool in_an_aperture(const Wave& wave, std::uint64_t address) {
  const Dispatch& dispatch = wave.group->dispatch;
  const auto upper = static_cast<std::uint32_t>(address >> 32);
  return upper == dispatch.private_aperture || upper == dispatch.shared_aperture;
}

inline std::uint8_t* flat_memory(Wave& wave, unsigned lane, std::uint64_t address, unsigned bytes) {
  const Dispatch& dispatch = wave.group->dispatch;
  const auto upper = static_cast<std::uint32_t>(address >> 32);
  const auto lower = static_cast<std::uint32_t>(address);
  if (upper == dispatch.private_aperture) [[unlikely]]
    return private_memory(wave, lane, lower, bytes);
  if (upper != dispatch.shared_aperture) [[likely]]
    return global_memory(address);
  std::uint8_t* const at = shared_memory(wave, lower, bytes);
  if (at == nullptr) throw Fault("a flat address left the workgroup's shared memory");
  return at;
}

// Whether each lane's address is four bytes behind that of the lane before it.
inline bool are_words_in_a_row(const std::uint32_t* address, unsigned width) {
  // A table: the compiler makes steps of 64 bits from the number of a lane.
  alignas(64) static constexpr auto kBehindFirst = [] {
    std::array<std::uint32_t, kLanes> bytes{};
    for (unsigned lane = 0; lane < kLanes; ++lane) bytes[lane] = 4 * lane;
    return bytes;
  }();
  const std::uint32_t* const behind = kBehindFirst.data();
  const std::uint32_t first = address[0];
  std::uint32_t differs = 0;
  each_lane(width, [&](std::ptrdiff_t lane) { differs |= address[lane] ^ (first + behind[lane]); });
  return differs == 0;
}

// A word a lane between memory and a register.
inline void copy_words(void* to, const void* from, unsigned width) {
  for (std::size_t at = 0; at < 4 * std::size_t{width}; at += 32)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<std::uint8_t*>(to) + at),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(
                            static_cast<const std::uint8_t*>(from) + at)));
}

// How one element moves between memory and the registers of a lane.
template <unsigned kBytes, bool kSigned, bool kHighHalf, bool kKeepsOther>
struct Element {
  static constexpr unsigned kSize = kBytes;
  static constexpr unsigned kRegisters = kBytes < 4 ? 1 : kBytes / 4;
  static constexpr bool kIsWord = kBytes == 4;

  static void load(std::uint32_t* row, unsigned lane, const std::uint8_t* from) {
    if constexpr (kBytes >= 4) {
      for (unsigned at = 0; at < kRegisters; ++at)
        std::memcpy(row + at * kLanes + lane, from + 4 * at, 4);
    } else {
      std::uint32_t word = 0;
      std::memcpy(&word, from, kBytes);
      if (kSigned && (word >> (kBytes * 8 - 1) & 1) != 0) word |= ~0u << (kBytes * 8);
      std::uint32_t& to = row[lane];
      if (kHighHalf)
        to = (to & 0xffff) | word << 16;
      else
        to = kKeepsOther ? (to & 0xffff0000) | (word & 0xffff) : word;
    }
  }
  static void store(const std::uint32_t* row, unsigned lane, std::uint8_t* to) {
    if constexpr (kBytes >= 4) {
      for (unsigned at = 0; at < kRegisters; ++at)
        std::memcpy(to + 4 * at, row + at * kLanes + lane, 4);
    } else {
      const std::uint32_t word = kHighHalf ? row[lane] >> 16 : row[lane];
      std::memcpy(to, &word, kBytes);
    }
  }
};

template <unsigned kBytes>
using Plain = Element<kBytes, false, false, false>;

// Calls add(name, Element) for each load and each store that the ISA names.
template <class Add>
void each_load(Add&& add) {
  add("ubyte", Plain<1>{});
  add("sbyte", Element<1, true, false, false>{});
  add("ushort", Plain<2>{});
  add("sshort", Element<2, true, false, false>{});
  add("dword", Plain<4>{});
  add("dwordx2", Plain<8>{});
  add("dwordx3", Plain<12>{});
  add("dwordx4", Plain<16>{});
  add("short_d16", Element<2, false, false, true>{});
  add("short_d16_hi", Element<2, false, true, true>{});
  add("ubyte_d16", Element<1, false, false, true>{});
  add("ubyte_d16_hi", Element<1, false, true, true>{});
  add("sbyte_d16", Element<1, true, false, true>{});
  add("sbyte_d16_hi", Element<1, true, true, true>{});
}

template <class Add>
void each_store(Add&& add) {
  add("byte", Plain<1>{});
  add("short", Plain<2>{});
  add("dword", Plain<4>{});
  add("dwordx2", Plain<8>{});
  add("dwordx3", Plain<12>{});
  add("dwordx4", Plain<16>{});
  add("byte_d16_hi", Element<1, false, true, false>{});
  add("short_d16_hi", Element<2, false, true, false>{});
}

}  // namespace vitamin::soft::amdgpu::isa
