// SPDX-License-Identifier: Apache-2.0
//
// Patterns of names: "gpu[1-64]", "login*,head", "GPU-1b?4*".
//
//     ,         one of several            *         any text
//     [1-64,70] a number in the list      ?         one character
//
// A number takes all consecutive digits of the text; a list whose bounds begin with 0 ("[001-128]")
// matches only numbers with as many digits as the bounds.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace vitamin::config {

// Why the pattern is invalid, or nothing.
std::optional<std::string> pattern_problem(std::string_view pattern);

// An invalid pattern matches nothing. Time: at most pattern x text.
bool matches(std::string_view pattern, std::string_view text);

}  // namespace vitamin::config
