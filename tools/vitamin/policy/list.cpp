// SPDX-License-Identifier: Apache-2.0
//
// vitamin policy list: every policy, with its parameters.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "scheduler/policies/registry.h"
#include "tools/vitamin/verbs.h"

namespace vitamin::tools {

int list_policies(bool json) {
  if (json) {
    nlohmann::ordered_json result = {{"schema", 1}, {"policies", nlohmann::json::array()}};
    for (const scheduler::PolicyDescription& policy : scheduler::list()) {
      auto parameters = nlohmann::ordered_json::array();
      for (const scheduler::Parameter& parameter : policy.parameters)
        parameters.push_back({{"name", parameter.name}, {"meaning", parameter.meaning}});
      result["policies"].push_back(
          {{"name", policy.name}, {"summary", policy.summary}, {"parameters", parameters}});
    }
    fmt::print("{}\n", result.dump(2));
    return 0;
  }
  for (const scheduler::PolicyDescription& policy : scheduler::list()) {
    fmt::print("{:<10} {}\n", policy.name, policy.summary);
    for (const scheduler::Parameter& parameter : policy.parameters)
      fmt::print("           {:<10} {}\n", parameter.name, parameter.meaning);
  }
  return 0;
}

}  // namespace vitamin::tools
