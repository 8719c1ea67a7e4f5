// SPDX-License-Identifier: Apache-2.0
#include "policies/planner.h"

#include <algorithm>
#include <bit>

namespace vitamin::policies {

using hal::ComputeSet;
using runtime::EntryId;
using runtime::kNoEntry;
using runtime::PoolView;
using runtime::ReadyOperation;

namespace {

// A plan of today replaces yesterday's only when it is better by this much: moves cost drains.
constexpr double kWorthMoving = 1.05;

// Who has waited for so long is not made to wait longer for others that need less.
constexpr std::uint64_t kAgedNs = 10'000'000;

bool same_lane(const ReadyOperation& operation, runtime::ClientId client, runtime::LaneId lane) {
  return operation.client == client && operation.lane == lane;
}

}  // namespace

// Holders have their turn until it is recalled; everybody else by age.
void Planner::begin(const PoolView& pool) {
  turns_.clear();
  std::uint32_t number = 0;
  for (const runtime::Holding& holding : pool.holdings)
    turns_.push_back({0, false, holding.next.since_ns, number++});
  for (const ReadyOperation& operation : pool.waiting)
    turns_.push_back({0, true, operation.since_ns, number++});
  const auto said = [&](const Turn& turn) -> const ReadyOperation& {
    return turn.waits ? pool.waiting[turn.number - pool.holdings.size()]
                      : pool.holdings[turn.number].next;
  };
  // They come in the order in which they asked, nearly always.
  if (!std::is_sorted(turns_.begin(), turns_.end())) std::sort(turns_.begin(), turns_.end());
  // The n-th operation of any client comes before the n+1-st of another.
  lanes_of_.clear();
  bool several = false;
  for (Turn& turn : turns_) {
    turn.nth = lanes_of_[said(turn).client]++;
    several = several || turn.nth > 0;
  }
  if (several) std::sort(turns_.begin(), turns_.end());
  lanes_.clear();
  for (const Turn& turn : turns_)
    lanes_.push_back(
        {said(turn), turn.waits ? kNoEntry : pool.holdings[turn.number].entry, kNoEntry});
  index();
}

// Where each lane is.
void Planner::index() {
  index_.assign(std::bit_ceil(2 * lanes_.size() + 1), kNowhere);
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
    std::size_t at = place_of(lanes_[i].operation.client, lanes_[i].operation.lane);
    while (index_[at] != kNowhere) at = (at + 1) % index_.size();
    index_[at] = i;
  }
}

void Planner::assign(const PoolView& pool, ComputeSet available) {
  candidates_.clear();
  planned_.clear();
  // There is never room for more than one lane a unit; who comes later waits for the next plan.
  const std::size_t most = available.count();
  for (std::size_t i = 0; i < lanes_.size() && planned_.size() < most; ++i) {
    Lane& lane = lanes_[i];
    if (lane.target != kNoEntry || lane.left_out) continue;
    Candidate candidate;
    candidate.processors = lane.operation.processors;
    candidate.curve = curves_.of(lane.operation.kernel, pool);
    candidate.preferred = lane.held != runtime::kWholeDevice ? lane.held : kNoEntry;
    candidate.aged = lane.held == kNoEntry && pool.now_ns - lane.operation.since_ns >= kAgedNs;
    for (const Remembered& last : before_)
      if (same_lane(lane.operation, last.client, last.lane)) candidate.preferred = last.entry;
    candidates_.push_back(candidate);
    planned_.push_back(i);
  }
  const std::span<const EntryId> plan = assignment_.plan(candidates_, pool.entries, available);
  for (std::size_t i = 0; i < plan.size(); ++i) lanes_[planned_[i]].target = plan[i];
  keep_if_good(pool, available);
  before_.clear();
  for (const std::size_t i : planned_)
    if (lanes_[i].target != kNoEntry)
      before_.push_back({lanes_[i].operation.client, lanes_[i].operation.lane, lanes_[i].target});
}

void Planner::keep_if_good(const PoolView& pool, ComputeSet available) {
  kept_.assign(candidates_.size(), kNoEntry);
  ComputeSet used;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    const ReadyOperation& operation = lanes_[planned_[i]].operation;
    const bool known = std::any_of(before_.begin(), before_.end(), [&](const Remembered& last) {
      return same_lane(operation, last.client, last.lane);
    });
    const EntryId entry = candidates_[i].preferred;
    if (!known || entry == kNoEntry || !available.contains(pool.entries[entry].compute) ||
        pool.entries[entry].compute.overlaps(used) ||
        pool.entries[entry].processors < operation.processors)
      return;
    used |= pool.entries[entry].compute;
    kept_[i] = entry;
  }
  fresh_.clear();
  for (const std::size_t i : planned_) fresh_.push_back(lanes_[i].target);
  const double old_progress = assignment_.progress(candidates_, pool.entries, kept_);
  const double progress = assignment_.progress(candidates_, pool.entries, fresh_);
  if (progress >= kWorthMoving * old_progress) return;
  for (std::size_t i = 0; i < planned_.size(); ++i) lanes_[planned_[i]].target = kept_[i];
}

const Planner::Lane* Planner::find(runtime::ClientId client, runtime::LaneId lane) const {
  if (index_.empty()) return nullptr;
  for (std::size_t at = place_of(client, lane); index_[at] != kNowhere;
       at = (at + 1) % index_.size())
    if (same_lane(lanes_[index_[at]].operation, client, lane)) return &lanes_[index_[at]];
  return nullptr;
}

std::optional<std::size_t> Planner::next(std::span<const ReadyOperation> ready) const {
  for (const Lane& lane : lanes_) {
    if (lane.target == kNoEntry || lane.held != kNoEntry) continue;
    for (std::size_t i = 0; i < ready.size(); ++i)
      if (same_lane(ready[i], lane.operation.client, lane.operation.lane)) return i;
  }
  return std::nullopt;
}

EntryId within_target(EntryId target, std::span<const EntryId> eligible, const PoolView& pool) {
  if (target == kNoEntry) return kNoEntry;
  EntryId best = kNoEntry;
  for (const EntryId id : eligible) {
    if (id == target) return id;
    if (id == runtime::kWholeDevice) continue;
    if (!pool.entries[target].compute.contains(pool.entries[id].compute)) continue;
    best = id;  // they come narrowest first
  }
  return best;
}

}  // namespace vitamin::policies
