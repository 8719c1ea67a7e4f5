// SPDX-License-Identifier: Apache-2.0
#include "policies/beside.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace vitamin::policies {

using runtime::ClientId;
using runtime::PoolView;

namespace {

constexpr std::uint64_t kLongest = 4;  // times a slice's length, where nobody rests
constexpr std::uint64_t kSettle = 5;   // a slice that began in the middle: 1/5 does not count
constexpr std::uint64_t kAway = 1'000'000'000;  // who wanted nothing for so long is not there
constexpr std::uint64_t kAtOnce = 500'000;      // a grant comes back so soon when nothing runs
constexpr double kCost = 0.002;  // of what is being got done, for slices of the other kind
constexpr unsigned kPairs = 32;  // requests differ
constexpr std::size_t kStretches = 64, kFewStretches = 8;
constexpr std::size_t kLong = 8;  // one in so many is longer than a long one

double loss(std::uint32_t percent) { return std::log1p(-static_cast<double>(percent) / 100); }

}  // namespace

Beside::Beside(const Options& options)
    : options_(options), trials_({loss(options.slowdown), kCost, kPairs, loss(options.patience)}) {}

Beside::Known& Beside::of(ClientId client) {
  const auto at =
      std::lower_bound(known_.begin(), known_.end(), client,
                       [](const Known& known, ClientId wanted) { return known.client < wanted; });
  if (at != known_.end() && at->client == client) return *at;
  return *known_.insert(at, Known{client});
}

void Beside::forget(ClientId client) {
  std::erase_if(known_, [&](const Known& known) { return known.client == client; });
  trials_.forget(client);
  if (std::binary_search(set_.begin(), set_.end(), client)) clear_set();
}

void Beside::clear_set() {
  set_.clear();
  stretch_ns_ = 0;
  patient_ = false;
}

// Both kinds are there.
bool Beside::find_set(const PoolView& pool, const RightOfWay& first) {
  bool any = false;
  for (Known& known : known_) known.first = false;
  for (const RightOfWay::Client& client : first.clients()) {
    if (!client.right_of_way) continue;
    Known& known = of(client.client);
    known.first = any = true;
    known.seen_ns = pool.now_ns;
  }
  now_.clear();
  if (!any) return false;
  const auto saw = [&](const runtime::ReadyOperation& operation) {
    if (yields(operation)) of(operation.client).seen_ns = pool.now_ns;
  };
  for (const runtime::ReadyOperation& operation : pool.waiting) saw(operation);
  for (const runtime::Holding& holding : pool.holdings) saw(holding.next);
  any = false;
  for (const Known& known : known_) {
    if (pool.now_ns - known.seen_ns >= kAway) continue;
    any = any || !known.first;
    now_.push_back(known.client);
  }
  return any;
}

void Beside::look(const PoolView& pool, const RightOfWay& first, bool others) {
  if (options_.mode != Mode::kMeasured) return;
  const std::uint64_t passed_ns = pool.now_ns - looked_ns_;
  looked_ns_ = pool.now_ns;
  if (!find_set(pool, first) || pool.progress.empty()) return clear_set();
  count(pool, first, passed_ns);
  if (set_ != now_) {
    clear_set();
    set_ = now_;
    if (std::exchange(whose_, set_) != set_) stretches_.clear(), lately_.clear();
    return begin_slice(trials_.kind_of(set_));
  }
  follow_stretch(first.claimed(), pool.now_ns);
  if (others) return begin_slice(kind_);
  std::uint64_t busy_ns = 0;
  for (const Known& known : known_) busy_ns += known.busy_ns;
  if (settling_ns_ > 0 && busy_ns >= settling_ns_) {
    begin_slice(kind_);
    settling_ns_ = 0;
  } else if (busy_ns >= options_.slice_ns &&
             (!is_busy() || busy_ns >= kLongest * options_.slice_ns)) {
    end_slice(busy_ns);
  }
}

bool Beside::is_busy() const {
  return std::any_of(known_.begin(), known_.end(),
                     [](const Known& known) { return known.state != State::kRests; });
}

void Beside::follow_stretch(bool claimed, std::uint64_t now_ns) {
  if (claimed && stretch_ns_ == 0) {
    stretch_ns_ = now_ns;
    patience_ns_ = patience();
  } else if (!claimed && stretch_ns_ != 0) {
    if (lately_.size() == kStretches) {
      stretches_.erase(std::lower_bound(stretches_.begin(), stretches_.end(), lately_.front()));
      lately_.pop_front();
    }
    const std::uint64_t lasted_ns = now_ns - std::exchange(stretch_ns_, 0);
    lately_.push_back(lasted_ns);
    stretches_.insert(std::lower_bound(stretches_.begin(), stretches_.end(), lasted_ns), lasted_ns);
  }
  patient_ = stretch_ns_ != 0 && kind_ == kApart && now_ns < stretch_ns_ + patience_ns_;
}

std::uint64_t Beside::patience() const {
  const std::optional<double> gain = trials_.gain(set_);
  if (!gain || *gain < loss(options_.patience) || stretches_.size() < kFewStretches) return 0;
  const double slowdown = options_.slowdown / 100.0;
  // As it would be without the others.
  const double long_ns =
      static_cast<double>(stretches_[stretches_.size() - stretches_.size() / kLong - 1]) /
      (1 + slowdown);
  // What others cost of the time that they are there.
  const double costs = std::max(-std::expm1(*gain), 1e-3);
  // Never so long that hardly any stretch shows what it is to be alone.
  return static_cast<std::uint64_t>(long_ns * std::min(1.0, slowdown / costs));
}

void Beside::count(const PoolView& pool, const RightOfWay& first, std::uint64_t passed_ns) {
  auto said = pool.progress.begin();
  for (Known& known : known_) {  // both are by client
    while (said != pool.progress.end() && said->client < known.client) ++said;
    std::uint64_t launches = 0;
    if (said != pool.progress.end() && said->client == known.client) {
      if (known.operations != 0 && said->operations > known.operations)
        launches = said->operations - known.operations;
      known.operations = said->operations;
    }
    if (!patient_) known.launches += launches;
    if (!known.first) continue;
    const RightOfWay::Client* const client = first.find(known.client);
    follow(known, client != nullptr ? state_of(*client) : State::kRests, launches > 0, passed_ns,
           patient_ ? &busy_ns_ : &known.busy_ns);
  }
}

Beside::State Beside::state_of(const RightOfWay::Client& client) {
  if (client.asks) return State::kAsks;
  if (client.asked_back || (client.drains && !client.holds)) return State::kLeaves;
  return client.holds ? State::kHolds : State::kRests;
}

void Beside::follow(Known& known, State state, bool launched, std::uint64_t passed_ns,
                    std::uint64_t* busy_ns) {
  const State before = std::exchange(known.state, state);
  if (before == State::kAsks) *busy_ns += passed_ns;
  if (before == State::kHolds) known.quiet_ns += passed_ns;
  if (before == State::kLeaves) known.leaving_ns += passed_ns;
  // It launched, or it gave back by itself what it had, when that had ended.
  const bool gave_back = before == State::kHolds && state == State::kRests;
  // Or it was asked for it, and something still ran there.
  const bool left = before == State::kLeaves && state != State::kLeaves;
  if (launched || gave_back || (left && known.leaving_ns > kAtOnce))
    *busy_ns += std::exchange(known.quiet_ns, 0);
  if (!left) return;
  if (known.leaving_ns > kAtOnce) *busy_ns += known.leaving_ns;
  known.quiet_ns = known.leaving_ns = 0;
}

void Beside::begin_slice(Kind kind) {
  for (Known& known : known_) known.busy_ns = known.launches = 0;
  // What others have submitted drains; queues fill.
  settling_ns_ = is_busy() ? options_.slice_ns / kSettle : 0;
  kind_ = kind;
}

void Beside::end_slice(std::uint64_t busy_ns) {
  busy_ns_ += busy_ns;
  std::uint64_t launches = 0;
  bool all = true, any = false;
  for (const Known& known : known_) {
    if (known.first) {
      launches += known.launches;
      // Of a version that does not tell, or it waited all the time.
      all = all && (known.busy_ns == 0 || known.launches > 0);
    } else {
      any = any || known.launches > 0;
    }
  }
  if (!all) return begin_slice(kApart);
  if (kind_ == kTogether && !any) return begin_slice(kTogether);  // there was nobody beside them
  const double score =
      std::log(static_cast<double>(launches) / (static_cast<double>(busy_ns) * 1e-9));
  begin_slice(trials_.ended(set_, kind_, score, busy_ns_, busy_ns));
}

}  // namespace vitamin::policies
