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

// A change costs a drain: so much better another arrangement of two services has to be.
constexpr double kBetter = 1.15;
// Of a side that needs nothing.
constexpr double kLeastNeed = 1e-3;

// What stopping the others costs is learned where the service loses half or so.
double margin_ns(const Service::Slack& slack, double speed) {
  return std::min(1.0, 2 * (1 - speed)) * slack.margin_ns;
}

}  // namespace

Arrangements::Arrangements(std::span<const Partition> pool) {
  all_.push_back({});
  const double whole = pool.front().sms;
  std::array<double, 3> nearest{1, 1, 1};
  for (const Partition& left : pool)
    for (const Partition& right : pool) {
      if (left.whole() || right.whole() || right.compute != pool.front().compute - left.compute)
        continue;
      if (std::none_of(all_.begin(), all_.end(),
                       [&](const Arrangement& known) { return known.left_sms == left.sms; }))
        all_.push_back({left.id, right.id, left.sms, right.sms, false});
    }
  // Near a quarter, a half and three quarters.
  for (std::size_t quarter = 0; quarter < nearest.size(); ++quarter) {
    std::size_t best = 0;
    const double wanted = static_cast<double>(quarter + 1) / 4;
    for (std::size_t i = 1; i < all_.size(); ++i) {
      const double off = std::abs(all_[i].left_sms / whole - wanted);
      if (off < nearest[quarter]) nearest[quarter] = off, best = i;
    }
    all_[best].selectable = true;
  }
  all_.push_back({kWholeDevice, kNoPartition, pool.front().sms});
  all_.push_back({kNoPartition, kWholeDevice, 0, pool.front().sms, false});
  tallies_.resize(all_.size());
}

bool Arrangements::Tally::known(std::uint64_t now_ns) const {
  return ns >= kLeastNs && now_ns - std::min(now_ns, at_ns) < kLastsNs;
}

bool Arrangements::Tally::believed(std::uint64_t now_ns) const {
  const double lasts = std::min(1.0, ns / kNewestNs) * static_cast<double>(kLastsNs);
  return known(now_ns) && static_cast<double>(now_ns - std::min(now_ns, at_ns)) < lasts;
}

double Arrangements::Tally::left() const { return std::clamp(done.left_ns / ns, 0.01, 1.0); }
double Arrangements::Tally::right() const { return std::clamp(done.right_ns / ns, 0.01, 1.0); }

void Arrangements::observe(std::size_t i, Situation situation, double passed_ns, const Done& done,
                           std::uint64_t now_ns) {
  Tally& tally = tallies_[i][index(situation)];
  const double kept = std::exp2(-passed_ns / kNewestNs);
  tally.ns = kept * tally.ns + passed_ns;
  tally.done.left_ns = kept * tally.done.left_ns + done.left_ns;
  tally.done.right_ns = kept * tally.done.right_ns + done.right_ns;
  tally.done.work = kept * tally.done.work + done.work;
  tally.at_ns = now_ns;
}

void Arrangements::observe_idle(double passed_ns, double work) {
  const double kept = std::exp2(-passed_ns / kNewestNs);
  idle_.ns = kept * idle_.ns + passed_ns;
  idle_.done.work = kept * idle_.done.work + work;
}

bool Arrangements::bears(std::size_t i, const Service::Slack& slack, StepKind phase) const {
  if (i == right_paused()) return true;
  const Tally& known = tally(i, phase);
  return slack.ns > margin_ns(slack, known.ns > 0 ? known.left() : 0);
}

std::size_t Arrangements::choose(const Service::Slack& slack, StepKind phase,
                                 std::uint64_t now_ns) const {
  // Not known where a service always works; no less than in what may be chosen.
  double h0 = idle_.ns > 0 ? idle_.others() : 0;
  for (std::size_t i = 0; i < right_paused(); ++i)
    if (all_[i].selectable && bears(i, slack, phase) && tally(i, phase).known(now_ns))
      h0 = std::max(h0, tally(i, phase).others());
  std::size_t best = right_paused();
  double most = 0;
  for (std::size_t i = 0; i < right_paused(); ++i) {
    if (!all_[i].selectable || !bears(i, slack, phase)) continue;
    const Tally& known = tally(i, phase);
    if (!known.known(now_ns)) return i;
    const double s = known.left(), lost = 1 / s - 1;
    double work = slack.remaining_ns;
    const double room = slack.ns - margin_ns(slack, s);
    if (lost * work > room) work = room / lost;
    double gain = work * (h0 - (h0 - known.others()) / s);
    if (slack.lost) gain = known.others();
    if (gain > most) best = i, most = gain;
  }
  return best;
}

double Arrangements::headroom(std::size_t i, Situation situation, const Needs& needs) const {
  if (i >= right_paused()) return 0;
  const Tally& known = tally(i, situation);
  return std::min(known.left() / std::max(needs.left, kLeastNeed),
                  known.right() / std::max(needs.right, kLeastNeed));
}

std::size_t Arrangements::divide(Situation situation, const Needs& needs, std::size_t present,
                                 std::uint64_t now_ns) const {
  std::size_t best = right_paused();
  double most = 0;
  for (std::size_t i = 0; i < right_paused(); ++i) {
    if (!all_[i].selectable || all_[i].left_sms < needs.least_left_sms ||
        all_[i].right_sms < needs.least_right_sms)
      continue;
    if (!tally(i, situation).believed(now_ns)) return i;
    double room = headroom(i, situation, needs);
    if (i == present) room *= kBetter;
    if (room > most) best = i, most = room;
  }
  return best;
}

Arrangements::Narrowest Arrangements::narrowest(double alone_ns, double most_ns,
                                                Situation situation, std::uint64_t now_ns) const {
  std::size_t best = right_paused();
  for (std::size_t i = right_paused(); i-- > 1;) {
    if (!all_[i].selectable) continue;
    const Tally& known = tally(i, situation);
    if (!known.known(now_ns)) return {best, i};
    if (alone_ns / known.left() > most_ns) break;
    best = i;
  }
  return {best, right_paused()};
}

std::size_t Arrangements::untried(StepKind phase, std::uint64_t now_ns) const {
  for (std::size_t i = 0; i < right_paused(); ++i)
    if (all_[i].selectable && !tally(i, phase).known(now_ns)) return i;
  return right_paused();
}

Arrangements::Measured Arrangements::measured(std::size_t i, Situation situation,
                                              std::uint64_t now_ns) const {
  if (i == right_paused()) return {true, 1, 0, 0};
  if (i == left_paused()) return {true, 0, 1, 0};
  const Tally& known = tally(i, situation);
  if (!known.known(now_ns)) return {};
  if (situation.two()) return {true, known.left(), known.right(), 0};
  if (idle_.done.work <= 0) return {};
  return {true, known.left(), 0, known.others() / idle_.others()};
}

double Arrangements::most(StepKind phase) const {
  double most = 0;
  for (std::size_t i = 0; i < all_.size(); ++i)
    if (tally(i, phase).ns > 0) most = std::max(most, tally(i, phase).others());
  return most;
}

}  // namespace vitamin::scheduler
