// SPDX-License-Identifier: Apache-2.0
//
// Bounds the loop's time for work that no launch waits for (new clients, tools' requests) to a
// share, as a leaky bucket of CPU time: a burst may be spent at once, then each piece of work is
// paid for, at the share, before the next one begins. A piece is never interrupted, so launches
// wait for one piece at most. After a very long piece the next one waits for kLongest at most.
//
// Pure: time is an argument. Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace vitamin::daemon {

class LeakyBucket {
 public:
  static constexpr std::uint64_t kLongest = 200'000'000;  // ns

  // 1 / `parts` of the time, with bursts of `most_ns`.
  constexpr LeakyBucket(std::uint64_t parts, std::uint64_t most_ns)
      : parts_(parts), most_ns_(most_ns * parts) {}

  // When the next piece may begin: at `now_ns`, or later.
  std::uint64_t next(std::uint64_t now_ns) const {
    return paid_ns_ <= now_ns + most_ns_ ? now_ns : paid_ns_ - most_ns_;
  }
  // A piece has ended at `now_ns` and took `took_ns`.
  void spent(std::uint64_t now_ns, std::uint64_t took_ns) {
    paid_ns_ =
        std::min(std::max(paid_ns_, now_ns) + took_ns * parts_, now_ns + most_ns_ + kLongest);
  }

 private:
  std::uint64_t parts_, most_ns_;
  std::uint64_t paid_ns_ = 0;  // when all pieces so far are paid for
};

}  // namespace vitamin::daemon
