// SPDX-License-Identifier: Apache-2.0
//
// Parses the command lines of the services (vitamind, vitamin-k8s-plugin, vitamin-dra-driver):
// --help, --version, and one line on stderr for an error.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/problem.h"
#include "scheduler/policies/nearest.h"

namespace vitamin::config {

inline constexpr int kExitUsage = 1;

// The exit code with which the program must end now; empty: it goes on.
inline std::optional<int> read_command_line(CLI::App& app, int argc, char** argv,
                                            const std::string& version) {
  const std::string name = app.get_name();
  app.set_help_flag("-h,--help", "Show this help");
  app.set_version_flag("--version", name + " " + version, "Show the version");
  app.allow_extras();
  std::string wrong;
  std::vector<std::string> words;  // the last one first, as CLI11 takes them
  for (int i = argc - 1; i > 0; --i) {
    std::string word = argv[i];
    if (word.starts_with("--") && word.find('=') == word.size() - 1) {
      // CLI11 would take the next word for the value.
      words.emplace_back();
      word.pop_back();
    }
    words.push_back(std::move(word));
  }
  try {
    app.parse(std::move(words));
    if (app.remaining().empty()) return std::nullopt;
    const std::string word = app.remaining().front();
    std::vector<std::string> options;
    for (const CLI::Option* option : app.get_options())
      for (const std::string& each : option->get_lnames()) options.push_back("--" + each);
    const std::string given = word.substr(0, word.find('='));
    wrong = word.starts_with("-")
                ? "unknown option '" + given + "'" + scheduler::did_you_mean(given, options)
                : "unknown word '" + word + "'";
  } catch (const CLI::Success& shown) {  // help or version
    return app.exit(shown);
  } catch (const CLI::ParseError& error) {
    wrong = error.what();
    wrong.erase(wrong.find_last_not_of(" .\n") + 1);
  }
  std::fprintf(stderr, "%s: %s. See `%s --help`. [%s]\n", name.c_str(), wrong.c_str(), name.c_str(),
               runtime::code_of(runtime::Problem::kUsage));
  return kExitUsage;
}

}  // namespace vitamin::config
