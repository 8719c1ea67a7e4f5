// SPDX-License-Identifier: Apache-2.0
#include "policies/step_curve.h"

#include <algorithm>
#include <iterator>

#include "policies/curves.h"

namespace vitamin::policies {

using runtime::PoolEntry;

namespace {
constexpr unsigned kEnough = 3;  // steps
// What is about half as wide may be as good: a few steps there show it, and are not many.
constexpr double kWorthTrying = 2.3;
// Towards shorter steps at once, towards longer ones slowly: what makes a step longer is as often
// that its client had nothing to do in between. What is longer by a factor is a pause, unless there
// are some of them without a step in between.
constexpr double kShorter = 0.2, kLonger = 0.02, kPause = 4;
constexpr unsigned kPauses = 5;
}  // namespace

void StepCurve::add(std::uint32_t processors, double ratio) {
  const auto at = std::lower_bound(widths_.begin(), widths_.end(), processors, narrower);
  if (at == widths_.end() || at->processors != processors) {
    widths_.insert(at, {processors, ratio});
    return;
  }
  // The first few may have met a pause: the best of them is where it begins.
  if (++at->steps <= kEnough) {
    at->ratio = std::min(at->ratio, ratio);
    return;
  }
  if (ratio > kPause * at->ratio) {
    if (++at->pauses < kPauses) return;
    at->ratio = ratio;
  }
  at->pauses = 0;
  at->ratio += (ratio < at->ratio ? kShorter : kLonger) * (ratio - at->ratio);
}

bool StepCurve::known(std::uint32_t processors) const {
  const auto at = std::lower_bound(seen_.begin(), seen_.end(), processors, narrower);
  return at != seen_.end() && at->processors == processors;
}

double StepCurve::guess(std::uint32_t processors) const {
  const double m = processors;
  const auto wider = std::lower_bound(seen_.begin(), seen_.end(), processors, narrower);
  if (wider != seen_.end() && wider->processors == processors) return wider->ratio;
  if (seen_.size() == 1 || wider == seen_.begin()) {
    // Much narrower than all: as if shared from where it is worth trying.
    const Width& narrowest = seen_.front();
    const double least = narrowest.processors / kWorthTrying;
    if (m < least) return along(least) * least / m;
  }
  return along(m);
}

// Latency and shared work, a + b / m, through the two that are around it or next to it; through one
// it is as good narrower and as if shared wider.
double StepCurve::along(double m) const {
  const Width& last = seen_.back();
  double ratio = 0;
  if (seen_.size() == 1) {
    ratio = m < last.processors ? last.ratio : last.ratio * last.processors / m;
  } else {
    auto to = std::find_if(seen_.begin() + 1, seen_.end(),
                           [&](const Width& width) { return width.processors >= m; });
    if (to == seen_.end()) --to;
    const Width& from = to[-1];
    const double shared =
        std::max(0.0, (from.ratio - to->ratio) / (1.0 / from.processors - 1.0 / to->processors));
    ratio = from.ratio + shared * (1 / m - 1.0 / from.processors);
  }
  // Wider than all is never better than was said, but where narrower was.
  return m > last.processors ? std::max(ratio, std::min(1.0, last.ratio)) : ratio;
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
                                          mostly_shared(whole, static_cast<float>(processors)));
  }
  for (std::size_t i = 2; i < curve_.size(); ++i) curve_[i] = std::min(curve_[i], curve_[i - 1]);
  curve_[0] = 1;  // what the client says is of the whole device
}

}  // namespace vitamin::policies
