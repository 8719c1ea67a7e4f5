// SPDX-License-Identifier: Apache-2.0
//
// The quotas of device memory that vitamind sets for this process: one ledger for each group that
// the process belongs to. The daemon identifies the process by what the kernel reports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/protocol/quota_file.h"
#include "hal/result.h"

namespace vitamin::client {

struct MemoryQuota {
  protocol::MappedLedger ledger;
  std::uint64_t bytes = 0;  // the quota
  std::string whose;        // "of user 1000"
  std::uint64_t owner = 0;  // the process's owner number in the ledger; 0: own_owner()
};

struct MemoryQuestion {
  std::string socket;
  std::string uuid;
  std::uint64_t total = 0;     // bytes of the device
  std::string workload_class;  // that the program claims; empty: none
  std::string program;
};
// Empty: no quota applies. Blocks for 10 s at most, where vitamind does not answer.
hal::Result<std::vector<MemoryQuota>> memory_quotas(const MemoryQuestion& question);

// Whether the daemon has memory quotas at all. False if there is no daemon.
bool any_memory_quota(const std::string& socket);

}  // namespace vitamin::client
