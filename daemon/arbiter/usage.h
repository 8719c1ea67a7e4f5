// SPDX-License-Identifier: Apache-2.0
//
// What one client has used of a device. Pure: time is an argument and never goes back.
//
// A client has SMs from when a grant opens until it is returned, drained work included. SMs on
// which it has several grants count once; SMs that several clients share count for each of them.
// Busy SMs are those that it has while operations of it are outstanding, by its own word and only
// while it measures that; never more than it has.
#pragma once

#include <algorithm>
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
  std::uint64_t operations = 0;  // launches and others that it submitted, by its own word
  // Of sm_ns: while it measured its busy time, and of these while it was busy.
  std::uint64_t measured_sm_ns = 0;
  std::uint64_t busy_sm_ns = 0;
  UsageTotals& operator+=(const UsageTotals& other) {
    sm_ns += other.sm_ns;
    held_ns += other.held_ns;
    wait_ns += other.wait_ns;
    grants += other.grants;
    operations += other.operations;
    measured_sm_ns += other.measured_sm_ns;
    busy_sm_ns += other.busy_sm_ns;
    return *this;
  }
};

class Usage {
 public:
  // The grants on these units are one more, or one less.
  void takes(hal::ComputeSet units, const scheduler::UnitWidths& widths, std::uint64_t now_ns) {
    change(units, widths, now_ns, 1);
  }
  void returns(hal::ComputeSet units, const scheduler::UnitWidths& widths, std::uint64_t now_ns) {
    change(units, widths, now_ns, -1);
  }
  void granted() { ++totals_.grants; }
  void waited(std::uint64_t ns) { totals_.wait_ns += ns; }
  // It measures its busy time from now on, or not any more.
  void measures(bool on, std::uint64_t now_ns) {
    settle(now_ns);
    measures_ = on;
  }
  // So far it measured `busy_ns` (ClientSegment::busy_ns). Counts with the SMs that it had on
  // average since the call before.
  void busy(std::uint64_t busy_ns, std::uint64_t now_ns) {
    const std::uint64_t sm_ns = totals(now_ns).measured_sm_ns, ns = measured_ns(now_ns);
    if (ns > looked_.ns && busy_ns > looked_.busy_ns) {
      const double share = static_cast<double>(busy_ns - looked_.busy_ns) /
                           static_cast<double>(ns - looked_.ns);
      totals_.busy_sm_ns += static_cast<std::uint64_t>(
          std::min(share, 1.0) * static_cast<double>(sm_ns - looked_.sm_ns));
    }
    looked_ = {sm_ns, ns, busy_ns};
  }

  std::uint32_t sms() const { return sms_; }
  UsageTotals totals(std::uint64_t now_ns) const {
    UsageTotals all = totals_;
    const std::uint64_t passed = passed_ns(now_ns);
    all.sm_ns += sms_ * passed;
    all.held_ns += sms_ != 0 ? passed : 0;
    all.measured_sm_ns += measures_ ? sms_ * passed : 0;
    return all;
  }

 private:
  void settle(std::uint64_t now_ns) {
    totals_ = totals(now_ns);
    measured_ns_ = measured_ns(now_ns);
    since_ns_ = now_ns;
  }
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
    settle(now_ns);
    sms_ = by > 0 ? sms_ + widths.of(changed) : sms_ - widths.of(changed);
  }

  std::uint64_t passed_ns(std::uint64_t now_ns) const {
    return now_ns > since_ns_ ? now_ns - since_ns_ : 0;
  }
  std::uint64_t measured_ns(std::uint64_t now_ns) const {
    return measured_ns_ + (measures_ && sms_ != 0 ? passed_ns(now_ns) : 0);
  }

  struct Look {
    std::uint64_t sm_ns = 0, ns = 0, busy_ns = 0;
  };
  std::array<std::uint32_t, hal::ComputeSet::kMaxUnits> grants_{};
  std::uint32_t sms_ = 0;
  bool measures_ = false;
  std::uint64_t since_ns_ = 0;     // totals_ and measured_ns_ are of that time
  std::uint64_t measured_ns_ = 0;  // during which it had SMs and measured
  UsageTotals totals_;
  Look looked_;  // of busy(), the last time
};

}  // namespace vitamin::daemon
