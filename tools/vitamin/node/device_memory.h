// SPDX-License-Identifier: Apache-2.0
//
// Who has the memory of NVIDIA devices, as NVML says: also processes without the preloaded library,
// and what a process has besides what is charged to its quotas (contexts, code, allocations by ways
// that the library does not see).
//
// Source: NVML API reference, "Device Queries": nvmlDeviceGetMemoryInfo_v2 and
// nvmlDeviceGetComputeRunningProcesses_v3. Threads: any.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace vitamin::tools {

// `status`: vitamind's answer to "status". One entry for each of its devices that NVML knows:
//   device, total_bytes, used_bytes (without the driver's own reserve)
//   processes   process, program, bytes (null: NVML does not say), charged_bytes (to its quotas;
//               null: it has none)
// Empty without NVML.
nlohmann::json device_memory(const nlohmann::json& status);

// The name of a process; empty: it cannot be seen.
std::string program_of(std::int64_t process);

// What one process has on one device.
struct ProcessMemory {
  std::string device;                  // UUID
  std::optional<std::uint64_t> bytes;  // nothing: NVML does not say
  bool mps = false;                    // it is a client of MPS
  bool mig = false;                    // it uses an instance of MIG
};
// Empty without NVML, or where NVML knows the process by another number (a container).
std::vector<ProcessMemory> memory_of_process(pid_t process);
// Nothing: NVML does not say.
std::optional<std::uint64_t> free_device_memory(const std::string& uuid);

// For people; empty: there is nothing to tell.
std::string device_memory_text(const nlohmann::json& memory);

}  // namespace vitamin::tools
