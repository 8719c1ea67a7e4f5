// SPDX-License-Identifier: Apache-2.0
//
// The daemon's log, on standard error: one line for each message, with time and level. A message
// that reports a problem of docs/errors.md ends with " [VIT-...]". Any thread may write.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace vitamin::daemon::log {

enum class Level { kInfo, kWarning, kError };

// kJson: one object for each line, {"ts", "level", "process", "text"} and, if the text ends with
// one, "code". `ts` is UTC in RFC 3339 format.
enum class Format { kText, kJson };

// Call it once, before the first message. Messages below `least` are dropped.
void start(Format format, Level least);

void write(Level level, std::string_view text);

template <typename... Arguments>
void info(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  write(Level::kInfo, fmt::format(format, std::forward<Arguments>(arguments)...));
}
template <typename... Arguments>
void warn(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  write(Level::kWarning, fmt::format(format, std::forward<Arguments>(arguments)...));
}
template <typename... Arguments>
void error(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  write(Level::kError, fmt::format(format, std::forward<Arguments>(arguments)...));
}

}  // namespace vitamin::daemon::log
