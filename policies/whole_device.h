// SPDX-License-Identifier: Apache-2.0
//
// The whole device is nobody's lease: what runs there runs beside everybody else's. Policies that
// give parts to clients send only those there whom no part could hold; all others wait for one.
#pragma once

#include <cstdint>

#include "runtime/policy.h"

namespace vitamin::policies {

// Whether an entry made of units, of `narrowest` to `widest` processors, could run the operation if
// nobody held it. False where a process decides for itself alone: there nobody else gives it back.
inline bool waits_for_a_part(const runtime::ReadyOperation& operation,
                             const runtime::PoolView& pool, std::uint32_t narrowest = 1,
                             std::uint32_t widest = ~0U) {
  if (pool.epoch == 0) return false;
  for (const runtime::PoolEntry& entry : pool.entries)
    if (!entry.whole() && entry.processors >= operation.processors &&
        entry.processors >= narrowest && entry.processors <= widest)
      return true;
  return false;
}

}  // namespace vitamin::policies
