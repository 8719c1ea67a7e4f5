// SPDX-License-Identifier: Apache-2.0
//
// Finds the workload class of a program.
//
// `vitamin run` (or a job's prolog) matches the command, the environment and Slurm's variables, and
// the client sends the class's name to vitamind. vitamind knows the user from the kernel and checks
// that condition only: a user can choose any command and environment. So a class for some users
// only must name them.
//
// Nothing here is checked against a device. The scheduler counts a reservation that does not fit as
// unmet (scheduler/constraints.h).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/config/configuration.h"

namespace vitamin::config {

struct ProgramIdentity {
  std::string command;             // as started: a name or a path
  std::vector<std::string> users;  // its user's name and number
  // A variable of its environment, Slurm's (SLURM_JOB_PARTITION...) included.
  std::function<std::optional<std::string>(const std::string&)> variable;
};

// Of this process's own environment and user.
ProgramIdentity program_here(const std::string& command);
// The name, where there is one, and the number.
std::vector<std::string> names_of_user(unsigned uid);

bool may_be_in(const WorkloadClass& candidate, const std::vector<std::string>& users);
bool matches(const WorkloadClass& candidate, const ProgramIdentity& program);
// The class names users and has no other condition: the quotas that it sets for a group hold for
// all programs of these users, whatever class they name.
bool binds_users(const WorkloadClass& candidate);
// The first class that matches; null: none does.
const WorkloadClass* class_of(const Configuration& configuration, const ProgramIdentity& program);

}  // namespace vitamin::config
