// SPDX-License-Identifier: Apache-2.0
//
// What a vitamind lets this process have of a device's memory: for each group that the process is
// of, the ledger that its processes share. Whose a process is the daemon knows from the kernel.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/protocol/quota_file.h"
#include "hal/result.h"

namespace vitamin::client {

struct MemoryQuota {
  protocol::MappedLedger ledger;
  std::uint64_t bytes = 0;
  std::string whose;        // "of user 1000"
  std::uint64_t owner = 0;  // what the process is called in the ledger; 0: as it calls itself
};

struct MemoryQuestion {
  std::string socket;
  std::string uuid;
  std::uint64_t total = 0;  // bytes that the device has
  std::string workload_class;  // that the program says it is of; empty: none
  std::string program;
};
// Empty: nothing bounds it there.
hal::Result<std::vector<MemoryQuota>> memory_quotas(const MemoryQuestion& question);

// Whether the daemon may bound the memory of programs. False, too, when none is there.
bool any_memory_quota(const std::string& socket);

}  // namespace vitamin::client
