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

int show_policy(const std::string& specification, bool json) {
  const std::string name = specification.substr(0, specification.find(':'));
  if (name.find('/') != name.npos) {
    const auto described = scheduler::describe(name);
    if (!described) {
      say(Problem::kPolicy, described.error().message + ".");
      return kExitFailed;
    }
    return show(described->name, described->summary, {}, json);
  }
  if (const auto known = scheduler::check(specification); !known) {
    say(Problem::kPolicy, sentence(known.error().message) + " See `vitamin policy list`.");
    return kExitFailed;
  }
  const auto policies = scheduler::list();
  const auto policy =
      std::find_if(policies.begin(), policies.end(),
                   [&](const scheduler::PolicyDescription& one) { return one.name == name; });
  return show(name, std::string(policy->summary), policy->parameters, json);
}

}  // namespace vitamin::tools
