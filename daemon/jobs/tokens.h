// SPDX-License-Identifier: Apache-2.0
//
// Splits a tool's request ("job-begin STEP USER ...") into words and parses them strictly. Threads:
// any.
#pragma once

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

namespace vitamin::daemon {

// Keeps empty parts. The parts refer to `text`.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// Empty: the text is no decimal number, or the number does not fit.
template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Whether the text consists of letters, digits and `marks`, at least one and at most `longest`.
inline bool is_name(std::string_view text, std::size_t longest, std::string_view marks) {
  return !text.empty() && text.size() <= longest &&
         std::all_of(text.begin(), text.end(), [&](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  marks.find(c) != marks.npos;
         });
}

}  // namespace vitamin::daemon
