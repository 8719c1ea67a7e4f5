// SPDX-License-Identifier: Apache-2.0
#include "config/checks.h"

#include <algorithm>
#include <tuple>

#include "scheduler/policies/nearest.h"
#include "scheduler/policies/registry.h"

namespace vitamin::config {
namespace {

const SaidOnce* said(const Said& settings, const char* path) {
  const auto found = settings.find(path);
  return found == settings.end() ? nullptr : &found->second;
}

Problem problem_at(const SaidOnce* where, std::string message) {
  if (where == nullptr) return {{"built in"}, std::move(message), {}};
  return {where->place, std::move(message), where->line};
}

// `own`: where it was said; what is not there was said for all devices, and is reported there.
void check_policy(const Policy& policy, const Said& own, std::vector<Problem>& problems) {
  const SaidOnce* const name = said(own, "policy.name");
  const SaidOnce* const parameters = said(own, "policy.parameters");
  // A shared object is not loaded into whoever only looks at the configuration.
  if (policy.name.find('/') != policy.name.npos) {
    if (policy.name.front() != '/')
      problems.push_back(problem_at(name, "the path of a shared object must begin with '/'"));
    return;
  }
  if (const auto made = scheduler::check(policy.name); !made) {
    problems.push_back(problem_at(name, made.error().message));
    return;
  }
  const std::string plain = policy.name.substr(0, policy.name.find(':'));
  std::vector<std::string> known;
  for (const scheduler::PolicyDescription& description : scheduler::list())
    if (description.name == plain)
      for (const scheduler::Parameter& parameter : description.parameters)
        known.emplace_back(parameter.name);
  const std::size_t before = problems.size();
  for (const auto& [parameter, value] : policy.parameters) {
    if (std::find(known.begin(), known.end(), parameter) != known.end()) continue;
    Problem problem =
        problem_at(parameters, "the policy '" + plain + "' has no parameter '" + parameter + "'" +
                                   scheduler::did_you_mean(parameter, known));
    if (parameters != nullptr && parameters->entries.contains(parameter))
      problem.place = parameters->entries.at(parameter);
    problems.push_back(std::move(problem));
  }
  if (problems.size() > before) return;
  if (const auto made = scheduler::check(policy.specification()); !made)
    problems.push_back(problem_at(parameters != nullptr ? parameters : name, made.error().message));
}

bool unconditional(const WorkloadClass& candidate) {
  return candidate.command.empty() && candidate.user.empty() && candidate.environment.empty() &&
         candidate.slurm_job.empty() && candidate.slurm_partition.empty() &&
         candidate.slurm_account.empty() && candidate.slurm_qos.empty();
}

void check_classes(const std::vector<Layer::Class>& read, Loaded& loaded) {
  const WorkloadClass* everything = nullptr;
  for (std::size_t i = 0; i < read.size(); ++i) {
    const WorkloadClass& made = loaded.configuration.classes[i];
    auto complain = [&](const char* key, std::string message) {
      const SaidOnce* const where = said(read[i].settings, key);
      loaded.problems.push_back(where != nullptr
                                    ? problem_at(where, std::move(message))
                                    : Problem{read[i].place, std::move(message), read[i].line});
    };
    if (everything != nullptr)
      complain("", "the class '" + made.name + "' is never reached: '" + everything->name +
                       "', which is tried before it, has no condition");
    if (unconditional(made)) everything = &made;
    if (made.tpot_ns != 0 && made.kind != Kind::kLatency)
      complain("tpot", "a target is for a class of kind \"latency\"");
    if (made.reservation != 0 && made.kind == Kind::kBatch)
      complain("reservation", "nothing is reserved for a class of kind \"batch\"");
  }
}

}  // namespace

void check(const Merged& merged, Loaded& loaded) {
  check_policy(loaded.configuration.policy, merged.settings, loaded.problems);
  for (const Layer::Device& device : merged.devices)
    if (said(device.settings, "policy.name") || said(device.settings, "policy.parameters")) {
      // As for a device that only this rule names.
      Configuration alone = loaded.configuration;
      alone.devices = {{"x", {}}};
      for (const auto& [path, value] : device.settings)
        alone.devices.front().settings[path] = value.value;
      check_policy(alone.for_device("x", "").policy, device.settings, loaded.problems);
    }
  check_classes(merged.classes, loaded);
  std::stable_sort(loaded.problems.begin(), loaded.problems.end(),
                   [](const Problem& a, const Problem& b) {
                     return std::tie(a.place.source, a.place.line, a.place.column) <
                            std::tie(b.place.source, b.place.line, b.place.column);
                   });
}

}  // namespace vitamin::config
