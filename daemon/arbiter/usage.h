// SPDX-License-Identifier: Apache-2.0
//
// What one client has used of a device. Pure: time is an argument and never goes back.
//
// A client has SMs from when a grant opens until it is returned, draining included. SMs on which it
// has several grants count once; SMs that several clients share count for each of them. Its SMs are
// busy while it has outstanding operations, as it reports itself, and only while it measures that.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "hal/compute_set.h"
#include "scheduler/unit_widths.h"

namespace vitamin::daemon {

struct UsageTotals {
  std::uint64_t sm_ns = 0;    // integral of the SMs that it had over time
  std::uint64_t held_ns = 0;  // time during which it had any
  // Sum over streams, from the request, or the end of the grant before, to a grant or withdrawal.
  std::uint64_t wait_ns = 0;
  std::uint64_t grants = 0;
  std::uint64_t operations = 0;      // submitted launches and other operations, as it reports
  std::uint64_t measured_sm_ns = 0;  // part of sm_ns during which it measured its busy time
  std::uint64_t busy_sm_ns = 0;      // part of measured_sm_ns during which it was busy
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
  // A grant on these units begins, or ends.
  void takes(hal::ComputeSet units, const scheduler::UnitWidths& widths, std::uint64_t now_ns) {
    change(units, widths, now_ns, 1);
  }
  void returns(hal::ComputeSet units, const scheduler::UnitWidths& widths, std::uint64_t now_ns) {
    change(units, widths, now_ns, -1);
  }
  void granted() { ++totals_.grants; }
  void waited(std::uint64_t ns) { totals_.wait_ns += ns; }
  // Whether the client measures its busy time from now on.
  void measures(bool on, std::uint64_t now_ns) {
    settle(now_ns);
    measures_ = on;
  }
  // `busy_ns`: cumulative (ClientSegment::busy_ns). The increase is multiplied by the average
  // number of SMs that the client had since the previous call.
  void busy(std::uint64_t busy_ns, std::uint64_t now_ns) {
    const std::uint64_t sm_ns = totals(now_ns).measured_sm_ns, ns = measured_ns(now_ns);
    if (ns > looked_.ns && busy_ns > looked_.busy_ns) {
      const double share =
          static_cast<double>(busy_ns - looked_.busy_ns) / static_cast<double>(ns - looked_.ns);
      totals_.busy_sm_ns += static_cast<std::uint64_t>(std::min(share, 1.0) *
                                                       static_cast<double>(sm_ns - looked_.sm_ns));
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
  std::uint64_t since_ns_ = 0;     // totals_ and measured_ns_ are as of this time
  std::uint64_t measured_ns_ = 0;  // time during which it had SMs and measured
  UsageTotals totals_;
  Look looked_;  // as of the last busy()
};

}  // namespace vitamin::daemon
