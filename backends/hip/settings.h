// SPDX-License-Identifier: Apache-2.0
//
// What the user's own ROCm variables mean for the pool: pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace vitamin::hip {

struct Settings {
  std::optional<std::string> hsa_cu_mask;         // HSA_CU_MASK
  std::optional<std::string> roc_global_cu_mask;  // ROC_GLOBAL_CU_MASK
  std::optional<std::string> max_hw_queues;       // GPU_MAX_HW_QUEUES

  static Settings of_process();
};

struct QueueLimits {
  // The user confined the process: a mask of ours that names a CU outside would be refused or
  // silently cut, so the device has one unit and every launch stays on the application's streams.
  bool confined = false;
  unsigned plain = 0;                // queues that the application's streams share
  unsigned slots = 0;                // masked queues at one time
  std::vector<std::string> notices;  // a sentence each
};

// `queue_budget`: compute queues that this process may hold, the application's included.
QueueLimits limits_of(const Settings& settings, unsigned queue_budget);

}  // namespace vitamin::hip
