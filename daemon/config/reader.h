// SPDX-License-Identifier: Apache-2.0
//
// Reads one layer (a file, an environment variable or a setting of the command line) and checks
// each key against the schema. Invalid settings are left out and reported as problems.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/config/load.h"

namespace vitamin::config {

struct PlacedValue {
  Value value;
  SettingPlace place;                             // of the key
  std::map<std::string, SettingPlace> entries{};  // of a table's keys
  std::string line{};                             // of the file
};
using PlacedValues = std::map<std::string, PlacedValue>;  // by path

struct Layer {
  struct Class {
    std::string name;
    SettingPlace place;
    std::string line;
    PlacedValues settings;
  };
  struct Device {
    std::string pattern;
    PlacedValues settings;
  };
  PlacedValues settings;
  std::vector<Class> classes;
  std::vector<Class> amended;  // keys of classes that earlier layers name
  std::vector<Device> devices;
  std::vector<ConfigProblem> renamed;  // former names that were read (schema.h)
};

Layer read_toml(std::string_view text, const std::string& name, const std::string& host,
                std::vector<ConfigProblem>& problems);
Layer read_assignment(const SettingOverride& assignment, std::vector<ConfigProblem>& problems);

}  // namespace vitamin::config
