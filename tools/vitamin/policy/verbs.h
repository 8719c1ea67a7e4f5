// SPDX-License-Identifier: Apache-2.0
//
// The verbs about policies: `policy show`, `policy test`, `profile show`, `simulate`.
#pragma once

#include <CLI/CLI.hpp>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tools/vitamin/verbs.h"

namespace vitamin::tools {

struct SimulateOptions {
  std::string trace;
  std::vector<std::string> policies;
  double load = 0;  // of the capacity; 0: the trace's own times
  unsigned gpus = 1, services = 1;
  std::vector<std::string> training;
  std::vector<std::string> jobs;  // FILE or FILE@REQUESTS
  double until_s = 0, warm_up_s = 3, turn_ms = 0, switch_us = 0;
  double from_s = 0, seconds = 0;
  std::uint32_t most_prompt = 16384, most_output = 2048;
  double ttft_ms = 500, tpot_ms = 30;
  double window_us = std::numeric_limits<double>::infinity();
  double creation_ms = 0, quantum_ms = 4;
  bool silent = false, latency_class = false;
  std::string plot;  // directory
  bool json = false;
  std::uint64_t seed = 1;
};
int simulate(const SimulateOptions& options);

int show_policy(const std::string& name, bool json);
int test_policy(const std::string& specification, bool json);

struct ProfileOptions {
  std::string file;
  std::string model;  // empty: any
  std::string plot;   // file
  std::size_t kernels = 20;
  bool json = false;
};
int show_profile(const ProfileOptions& options);

class PolicyVerbs {
 public:
  // `vitamin profile -- COMMAND`: sets how to run the command so that every launch is timed.
  bool learns(RunOptions& options) const;
  // Adds the verbs to the program, `show` and `test` to the verb `policy`.
  void add(CLI::App& app, CLI::App& policy);
  // What the verb that was asked for answered; nothing when it was none of these.
  std::optional<int> run();

 private:
  CLI::App *show_ = nullptr, *test_ = nullptr, *profile_ = nullptr, *profile_show_ = nullptr,
           *simulate_ = nullptr;
  SimulateOptions simulation_;
  ProfileOptions profile_options_;
  std::string policy_, profiles_;
  bool json_ = false;
};

}  // namespace vitamin::tools
