// SPDX-License-Identifier: Apache-2.0
//
// The paper's Algorithm 1 (section "Policy Instantiations"): which entry each operation gets.
//
//   1. MinBind: the narrowest entries that can run them, to as many operations as possible,
//      without overlap.
//   2. While some wider entry is feasible and faster: the widening with the greatest gain
//          G = (P(p') - P(p)) / (m(p') - m(p)),   P(m) = T(all) / T(m)
//      in normalised progress for each further processor.
//
// It approximates: among the plans that assign the most operations, the one with the greatest sum
// of P. P is progress as users add it up, each job against itself alone. The paper's is T(m_min) /
// T(m), against the narrowest entry (Objective::kPaper): there the job with the steeper curve gets
// nearly everything. tests/policies/assignment_test.cpp compares it with all plans of small pools.
//
// Pure; no allocation once its vectors have grown. Threads: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/policy.h"

namespace vitamin::policies {

struct Candidate {
  std::uint32_t processors = 1;                    // narrowest width that runs it unchanged
  std::span<const float> curve;                    // T by EntryId, monotone in the width
  runtime::EntryId preferred = runtime::kNoEntry;  // among equals: where it is already
  bool aged = false;  // comes before those that need less, however many they are
};

enum class Objective : std::uint8_t { kAlone, kPaper };

class Assignment {
 public:
  explicit Assignment(Objective objective = Objective::kAlone) : objective_(objective) {}
  // Gives each candidate (most urgent first) an entry of `available`, or kNoEntry where there is
  // no room. Never the whole device, which is not leased. The answer is valid until the next call.
  std::span<const runtime::EntryId> plan(std::span<const Candidate> candidates,
                                         std::span<const runtime::PoolEntry> entries,
                                         hal::ComputeSet available);
  // The sum of P over a plan.
  double progress(std::span<const Candidate> candidates,
                  std::span<const runtime::PoolEntry> entries,
                  std::span<const runtime::EntryId> plan) const;
  static runtime::EntryId narrowest(const Candidate& candidate,
                                    std::span<const runtime::PoolEntry> entries);

 private:
  enum class Order : std::uint8_t { kAtHome, kApart, kDescending, kFromTheEnd };
  std::size_t bind_minimum(std::span<const Candidate> candidates,
                           std::span<const runtime::PoolEntry> entries, hal::ComputeSet available,
                           Order order);
  void widen(std::span<const Candidate> candidates, std::span<const runtime::PoolEntry> entries,
             hal::ComputeSet available);

  struct Widening {
    float gain = 0;
    runtime::EntryId entry = runtime::kNoEntry;
  };
  // The entry whose time P is relative to.
  runtime::EntryId reference(const Candidate& candidate,
                             std::span<const runtime::PoolEntry> entries) const;
  Widening best_widening(std::size_t index, const Candidate& candidate,
                         std::span<const runtime::PoolEntry> entries,
                         hal::ComputeSet available) const;

  Objective objective_;
  std::vector<runtime::EntryId> plan_, best_;
  std::vector<std::uint32_t> order_;
  std::vector<float> reference_;     // P is relative to this time, of each candidate
  std::vector<Widening> widenings_;  // the best one of each candidate
  hal::ComputeSet used_;
};

}  // namespace vitamin::policies
