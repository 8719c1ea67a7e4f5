// SPDX-License-Identifier: Apache-2.0
//
// What a program says of its work to come: an engine through interpose/advice/, a range of NVTX.
// Advice changes where and when a launch runs, never what it does.
//
// Times are those of CLOCK_MONOTONIC (std::chrono::steady_clock), nanoseconds.
#pragma once

#include <cstdint>

#include "runtime/demand.h"

namespace vitamin::runtime {

struct Advice {
  WorkKind kind = WorkKind::kUnknown;
  std::uint32_t sms = 0;          // wanted at least; 0: no wish
  std::uint64_t ready_at_ns = 0;  // when it can begin; 0: now
  std::uint64_t deadline_ns = 0;  // 0: none
  // Predicted time, alone on the whole device, of all that must be done by the deadline; 0: not
  // said.
  std::uint64_t queued_ns = 0;
};

}  // namespace vitamin::runtime
