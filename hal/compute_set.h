// SPDX-License-Identifier: Apache-2.0
//
// ComputeSet: a set of allocation units of one device, one machine word.
//
// A unit is the smallest piece of compute that a backend hands out (8 SMs on an H200, one CU of
// every shader engine on CDNA). Two allocations conflict exactly when their words share a bit; the
// hierarchy traversal of the paper (section "Physical Contexts") is this AND, checked against a
// brute-force traversal in tests/runtime/pool_layout_test.cpp.
#pragma once

#include <bit>
#include <cstdint>

namespace vitamin::hal {

class ComputeSet {
 public:
  static constexpr unsigned kMaxUnits = 64;

  constexpr ComputeSet() = default;
  constexpr explicit ComputeSet(std::uint64_t bits) : bits_(bits) {}

  // Units [first, first + count). Requires first + count <= kMaxUnits.
  static constexpr ComputeSet range(unsigned first, unsigned count) {
    if (count == 0) return ComputeSet();
    return ComputeSet((~std::uint64_t{0} >> (kMaxUnits - count)) << first);
  }

  constexpr std::uint64_t bits() const { return bits_; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr unsigned count() const { return static_cast<unsigned>(std::popcount(bits_)); }
  constexpr bool has(unsigned unit) const { return (bits_ >> unit & 1) != 0; }
  constexpr bool overlaps(ComputeSet other) const { return (bits_ & other.bits_) != 0; }
  constexpr bool contains(ComputeSet other) const { return (other.bits_ & ~bits_) == 0; }

  friend constexpr ComputeSet operator|(ComputeSet a, ComputeSet b) {
    return ComputeSet(a.bits_ | b.bits_);
  }
  friend constexpr ComputeSet operator&(ComputeSet a, ComputeSet b) {
    return ComputeSet(a.bits_ & b.bits_);
  }
  friend constexpr ComputeSet operator-(ComputeSet a, ComputeSet b) {
    return ComputeSet(a.bits_ & ~b.bits_);
  }
  constexpr ComputeSet& operator|=(ComputeSet other) { return *this = *this | other; }
  friend constexpr bool operator==(ComputeSet, ComputeSet) = default;

 private:
  std::uint64_t bits_ = 0;
};

}  // namespace vitamin::hal
