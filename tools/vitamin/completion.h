// SPDX-License-Identifier: Apache-2.0
//
// Completion scripts for shells, made from the command line that the program itself parses: an
// option that exists is offered, one that is offered exists.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace vitamin::tools {

// `shell`: bash, zsh or fish; nothing for another one.
std::optional<std::string> completion_script(const CLI::App& app, std::string_view shell);

}  // namespace vitamin::tools
