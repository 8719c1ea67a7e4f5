// SPDX-License-Identifier: Apache-2.0
#include "backends/hip/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace vitamin::hip {
namespace {

// Queues that an application's plain streams share, unless GPU_MAX_HW_QUEUES says otherwise.
constexpr unsigned kPlainQueues = 4;

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

}  // namespace

Settings Settings::of_process() {
  return {variable("HSA_CU_MASK"), variable("ROC_GLOBAL_CU_MASK"), variable("GPU_MAX_HW_QUEUES")};
}

QueueLimits limits_of(const Settings& settings, unsigned queue_budget) {
  QueueLimits limits;
  auto confine = [&](const char* name, const std::optional<std::string>& value) {
    if (!value) return;
    limits.confined = true;
    limits.notices.push_back(std::string(name) + "=" + *value +
                             " confines this process to some compute units: its launches stay on "
                             "its own streams. Unset it to have them moved.");
  };
  confine("HSA_CU_MASK", settings.hsa_cu_mask);
  confine("ROC_GLOBAL_CU_MASK", settings.roc_global_cu_mask);

  unsigned plain = kPlainQueues;
  if (settings.max_hw_queues) {
    const std::string& text = *settings.max_hw_queues;
    unsigned asked = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), asked);
    if (error == std::errc() && end == text.data() + text.size() && asked > 0) plain = asked;
  }
  limits.plain = plain;
  limits.slots = std::max(1U, queue_budget - std::min(queue_budget, plain));
  if (settings.max_hw_queues && plain > kPlainQueues && !limits.confined)
    limits.notices.push_back("GPU_MAX_HW_QUEUES=" + *settings.max_hw_queues + " leaves room for " +
                             std::to_string(limits.slots) + " CU-masked queue(s) of the " +
                             std::to_string(queue_budget) +
                             " that this process may hold; a smaller number leaves more.");
  return limits;
}

}  // namespace vitamin::hip
