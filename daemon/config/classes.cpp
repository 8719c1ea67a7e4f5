// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/classes.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "daemon/config/pattern.h"

namespace vitamin::config {
namespace {

// True without conditions.
bool any_matches(const Patterns& patterns, const std::vector<std::string>& texts) {
  if (patterns.empty()) return true;
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return std::any_of(texts.begin(), texts.end(),
                       [&](const std::string& text) { return config::matches(pattern, text); });
  });
}

bool command_matches(const Patterns& patterns, const std::string& command) {
  if (patterns.empty()) return true;
  const std::string name = command.substr(command.rfind('/') + 1);
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return config::matches(pattern, pattern.find('/') == pattern.npos ? name : command);
  });
}

}  // namespace

std::vector<std::string> names_of_user(unsigned uid) {
  std::vector<std::string> names = {std::to_string(uid)};
  std::array<char, 4096> space{};
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(uid, &entry, space.data(), space.size(), &found) == 0 && found != nullptr)
    names.emplace_back(entry.pw_name);
  return names;
}

ProgramIdentity program_here(const std::string& command) {
  return {command, names_of_user(::getuid()),
          [](const std::string& name) -> std::optional<std::string> {
            const char* const value = std::getenv(name.c_str());
            return value == nullptr ? std::nullopt : std::optional<std::string>(value);
          }};
}

bool may_be_in(const WorkloadClass& candidate, const std::vector<std::string>& users) {
  return any_matches(candidate.user, users);
}

bool binds_users(const WorkloadClass& candidate) {
  return !candidate.user.empty() && candidate.command.empty() && candidate.environment.empty() &&
         candidate.slurm_job.empty() && candidate.slurm_partition.empty() &&
         candidate.slurm_account.empty() && candidate.slurm_qos.empty();
}

bool matches(const WorkloadClass& candidate, const ProgramIdentity& program) {
  const auto variables = [&](std::initializer_list<const char*> names) {
    std::vector<std::string> values;
    for (const char* name : names)
      if (auto value = program.variable(name)) values.push_back(std::move(*value));
    return values;
  };
  const bool environment = std::all_of(candidate.environment.begin(), candidate.environment.end(),
                                       [&](const auto& condition) {
                                         const auto value = program.variable(condition.first);
                                         return value && matches(condition.second, *value);
                                       });
  return environment && command_matches(candidate.command, program.command) &&
         may_be_in(candidate, program.users) &&
         any_matches(candidate.slurm_job, variables({"SLURM_JOB_NAME", "SLURM_JOB_ID"})) &&
         any_matches(candidate.slurm_partition, variables({"SLURM_JOB_PARTITION"})) &&
         any_matches(candidate.slurm_account, variables({"SLURM_JOB_ACCOUNT"})) &&
         any_matches(candidate.slurm_qos, variables({"SLURM_JOB_QOS"}));
}

const WorkloadClass* class_of(const Configuration& configuration, const ProgramIdentity& program) {
  for (const WorkloadClass& candidate : configuration.classes)
    if (matches(candidate, program)) return &candidate;
  return nullptr;
}

}  // namespace vitamin::config
