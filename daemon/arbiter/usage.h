// SPDX-License-Identifier: Apache-2.0
//
// What one client has used of a device. Pure: time is an argument and never goes back.
//
// A client has SMs from when a grant opens until it is returned, drained work included. SMs on
// which it has several grants count once; SMs that several clients share count for each of them.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "hal/compute_set.h"
#include "scheduler/unit_widths.h"

namespace vitamin::daemon {

struct UsageTotals {
  std::uint64_t sm_ns = 0;    // SMs that it had, times for how long
  std::uint64_t held_ns = 0;  // during which it had any
  std::uint64_t wait_ns = 0;  // of all streams together, from request to grant or withdrawal
  std::uint64_t grants = 0;
  // The client's own word: launches and other operations that it submitted; how long any of them
  // was outstanding, as far as it measured that (ClientSegment::busy_ns).
  std::uint64_t operations = 0;
  std::uint64_t busy_ns = 0;
  UsageTotals& operator+=(const UsageTotals& other) {
    sm_ns += other.sm_ns;
    held_ns += other.held_ns;
    wait_ns += other.wait_ns;
    grants += other.grants;
    operations += other.operations;
    busy_ns += other.busy_ns;
    return *this;
  }
};

class Usage {
 public:
  void takes(hal::ComputeSet units, const scheduler::UnitWidths& widths, std::uint64_t now_ns) {
    ++totals_.grants;
    change(units, widths, now_ns, 1);
  }
  void returns(hal::ComputeSet units, const scheduler::UnitWidths& widths, std::uint64_t now_ns) {
    change(units, widths, now_ns, -1);
  }
  void waited(std::uint64_t ns) { totals_.wait_ns += ns; }

  std::uint32_t sms() const { return sms_; }
  UsageTotals totals(std::uint64_t now_ns) const {
    UsageTotals all = totals_;
    const std::uint64_t passed = now_ns > since_ns_ ? now_ns - since_ns_ : 0;
    all.sm_ns += sms_ * passed;
    all.held_ns += sms_ != 0 ? passed : 0;
    return all;
  }

 private:
  void change(hal::ComputeSet units, const scheduler::UnitWidths& widths, std::uint64_t now_ns,
              int by) {
    hal::ComputeSet changed;
    for (std::uint64_t bits = units.bits(); bits != 0; bits &= bits - 1) {
      const int unit = std::countr_zero(bits);
      std::uint32_t& grants = grants_[static_cast<std::size_t>(unit)];
      const bool had = grants != 0;
      grants += static_cast<std::uint32_t>(by);
      if (had != (grants != 0)) changed |= hal::ComputeSet(std::uint64_t{1} << unit);
    }
    if (changed.empty()) return;
    totals_ = totals(now_ns);
    since_ns_ = now_ns;
    sms_ = by > 0 ? sms_ + widths.of(changed) : sms_ - widths.of(changed);
  }

  std::array<std::uint32_t, hal::ComputeSet::kMaxUnits> grants_{};
  std::uint32_t sms_ = 0;
  std::uint64_t since_ns_ = 0;
  UsageTotals totals_;
};

}  // namespace vitamin::daemon
