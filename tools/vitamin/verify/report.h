// SPDX-License-Identifier: Apache-2.0
//
// The result of vitamin verify, for people and for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/vitamin/verify/judge.h"
#include "tools/vitamin/verify/scan.h"
#include "tools/vitamin/verify/verify.h"

namespace vitamin::tools {

inline constexpr int kVerifySchema = 1;

struct Verification {
  std::vector<Observation> runs;
  Judgement judgement;
  ScanResult scan;
  std::string tenant;      // what ran beside, or empty
  std::size_t wanted = 0;  // how many runs there were to be
  int exit_code = 0;
};

nlohmann::ordered_json to_json(const VerifyOptions& options, const Verification& result);
std::string to_text(const VerifyOptions& options, const Verification& result);
// One page, no other file needed.
std::string to_html(const VerifyOptions& options, const Verification& result);
// The command line that runs one schedule again.
std::string replay(const VerifyOptions& options, const Verification& result,
                   const Observation& run);

}  // namespace vitamin::tools
