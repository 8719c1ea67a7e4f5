// SPDX-License-Identifier: Apache-2.0
//
// A wave that tests run single instructions on, and what those start from.
#pragma once

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "backends/soft/amdgpu/isa/decoder.h"
#include "backends/soft/amdgpu/isa/wave.h"

namespace vitamin::soft::amdgpu::isa {

using U32 = std::uint32_t;
using U64 = std::uint64_t;

// The same on every platform, unlike those of <random>.
class Random {
 public:
  explicit Random(U64 seed) : state_(seed * 2 + 1) {}
  U64 next() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    const U64 x = (state_ ^ state_ >> 29) * 0x9e3779b97f4a7c15ull;
    return x ^ x >> 32;
  }
  U32 below(U32 bound) { return static_cast<U32>(next() % bound); }
  bool one_in(U32 count) { return below(count) == 0; }

  // A word as registers hold it: NaNs of all kinds among them, of halves, too.
  U32 word() {
    constexpr U32 kSpecial[] = {0,          1,          0x3f800000, 0xbf800000, 0x7f800000,
                                0xff800000, 0xffc00000, 0x80000000, 0x7fffffff, 0xffffffff,
                                0x00000400, 0x3c003c00, 0x4f000000, 0x00800000, 0x41280000,
                                0x7f800001, 0xffa00123, 0x7fc00456, 0x7e01fd02, 0x7ff00000};
    switch (below(4)) {
      case 0:
        return below(256);
      case 1:
        return kSpecial[below(std::size(kSpecial))];
      case 2:
        return static_cast<U32>(next()) | (one_in(2) ? 0x7f800000u : 0x7c007c00u);
      default:
        return static_cast<U32>(next()) & ~(one_in(2) ? 0x40004000u : 0x00404000u);
    }
  }
  U64 mask() {
    switch (below(8)) {
      case 0:
        return next() & next();
      case 1:
        return 1ull << below(64);
      case 2:
        return next() | next();
      case 3:
        return (1ull << below(64)) - 1;
      default:
        return ~0ull;
    }
  }

 private:
  U64 state_;
};

inline constexpr std::size_t kMemoryBytes = 32 << 10, kMiddle = kMemoryBytes / 2, kLdsBytes = 4096;
inline constexpr U32 kPrivateBytes = 256, kSharedAperture = 0x10000, kPrivateAperture = 0x20000;

// All that an instruction can change.
struct State {
  std::array<U32, 256> scalar;
  std::vector<U32> vector = std::vector<U32>(kVectorRows * kLanes);
  std::vector<std::uint8_t> lds, scratch, memory = std::vector<std::uint8_t>(kMemoryBytes);
};

// A wave of its own, with memory.
class Subject {
 public:
  // `processor` as LLVM names it; it is gfx9's, gfx10's or gfx11's.
  Subject(const char* processor, unsigned width)
      : gfx9_(std::string(processor).starts_with("gfx9")), decoder_(processor, !gfx9_) {
    const U32 properties = width == 32 ? 1u << 10 : 0;
    std::memcpy(descriptor_.data() + 56, &properties, 2);
    dispatch_.descriptor = reinterpret_cast<U64>(descriptor_.data());
    dispatch_.grid = dispatch_.block = {64, 1, 1};
    dispatch_.groups = {1, 1, 1};
    dispatch_.lds_bytes = kLdsBytes;
    dispatch_.private_bytes = kPrivateBytes;
    dispatch_.shared_aperture = kSharedAperture;
    dispatch_.private_aperture = kPrivateAperture;
    dispatch_.wave32_part = !gfx9_;
    dispatch_.xcc_ids = std::string(processor) == "gfx940";
    group_ = std::make_unique<Workgroup>(dispatch_, std::array<U32, 3>{}, WorkgroupPlace{});
    REQUIRE(memory_ != MAP_FAILED);
    state_.lds.resize(kLdsBytes);
    state_.scratch.resize(wave().scratch.size());
  }

  ~Subject() { ::munmap(memory_, kMemoryBytes); }
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;

  Wave& wave() { return *group_->waves.front(); }
  State& state() { return state_; }  // what each instruction starts from
  U64 memory() const { return reinterpret_cast<U64>(memory_); }
  const Instruction& decode(const std::array<U32, 4>& words) {
    return decoded_ = decoder_.decode(reinterpret_cast<U64>(words.data()), sizeof words);
  }

  void fill(Random& random) {
    for (U32& word : state_.scalar) word = random.word();
    for (unsigned row = 0; row < kVectorRows; ++row) {
      const U32 base = random.word(), step = random.below(5) * 4;
      const unsigned pattern = random.below(4);
      for (unsigned lane = 0; lane < kLanes; ++lane)
        state_.vector[row * kLanes + lane] = pattern == 0   ? base
                                             : pattern == 1 ? base % kLdsBytes + lane * step
                                                            : random.word();
    }
    for (auto* bytes : {&state_.lds, &state_.scratch, &state_.memory})
      for (std::uint8_t& byte : *bytes) byte = static_cast<std::uint8_t>(random.next());
  }
  void restore_scalars() { wave().scalar = state_.scalar; }
  void restore(bool memory) {
    restore_scalars();
    std::copy(state_.vector.begin(), state_.vector.end(), wave().row(0));
    if (!memory) return;
    group_->lds = state_.lds;
    wave().scratch = state_.scratch;
    std::copy(state_.memory.begin(), state_.memory.end(), memory_);
  }
  // Of what differs from the state at the start: vector registers and memory.
  U64 lanes_digest(bool memory) {
    U64 hash = 1;
    // Lanes beyond the width and the row of permuted sources mean nothing.
    for (unsigned row = 0; row < kPermutedRow; ++row)
      hash = differences(hash, wave().row(row), &state_.vector[row * kLanes], wave().width);
    if (!memory) return hash;
    hash = differences(hash, group_->lds.data(), state_.lds.data(), kLdsBytes);
    hash = differences(hash, wave().scratch.data(), state_.scratch.data(), state_.scratch.size());
    return differences(hash, memory_, state_.memory.data(), kMemoryBytes);
  }
  U64 scalars_digest() {
    return differences(1, wave().scalar.data(), state_.scalar.data(), state_.scalar.size());
  }

 private:
  template <class T>
  static U64 differences(U64 hash, const T* now, const T* before, std::size_t count) {
    if (std::memcmp(now, before, count * sizeof(T)) == 0) return hash * 3;
    for (std::size_t at = 0; at < count; ++at)
      if (now[at] != before[at])
        hash = ((hash ^ at) * 1099511628211ull ^ now[at]) * 1099511628211ull;
    return hash;
  }

  bool gfx9_;
  Decoder decoder_;
  Instruction decoded_;
  alignas(64) std::array<std::uint8_t, 64> descriptor_{};
  Dispatch dispatch_;
  std::unique_ptr<Workgroup> group_;
  State state_;
  // The same in every run, because a half of an address can be part of a result.
  std::uint8_t* const memory_ = static_cast<std::uint8_t*>(
      ::mmap(reinterpret_cast<void*>(0x2000000000), kMemoryBytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
};

}  // namespace vitamin::soft::amdgpu::isa
