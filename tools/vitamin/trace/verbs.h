// SPDX-License-Identifier: Apache-2.0
//
// vitamin trace record, export, replay.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/vitamin/verbs.h"

namespace vitamin::tools {

class TraceVerbs {
 public:
  void add(CLI::App& app, RunOptions& options);
  bool records() const { return record_->parsed(); }
  CLI::App& record() const { return *record_; }
  std::vector<std::string> remaining() const { return record_->remaining(); }
  // Runs the command and does not come back, unless the directory cannot be used.
  int start(RunOptions& options) const;
  // The other verbs; nothing when it was none of these.
  std::optional<int> run() const;

 private:
  CLI::App *trace_ = nullptr, *record_ = nullptr, *export_ = nullptr, *replay_ = nullptr;
  std::string record_directory_ = "vitamin-trace", directory_, output_ = "-", decisions_;
};

// Writes the directory as JSON for Perfetto; `output` "-": standard output. Exit codes.
int export_trace(const std::string& directory, const std::string& output);
// Decides again; `decisions`: a file, one decision a line; empty: none.
int replay_trace(const std::string& directory, const std::string& decisions);

}  // namespace vitamin::tools
