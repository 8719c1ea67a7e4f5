// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/text.h"

#include <fmt/format.h>
#include <langinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "scheduler/policies/nearest.h"

namespace vitamin::tools {

std::string grouped(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t from_end = 3; from_end < digits.size(); from_end += 4)
    digits.insert(digits.size() - from_end, 1, ',');
  return digits;
}

std::string percent(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return "–";
  if (part == whole) return "100 %";
  if (part == 0) return "0 %";
  // Rounded towards the middle: a single launch short of all must not look like all.
  const double value = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  return fmt::format("{:.1f} %", std::clamp(value, 0.1, 99.9));
}

std::string duration(std::uint64_t nanoseconds) {
  const auto value = static_cast<double>(nanoseconds);
  if (nanoseconds < 1'000) return fmt::format("{} ns", nanoseconds);
  if (nanoseconds < 1'000'000) return fmt::format("{:.1f} µs", value / 1e3);
  if (nanoseconds < 1'000'000'000) return fmt::format("{:.1f} ms", value / 1e6);
  return fmt::format("{:.2f} s", value / 1e9);
}

std::string bytes(std::uint64_t count) {
  if (count < (1u << 10)) return fmt::format("{} B", count);
  if (count < (1u << 20)) return fmt::format("{} KiB", count >> 10);
  return fmt::format("{} MiB", count >> 20);
}

std::string bar(std::uint64_t part, std::uint64_t whole, unsigned width, bool utf8) {
  if (whole == 0 || part == 0) return "";
  constexpr const char* kEighths[] = {"▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};
  const double share = static_cast<double>(part) / static_cast<double>(whole);
  auto eighths = static_cast<unsigned>(std::lround(share * width * 8));
  eighths = std::max(eighths, 1u);  // what is not zero shows
  std::string text;
  if (!utf8) return std::string((eighths + 7) / 8, '#');
  for (; eighths >= 8; eighths -= 8) text += kEighths[7];
  if (eighths > 0) text += kEighths[eighths - 1];
  return text;
}

bool locale_is_utf8() { return std::string_view(nl_langinfo(CODESET)) == "UTF-8"; }

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string guess = scheduler::nearest(word, candidates);
  return guess.empty() ? "" : fmt::format(" Did you mean '{}'?", guess);
}

std::string shell_word(const std::string& word) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string sentence(std::string text) {
  const bool ended = !text.empty() && std::string_view(".?!").find(text.back()) != text.npos;
  return ended ? text : text + ".";
}

void say(Problem problem, std::string_view message) {
  say(fmt::format("{} [{}]", sentence(std::string(message)), runtime::code_of(problem)));
}

void say(std::string_view message) {
  // One write, so that the line stays whole beside the output of the command.
  const std::string line = fmt::format("vitamin: {}\n", message);
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t n = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (n <= 0) return;
    done += static_cast<std::size_t>(n);
  }
}

}  // namespace vitamin::tools
