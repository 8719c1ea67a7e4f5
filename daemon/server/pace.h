// SPDX-License-Identifier: Apache-2.0
//
// A share of the loop's time for work that nobody's launch waits for: who comes, tools' questions.
// So much may be spent at once; then one piece of work is paid for, at the share, before the next
// one begins. A piece is never interrupted, so what others wait for is at most one;
// nor does one that took long keep the next from beginning for longer than kLongest.
#pragma once

#include <algorithm>
#include <cstdint>

namespace vitamin::daemon {

class Pace {
 public:
  static constexpr std::uint64_t kLongest = 200'000'000;  // ns

  // 1 / `parts` of the time; `most_ns` at once.
  constexpr Pace(std::uint64_t parts, std::uint64_t most_ns)
      : parts_(parts), most_ns_(most_ns * parts) {}

  // When the next piece may begin: at `now_ns`, or later.
  std::uint64_t next(std::uint64_t now_ns) const {
    return paid_ns_ <= now_ns + most_ns_ ? now_ns : paid_ns_ - most_ns_;
  }
  // A piece has ended that took so long.
  void spent(std::uint64_t now_ns, std::uint64_t took_ns) {
    paid_ns_ =
        std::min(std::max(paid_ns_, now_ns) + took_ns * parts_, now_ns + most_ns_ + kLongest);
  }

 private:
  std::uint64_t parts_, most_ns_;
  std::uint64_t paid_ns_ = 0;  // everything until now is paid for then
};

}  // namespace vitamin::daemon
