// SPDX-License-Identifier: Apache-2.0
//
// What the environment says. Read once, when the runtime opens the device; a value that is not
// understood ends the process with a line that says what is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/soft/amdgpu/part.h"

namespace vitamin::soft::amdgpu {

inline constexpr unsigned kGpusMax = 8;  // of a process

// Calls that can be made to fail, by their number counted from 1.
enum class FaultPoint : std::uint8_t {
  kCreateQueue,  // a compute queue cannot be created
  kSetMask,      // the driver refuses a CU mask
  kEmptyMask,    // the driver takes a CU mask and programs none of its bits: the queue hangs
  kDeviceLost,   // the device is lost when the dispatch begins
};
constexpr std::size_t kFaultPoints = 4;

struct ScriptedFault {
  FaultPoint point = FaultPoint::kCreateQueue;
  std::uint64_t first = 1, last = 1;
};

struct Settings {
  const Part* part = nullptr;         // VITAMIN_SOFT_AMDGPU
  unsigned gpus = 1;                  // VITAMIN_SOFT_AMDGPU_COUNT
  std::string trace;                  // VITAMIN_SOFT_AMDGPU_TRACE: a file, appended to
  std::string ledger;                 // VITAMIN_SOFT_AMDGPU_LEDGER: a file, shared by processes
  std::vector<ScriptedFault> faults;  // VITAMIN_SOFT_AMDGPU_FAULTS
  std::uint64_t hold_us = 0;          // VITAMIN_SOFT_AMDGPU_HOLD_US: least time of a dispatch
  bool verbose = false;               // VITAMIN_SOFT_AMDGPU_LOG=1
};

Settings read_settings();

}  // namespace vitamin::soft::amdgpu
