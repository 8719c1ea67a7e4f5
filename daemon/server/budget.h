// SPDX-License-Identifier: Apache-2.0
//
// How many records are taken from a client in a turn of the loop: as many as it may send at once,
// and half as many in each turn after one in which it used them all, down to a few. So a burst
// passes in one turn, and one that never stops takes little of the time in which others wait; it is
// its own ring that is full then.
#pragma once

#include <algorithm>
#include <cstddef>

namespace vitamin::daemon {

class RecordBudget {
 public:
  static constexpr std::size_t kLeast = 4;
  explicit RecordBudget(std::size_t most = kLeast) : most_(most), now_(most) {}

  // In this turn.
  std::size_t left() const { return now_; }
  // So many were taken in it.
  void took(std::size_t records) {
    now_ =
        records >= now_ ? std::max(std::min(kLeast, most_), now_ / 2) : std::min(most_, 2 * now_);
  }

 private:
  std::size_t most_, now_;
};

}  // namespace vitamin::daemon
