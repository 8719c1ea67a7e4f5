// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/mps_hazards.h"

#include <string_view>

namespace vitamin::config {

std::vector<std::string> mps_hazards(const std::function<const char*(const char*)>& get) {
  std::vector<std::string> found;
  auto look = [&](const char* name, auto harmful, const char* why) {
    const char* const value = get(name);
    if (value != nullptr && *value != '\0' && harmful(std::string_view(value)))
      found.push_back(std::string(name) + "=" + value + ": " + why + ". Unset it.");
  };
  look(
      "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", [](std::string_view v) { return v != "100"; },
      "programs then see a smaller device and compute other bits");
  look(
      "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
      [](std::string_view v) { return v != "0"; },
      "contexts may then differ in size, and with it in what they compute");
  look(
      "CUDA_MPS_CLIENT_PRIORITY", [](std::string_view v) { return v != "0"; },
      "MPS then prefers some processes to others, against the policy");
  look(
      "CUDA_DEVICE_MAX_CONNECTIONS", [](std::string_view v) { return v == "1"; },
      "streams then queue behind each other, and nothing overlaps");
  look(
      "CUDA_LAUNCH_BLOCKING", [](std::string_view v) { return v != "0"; },
      "every launch then waits for its end: right, and slow");
  return found;
}

}  // namespace vitamin::config
