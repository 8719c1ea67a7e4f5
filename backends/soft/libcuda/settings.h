// SPDX-License-Identifier: Apache-2.0
//
// What the environment asks of the software driver. README.md lists the variables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "backends/soft/engine.h"
#include "backends/soft/libcuda/cuda_api.h"

namespace vitamin::soft::driver {

// Calls `first` … `last` of one entry point, counted from 1, answer `error` untried; without an
// error they are tried after a pause.
struct ScriptedFault {
  std::string entry;
  std::uint64_t first = 1;
  std::uint64_t last = 1;
  CUresult error = CUDA_ERROR_UNKNOWN;
  std::uint32_t pause_ms = 0;
  std::uint64_t calls = 0;
};

struct Settings {
  std::vector<int> devices;  // of the machine's, those that this process sees, in its order
  Clock clock = Clock::kReal;
  std::uint64_t seed = 1;
  std::string ledger;
  std::string mps_directory;              // CUDA_MPS_PIPE_DIRECTORY
  std::map<int, std::size_t> mps_memory;  // CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, bytes by ordinal
  std::string trace;
  std::vector<ScriptedFault> faults;
  // Virtual clock: how long the host may be the only hope of a blocked call before it is called a
  // deadlock, when the process has other threads.
  std::uint32_t deadlock_ms = 10'000;

  // Reads VITAMIN_SOFT_*. A value that makes no sense ends the process with a sentence: a test that
  // ran under other settings than it asked for would prove nothing.
  static Settings from_environment();
};

}  // namespace vitamin::soft::driver
