// SPDX-License-Identifier: Apache-2.0
//
// What the steps of one client take on every entry, measured on the steps themselves. A step is
// many kernels and the host's work between them: none of its kernels' curves is its own.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/policy.h"

namespace vitamin::policies {

class StepCurve {
 public:
  // A step ran on so many processors and took `ratio` times what its client had said of it.
  void add(std::uint32_t processors, double ratio);
  // Enough steps have, somewhere: as of the last update().
  bool known() const { return !seen_.empty(); }
  bool known(std::uint32_t processors) const;
  // By EntryId: times what the client says of a step, never less on a narrower entry; as of the
  // last update(), empty before. A width that was not tried is as those that were make it (latency
  // and shared work); when there is only one, about half of it is taken to be as good, so that it
  // will be tried. Without any, `kernel` (policies/curves.h) and a curve that is nearly all shared
  // work, whichever is worse.
  std::span<const float> values() const { return curve_; }
  void update(std::span<const runtime::PoolEntry> entries, std::span<const float> kernel);

 private:
  struct Width {
    std::uint32_t processors;
    double ratio;
    unsigned steps = 1;
    unsigned pauses = 0;  // since the last step that was none
  };
  static bool narrower(const Width& width, std::uint32_t processors) {
    return width.processors < processors;
  }
  double guess(std::uint32_t processors) const;
  double along(double processors) const;

  std::vector<Width> widths_;  // narrowest first
  std::vector<Width> seen_;    // of them, those of enough steps
  std::vector<float> curve_;
};

}  // namespace vitamin::policies
