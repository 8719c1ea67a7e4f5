// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace vitamin::interpose {

// What the description of an array says that it takes; width 0: nothing (sparse, or mapped later).
struct ArrayShape {
  std::uint64_t element = 0;  // bits of one
  std::uint64_t width = 0, height = 0, depth = 0;
  bool layered = false;  // the depth is the same in every level
  unsigned levels = 1;
};

}  // namespace vitamin::interpose
