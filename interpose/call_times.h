// SPDX-License-Identifier: Apache-2.0
//
// How long the program's calls of each overridden entry point take, the driver's part included.
// Only in a library that is built with VITAMIN_CALL_TIMES and that bench/call_times.py preloads;
// elsewhere this compiles to nothing.
#pragma once

#include <cstdint>

#include "interpose/entry_points.h"

namespace vitamin::interpose {

#if defined(VITAMIN_CALL_TIMES)

// Times one call, unless it comes from inside our own code or the driver's. Any thread.
class CallTimer {
 public:
  explicit CallTimer(Symbol symbol);
  ~CallTimer();
  CallTimer(const CallTimer&) = delete;
  CallTimer& operator=(const CallTimer&) = delete;

 private:
  const Symbol symbol_;
  std::uint64_t begun_ns_;  // 0: not timed
};

#else

struct CallTimer {
  explicit CallTimer(Symbol) {}
};

#endif

}  // namespace vitamin::interpose
