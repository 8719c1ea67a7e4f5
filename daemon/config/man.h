// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace vitamin::config {

// vitamin.toml(5), in mdoc: every key with its range, default and variable, from the tables of
// schema.h, so that the page and what is read cannot differ.
std::string man_page();

}  // namespace vitamin::config
