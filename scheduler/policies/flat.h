// SPDX-License-Identifier: Apache-2.0
//
// The values of scheduler/types.h as the flat structures of vitamin_policy.h, and back.
//
// Ownership: a FlatSnapshot owns all that its view() refers to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "scheduler/policies/vitamin_policy.h"
#include "scheduler/policy.h"

namespace vitamin::scheduler {

// A structure of `size` bytes that a policy gives, which may have fewer fields than the one
// declared here, or more: those that it lacks are 0.
template <class Flat>
Flat complete(const void* given, std::size_t size) {
  Flat whole{};
  std::memcpy(&whole, given, std::min(size, sizeof whole));
  whole.size = sizeof whole;
  return whole;
}

vitamin_partition flat(const Partition& partition);
vitamin_stream flat(const StreamDemand& stream);
vitamin_step flat(const Step& step);
vitamin_client flat(const Client& client);  // without its streams and steps
vitamin_grant flat(const Grant& grant);
vitamin_row flat(const Row& row);
// Numbers beyond the range of a field stay beyond any valid value, for clip() to see.
Row from_flat(const vitamin_row& row);
PartitionId partition_from_flat(std::uint32_t partition);

class FlatSnapshot {
 public:
  FlatSnapshot() = default;
  FlatSnapshot(const FlatSnapshot&) = delete;
  FlatSnapshot& operator=(const FlatSnapshot&) = delete;
  void fill(const Snapshot& snapshot);
  const vitamin_snapshot& view() const { return view_; }
  const std::vector<vitamin_partition>& partitions() const { return partitions_; }

 private:
  static int speed(const vitamin_snapshot* snapshot, std::uint32_t client, std::uint32_t partition,
                   float* mean, float* error);

  std::vector<vitamin_partition> partitions_;
  std::vector<vitamin_client> clients_;
  std::vector<vitamin_stream> streams_;
  std::vector<vitamin_step> steps_;
  std::vector<vitamin_grant> grants_;
  std::vector<vitamin_row> current_;
  std::vector<std::uint32_t> changed_;
  std::vector<Estimates::Speed> speeds_;  // by index of the client, then by partition
  vitamin_snapshot view_{};
};

}  // namespace vitamin::scheduler
