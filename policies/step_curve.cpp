// SPDX-License-Identifier: Apache-2.0
#include "policies/step_curve.h"

#include <algorithm>

namespace vitamin::policies {

using runtime::PoolEntry;

namespace {
constexpr unsigned kEnough = 3;  // steps
// Towards shorter steps at once, towards longer ones slowly: what makes a step longer is as often
// that its client had nothing to do in between. And a pause counts no more than this many steps.
constexpr double kShorter = 0.2, kLonger = 0.02, kLongest = 4;
}  // namespace

void StepCurve::add(std::uint32_t processors, double ratio) {
  auto at = std::lower_bound(
      widths_.begin(), widths_.end(), processors,
      [](const Width& width, std::uint32_t wanted) { return width.processors < wanted; });
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

bool StepCurve::known() const {
  return std::any_of(widths_.begin(), widths_.end(),
                     [](const Width& width) { return width.steps >= kEnough; });
}

double StepCurve::guess(std::uint32_t processors) const {
  const Width* narrower = nullptr;
  for (const Width& width : widths_) {
    if (width.steps < kEnough) continue;
    if (width.processors == processors) return width.ratio;
    if (width.processors > processors)
      return width.ratio * width.processors / static_cast<double>(processors);
    narrower = &width;
  }
  // Wider than all: as if the work were shared, until it is seen; never better than was said.
  return std::max(1.0, narrower->ratio * narrower->processors / static_cast<double>(processors));
}

void StepCurve::update(std::span<const PoolEntry> entries, std::span<const float> kernel) {
  const bool by_steps = known();
  const float whole = static_cast<float>(entries.front().processors);
  curve_.resize(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::uint32_t processors = std::max(entries[i].processors, 1U);
    curve_[i] = by_steps ? static_cast<float>(guess(processors))
                         : std::max(kernel[i] / kernel[0],
                                    0.1F + 0.9F * whole / static_cast<float>(processors));
  }
  for (std::size_t i = 2; i < curve_.size(); ++i) curve_[i] = std::min(curve_[i], curve_[i - 1]);
  curve_[0] = 1;  // what the client says is of the whole device
}

}  // namespace vitamin::policies
