// SPDX-License-Identifier: Apache-2.0
//
// The clock of everything that is measured, awaited or promised: steady, in nanoseconds, the same
// for all processes of a time namespace. It starts anywhere; only differences mean something.
#pragma once

#include <chrono>
#include <cstdint>

namespace vitamin::runtime {

inline std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

}  // namespace vitamin::runtime
