// SPDX-License-Identifier: Apache-2.0
//
// How evenly a counter of weighted launches grows within the steps of real jobs, recorded alone on
// an H200 (bench/results/policies/streams). Each number is 5 ms: the growth of the counter relative
// to its mean. A launch weighs its kernel's mean time between completions in the first half of the
// recording (by name and grid); the numbers are of the second half.
#pragma once

namespace vitamin::test {

inline constexpr double kRecordedSliceNs = 5e6;

// ResNet training.
inline constexpr float kResNet[] = {1.291F, 1.054F, 0.925F, 0.797F, 0.909F, 0.955F, 1.055F, 1.081F,
                                    1.065F, 1.106F, 1.137F, 0.727F, 1.156F, 0.987F, 0.883F, 0.811F,
                                    0.945F, 0.986F, 1.010F, 1.058F, 1.026F, 0.992F, 1.042F};

// training of a 0.6B decoder.
inline constexpr float kSmallDecoder[] = {
    1.065F, 0.927F, 0.927F, 1.042F, 1.091F, 0.946F, 0.840F, 1.028F, 0.716F, 1.262F, 0.892F, 1.169F,
    1.178F, 1.172F, 1.172F, 1.174F, 1.173F, 1.082F, 0.863F, 0.964F, 0.969F, 0.857F, 1.043F, 0.893F,
    1.035F, 0.800F, 0.908F, 1.048F, 1.072F, 0.837F, 1.025F, 0.953F, 0.773F, 1.046F, 1.184F, 1.168F,
    1.170F, 1.184F, 1.162F, 1.171F, 1.155F, 0.785F, 0.865F, 0.967F, 0.585F, 0.676F, 0.986F};

// 8B inference: a prefill, then tokens.
inline constexpr float kServing[] = {1.186F, 1.259F, 1.059F, 1.112F, 0.834F, 1.168F,
                                     1.060F, 1.183F, 1.104F, 1.232F, 1.100F, 1.020F,
                                     0.615F, 0.583F, 0.792F, 0.622F, 1.037F, 1.033F};

}  // namespace vitamin::test
