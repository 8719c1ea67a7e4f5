// SPDX-License-Identifier: Apache-2.0
//
// What vitamin doctor looks at besides the drivers: configuration, daemon, MPS, permissions, clock,
// kernel, pool. For each broken precondition its cause and what to do.
#pragma once

#include <string>
#include <vector>

namespace vitamin::tools {

enum class Verdict { kGood, kNote, kBad };

struct Check {
  const char* key;
  Verdict verdict;
  std::string text;
};

// Where the checks look, so that tests can show them a broken machine.
struct NodePaths {
  std::string clock_source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
  std::string time_offsets = "/proc/self/timens_offsets";
};

std::vector<Check> node_checks(const NodePaths& paths = {});

}  // namespace vitamin::tools
