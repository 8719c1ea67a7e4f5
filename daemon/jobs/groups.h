// SPDX-License-Identifier: Apache-2.0
//
// Groups of processes that share a quota of vitamin.toml. The group of a process follows from its
// user and control group, which the kernel reports, and from its class.
//
// Threads: any; no state.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "daemon/config/configuration.h"
#include "scheduler/types.h"

namespace vitamin::daemon {

// A process, as the kernel reports it.
struct Member {
  std::int32_t process = 0;  // 0: of another pid namespace
  std::uint32_t user = 0;
  std::string container;  // its id; empty: in none
  std::string job;        // of Slurm, or its claim; empty: in none
};

// The group's name, "of user 1000". A process in no container or job is in its user's group.
std::string group_name(config::GroupOf of, const config::WorkloadClass& workload,
                       const Member& member);

// The share of a device's SMs that the clients of a group have together.
struct GroupShare {
  std::uint32_t group = 0;    // 0: a single client
  std::uint32_t share = 100;  // percent
  std::string name;           // of the group; empty: a single client
};

// The quota in SMs, at least one; 0: no quota.
std::uint32_t sms_of_share(std::uint32_t share, std::uint32_t sms);

// Sets the quotas of `limits` from the shares, at most 1 + Limits::outer.size(); the first one is
// of the group that has the reservation. `alone`: the number of a single client among groups.
void set_quotas(scheduler::Limits& limits, std::span<const GroupShare> shares, std::uint32_t sms,
                std::uint32_t alone);

}  // namespace vitamin::daemon
