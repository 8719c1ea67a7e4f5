// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace vitamin::config {

// The manual page vitamin.toml(5), in mdoc: every key with its range, default and environment
// variable, from the tables of schema.h, so that page and reader cannot differ.
std::string man_page();

}  // namespace vitamin::config
