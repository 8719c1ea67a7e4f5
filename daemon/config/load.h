// SPDX-License-Identifier: Apache-2.0
//
// From files, environment and command line to one Configuration.
//
//     built in  <  /etc/vitamin/vitamin.toml  <  /etc/vitamin/conf.d/*.toml, by name
//               <  environment (VITAMIN_CONFIG_POLICY_QUANTUM=2ms)  <  command line
//
// The later layer wins, key by key; within a file a [nodes."..."] section that matches this host
// wins over what stands outside. Classes of a later layer are tried before those of an earlier one,
// and one of the same name takes its place. A word of the command line, class.NAME.KEY=VALUE,
// changes one key of a class.
//
// All or nothing: with any problem the result is not to be used. Every problem is found in one go.
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

struct Problem {
  Place place;
  std::string message;  // with a suggestion where there is one
  std::string line;     // of the file; empty: none
};
// "vitamin.toml:3:8: unknown key 'quantun'; did you mean 'quantum'?", and with `with_line` the line
// and a caret below.
std::string text_of(const Problem& problem, bool with_line);

// One effective setting: "policy.quantum", its value as TOML and who said so.
struct Setting {
  std::string path;
  std::string value;
  Place place;
};

struct Loaded {
  Configuration configuration;
  std::vector<Setting> settings;   // every key, in the schema's order; then classes, then devices
  std::vector<Problem> problems;   // empty: it is valid
  std::vector<Problem> no_effect;  // valid, and said in vain
  std::vector<std::string> files;  // that were read, in order

  bool valid() const { return problems.empty(); }
  // All problems, a line each.
  std::string why() const;
};

// A word of the environment or of the command line: the path of a key and a value as text.
struct Assignment {
  std::string path;
  std::string text;
  std::string source;
};

struct Sources {
  std::vector<std::string> files;  // later wins; all must be readable
  std::vector<Assignment> assignments;
  std::vector<Problem> problems;  // found while looking for them
  std::string host;               // what [nodes."..."] is compared with: with and without domain
};

// As vitamind and the verbs find them; `file`: instead of the environment's word and the default
// (empty: those). `overrides` are the command line's: "policy.quantum=2ms".
Sources sources(const std::string& file, const std::vector<std::string>& overrides);

Loaded load(const Sources& sources);
// The same from texts, as if each stood in a file of this name, later ones over earlier ones: for
// tests and fuzzing.
struct Text {
  std::string name;
  std::string_view text;
};
Loaded load_texts(std::span<const Text> files, std::span<const Assignment> assignments,
                  const std::string& host);
Loaded load_text(std::string_view text, const std::string& name, const std::string& host);

}  // namespace vitamin::config
