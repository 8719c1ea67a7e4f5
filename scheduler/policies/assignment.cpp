// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policies/assignment.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace vitamin::scheduler {

using hal::ComputeSet;

namespace {

// Partitions come narrowest first: the first that is wide enough.
std::size_t first_wide(std::span<const Partition> pool, std::uint32_t sms) {
  const auto at =
      std::partition_point(pool.begin() + 1, pool.end(),
                           [&](const Partition& partition) { return partition.sms < sms; });
  return static_cast<std::size_t>(at - pool.begin());
}

bool all_small(std::span<const Assignable> operations) {
  return std::all_of(operations.begin(), operations.end(),
                     [](const Assignable& operation) { return operation.min_sms <= 1; });
}

// Being somewhere else costs a move.
constexpr double kWorthLeaving = 1.02;

}  // namespace

PartitionId Assigner::narrowest(const Assignable& operation, std::span<const Partition> pool) {
  const std::size_t at = first_wide(pool, operation.min_sms);
  return at < pool.size() ? pool[at].id : kNoPartition;
}

PartitionId Assigner::reference(const Assignable& operation,
                                std::span<const Partition> pool) const {
  return relative_ == Relative::kNarrowest ? narrowest(operation, pool) : pool.front().id;
}

std::span<const PartitionId> Assigner::plan(std::span<const Assignable> operations,
                                            std::span<const Partition> pool, ComputeSet available) {
  // The least demanding first leaves room for the most, nearly always; where it does not, the most
  // demanding first (or from the other end of the device) may find room that it cut up. Where all
  // have room, starting apart from each other leaves them more of it to widen into.
  const std::size_t possible = std::min<std::size_t>(operations.size(), available.count());
  std::size_t most = 0;
  double best_progress = 0;
  best_.assign(operations.size(), kNoPartition);
  for (const Order order :
       {Order::kInPlace, Order::kApart, Order::kDescending, Order::kFromTheEnd}) {
    const bool last_resort = order == Order::kDescending || order == Order::kFromTheEnd;
    if (last_resort && (most == possible || all_small(operations))) break;
    const std::size_t assigned = bind_minimum(operations, pool, available, order);
    if (assigned < most || (last_resort && assigned == most)) continue;
    widen(operations, pool, available);
    const double progress = this->progress(operations, pool, plan_);
    if (assigned == most && progress <= kWorthLeaving * best_progress) continue;
    most = assigned;
    best_progress = progress;
    best_ = plan_;
  }
  return best_;
}

std::size_t Assigner::bind_minimum(std::span<const Assignable> operations,
                                   std::span<const Partition> pool, ComputeSet available,
                                   Order order) {
  plan_.assign(operations.size(), kNoPartition);
  used_ = {};
  std::size_t assigned = 0;
  order_.resize(operations.size());
  std::iota(order_.begin(), order_.end(), 0U);
  const bool descending = order == Order::kDescending;
  const std::size_t units = std::max(1U, pool.front().compute.count());
  // The given order among equals. (std::stable_sort would allocate.)
  std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (operations[a].waits_long != operations[b].waits_long) return operations[a].waits_long;
    const std::uint32_t x = operations[descending ? b : a].min_sms;
    const std::uint32_t y = operations[descending ? a : b].min_sms;
    return x != y ? x < y : a < b;
  });
  reference_.assign(operations.size(), 0);
  for (const std::uint32_t index : order_) {
    const Assignable& operation = operations[index];
    if ((available - used_).empty()) break;
    ComputeSet place_before;
    if (operation.preferred != kNoPartition && order == Order::kInPlace)
      place_before = pool[operation.preferred].compute;
    const std::size_t first = first_wide(pool, operation.min_sms);
    if (first < pool.size()) reference_[index] = operation.curve[reference(operation, pool)];
    // Where it would start if all were spread evenly.
    const std::size_t start_at = assigned * units / operations.size();
    std::size_t distance = units;
    PartitionId best = kNoPartition;
    for (std::size_t i = first; i < pool.size(); ++i) {
      const Partition& partition = pool[i];
      if (best != kNoPartition && partition.sms > pool[best].sms) break;
      if (!available.contains(partition.compute) || partition.compute.overlaps(used_)) continue;
      if (place_before.contains(partition.compute)) {
        best = partition.id;
        break;
      }
      const auto start = static_cast<std::size_t>(std::countr_zero(partition.compute.bits()));
      const std::size_t away = (start + units - start_at) % units;
      if (best == kNoPartition || order == Order::kFromTheEnd ||
          (order == Order::kApart && away < distance)) {
        best = partition.id;
        distance = away;
      }
    }
    if (best == kNoPartition) continue;
    plan_[index] = best;
    used_ |= pool[best].compute;
    ++assigned;
  }
  return assigned;
}

Assigner::Widening Assigner::best_widening(std::size_t index, const Assignable& operation,
                                           std::span<const Partition> pool,
                                           ComputeSet available) const {
  const Partition& now = pool[plan_[index]];
  const ComputeSet room = (available - used_) | now.compute;
  const float from = reference_[index] / operation.curve[now.id];
  Widening best;
  for (std::size_t i = now.id + 1U; i < pool.size(); ++i) {
    const Partition& partition = pool[i];
    if (!room.contains(partition.compute) || partition.sms == now.sms) continue;
    const float more = static_cast<float>(partition.sms - now.sms);
    const float gain = (reference_[index] / operation.curve[partition.id] - from) / more;
    const bool better = gain > best.gain;
    // Among equals, where it is already.
    const bool equal =
        gain > 0 && gain >= best.gain * 0.9999F && partition.id == operation.preferred;
    if (better || equal) best = {gain, partition.id};
  }
  return best;
}

void Assigner::widen(std::span<const Assignable> operations, std::span<const Partition> pool,
                     ComputeSet available) {
  widenings_.assign(operations.size(), {});
  ComputeSet taken, freed = available;  // by the last step; at first all is new
  while (!(available - used_).empty()) {
    std::size_t winner = operations.size();
    for (std::size_t i = 0; i < operations.size(); ++i) {
      if (plan_[i] == kNoPartition) continue;
      Widening& best = widenings_[i];
      // Room that others took can only spoil what was best; room that they left may hold better.
      const bool spoilt =
          best.partition != kNoPartition &&
          (best.partition == plan_[i] || pool[best.partition].compute.overlaps(taken));
      if (!freed.empty() || spoilt) best = best_widening(i, operations[i], pool, available);
      if (best.gain > 0 && (winner == operations.size() || best.gain > widenings_[winner].gain))
        winner = i;
    }
    if (winner == operations.size()) return;
    const ComputeSet from = pool[plan_[winner]].compute;
    const ComputeSet to = pool[widenings_[winner].partition].compute;
    taken = to - from;
    freed = from - to;
    used_ = (used_ - from) | to;
    plan_[winner] = widenings_[winner].partition;
  }
}

double Assigner::progress(std::span<const Assignable> operations, std::span<const Partition> pool,
                          std::span<const PartitionId> plan) const {
  double sum = 0;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (plan[i] == kNoPartition) continue;
    sum += static_cast<double>(operations[i].curve[reference(operations[i], pool)]) /
           static_cast<double>(operations[i].curve[plan[i]]);
  }
  return sum;
}

}  // namespace vitamin::scheduler
