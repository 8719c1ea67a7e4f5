// SPDX-License-Identifier: Apache-2.0
//
// What no key by itself shows to be wrong: policies that do not exist, classes that can never
// match.
#pragma once

#include <vector>

#include "daemon/config/load.h"
#include "daemon/config/reader.h"

namespace vitamin::config {

struct Merged {
  const PlacedValues& settings;
  const std::vector<Layer::Class>& classes;
  const std::vector<Layer::Device>& devices;
};

// Adds to loaded.problems, and sorts them by place.
void check(const Merged& merged, Loaded& loaded);

}  // namespace vitamin::config
