// SPDX-License-Identifier: Apache-2.0
//
// The paper's Algorithm 1 (section "Policy Instantiations"): which partition each operation gets.
//
//   1. MinBind: the narrowest partitions that can run them, to as many operations as possible,
//      without overlap.
//   2. While some wider partition is feasible and faster: the widening with the greatest gain
//          G = (P(p') - P(p)) / (m(p') - m(p)),   P(m) = T(all) / T(m)
//      in normalised progress for each further SM. T(m) is the time on m SMs, T(all) on the device.
//
// The result approximates the best plan: of those that assign the most operations, the one with the
// greatest sum of P (tests/scheduler/assignment_test.cpp compares it with all plans of small
// pools). P is a speed relative to alone, as objectives add speeds up. The paper's P is relative to
// the narrowest partition, T(m_min) / T(m) (Relative::kNarrowest), and gives nearly all SMs to the
// operation with the steepest curve.
//
// Pure; no allocation once its vectors have grown. Threads: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/types.h"

namespace vitamin::scheduler {

// An operation that the Assigner finds a partition for.
struct Assignable {
  std::uint32_t min_sms = 1;             // narrowest width that runs it unchanged
  std::span<const float> curve;          // T by PartitionId, monotone in the width
  PartitionId preferred = kNoPartition;  // among equals: where it is already
  bool waits_long = false;               // MinBind takes it first, however many SMs it needs
};

class Assigner {
 public:
  // What P is relative to: the time on the whole device, or on the narrowest partition (the paper).
  enum class Relative : std::uint8_t { kWhole, kNarrowest };
  explicit Assigner(Relative relative = Relative::kWhole) : relative_(relative) {}
  // A partition for each operation (most urgent first), inside `available`; kNoPartition where
  // there is no room. Never the whole device, which is not granted exclusively by a plan. Valid
  // until the next call.
  std::span<const PartitionId> plan(std::span<const Assignable> operations,
                                    std::span<const Partition> pool, hal::ComputeSet available);
  // The sum of P over a plan.
  double progress(std::span<const Assignable> operations, std::span<const Partition> pool,
                  std::span<const PartitionId> plan) const;
  static PartitionId narrowest(const Assignable& operation, std::span<const Partition> pool);

 private:
  enum class Order : std::uint8_t { kInPlace, kApart, kDescending, kFromTheEnd };
  std::size_t bind_minimum(std::span<const Assignable> operations, std::span<const Partition> pool,
                           hal::ComputeSet available, Order order);
  void widen(std::span<const Assignable> operations, std::span<const Partition> pool,
             hal::ComputeSet available);

  struct Widening {
    float gain = 0;
    PartitionId partition = kNoPartition;
  };
  // The partition whose time P is relative to.
  PartitionId reference(const Assignable& operation, std::span<const Partition> pool) const;
  Widening best_widening(std::size_t index, const Assignable& operation,
                         std::span<const Partition> pool, hal::ComputeSet available) const;

  Relative relative_;
  std::vector<PartitionId> plan_, best_;
  std::vector<std::uint32_t> order_;
  std::vector<float> reference_;     // P is relative to this time, of each operation
  std::vector<Widening> widenings_;  // the best one of each operation
  hal::ComputeSet used_;
};

}  // namespace vitamin::scheduler
