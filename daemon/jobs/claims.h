// SPDX-License-Identifier: Apache-2.0
//
// The Kubernetes claims that are prepared on this node (resource.k8s.io): how much of which GPU the
// processes of a pod may use. The DRA driver, which runs as root, registers a claim when it is
// prepared and ends it when it is unprepared. A claim without pods may be used by any process that
// names it: a UID cannot be guessed.
//
// Requests are text, as in daemon/jobs/jobs.h: "claim-begin CLAIM POD SHARE CLASS MEMORY DEVICES"
// and "claim-end CLAIM", where
//   CLAIM    UID and number of the request in it: "UID.0"; to end all of the claim: "UID"
//   POD      UID of a pod that may use it, or "-"; further pods are added by further claim-begins
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
  std::uint32_t number = 0;  // identifies the claim while it is registered; never 0
  std::set<std::string, std::less<>> pods;
  std::uint32_t share = 100;
  std::string workload_class;  // empty: none
  std::uint64_t memory = 0;    // bytes of each device; 0: no bound
  std::vector<std::string> devices;
};

class Claims {
 public:
  // The most registered claims, so that a driver that never ends one does not exhaust memory.
  static constexpr std::size_t kMost = 4096;

  // `words`: the text behind "claim-begin ". If the claim is registered, the pod is added to it and
  // everything else replaced. The error is a sentence: malformed words, more claims than kMost, or
  // shares of a device that add up to more than 100 percent.
  hal::Status begin(std::string_view words);
  // Returns the number of claims that it ended; none is no error.
  std::size_t end(std::string_view claim);

  // The claim of a client. `pod`: the pod of its control group, or ""; `named`: the claim that it
  // names, or "". The named claim if its pod may use it, else the largest of its pod. Valid until
  // the next begin() or end().
  struct Found {
    std::string_view name;
    const ClaimedShare* claim = nullptr;
  };
  Found of(std::string_view pod, std::string_view named) const;
  bool bounds_memory() const;  // some claim has a memory quota
  nlohmann::json status() const;

 private:
  std::map<std::string, ClaimedShare, std::less<>> claims_;
  std::uint32_t begun_ = 0;
};

}  // namespace vitamin::daemon
