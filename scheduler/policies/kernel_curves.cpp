// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policies/kernel_curves.h"

#include <algorithm>

namespace vitamin::scheduler {
namespace {

constexpr float kSharedWork = 0.9F, kUnknownNs = 1e4F;

}  // namespace

std::span<const float> KernelCurves::of(std::uint64_t kernel) {
  if (profile_ != nullptr && profile_->version() != version_) {
    curves_.clear();
    version_ = profile_->version();
  }
  const auto [at, fresh] = curves_.try_emplace(kernel);
  std::vector<float>& curve = at->second;
  if (!fresh) return curve;
  const bool measured = profile_ != nullptr && profile_->predict(kernel, 1).ns > 0;
  const auto whole = static_cast<float>(pool_.front().sms);
  for (const Partition& partition : pool_) {
    const auto sms = static_cast<float>(std::max(1U, partition.sms));
    curve.push_back(measured ? static_cast<float>(profile_->predict(kernel, partition.sms).ns)
                             : kUnknownNs * (1 - kSharedWork + kSharedWork * whole / sms));
  }
  // Nothing forces a launch to use all of a wider partition: where it seems slower that is noise.
  float best = curve.size() > 1 ? curve[1] : curve[0];
  for (std::size_t i = 1; i < curve.size(); ++i) curve[i] = best = std::min(best, curve[i]);
  curve[0] = std::min(curve[0], best);
  return curve;
}

}  // namespace vitamin::scheduler
