// SPDX-License-Identifier: Apache-2.0
#include "policies/assignment.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace vitamin::policies {

using hal::ComputeSet;
using runtime::EntryId;
using runtime::kNoEntry;
using runtime::PoolEntry;

namespace {

// Entries come narrowest first: the first that is wide enough.
std::size_t first_wide(std::span<const PoolEntry> entries, std::uint32_t processors) {
  const auto at =
      std::partition_point(entries.begin() + 1, entries.end(),
                           [&](const PoolEntry& entry) { return entry.processors < processors; });
  return static_cast<std::size_t>(at - entries.begin());
}

bool all_small(std::span<const Candidate> candidates) {
  return std::all_of(candidates.begin(), candidates.end(),
                     [](const Candidate& candidate) { return candidate.processors <= 1; });
}

// Being somewhere else costs a move.
constexpr double kWorthLeavingHome = 1.02;

}  // namespace

EntryId Assignment::narrowest(const Candidate& candidate, std::span<const PoolEntry> entries) {
  const std::size_t at = first_wide(entries, candidate.processors);
  return at < entries.size() ? entries[at].id : kNoEntry;
}

EntryId Assignment::reference(const Candidate& candidate,
                              std::span<const PoolEntry> entries) const {
  return objective_ == Objective::kPaper ? narrowest(candidate, entries) : entries.front().id;
}

std::span<const EntryId> Assignment::plan(std::span<const Candidate> candidates,
                                          std::span<const PoolEntry> entries,
                                          ComputeSet available) {
  // The least demanding first leaves room for the most, nearly always; where it does not, the most
  // demanding first (or from the other end of the device) may find room that it cut up. Where all
  // have room, starting apart from each other leaves them more of it to widen into.
  const std::size_t possible = std::min<std::size_t>(candidates.size(), available.count());
  std::size_t most = 0;
  double best_progress = 0;
  best_.assign(candidates.size(), kNoEntry);
  for (const Order order :
       {Order::kAtHome, Order::kApart, Order::kDescending, Order::kFromTheEnd}) {
    const bool last_resort = order == Order::kDescending || order == Order::kFromTheEnd;
    if (last_resort && (most == possible || all_small(candidates))) break;
    const std::size_t assigned = bind_minimum(candidates, entries, available, order);
    if (assigned < most || (last_resort && assigned == most)) continue;
    widen(candidates, entries, available);
    const double progress = this->progress(candidates, entries, plan_);
    if (assigned == most && progress <= kWorthLeavingHome * best_progress) continue;
    most = assigned;
    best_progress = progress;
    best_ = plan_;
  }
  return best_;
}

std::size_t Assignment::bind_minimum(std::span<const Candidate> candidates,
                                     std::span<const PoolEntry> entries, ComputeSet available,
                                     Order order) {
  plan_.assign(candidates.size(), kNoEntry);
  used_ = {};
  std::size_t assigned = 0;
  order_.resize(candidates.size());
  std::iota(order_.begin(), order_.end(), 0U);
  const bool descending = order == Order::kDescending;
  const std::size_t units = std::max(1U, entries.front().compute.count());
  // The given order among equals. (std::stable_sort would allocate.)
  std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (candidates[a].aged != candidates[b].aged) return candidates[a].aged;
    const std::uint32_t x = candidates[descending ? b : a].processors;
    const std::uint32_t y = candidates[descending ? a : b].processors;
    return x != y ? x < y : a < b;
  });
  reference_.assign(candidates.size(), 0);
  for (const std::uint32_t index : order_) {
    const Candidate& candidate = candidates[index];
    if ((available - used_).empty()) break;
    ComputeSet home;
    if (candidate.preferred != kNoEntry && order == Order::kAtHome)
      home = entries[candidate.preferred].compute;
    const std::size_t first = first_wide(entries, candidate.processors);
    if (first < entries.size()) reference_[index] = candidate.curve[reference(candidate, entries)];
    // Where it would start if all were spread evenly.
    const std::size_t place = assigned * units / candidates.size();
    std::size_t distance = units;
    EntryId best = kNoEntry;
    for (std::size_t i = first; i < entries.size(); ++i) {
      const PoolEntry& entry = entries[i];
      if (best != kNoEntry && entry.processors > entries[best].processors) break;
      if (!available.contains(entry.compute) || entry.compute.overlaps(used_)) continue;
      if (home.contains(entry.compute)) {
        best = entry.id;
        break;
      }
      const auto start = static_cast<std::size_t>(std::countr_zero(entry.compute.bits()));
      const std::size_t away = (start + units - place) % units;
      if (best == kNoEntry || order == Order::kFromTheEnd ||
          (order == Order::kApart && away < distance)) {
        best = entry.id;
        distance = away;
      }
    }
    if (best == kNoEntry) continue;
    plan_[index] = best;
    used_ |= entries[best].compute;
    ++assigned;
  }
  return assigned;
}

Assignment::Widening Assignment::best_widening(std::size_t index, const Candidate& candidate,
                                               std::span<const PoolEntry> entries,
                                               ComputeSet available) const {
  const PoolEntry& now = entries[plan_[index]];
  const ComputeSet room = (available - used_) | now.compute;
  const float from = reference_[index] / candidate.curve[now.id];
  Widening best;
  for (std::size_t i = now.id + 1U; i < entries.size(); ++i) {
    const PoolEntry& entry = entries[i];
    if (!room.contains(entry.compute) || entry.processors == now.processors) continue;
    const float more = static_cast<float>(entry.processors - now.processors);
    const float gain = (reference_[index] / candidate.curve[entry.id] - from) / more;
    const bool better = gain > best.gain;
    // Among equals, where it is already.
    const bool equal = gain > 0 && gain >= best.gain * 0.9999F && entry.id == candidate.preferred;
    if (better || equal) best = {gain, entry.id};
  }
  return best;
}

void Assignment::widen(std::span<const Candidate> candidates, std::span<const PoolEntry> entries,
                       ComputeSet available) {
  widenings_.assign(candidates.size(), {});
  ComputeSet taken, freed = available;  // by the last step; at first all is new
  while (!(available - used_).empty()) {
    std::size_t winner = candidates.size();
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (plan_[i] == kNoEntry) continue;
      Widening& best = widenings_[i];
      // Room that others took can only spoil what was best; room that they left may hold better.
      const bool spoilt = best.entry != kNoEntry &&
                          (best.entry == plan_[i] || entries[best.entry].compute.overlaps(taken));
      if (!freed.empty() || spoilt) best = best_widening(i, candidates[i], entries, available);
      if (best.gain > 0 && (winner == candidates.size() || best.gain > widenings_[winner].gain))
        winner = i;
    }
    if (winner == candidates.size()) return;
    const ComputeSet from = entries[plan_[winner]].compute;
    const ComputeSet to = entries[widenings_[winner].entry].compute;
    taken = to - from;
    freed = from - to;
    used_ = (used_ - from) | to;
    plan_[winner] = widenings_[winner].entry;
  }
}

double Assignment::progress(std::span<const Candidate> candidates,
                            std::span<const PoolEntry> entries,
                            std::span<const EntryId> plan) const {
  double sum = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (plan[i] == kNoEntry) continue;
    sum += static_cast<double>(candidates[i].curve[reference(candidates[i], entries)]) /
           static_cast<double>(candidates[i].curve[plan[i]]);
  }
  return sum;
}

}  // namespace vitamin::policies
