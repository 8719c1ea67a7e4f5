// SPDX-License-Identifier: Apache-2.0
#include "config/value.h"

#include <array>
#include <charconv>

namespace vitamin::config {
namespace {

struct Unit {
  const char* name;
  std::uint64_t ns;
};
constexpr std::array kUnits = {Unit{"ns", 1},
                               Unit{"µs", 1'000},
                               Unit{"us", 1'000},
                               Unit{"ms", 1'000'000},
                               Unit{"s", 1'000'000'000},
                               Unit{"min", 60'000'000'000},
                               Unit{"h", 3'600'000'000'000}};

}  // namespace

std::string Place::text() const {
  if (line == 0) return source;
  return source + ":" + std::to_string(line) + ":" + std::to_string(column);
}

std::optional<std::uint64_t> duration_ns(std::string_view text) {
  constexpr double kLongest = 1e18;
  double number = 0;
  const auto [unit, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0)) return std::nullopt;
  const std::string_view suffix = text.substr(static_cast<std::size_t>(unit - text.data()));
  if (suffix.empty() && number == 0) return 0;
  for (const Unit& known : kUnits) {
    const double ns = number * static_cast<double>(known.ns);
    if (suffix == known.name && ns <= kLongest) return static_cast<std::uint64_t>(ns);
  }
  return std::nullopt;
}

std::string duration_text(std::uint64_t ns) {
  std::string best = std::to_string(ns) + "ns";
  for (const Unit& unit : kUnits)
    if (ns > 0 && ns % unit.ns == 0) best = std::to_string(ns / unit.ns) + unit.name;
  return ns == 0 ? "0s" : best;
}

std::string toml_text(std::string_view text) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      result += "\\u00";
      result += kDigits[byte >> 4];
      result += kDigits[byte & 15];
    } else {
      result += c;
    }
  }
  return result + '"';
}

}  // namespace vitamin::config
