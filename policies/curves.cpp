// SPDX-License-Identifier: Apache-2.0
#include "policies/curves.h"

#include <algorithm>

namespace vitamin::policies {

using runtime::PoolView;

std::span<const float> Curves::of(std::uint64_t kernel, const PoolView& pool) {
  const std::uint64_t version = pool.profile != nullptr ? pool.profile->version() : 0;
  if (pool.profile != profile_ || version != version_ || pool.entries.size() != entries_) {
    curves_.clear();
    last_ = nullptr;
    profile_ = pool.profile;
    version_ = version;
    entries_ = pool.entries.size();
  }
  // One after the other is asked of the same kernel.
  if (last_ != nullptr && last_->first == kernel) return last_->second;
  const auto [at, fresh] = curves_.try_emplace(kernel);
  last_ = &*at;
  std::vector<float>& curve = at->second;
  if (!fresh) return curve;
  const bool measured = known(kernel, pool);
  const float whole = static_cast<float>(pool.entries.front().processors);
  curve.reserve(pool.entries.size());
  for (const runtime::PoolEntry& entry : pool.entries) {
    const float m = static_cast<float>(std::max(entry.processors, 1U));
    curve.push_back(measured
                        ? static_cast<float>(pool.profile->predict(kernel, entry.processors).ns)
                        : 1e4F * mostly_shared(whole, m));
  }
  // Noise must not make a wider entry look slower: nothing forces a launch to use all of it.
  // Entries come narrowest first, the whole device before all of them.
  float best = curve.size() > 1 ? curve[1] : curve[0];
  for (std::size_t i = 1; i < curve.size(); ++i) curve[i] = best = std::min(best, curve[i]);
  curve[0] = std::min(curve[0], best);
  return curve;
}

bool Curves::known(std::uint64_t kernel, const PoolView& pool) const {
  return pool.profile != nullptr && pool.profile->predict(kernel, 1).ns > 0;
}

std::uint64_t Curves::scaled(std::span<const float> curve, std::uint64_t whole_ns,
                             runtime::EntryId entry) {
  const double ratio = static_cast<double>(curve[entry]) / static_cast<double>(curve[0]);
  return static_cast<std::uint64_t>(static_cast<double>(whole_ns) * ratio);
}

std::uint64_t Curves::scaled(std::uint64_t kernel, std::uint64_t whole_ns, runtime::EntryId entry,
                             const PoolView& pool) {
  return scaled(of(kernel, pool), whole_ns, entry);
}

}  // namespace vitamin::policies
