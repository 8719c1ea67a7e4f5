// SPDX-License-Identifier: Apache-2.0
//
// vitamin verify: does the allocation change what this program computes?
//
// The command runs alone (once natively, twice under Vitamin on the whole device), then under N
// allocation schedules with something else on the device. What it prints, writes and copies back is
// compared to the byte, and what it launches is audited (runtime/audit/audit.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace vitamin::tools {

struct VerifyOptions {
  unsigned runs = 5;
  std::uint64_t seed = 1;
  std::optional<std::string> tenant;  // a shell command; unset: the demo's training, if it is there
  std::vector<std::string> checks;    // "stdout", "files", "memory"; empty: stdout
  std::vector<std::string> files;
  std::vector<std::string> scan;  // code to look into for what lies outside the contract
  std::string memory;             // quota of every run: "40GiB", "50%"; empty: none
  double limit_seconds = 0;       // of one run; 0: 20 times the first one and a minute
  bool json = false;
  std::string report_file;  // HTML
  std::vector<std::string> command;
};

// The first thing that is wrong with the options, or empty.
std::string problem(const VerifyOptions& options);
// Answers with the exit code.
int verify(const VerifyOptions& options);

}  // namespace vitamin::tools
