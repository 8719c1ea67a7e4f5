// SPDX-License-Identifier: Apache-2.0
//
// Pools, profiles and policies that the tests of this folder share.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "policies/registry.h"
#include "runtime/pool_layout.h"
#include "runtime/profile.h"

namespace vitamin::policies {

inline hal::DeviceInfo device(unsigned units, std::uint32_t each, std::uint32_t last) {
  hal::DeviceInfo info;
  info.processors_per_unit.assign(units - 1, each);
  info.processors_per_unit.push_back(last);
  info.processors = (units - 1) * each + last;
  return info;
}

inline hal::DeviceInfo h200() { return device(16, 8, 12); }

inline std::unique_ptr<runtime::Policy> policy(const std::string& specification,
                                               std::uint64_t seed = 1) {
  auto made = make(specification, seed);
  REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
  return std::move(*made);
}

// T(m) = latency + shared / m, measured at every width of the layout; no better beyond `useful`.
inline void measure(runtime::Profile& profile, std::uint64_t kernel,
                    const runtime::PoolLayout& layout, double latency_ns, double shared_ns,
                    std::uint32_t useful = ~0U) {
  for (const runtime::PoolEntry& entry : layout.entries())
    for (int i = 0; i < 10; ++i)
      profile.add(kernel, entry.processors,
                  latency_ns + shared_ns / std::min(entry.processors, useful));
}

}  // namespace vitamin::policies
