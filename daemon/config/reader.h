// SPDX-License-Identifier: Apache-2.0
//
// One layer: what one file, one environment variable or one word of the command line says, checked
// key by key against the schema. What is wrong is left out and listed.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/config/load.h"

namespace vitamin::config {

struct SaidOnce {
  Value value;
  Place place;                             // of the key
  std::map<std::string, Place> entries{};  // of a table's keys
  std::string line{};                      // of the file
};
using Said = std::map<std::string, SaidOnce>;  // by path

struct Layer {
  struct Class {
    std::string name;
    Place place;
    std::string line;
    Said settings;
  };
  struct Device {
    std::string pattern;
    Said settings;
  };
  Said settings;
  std::vector<Class> classes;
  std::vector<Class> amended;  // keys of classes that earlier layers name
  std::vector<Device> devices;
};

Layer read_toml(std::string_view text, const std::string& name, const std::string& host,
                std::vector<Problem>& problems);
Layer read_assignment(const Assignment& assignment, std::vector<Problem>& problems);

}  // namespace vitamin::config
