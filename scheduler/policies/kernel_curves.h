// SPDX-License-Identifier: Apache-2.0
//
// The time of a kernel on every partition of the pool, from profiles of single launches.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/profile/profile.h"
#include "scheduler/types.h"

namespace vitamin::scheduler {

class KernelCurves {
 public:
  KernelCurves(std::span<const Partition> pool, const runtime::Profile* profile)
      : pool_(pool), profile_(profile) {}
  // Nanoseconds by PartitionId, never more on a wider partition. Of a kernel of which nothing is
  // known only ratios mean anything: nine tenths of it are work that SMs share. Valid until the
  // next call after the profile has changed. Allocates for a kernel that is new.
  std::span<const float> of(std::uint64_t kernel);

 private:
  std::span<const Partition> pool_;
  const runtime::Profile* profile_;
  std::unordered_map<std::uint64_t, std::vector<float>> curves_;
  std::uint64_t version_ = 0;
};

}  // namespace vitamin::scheduler
