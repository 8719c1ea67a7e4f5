// SPDX-License-Identifier: Apache-2.0
//
// The claims of Kubernetes that are prepared on this node (resource.k8s.io): how much of which GPU
// the processes of a pod may use. Told by the DRA driver, which is root; ended when the claim is
// unprepared. Any process that names a claim without pods has it: a UID cannot be guessed.
//
// Text, as in daemon/jobs/jobs.h: "claim-begin CLAIM POD SHARE CLASS MEMORY DEVICES" and "claim-end
// CLAIM", where
//   CLAIM    UID and number of the request in it: "UID.0"; to end all of it: "UID"
//   POD      UID of a pod that may use it, or "-"; another one is told with another claim-begin
//   SHARE    percent of each device that the claim's processes may have together: 1 to 100
//   CLASS    of vitamin.toml, or "-"
//   MEMORY   bytes of each device that the claim's processes may have together, or "-"
//   DEVICES  UUIDs: "GPU-1,GPU-2"
//
// Threads: the server's only.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hal/result.h"

namespace vitamin::daemon {

struct ClaimedShare {
  std::uint32_t number = 0;  // of this claim, as long as it is known; never 0
  std::set<std::string, std::less<>> pods;
  std::uint32_t share = 100;
  std::string workload_class;  // empty: none
  std::uint64_t memory = 0;    // bytes of each device; 0: no bound
  std::vector<std::string> devices;
};

class Claims {
 public:
  static constexpr std::size_t kMost = 4096;  // claims; a driver that ends none fills no memory

  // `words`: what stands behind "claim-begin ". A claim that is known has the pod added and is
  // otherwise replaced. Error, with a sentence: malformed words, more claims than kMost, or
  // shares of a device that add up to more than 100.
  hal::Status begin(std::string_view words);
  // How many that ended; none is no error.
  std::size_t end(std::string_view claim);

  // Of a client whose control group is of this pod ("": of none), and which names a claim ("": it
  // does not): the claim that it names, if its pod may use it; else the largest of its pod. Valid
  // until the next begin() or end().
  struct Found {
    std::string_view name;
    const ClaimedShare* claim = nullptr;
  };
  Found of(std::string_view pod, std::string_view named) const;
  bool bounds_memory() const;  // of any claim
  nlohmann::json status() const;

 private:
  std::map<std::string, ClaimedShare, std::less<>> claims_;
  std::uint32_t begun_ = 0;
};

}  // namespace vitamin::daemon
