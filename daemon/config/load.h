// SPDX-License-Identifier: Apache-2.0
//
// Reads files, environment and command line into one Configuration.
//
//     built in  <  /etc/vitamin/vitamin.toml  <  /etc/vitamin/conf.d/*.toml, by name
//               <  environment (VITAMIN_CONFIG_POLICY_QUANTUM=2ms)  <  command line
//
// The later layer wins, key by key; within a file a [nodes."..."] section that matches this host
// wins over keys outside of it. Classes of a later layer are tried before those of an earlier one;
// a class replaces an earlier one of the same name. --set class.NAME.KEY=VALUE changes one key of a
// class.
//
// All or nothing: with any problem the result must not be used. All problems are reported at once.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/config/configuration.h"
#include "daemon/config/value.h"

namespace vitamin::config {

inline constexpr const char* kSystemFile = "/etc/vitamin/vitamin.toml";
// The environment variable that names another file; its conf.d lies beside it.
inline constexpr const char* kFileVariable = "VITAMIN_CONFIG";

struct ConfigProblem {
  SettingPlace place;
  std::string message;  // with a suggestion where there is one
  std::string line;     // of the file; empty: none
};
// "vitamin.toml:3:8: unknown key 'quantun'; did you mean 'quantum'?", and with `with_line` the line
// and a caret below.
std::string text_of(const ConfigProblem& problem, bool with_line);

// One effective setting: "policy.quantum", its value as TOML and where it was set.
struct Setting {
  std::string path;
  std::string value;
  SettingPlace place;
};

struct Loaded {
  Configuration configuration;
  std::vector<Setting> settings;  // every key, in the schema's order; then classes, then devices
  std::vector<ConfigProblem> problems;   // empty: it is valid
  std::vector<ConfigProblem> no_effect;  // valid settings that change nothing
  std::vector<ConfigProblem> renamed;  // former names, which were read as what they are called now
  std::vector<std::string> files;      // files that were read, in order

  bool valid() const { return problems.empty(); }
  // All problems, a line each.
  std::string why() const;
};

// A setting of the environment or the command line: the path of a key and a value as text.
struct SettingOverride {
  std::string path;
  std::string text;
  std::string source;
};

struct Sources {
  std::vector<std::string> files;  // later wins; all must be readable
  std::vector<SettingOverride> assignments;
  std::vector<ConfigProblem> problems;  // of files and variables that cannot be used
  std::string host;                     // matched against [nodes."..."] with and without its domain
};

// The sources of vitamind and the commands. `file`: that of --config; empty: $VITAMIN_CONFIG, else
// kSystemFile. `overrides`: settings of the command line, "policy.quantum=2ms".
Sources sources(const std::string& file, const std::vector<std::string>& overrides);

Loaded load(const Sources& sources);
// load() of texts, each as a file of that name, the later winning: for tests and fuzzing.
struct ConfigText {
  std::string name;
  std::string_view text;
};
Loaded load_texts(std::span<const ConfigText> files, std::span<const SettingOverride> assignments,
                  const std::string& host);
Loaded load_text(std::string_view text, const std::string& name, const std::string& host);

}  // namespace vitamin::config
