// SPDX-License-Identifier: Apache-2.0
//
// Every key of vitamin.toml, once: its name, type, range, meaning and member of the Configuration.
// The reader, `config show`, the JSON schema and the names of environment variables are derived
// from these tables.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/config/configuration.h"
#include "daemon/config/value.h"

namespace vitamin::config {

enum class SettingType : std::uint8_t {
  kText,
  kBoolean,
  kInteger,   // from low to high
  kDuration,  // text with a unit, from low to high nanoseconds
  kChoice,    // one of `choices`
  kPatterns,  // a pattern, or a list of them
  kMemory,    // text of a size or a percentage (value.h)
  kTable,     // names to texts, numbers or booleans
};

template <class Target>
struct Key {
  std::string path;  // "policy.quantum"
  SettingType type = SettingType::kText;
  std::string meaning;
  std::int64_t low = 0, high = 0;
  std::vector<std::string> choices;
  bool of_device = false;  // may stand in a [devices."..."] section, too
  void (*write)(Target&, const Value&) = nullptr;
  Value (*read)(const Target&) = nullptr;
};

using SettingKey = Key<Configuration>;
using ClassKey = Key<WorkloadClass>;

std::span<const SettingKey> setting_keys();
std::span<const ClassKey> class_keys();  // "name" is not among them

const SettingKey* find_setting(std::string_view path);

// What the release before wrote otherwise, and this one still reads, with a line that names `now`.
struct Former {
  std::string_view path;
  std::string_view value;  // of the key `path`; empty: the key itself has another name
  std::string_view now;
};
std::span<const Former> former_names();
const Former* former_key(std::string_view path);
const Former* former_value(std::string_view path, std::string_view value);
std::string text_of(const Former& former);

// "policy.quantum": "VITAMIN_CONFIG_POLICY_QUANTUM".
std::string environment_variable(std::string_view path);

// The value as TOML.
template <class Target>
std::string text_of(const Key<Target>& key, const Value& value);

// The value of every key, as TOML: "policy.quantum", "class.\"serving\".tpot" for each class and
// "devices.\"GPU-1\".policy.name" where a rule of a device has it.
std::map<std::string, std::string> settings_of(const Configuration& configuration);

// JSON Schema, draft 7, of a whole file, for editors and for tests.
nlohmann::ordered_json json_schema();

}  // namespace vitamin::config
