// SPDX-License-Identifier: Apache-2.0
//
// Groups of processes that have a quota of vitamin.toml together. Which group a process is in
// follows from its user and control group, as the kernel tells them, and from its class.
//
// Threads: any; no state.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "daemon/config/configuration.h"
#include "scheduler/types.h"

namespace vitamin::daemon {

// A process, as the kernel tells of it.
struct Member {
  std::int32_t process = 0;  // 0: of another pid namespace
  std::uint32_t user = 0;
  std::string container;  // its id; empty: in none
  std::string job;        // of Slurm, or its claim; empty: in none
};

// "of user 1000". A process that is in no container or job is of its user's group.
std::string group_name(config::GroupOf of, const config::WorkloadClass& workload,
                       const Member& member);

// A share of a device's SMs that the clients of a group have together.
struct GroupShare {
  std::uint32_t group = 0;  // 0: a client by itself
  std::uint32_t share = 100;
  std::string name;  // of the group; empty: of the client
};

// At least one SM; 0: all of them.
std::uint32_t sms_of_share(std::uint32_t share, std::uint32_t sms);

// Puts the shares into `limits`; the first is that of the group which has the reservation. `alone`
// numbers the client among groups. At most 1 + Limits::outer.size() of them.
void set_quotas(scheduler::Limits& limits, std::span<const GroupShare> shares, std::uint32_t sms,
                std::uint32_t alone);

}  // namespace vitamin::daemon
