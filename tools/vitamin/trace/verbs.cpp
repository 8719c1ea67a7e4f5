// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/trace/verbs.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/option_values.h"
#include "tools/vitamin/text.h"

namespace vitamin::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTraceFooter = R"(
Examples:
  vitamin trace record --output trace --daemon -- python train.py
  vitamin trace export --output trace.json trace     for Perfetto and chrome://tracing
  vitamin trace replay trace                         the same decisions, byte for byte?
)";

struct RecordHelp : CLI::Formatter {
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "Usage: vitamin trace record [OPTIONS] -- COMMAND [ARGUMENTS...]\n";
  }
};

}  // namespace

void TraceVerbs::add(CLI::App& app, RunOptions& options) {
  trace_ = app.add_subcommand("trace", "Record what is bound and decided; look; decide again");
  trace_->footer(kTraceFooter);
  trace_->require_subcommand(0, 1);
  record_ = trace_->add_subcommand("record", "Run a program and record it");
  record_->formatter(std::make_shared<RecordHelp>());
  record_->prefix_command();
  record_->add_option("--output", record_directory_, "Where the trace goes: made, or empty")
      ->capture_default_str()
      ->type_name("DIRECTORY");
  record_->add_flag("--daemon", options.daemon, "Let a vitamind decide, and record it too");
  record_->add_option("--policy", options.policy, "Who decides where a launch goes")
      ->capture_default_str()
      ->type_name("NAME");
  record_->add_option("--seed", options.seed, "Seed of a random policy")
      ->type_name("N")
      ->check(seed_number());
  export_ = trace_->add_subcommand("export", "Write a trace as JSON for Perfetto");
  export_->add_option("--output", output_, "'-': standard output")
      ->capture_default_str()
      ->type_name("FILE");
  replay_ = trace_->add_subcommand("replay", "Let the policy decide again, and compare");
  replay_->add_option("--decisions", decisions_, "Write the decisions, one a line")
      ->type_name("FILE");
  for (CLI::App* verb : {export_, replay_})
    verb->add_option("DIRECTORY", directory_, "What record wrote")->required()->type_name("PATH");
}

int TraceVerbs::start(RunOptions& options) const {
  std::error_code error;
  fs::create_directories(record_directory_, error);
  options.trace = fs::absolute(record_directory_).native();
  const bool empty = !error && fs::is_empty(options.trace, error);
  if (error || ::access(options.trace.c_str(), W_OK | X_OK) != 0) {
    say(Problem::kCannotWrite,
        fmt::format("the trace cannot be written to '{}' ({}).", record_directory_,
                    error ? error.message() : std::strerror(errno)));
    return kExitFailed;
  }
  if (!empty) {
    say(Problem::kCannotWrite,
        fmt::format("'{}' is not empty: a trace gets a directory of its own.", record_directory_));
    return kExitFailed;
  }
  options.quiet = true;
  tools::run(options);
}

std::optional<int> TraceVerbs::run() const {
  if (export_->parsed()) return export_trace(directory_, output_);
  if (replay_->parsed()) return replay_trace(directory_, decisions_);
  if (!trace_->parsed()) return std::nullopt;
  fmt::print("{}", trace_->help());
  return kExitFailed;
}

}  // namespace vitamin::tools
