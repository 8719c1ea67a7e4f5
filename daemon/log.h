// SPDX-License-Identifier: Apache-2.0
//
// The daemon's log, on standard error: one line a message, with its time and level. A message that
// has a problem's code ends with " [VIT-...]". Any thread may write.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace vitamin::daemon::log {

enum class Level { kInfo, kWarning, kError };

// kJson: one object a line, {"ts", "level", "process", "text"} and, where the text ends with one,
// "code". `ts` is UTC as RFC 3339 has it.
enum class Format { kText, kJson };

// Once, before the first message. `least`: messages below it are dropped.
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
