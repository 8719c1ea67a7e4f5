// SPDX-License-Identifier: Apache-2.0
//
// Values that the kernels of the suite and its host code share.
#pragma once

namespace vitamin::determinism {

constexpr unsigned kThreadsMax = 1024;  // of a block

// The blocks of a grid that work in one launch, by linear index: [first, last).
struct Atom {
  unsigned first;
  unsigned last;
};

// Of an output's bytes. Independent of the order in which its words were added.
struct Digest {
  unsigned long long low;
  unsigned long long high;
};

// Between two outputs of 32-bit floats.
struct Difference {
  unsigned long long elements;  // that differ in any bit
  unsigned long long ulp_sum;   // of the distances in units of the last place
  unsigned ulp_max;
  unsigned abs_max_bits;  // the bits of the largest |a - b|
};

// Between an output and the exact one: bits of doubles that are not negative.
struct Error {
  unsigned long long apart_bits;    // the largest |a - exact|
  unsigned long long largest_bits;  // the largest |exact|
};

}  // namespace vitamin::determinism
