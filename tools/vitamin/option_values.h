// SPDX-License-Identifier: Apache-2.0
//
// Checks of values of options, and which verb a command line has.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace vitamin::tools {

// The whole of `text` as a number.
template <class Number>
std::optional<Number> number_in(const std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

inline CLI::Validator seconds_from(bool zero) {
  return {[zero](std::string& text) -> std::string {
            const auto number = number_in<double>(text);
            if (number && (*number > 0 || (zero && *number == 0))) return {};
            return fmt::format("'{}' is no number of seconds {}: write 5 or 0.5, without a unit",
                               text, zero ? "from 0" : "above 0");
          },
          ""};
}

inline CLI::Validator whole_number() {
  return {[](std::string& text) -> std::string {
            const auto number = number_in<int>(text);
            if (number && *number >= 0) return {};
            return fmt::format("'{}' is no whole number from 0", text);
          },
          ""};
}

inline CLI::Validator seed_number() {
  return {[](std::string& text) -> std::string {
            if (number_in<std::uint64_t>(text)) return {};
            return fmt::format("'{}' is no seed: write a whole number from 0 to 2^64-1", text);
          },
          ""};
}

// The innermost verb of the command line, and how it is called.
inline std::pair<const CLI::App*, std::string> parsed_verb(const CLI::App& program) {
  const CLI::App* app = &program;
  std::string name = program.get_name();
  for (auto verbs = app->get_subcommands(); !verbs.empty(); verbs = app->get_subcommands()) {
    app = verbs.front();
    name += " " + app->get_name();
  }
  return {app, name};
}

}  // namespace vitamin::tools
