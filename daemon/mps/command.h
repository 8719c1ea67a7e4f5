// SPDX-License-Identifier: Apache-2.0
//
// Runs a program to its end with a text as standard input, and returns its output.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "hal/result.h"

namespace vitamin::daemon {

struct CommandOutput {
  int code = 0;        // exit code; 128 + n: ended by signal n
  std::string output;  // what it wrote on stdout and stderr, 64 KiB at most
};

// `words`: the program and its arguments. `environment`: NAME=value, over this process's. Kills the
// program after `timeout`. The error: it could not be started, or was killed.
hal::Result<CommandOutput> run_command(const std::vector<std::string>& words,
                                       const std::vector<std::string>& environment,
                                       const std::string& input, std::chrono::milliseconds timeout);

}  // namespace vitamin::daemon
