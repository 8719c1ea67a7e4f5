// SPDX-License-Identifier: Apache-2.0
#include "policies/whole_or_parts.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace vitamin::policies {

using runtime::ClientId;
using runtime::kNever;
using runtime::PoolView;

namespace {

constexpr unsigned kSettle = 1;   // looks of a slice that do not count
constexpr unsigned kCount = 5;    // and that do, at least
constexpr unsigned kAwake = 3;    // looks for which a client is awake that does not get on
constexpr unsigned kMissed = 2;   // looks late: what counted until then is not of one kind
constexpr unsigned kRarely = 16;  // times as long between looks, at most, while nobody gets on

constexpr double kWorth = 0.005;  // what parts have to gain, at least
constexpr double kCost = 0.01;    // of what is being got done, for slices of the other kind

}  // namespace

WholeOrParts::WholeOrParts(const Options& options) : options_(options), trials_({kWorth, kCost}) {}

// --- who gets on -----------------------------------------------------------------------------

void WholeOrParts::forget(ClientId client) {
  known_.erase(client);
  trials_.forget(client);
  if (std::binary_search(set_.begin(), set_.end(), client)) set_.clear();
}

void WholeOrParts::look(const PoolView& pool) {
  looked_ = pool.now_ns >= look_at_;
  if (pool.progress.empty()) look_at_ = kNever;
  if (!looked_ || pool.progress.empty()) return;
  bool any = false;
  for (const runtime::Progress& said : pool.progress) {
    Known& known = known_[said.client];
    if (known.operations == said.operations) continue;
    known.operations = said.operations;
    known.moved_ns = pool.now_ns;
    any = true;
  }
  between_looks_ns_ =
      any ? options_.look_ns
          : std::min(kRarely * options_.look_ns, std::max(options_.look_ns, 2 * between_looks_ns_));
  look_at_ = pool.now_ns + between_looks_ns_;
}

void WholeOrParts::find_awake(const PoolView& pool) {
  const std::uint64_t lately = kAwake * options_.look_ns;
  knows_ = !pool.progress.empty();
  awake_.clear();
  same_ = !set_.empty();
  ++questions_;
  for (const runtime::ReadyOperation& operation : pool.waiting)
    wakes(operation.client, known_[operation.client]);
  for (const runtime::Holding& holding : pool.holdings) {
    Known& known = known_[holding.next.client];
    // Who never told anything may be of a version that does not.
    if (known.operations == 0)
      knows_ = false;
    else if (pool.now_ns - known.moved_ns >= lately &&
             pool.now_ns - holding.granted_at_ns >= lately)
      continue;
    wakes(holding.next.client, known);
  }
  same_ = same_ && awake_.size() == set_.size();
}

// A client may have many lanes.
void WholeOrParts::wakes(ClientId client, Known& known) {
  if (std::exchange(known.awake, questions_) == questions_) return;
  awake_.push_back(client);
  same_ = same_ && known.slice == sets_;
}

bool WholeOrParts::asleep(ClientId client) const {
  const auto known = known_.find(client);
  return knows_ && (known == known_.end() || known->second.awake != questions_);
}

// --- which kind ------------------------------------------------------------------------------

bool WholeOrParts::whole(const PoolView& pool) {
  // Another policy decided meanwhile, or there was something that comes first.
  const bool missed = look_at_ != kNever && pool.now_ns > look_at_ + kMissed * options_.look_ns;
  if (look_at_ != 0 && missed) set_.clear();
  look(pool);
  find_awake(pool);
  const bool allowed = pool.all_share && pool.set_aside.empty();
  if (!allowed || options_.mode != Mode::kMeasured || pool.progress.empty()) {
    set_.clear();
    return allowed && options_.mode == Mode::kAlways;
  }
  if (!knows_ || awake_.size() < 2) {
    set_.clear();
    return true;
  }
  if (!same_) {
    take_set();
    begin_slice(trials_.kind_of(set_));
  } else if (looked_) {
    advance(pool.now_ns);
  }
  return kind_ == kWhole;
}

// Whose slice it is from now on: of those that are awake.
void WholeOrParts::take_set() {
  set_ = awake_;
  std::sort(set_.begin(), set_.end());
  ++sets_;
  for (const ClientId client : set_) known_[client].slice = sets_;
}

void WholeOrParts::begin_slice(Kind kind) {
  kind_ = kind;
  looks_ = 0;
}

void WholeOrParts::advance(std::uint64_t now_ns) {
  ++looks_;
  if (looks_ == kSettle) {
    begin_ns_ = now_ns;
    for (auto& [client, known] : known_) known.at_begin = known.operations;
  }
  // A slice that ends in somebody's pause would hold less of his work than of his time.
  const bool all_moved = std::all_of(
      set_.begin(), set_.end(), [&](ClientId client) { return known_[client].moved_ns == now_ns; });
  if (looks_ >= kSettle + kCount && all_moved) end_slice(now_ns);
}

void WholeOrParts::end_slice(std::uint64_t now_ns) {
  const double seconds = static_cast<double>(now_ns - begin_ns_) * 1e-9;
  double score = 0;
  for (const ClientId client : set_) {
    const Known& known = known_[client];
    // A client that lies moves itself to another kind of plan, no more.
    const std::uint64_t done =
        known.operations > known.at_begin ? known.operations - known.at_begin : 1;
    score += std::log(static_cast<double>(done) / seconds) / static_cast<double>(set_.size());
  }
  const std::uint64_t slice_ns = (kSettle + kCount) * options_.look_ns;
  begin_slice(trials_.ended(set_, kind_, score, now_ns, slice_ns));
}

}  // namespace vitamin::policies
