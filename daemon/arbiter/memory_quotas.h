// SPDX-License-Identifier: Apache-2.0
//
// Quotas of device memory: of vitamin.toml's classes, of Slurm steps and of Kubernetes claims that
// have one (daemon/jobs). For each group and device there is a ledger
// (daemon/protocol/quota_ledger.h), in shared memory, in which the group's processes count their
// memory themselves. The daemon tells a process its groups, and frees what dead processes had.
//
// Every member can write its ledger, so quotas bind cooperating programs only. The daemon's end
// drops its ledgers: clients go on with theirs, and processes that start later get new ones.
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
    int file = -1;            // the ledger's descriptor, owned by this object
    std::uint64_t quota = 0;  // bytes
    std::string whose;        // "of user 1000"
  };
  // The quota that the class sets for the member's group on a device of `total` bytes. The class
  // has a memory quota.
  hal::Result<Bound> bound(const config::WorkloadClass& workload, const Member& member,
                           const std::string& uuid, std::uint64_t total, std::uint64_t now_ns);
  // The quota of a step or claim; `whose`: "of job 12.0".
  hal::Result<Bound> bound(const std::string& whose, const config::MemoryBound& memory,
                           const std::string& uuid, std::uint64_t total, std::uint64_t now_ns);
  // Applies the classes' quotas of another configuration.
  void apply(const config::Configuration& configuration);
  // What each group has, after freeing what dead members had.
  nlohmann::json status(std::uint64_t now_ns);

  struct Sum {
    std::uint64_t quota = 0, used = 0;
  };
  // Sums by device and class; class "": all steps and claims.
  std::map<std::pair<std::string, std::string>, Sum> sums(std::uint64_t now_ns);

  // Bytes that the process has of the device; empty: it is in no ledger there.
  std::optional<std::uint64_t> used_by(std::int32_t process, const std::string& uuid) const;

  // The member's owner number in ledgers; 0: the daemon cannot see the process.
  static std::uint64_t owner(const Member& member);

 private:
  struct Group;
  hal::Result<Bound> bound(std::string key, Group about, std::uint64_t quota, std::uint64_t now_ns);
  void look_after(std::uint64_t now_ns);

  std::map<std::string, std::unique_ptr<Group>> groups_;
};

}  // namespace vitamin::daemon
