// SPDX-License-Identifier: Apache-2.0
//
// Which CUs hold workgroups, told to the ledger that processes share (backends/soft/ledger.h), a
// row for each process. A process of Vitamin is one client and holds its leases alone, so a CU that
// two rows hold at one time is an overlap of leases or work outside one.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/soft/ledger.h"

namespace vitamin::soft::amdgpu {

class Occupancy {
 public:
  Occupancy(const std::string& path, std::uint32_t cus);  // empty path: nothing is recorded
  void enter(const std::vector<unsigned>& cus);
  void leave(const std::vector<unsigned>& cus);
  std::uint32_t shared_cus() const;  // CUs that two processes ever held at one time

 private:
  mutable std::mutex mutex_;  // the ledger's own is between processes
  std::unique_ptr<ResidencyLedger> ledger_;
};

}  // namespace vitamin::soft::amdgpu
