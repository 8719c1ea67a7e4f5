// SPDX-License-Identifier: Apache-2.0
//
// vitamin config check | show | schema: what vitamin.toml says on this node, and who said it.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace vitamin::tools {

// Lives as long as the CLI::App that its options were added to.
class ConfigVerbs {
 public:
  void add(CLI::App& app);
  // The exit code, when one of the verbs was given.
  std::optional<int> run();

 private:
  CLI::App* config_ = nullptr;
  CLI::App* check_ = nullptr;
  CLI::App* show_ = nullptr;
  CLI::App* schema_ = nullptr;
  std::string file_;
  std::string host_;
  std::vector<std::string> overrides_;
  bool json_ = false;
  bool origin_ = false;
  bool man_ = false;
};

}  // namespace vitamin::tools
