// SPDX-License-Identifier: Apache-2.0
//
// Runs a program to its end, gives it a text and takes its answer.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "hal/result.h"

namespace vitamin::daemon {

struct Answer {
  int code = 0;        // exit code; 128 + n: ended by signal n
  std::string output;  // what it wrote on stdout and stderr, 64 KiB at most
};

// `environment`: NAME=value over this process's. Blocks for `patience` at most, then ends it. The
// error: it could not be started, or did not end.
hal::Result<Answer> run_command(const std::vector<std::string>& words,
                                const std::vector<std::string>& environment,
                                const std::string& input, std::chrono::milliseconds patience);

}  // namespace vitamin::daemon
