// SPDX-License-Identifier: Apache-2.0
#include "policies/trials.h"

#include <algorithm>
#include <cmath>

namespace vitamin::policies {

using runtime::ClientId;

namespace {

// Of a difference that was measured once: what jobs of some tenths of a second a step show.
constexpr double kUsualSpread = 0.07;
constexpr unsigned kFew = 3;  // pairs, before which nothing is seen to gain
constexpr unsigned kFirstPause = 16, kLongestPause = 256;  // slices
constexpr double kMost = 1;  // what more than that says is not believed: somebody paused
// Who gets on so differently does other work than before.
constexpr double kOtherWork = 0.25;
constexpr std::size_t kTrials = 64;

}  // namespace

void Trials::Estimate::add(double value, unsigned most) {
  value = std::clamp(value, -kMost, kMost);
  // Beyond so many each new one takes the place of an average one.
  if (count == most) squares *= (most - 1.0) / most;
  count = std::min(count + 1, most);
  const double difference = value - mean;
  mean += difference / count;
  squares += difference * (value - mean);
}

// Slices of one kind differ as the two of a pair do, whatever the kinds are. As if two of the usual
// spread had been seen before.
double Trials::Trial::spread() const {
  return std::sqrt((2 * kUsualSpread * kUsualSpread + gain.squares + steps.squares) /
                   (gain.count + steps.count + 1.0));
}

double Trials::Trial::error() const {
  return 2 * spread() / std::sqrt(static_cast<double>(gain.count));
}

// The burden of proof is the other kind's.
bool Trials::gains(const Trial& trial) const {
  return trial.gain.count >= kFew && trial.gain.mean - trial.error() > rules_.worth;
}

bool Trials::clear(const Trial& trial) const {
  const Estimate& gain = trial.gain;
  if (gain.count == 0) return false;
  const double most = gain.mean + trial.error();
  const bool hopeless = most < rules_.worth && most < rules_.lost;
  return hopeless || gain.count == rules_.pairs ||
         (gain.count >= kFew && (gain.mean < rules_.worth || gains(trial)));
}

// The newest last.
Trials::Trial& Trials::trial_of(const Clients& clients) {
  const auto at = std::find_if(trials_.begin(), trials_.end(),
                               [&](const Trial& trial) { return trial.clients == clients; });
  if (at != trials_.end()) {
    std::rotate(at, at + 1, trials_.end());
  } else {
    if (trials_.size() == kTrials) trials_.erase(trials_.begin());
    trials_.emplace_back().clients = clients;
  }
  return trials_.back();
}

std::optional<double> Trials::known_gain(const Clients& clients, std::uint64_t now_ns) const {
  const auto at = std::find_if(trials_.begin(), trials_.end(),
                               [&](const Trial& trial) { return trial.clients == clients; });
  if (at == trials_.end() || at->kind != Kind::kBasic || !clear(*at) || now_ns >= at->try_at_ns)
    return std::nullopt;
  return at->gain.mean - at->error() / 2;
}

void Trials::forget(ClientId client) {
  std::erase_if(trials_, [&](const Trial& trial) {
    return std::binary_search(trial.clients.begin(), trial.clients.end(), client);
  });
}

Trials::Kind Trials::ended(const Clients& clients, Kind kind, double score, std::uint64_t now_ns,
                           std::uint64_t slice_ns) {
  Trial& trial = trial_of(clients);
  if (kind != trial.kind) {
    if (!trial.score) return trial.kind;  // there is nothing to compare it with
    const double gain = kind == Kind::kOther ? score - *trial.score : *trial.score - score;
    judge(trial, gain, now_ns, slice_ns);
    return trial.kind;
  }
  if (trial.score) {
    const double step = score - *trial.score;
    if (trial.decided() && std::abs(step) > std::max(kOtherWork, 3 * trial.spread()))
      trial.gain = {};
    trial.steps.add(step, rules_.pairs);
  }
  trial.score = score;
  if (clear(trial) && now_ns < trial.try_at_ns) return kind;
  return kind == Kind::kBasic ? Kind::kOther : Kind::kBasic;
}

void Trials::judge(Trial& trial, double gain, std::uint64_t now_ns, std::uint64_t slice_ns) {
  // What was known does not hold any more.
  if (trial.decided() && std::abs(gain - trial.gain.mean) > 3 * trial.spread()) trial.gain = {};
  trial.gain.add(gain, rules_.pairs);
  if (!clear(trial)) return;
  const Kind better = gains(trial) ? Kind::kOther : Kind::kBasic;
  const bool confirmed = better == trial.kind && trial.decided();
  trial.pause_ns =
      confirmed ? std::min(2 * trial.pause_ns, kLongestPause * slice_ns) : kFirstPause * slice_ns;
  if (better != trial.kind) trial.score.reset();
  trial.kind = better;
  const double costs = static_cast<double>(slice_ns) * std::abs(trial.gain.mean) / rules_.cost;
  trial.try_at_ns = now_ns + std::max(trial.pause_ns, static_cast<std::uint64_t>(costs));
}

}  // namespace vitamin::policies
