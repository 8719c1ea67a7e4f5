// SPDX-License-Identifier: Apache-2.0
#include "policies/step_curve.h"

#include <algorithm>
#include <iterator>

namespace vitamin::policies {

using runtime::PoolEntry;

namespace {
constexpr unsigned kEnough = 3;  // steps
// What is about half as wide may be as good: a few steps there show it, and are not many.
constexpr double kWorthTrying = 2.3;
// Towards shorter steps at once, towards longer ones slowly: what makes a step longer is as often
// that its client had nothing to do in between. And a pause counts no more than this many steps.
constexpr double kShorter = 0.2, kLonger = 0.02, kLongest = 4;
}  // namespace

void StepCurve::add(std::uint32_t processors, double ratio) {
  const auto at = std::lower_bound(widths_.begin(), widths_.end(), processors, narrower);
  if (at == widths_.end() || at->processors != processors) {
    widths_.insert(at, {processors, 1, ratio});
    return;
  }
  // The first few may have met a pause: the best of them is where it begins.
  if (++at->steps <= kEnough) {
    at->ratio = std::min(at->ratio, ratio);
    return;
  }
  ratio = std::min(ratio, kLongest * at->ratio);
  at->ratio += (ratio < at->ratio ? kShorter : kLonger) * (ratio - at->ratio);
}

double StepCurve::guess(std::uint32_t processors) const {
  const double m = processors;
  const auto wider = std::lower_bound(seen_.begin(), seen_.end(), processors, narrower);
  // Beyond all: as if the work were shared, but never better than was said.
  if (wider == seen_.end()) return std::max(1.0, seen_.back().ratio * seen_.back().processors / m);
  if (wider->processors == processors) return wider->ratio;
  if (seen_.size() == 1) {
    const double share = wider->processors / m;
    return wider->ratio * (share <= kWorthTrying ? 1 : share);
  }
  // Latency and shared work, a + b / m, through the two around it, or the two narrowest.
  const Width& one = wider == seen_.begin() ? wider[0] : wider[-1];
  const Width& other = wider == seen_.begin() ? wider[1] : wider[0];
  const double shared = (one.ratio - other.ratio) / (1.0 / one.processors - 1.0 / other.processors);
  return one.ratio + std::max(0.0, shared) * (1 / m - 1.0 / one.processors);
}

void StepCurve::update(std::span<const PoolEntry> entries, std::span<const float> kernel) {
  seen_.clear();
  std::copy_if(widths_.begin(), widths_.end(), std::back_inserter(seen_),
               [](const Width& width) { return width.steps >= kEnough; });
  const float whole = static_cast<float>(entries.front().processors);
  curve_.resize(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::uint32_t processors = std::max(entries[i].processors, 1U);
    curve_[i] = !seen_.empty() ? static_cast<float>(guess(processors))
                               : std::max(kernel[i] / kernel[0],
                                          0.1F + 0.9F * whole / static_cast<float>(processors));
  }
  for (std::size_t i = 2; i < curve_.size(); ++i) curve_[i] = std::min(curve_[i], curve_[i - 1]);
  curve_[0] = 1;  // what the client says is of the whole device
}

}  // namespace vitamin::policies
