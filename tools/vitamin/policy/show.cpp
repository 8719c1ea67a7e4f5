// SPDX-License-Identifier: Apache-2.0
//
// vitamin policy show NAME: one policy, built in or a shared object.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "scheduler/policies/loadable.h"
#include "scheduler/policies/registry.h"
#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/policy/verbs.h"
#include "tools/vitamin/text.h"

namespace vitamin::tools {
namespace {

int show(const std::string& name, const std::string& summary,
         std::span<const scheduler::Parameter> parameters, bool json) {
  if (json) {
    auto list = nlohmann::ordered_json::array();
    for (const scheduler::Parameter& parameter : parameters)
      list.push_back({{"name", parameter.name}, {"meaning", parameter.meaning}});
    fmt::print("{}\n",
               nlohmann::ordered_json{
                   {"schema", 1}, {"name", name}, {"summary", summary}, {"parameters", list}}
                   .dump(2));
    return 0;
  }
  fmt::print("{}: {}\n", name, summary);
  for (const scheduler::Parameter& parameter : parameters)
    fmt::print("  {:<12} {}\n", parameter.name, parameter.meaning);
  return 0;
}

}  // namespace

int show_policy(const std::string& name, bool json) {
  if (name.find('/') != name.npos) {
    const auto described = scheduler::describe(name.substr(0, name.find(':')));
    if (!described) {
      say(Problem::kPolicy, described.error().message + ".");
      return kExitFailed;
    }
    return show(described->name, described->summary, {}, json);
  }
  for (const scheduler::PolicyDescription& policy : scheduler::list())
    if (name == policy.name)
      return show(std::string(policy.name), std::string(policy.summary), policy.parameters, json);
  say(Problem::kPolicy,
      sentence(scheduler::check(name).error().message) + " See `vitamin policy list`.");
  return kExitFailed;
}

}  // namespace vitamin::tools
