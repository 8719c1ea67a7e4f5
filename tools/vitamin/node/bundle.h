// SPDX-License-Identifier: Apache-2.0
//
// What a report of a bug needs, in one file, without secrets.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace vitamin::tools {

// `found`: what doctor found. False, and said why: the file cannot be written.
bool write_bundle(const std::string& file, const nlohmann::ordered_json& found);

// The text without what looks like a secret: values of names such as TOKEN and PASSWORD, passwords
// in addresses, and long words of letters and digits that no person would type. The user's home is
// ~.
std::string without_secrets(const std::string& text);

}  // namespace vitamin::tools
