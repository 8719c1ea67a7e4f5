// SPDX-License-Identifier: Apache-2.0
//
// Quotas of device memory of vitamin.toml's classes, and of steps of Slurm and claims of Kubernetes
// that were told one (daemon/jobs): for each group and device a ledger
// (daemon/protocol/quota_ledger.h) that its processes share and count in by themselves. The daemon
// says which groups a process is of, and takes back what the dead had.
//
// A ledger is a member's to write: quotas hold among programs that mean well. Ledgers end with the
// daemon; its clients go on with theirs, and who comes later begins another one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "daemon/config/configuration.h"
#include "daemon/config/value.h"
#include "daemon/jobs/groups.h"
#include "hal/result.h"

namespace vitamin::daemon {

class MemoryQuotas {
 public:
  MemoryQuotas();
  ~MemoryQuotas();

  struct Bound {
    int file = -1;
    std::uint64_t quota = 0;
    std::string whose;
  };
  // Of the class on a device with so much memory; the class has a quota.
  hal::Result<Bound> bound(const config::WorkloadClass& workload, const Member& member,
                           const std::string& uuid, std::uint64_t total, std::uint64_t now_ns);
  // Of a step or claim, "of job 12.0", on such a device.
  hal::Result<Bound> bound(const std::string& whose, const config::MemoryBound& memory,
                           const std::string& uuid, std::uint64_t total, std::uint64_t now_ns);
  // The classes may have other quotas now.
  void apply(const config::Configuration& configuration);
  // Everything that members have, after what dead ones had was given back.
  nlohmann::json status(std::uint64_t now_ns);

  struct Sum {
    std::uint64_t quota = 0, used = 0;
  };
  // By device and class; class "" is all steps and claims.
  std::map<std::pair<std::string, std::string>, Sum> sums(std::uint64_t now_ns);

  // What the process has of the device, if it counts in a ledger there.
  std::optional<std::uint64_t> used_by(std::int32_t process, const std::string& uuid) const;

  // What a member is called in ledgers; 0: the daemon cannot see it.
  static std::uint64_t owner(const Member& member);

 private:
  struct Group;
  hal::Result<Bound> bound(std::string key, Group about, std::uint64_t quota, std::uint64_t now_ns);
  void look_after(std::uint64_t now_ns);

  std::map<std::string, std::unique_ptr<Group>> groups_;
};

}  // namespace vitamin::daemon
