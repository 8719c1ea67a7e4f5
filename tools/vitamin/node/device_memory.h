// SPDX-License-Identifier: Apache-2.0
//
// Who has the memory of NVIDIA devices, as NVML says: also processes without the preloaded library,
// and what a process has besides what is charged to its quotas (contexts, code, allocations by ways
// that the library does not see).
//
// Source: NVML API reference, "Device Queries": nvmlDeviceGetMemoryInfo_v2 and
// nvmlDeviceGetComputeRunningProcesses_v3. Threads: any.
#pragma once

#include <nlohmann/json.hpp>

namespace vitamin::tools {

// `status`: vitamind's answer to "status". One entry for each of its devices that NVML knows:
//   device, total_bytes, used_bytes (without the driver's own reserve)
//   processes   process, program, bytes (null: NVML does not say), charged_bytes (to its quotas;
//               null: it has none)
// Empty without NVML.
nlohmann::json device_memory(const nlohmann::json& status);

// For people; empty: there is nothing to tell.
std::string device_memory_text(const nlohmann::json& memory);

}  // namespace vitamin::tools
