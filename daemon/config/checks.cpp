// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/checks.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

#include "daemon/config/isolation.h"
#include "daemon/config/pattern.h"
#include "scheduler/policies/nearest.h"
#include "scheduler/policies/registry.h"

namespace vitamin::config {

namespace {

const PlacedValue* placed_value(const PlacedValues& settings, const char* path) {
  const auto found = settings.find(path);
  return found == settings.end() ? nullptr : &found->second;
}

ConfigProblem problem_at(const PlacedValue* where, std::string message) {
  if (where == nullptr) return {{"built in"}, std::move(message), {}};
  return {where->place, std::move(message), where->line};
}

// `own`: the settings of the layer that sets the policy. One that is not in it was set for all
// devices, and is reported there.
void check_policy(const PolicySettings& policy, const PlacedValues& own,
                  std::vector<ConfigProblem>& problems) {
  const PlacedValue* const name = placed_value(own, "policy.name");
  const PlacedValue* const parameters = placed_value(own, "policy.parameters");
  // Never loads the shared object: `vitamin config check` and others only read the configuration.
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
    std::string message = scheduler::former_parameter(plain, parameter + "=" + value);
    if (message.empty()) {
      if (std::find(known.begin(), known.end(), parameter) != known.end()) continue;
      message = "the policy '" + plain + "' has no parameter '" + parameter + "'" +
                scheduler::did_you_mean(parameter, known);
    }
    ConfigProblem problem = problem_at(parameters, std::move(message));
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

bool literal(std::string_view pattern) {
  return pattern.find_first_of("*?[],") == std::string_view::npos;
}

// True only if `wide` matches everything that `narrow` matches. Neither is a list.
bool covers(std::string_view wide, std::string_view narrow) {
  if (wide == narrow || wide == "*") return true;
  if (literal(narrow)) return matches(wide, narrow);
  return wide.ends_with('*') && literal(wide.substr(0, wide.size() - 1)) &&
         narrow.starts_with(wide.substr(0, wide.size() - 1));
}

// Commands are compared by their names where a pattern has no '/'.
bool covers_command(std::string_view wide, std::string_view narrow) {
  const bool by_name = wide.find('/') == wide.npos, path = narrow.find('/') != narrow.npos;
  if (by_name != path) return covers(wide, narrow);
  if (!by_name) return false;
  return wide == "*" || (literal(narrow) && covers(wide, narrow.substr(narrow.rfind('/') + 1)));
}

// "a,b[1,2]": "a" and "b[1,2]".
std::vector<std::string_view> alternatives(const Patterns& patterns) {
  std::vector<std::string_view> all;
  for (const std::string_view pattern : patterns) {
    std::size_t begin = 0;
    bool within = false;
    for (std::size_t i = 0; i <= pattern.size(); ++i) {
      if (i < pattern.size()) within = pattern[i] == '[' || (within && pattern[i] != ']');
      if (i < pattern.size() && (pattern[i] != ',' || within)) continue;
      all.push_back(pattern.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  return all;
}

template <class Covers>
bool all_covered(const Patterns& wide, const Patterns& narrow, Covers covers) {
  if (wide.empty()) return true;
  const auto wides = alternatives(wide), narrows = alternatives(narrow);
  return !narrows.empty() &&
         std::all_of(narrows.begin(), narrows.end(), [&](std::string_view each) {
           return std::any_of(wides.begin(), wides.end(),
                              [&](std::string_view any) { return covers(any, each); });
         });
}

// True only if `first` matches every program that `second` matches.
bool takes_all_of(const WorkloadClass& first, const WorkloadClass& second) {
  const bool environment =
      std::all_of(first.environment.begin(), first.environment.end(), [&](const auto& condition) {
        const auto same = second.environment.find(condition.first);
        return same != second.environment.end() &&
               all_covered({condition.second}, {same->second}, covers);
      });
  return environment && all_covered(first.command, second.command, covers_command) &&
         all_covered(first.user, second.user, covers) &&
         all_covered(first.slurm_job, second.slurm_job, covers) &&
         all_covered(first.slurm_partition, second.slurm_partition, covers) &&
         all_covered(first.slurm_account, second.slurm_account, covers) &&
         all_covered(first.slurm_qos, second.slurm_qos, covers);
}

// Which keys of classes a policy uses: all, as far as is known, for a shared object and for a
// policy that cannot be made, which is a problem of its own.
scheduler::Checked facts_of(const PolicySettings& policy) {
  constexpr scheduler::Checked kAny{true, true, true};
  if (policy.name.find('/') != policy.name.npos) return kAny;
  return scheduler::check(policy.specification()).value_or(kAny);
}

// Whether the policy of any device uses them.
bool any_policy(const Configuration& configuration, bool scheduler::Checked::*fact) {
  if (facts_of(configuration.policy).*fact) return true;
  return std::any_of(
      configuration.devices.begin(), configuration.devices.end(), [&](const DeviceRule& rule) {
        Configuration alone = configuration;  // as for a device that only this rule names
        alone.devices = {{"x", rule.settings}};
        return facts_of(alone.for_device("x", "").policy).*fact;
      });
}

// "slo, tpot-first"
std::string names_of_policies(bool scheduler::PolicyDescription::*fact) {
  std::string names;
  for (const scheduler::PolicyDescription& description : scheduler::list())
    if (description.*fact) names += (names.empty() ? "" : ", ") + std::string(description.name);
  return names;
}

// Bounds and weights that contradict the class, or that no policy uses.
void check_bounds(const Layer::Class& read, const WorkloadClass& made, Loaded& loaded) {
  const std::string policy = "the policy '" + loaded.configuration.policy.specification() + "' ";
  const auto complain = [&](const char* key, std::string message) {
    loaded.problems.push_back(problem_at(placed_value(read.settings, key), std::move(message)));
  };
  const auto vain = [&](const char* key, std::string message) {
    loaded.no_effect.push_back(problem_at(placed_value(read.settings, key), std::move(message)));
  };
  const bool latency = made.kind == ProgramKind::kLatency;
  const bool keeps = any_policy(loaded.configuration, &scheduler::Checked::keeps_bounds);
  for (const auto& [key, bound] : {std::pair{"ttft", made.ttft_ns},
                                   {"tpot", made.tpot_ns},
                                   {"latency", made.latency_ns},
                                   {"step", made.step_ns}}) {
    if (bound == 0) continue;
    const std::string named = "'" + std::string(key) + "' of the class '" + made.name + "'";
    if (!latency)
      complain(key, named + " is a bound, which is for a class of kind \"latency\": add kind = " +
                        "\"latency\", or remove the bound");
    else if (!keeps)
      vain(key, policy + "keeps no latency bounds: " + named +
                    " has no effect; policies that do: " +
                    names_of_policies(&scheduler::PolicyDescription::keeps_bounds));
  }
  if (placed_value(read.settings, "percentile") != nullptr) {
    const std::string named = "'percentile' of the class '" + made.name + "'";
    if (!latency)
      complain("percentile", named + " is for a class of kind \"latency\" with a bound: remove it");
    else if (!keeps)
      vain("percentile", policy + "keeps no latency bounds: " + named + " has no effect");
  }
  if (made.weight != 1 && !any_policy(loaded.configuration, &scheduler::Checked::weighs))
    vain("weight", policy + "weighs no clients: 'weight' of the class '" + made.name +
                       "' has no effect; policies that do: " +
                       names_of_policies(&scheduler::PolicyDescription::weighs));
}

void check_classes(const std::vector<Layer::Class>& read, Loaded& loaded) {
  const auto& classes = loaded.configuration.classes;
  for (std::size_t i = 0; i < read.size(); ++i) {
    const WorkloadClass& made = classes[i];
    auto complain = [&](const char* key, std::string message) {
      const PlacedValue* const where = placed_value(read[i].settings, key);
      loaded.problems.push_back(
          where != nullptr ? problem_at(where, std::move(message))
                           : ConfigProblem{read[i].place, std::move(message), read[i].line});
    };
    const auto end = classes.begin() + static_cast<std::ptrdiff_t>(i);
    const auto first = std::find_if(classes.begin(), end, [&](const WorkloadClass& before) {
      return takes_all_of(before, made);
    });
    if (first != end && unconditional(*first))
      complain("", "the class '" + made.name + "' is never reached: '" + first->name +
                       "', which is tried before it, has no condition");
    else if (first != end)
      loaded.no_effect.push_back(
          {read[i].place,
           "the class '" + made.name + "' matches no program: '" + first->name +
               "', which is tried before it, matches all of them; only who names it is of it",
           read[i].line});
    check_bounds(read[i], made, loaded);
    if (made.reservation != 0 && made.kind == ProgramKind::kBatch)
      complain("reservation", "nothing is reserved for a class of kind \"batch\"");
  }
}

// An isolation that needs an MPS server, and cannot have one.
void check_isolation(const Merged& merged, Loaded& loaded) {
  const Configuration& configuration = loaded.configuration;
  const MpsSettings& mps = configuration.mps;
  const auto complain = [&](const PlacedValue* where, const std::string& whose,
                            std::string_view workload_class) {
    const std::string directory =
        mps.directory.empty() ? "" : directory_of_class(mps.directory, workload_class);
    if (mps.mode == MpsMode::kOff)
      loaded.problems.push_back(problem_at(
          where, whose + " is \"class\", which needs MPS, and mps.mode is \"off\": set mps.mode to "
                         "\"auto\" or \"external\", or isolation to \"exclusive\""));
    else if (directory.size() > kMpsDirectoryMax)
      loaded.problems.push_back(problem_at(where, "the directory of the MPS server of the class '" +
                                                      std::string(workload_class) + "' would be " +
                                                      directory + ", which is longer than " +
                                                      std::to_string(kMpsDirectoryMax) +
                                                      " characters: take a shorter mps.directory"));
  };
  const PlacedValue* const top = placed_value(merged.settings, "isolation");
  for (std::size_t i = 0; i < merged.classes.size(); ++i) {
    const WorkloadClass& made = configuration.classes[i];
    if (isolation_of(configuration, &made) != Isolation::kClass) continue;
    const PlacedValue* const own = placed_value(merged.classes[i].settings, "isolation");
    if (own != nullptr && made.isolation == ClassIsolation::kClass)
      complain(own, "'isolation' of the class '" + made.name + "'", made.name);
    else
      complain(top, "'isolation'", made.name);
    if (own == nullptr && mps.mode == MpsMode::kOff) return;  // once for all such classes
  }
  if (configuration.isolation == Isolation::kClass && merged.classes.empty())
    loaded.no_effect.push_back(
        problem_at(top, "'isolation' is \"class\", and there is no class: it has no effect"));
}

}  // namespace

void check(const Merged& merged, Loaded& loaded) {
  check_isolation(merged, loaded);
  check_policy(loaded.configuration.policy, merged.settings, loaded.problems);
  for (const Layer::Device& device : merged.devices)
    if (placed_value(device.settings, "policy.name") ||
        placed_value(device.settings, "policy.parameters")) {
      // As for a device that only this rule names.
      Configuration alone = loaded.configuration;
      alone.devices = {{"x", {}}};
      for (const auto& [path, value] : device.settings)
        alone.devices.front().settings[path] = value.value;
      check_policy(alone.for_device("x", "").policy, device.settings, loaded.problems);
    }
  check_classes(merged.classes, loaded);
  std::stable_sort(loaded.problems.begin(), loaded.problems.end(),
                   [](const ConfigProblem& a, const ConfigProblem& b) {
                     return std::tie(a.place.source, a.place.line, a.place.column) <
                            std::tie(b.place.source, b.place.line, b.place.column);
                   });
}

}  // namespace vitamin::config
