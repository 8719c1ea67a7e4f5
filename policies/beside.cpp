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
constexpr std::uint64_t kRest = 2'000'000;  // between two stretches
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
  patience_ends_ns_ = 0;
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
  follow_stretches(pool.now_ns);
  if (set_ != now_) {
    clear_set();
    set_ = now_;
    return begin_slice(trials_.kind_of(set_));
  }
  patience_ends_ns_ = 0;
  if (others) return begin_slice(kind_);
  std::uint64_t busy_ns = 0;
  for (const Known& known : known_) busy_ns += known.busy_ns;
  const bool may_end = !is_busy() || busy_ns >= kLongest * options_.slice_ns;
  const std::optional<double> gain =
      options_.patience == 0 ? std::nullopt : trials_.known_gain(set_, busy_ns_ + busy_ns);
  if (!measures_ && !gain && may_end) {
    busy_ns_ += busy_ns;
    begin_slice(kind_);
  } else if (measures_ && settling_ns_ > 0 && busy_ns >= settling_ns_) {
    begin_slice(kind_);
    settling_ns_ = 0;
  } else if (measures_ && busy_ns >= options_.slice_ns && may_end) {
    end_slice(busy_ns);
  }
  if (gain && kind_ == kApart) measures_ = false;
  if (!measures_ && gain) patience_ends_ns_ = patience_ends(*gain);
}

bool Beside::is_busy() const {
  return std::any_of(known_.begin(), known_.end(),
                     [](const Known& known) { return known.state != State::kRests; });
}

void Beside::Stretches::add(std::uint64_t lasted_ns) {
  if (lately_.size() == kStretches) {
    sorted_.erase(std::lower_bound(sorted_.begin(), sorted_.end(), lately_.front()));
    lately_.pop_front();
  }
  lately_.push_back(lasted_ns);
  sorted_.insert(std::lower_bound(sorted_.begin(), sorted_.end(), lasted_ns), lasted_ns);
}

std::uint64_t Beside::Stretches::long_ns() const {
  return sorted_.size() < kFewStretches ? 0 : sorted_[sorted_.size() - sorted_.size() / kLong - 1];
}

// Its host may have waited for the device: then its grant comes back, and it asks again at once.
void Beside::follow_stretches(std::uint64_t now_ns) {
  for (Known& known : known_) {
    const bool rests = known.state == State::kRests;
    if (known.rests_ns != 0 && now_ns - known.rests_ns >= kRest) {
      known.stretches.add(known.rests_ns - std::exchange(known.began_ns, 0));
      known.rests_ns = 0;
    }
    if (!rests && known.began_ns == 0) known.began_ns = now_ns;
    if (!rests)
      known.rests_ns = 0;
    else if (known.began_ns != 0 && known.rests_ns == 0)
      known.rests_ns = now_ns;
  }
}

// Of whoever is the first to lose it.
std::uint64_t Beside::patience_ends(double gain) const {
  if (options_.slowdown == 0 || gain < loss(options_.patience)) return 0;
  const double slowdown = options_.slowdown / 100.0;
  // What others cost of the time that they are there. Never so little that nobody is ever alone.
  const double costs = std::max(-std::expm1(gain), slowdown);
  std::uint64_t ends_ns = runtime::kNever;
  for (const Known& known : known_) {
    if (known.began_ns == 0) continue;
    // As it would be without the others.
    const double long_ns = static_cast<double>(known.stretches.long_ns()) / (1 + slowdown);
    ends_ns =
        std::min(ends_ns, known.began_ns + static_cast<std::uint64_t>(long_ns * slowdown / costs));
  }
  return ends_ns == runtime::kNever ? 0 : ends_ns;
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
    known.launches += launches;
    if (!known.first) {  // not any more, perhaps
      known.state = State::kRests;
      continue;
    }
    const RightOfWay::Client* const client = first.find(known.client);
    follow(known, client != nullptr ? state_of(*client) : State::kRests, launches > 0, passed_ns);
  }
}

Beside::State Beside::state_of(const RightOfWay::Client& client) {
  if (client.asks) return State::kAsks;
  if (client.asked_back || (client.drains && !client.holds)) return State::kLeaves;
  return client.holds ? State::kHolds : State::kRests;
}

void Beside::follow(Known& known, State state, bool launched, std::uint64_t passed_ns) {
  const State before = std::exchange(known.state, state);
  if (before == State::kAsks) known.busy_ns += passed_ns;
  if (before == State::kHolds) known.quiet_ns += passed_ns;
  if (before == State::kLeaves) known.leaving_ns += passed_ns;
  // It launched, or it gave back by itself what it had, when that had ended.
  const bool gave_back = before == State::kHolds && state == State::kRests;
  // Or it was asked for it, and something still ran there.
  const bool left = before == State::kLeaves && state != State::kLeaves;
  if (launched || gave_back || (left && known.leaving_ns > kAtOnce))
    known.busy_ns += std::exchange(known.quiet_ns, 0);
  if (!left) return;
  if (known.leaving_ns > kAtOnce) known.busy_ns += known.leaving_ns;
  known.quiet_ns = known.leaving_ns = 0;
}

void Beside::begin_slice(Kind kind) {
  for (Known& known : known_) known.busy_ns = known.launches = 0;
  measures_ = true;
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
