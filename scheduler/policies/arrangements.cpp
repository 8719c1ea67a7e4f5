// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policies/arrangements.h"

#include <algorithm>
#include <cmath>

namespace vitamin::scheduler {
namespace {

// What is known is that of the newest second or so of an arrangement, from so much of it on, and is
// tried anew after a minute.
constexpr double kNewestNs = 1e9, kLeastNs = 10e6;
constexpr std::uint64_t kLastsNs = 60'000'000'000;

// What stopping the others costs is learned where the service loses half or so.
double margin_ns(const Service::Slack& slack, double speed) {
  return std::min(1.0, 2 * (1 - speed)) * slack.margin_ns;
}

}  // namespace

Arrangements::Arrangements(std::span<const Partition> pool) {
  all_.push_back({});
  const double whole = pool.front().processors;
  std::array<double, 3> nearest{1, 1, 1};
  for (const Partition& left : pool)
    for (const Partition& right : pool) {
      if (left.whole() || right.whole() || right.compute != pool.front().compute - left.compute)
        continue;
      if (std::none_of(all_.begin(), all_.end(),
                       [&](const Arrangement& known) { return known.left_sms == left.processors; }))
        all_.push_back({left.id, right.id, left.processors, false});
    }
  // Near a quarter, a half and three quarters.
  for (std::size_t quarter = 0; quarter < nearest.size(); ++quarter) {
    std::size_t best = 0;
    const double wanted = static_cast<double>(quarter + 1) / 4;
    for (std::size_t i = 1; i < all_.size(); ++i) {
      const double off = std::abs(all_[i].left_sms / whole - wanted);
      if (off < nearest[quarter]) nearest[quarter] = off, best = i;
    }
    all_[best].raced = true;
  }
  all_.push_back({kWholeDevice, kNoPartition, pool.front().processors});
  tallies_.resize(all_.size());
}

bool Arrangements::Tally::known(std::uint64_t now_ns) const {
  return ns >= kLeastNs && now_ns - std::min(now_ns, at_ns) < kLastsNs;
}

double Arrangements::Tally::speed() const { return std::clamp(served / ns, 0.01, 1.0); }

void Arrangements::observe(std::size_t i, StepKind phase, double passed_ns, double served,
                           double work, std::uint64_t now_ns) {
  Tally& tally = tallies_[i][static_cast<std::size_t>(phase)];
  const double kept = std::exp2(-passed_ns / kNewestNs);
  tally.ns = kept * tally.ns + passed_ns;
  tally.served = kept * tally.served + served;
  tally.work = kept * tally.work + work;
  tally.at_ns = now_ns;
}

void Arrangements::observe_idle(double passed_ns, double work) {
  const double kept = std::exp2(-passed_ns / kNewestNs);
  idle_.ns = kept * idle_.ns + passed_ns;
  idle_.work = kept * idle_.work + work;
}

bool Arrangements::bears(std::size_t i, const Service::Slack& slack, StepKind phase) const {
  if (i == alone()) return true;
  const Tally& known = tally(i, phase);
  return slack.ns > margin_ns(slack, known.ns > 0 ? known.speed() : 0);
}

std::size_t Arrangements::choose(const Service::Slack& slack, StepKind phase,
                                 std::uint64_t now_ns) const {
  const double h0 = idle_.ns > 0 ? idle_.others() : 0;
  std::size_t best = alone();
  double most = 0;
  for (std::size_t i = 0; i < alone(); ++i) {
    if (!all_[i].raced || !bears(i, slack, phase)) continue;
    const Tally& known = tally(i, phase);
    if (!known.known(now_ns)) return i;
    const double s = known.speed(), lost = 1 / s - 1;
    double work = slack.remaining_ns;
    const double room = slack.ns - margin_ns(slack, s);
    if (lost * work > room) work = room / lost;
    double gain = work * (h0 - (h0 - known.others()) / s);
    if (slack.lost) gain = known.others();
    if (gain > most) best = i, most = gain;
  }
  return best;
}

Arrangements::Narrowest Arrangements::narrowest(double alone_ns, double most_ns, StepKind phase,
                                                std::uint64_t now_ns) const {
  std::size_t best = alone();
  for (std::size_t i = alone(); i-- > 1;) {
    if (!all_[i].raced) continue;
    const Tally& known = tally(i, phase);
    if (!known.known(now_ns)) return {best, i};
    if (alone_ns / known.speed() > most_ns) break;
    best = i;
  }
  return {best, alone()};
}

std::size_t Arrangements::untried(StepKind phase, std::uint64_t now_ns) const {
  for (std::size_t i = 0; i < alone(); ++i)
    if (all_[i].raced && !tally(i, phase).known(now_ns)) return i;
  return alone();
}

Arrangements::Measured Arrangements::measured(std::size_t i, StepKind phase,
                                               std::uint64_t now_ns) const {
  if (i == alone()) return {true, 1, 0};
  const Tally& known = tally(i, phase);
  if (!known.known(now_ns) || idle_.work <= 0) return {};
  return {true, known.speed(), known.others() / idle_.others()};
}

double Arrangements::most(StepKind phase) const {
  double most = 0;
  for (std::size_t i = 0; i < all_.size(); ++i)
    if (tally(i, phase).ns > 0) most = std::max(most, tally(i, phase).others());
  return most;
}

}  // namespace vitamin::scheduler
