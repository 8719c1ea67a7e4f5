// SPDX-License-Identifier: Apache-2.0
//
// Which workload class a program is of.
//
// What is matched is known to the program's own side: `vitamin run` (and a job's prolog) looks at
// the command, the environment and Slurm's variables, and says the class's name to vitamind. That
// one knows the user from the kernel, and believes nothing else that would have to be believed:
// whoever may run a program may also name it differently. A class that not everybody may be in
// therefore names its users.
//
// Nothing here is checked against the device: a reservation that does not fit is the policy's.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/config/configuration.h"

namespace vitamin::config {

struct Program {
  std::string command;             // as started: a name or a path
  std::vector<std::string> users;  // its user's name and number
  // A variable of its environment, Slurm's (SLURM_JOB_PARTITION...) included.
  std::function<std::optional<std::string>(const std::string&)> variable;
};

// Of this process's own environment and user.
Program program_here(const std::string& command);
// The name, where there is one, and the number.
std::vector<std::string> names_of_user(unsigned uid);

bool may_be_in(const WorkloadClass& candidate, const std::vector<std::string>& users);
bool matches(const WorkloadClass& candidate, const Program& program);
// The class names users and has no other condition: the quotas that it sets for a group hold for
// all programs of these users, whatever class they name.
bool binds_users(const WorkloadClass& candidate);
// The first class that matches; null: none does.
const WorkloadClass* class_of(const Configuration& configuration, const Program& program);

}  // namespace vitamin::config
