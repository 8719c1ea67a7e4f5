// SPDX-License-Identifier: Apache-2.0
//
// How many records are taken from one client in a turn of the loop: `most`, and half as many in
// each turn after one in which all were used, down to kLeast; it doubles again after a turn in
// which some were left. So a burst is taken in one turn, while a client that never stops fills its
// own ring instead of the time in which other clients wait.
#pragma once

#include <algorithm>
#include <cstddef>

namespace vitamin::daemon {

class RecordBudget {
 public:
  static constexpr std::size_t kLeast = 4;
  explicit RecordBudget(std::size_t most = kLeast) : most_(most), now_(most) {}

  // The most records to take in this turn.
  std::size_t left() const { return now_; }
  // Ends the turn, in which so many were taken.
  void took(std::size_t records) {
    now_ =
        records >= now_ ? std::max(std::min(kLeast, most_), now_ / 2) : std::min(most_, 2 * now_);
  }

 private:
  std::size_t most_, now_;
};

}  // namespace vitamin::daemon
