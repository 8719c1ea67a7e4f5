// SPDX-License-Identifier: Apache-2.0
//
// Words and numbers for people: what every verb of the command line prints with.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/problem.h"

namespace vitamin::tools {

// "81,943"
std::string grouped(std::uint64_t number);

// "98.4 %"; "100 %" only when part == whole, so that 99.99 does not read as all. "–" for 0 of 0.
std::string percent(std::uint64_t part, std::uint64_t whole);

// "82.4 ms", "1.3 s", "730 ns"
std::string duration(std::uint64_t nanoseconds);

// "324 MiB"
std::string bytes(std::uint64_t count);

// A bar of `width` columns, filled in proportion. Block elements in a UTF-8 locale, else '#'.
std::string bar(std::uint64_t part, std::uint64_t whole, unsigned width, bool utf8);
bool locale_is_utf8();

// " Did you mean 'random'?" or "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

// As one word for a POSIX shell; quoted only where it must be.
std::string shell_word(const std::string& word);

// With a period at its end, where it has none of '.', '?' and '!' there.
std::string sentence(std::string text);

// "vitamin: <message>" as one line on stderr.
void say(std::string_view message);
// The same about a problem, as a sentence: "vitamin: <message>. [VIT-101]".
using runtime::Problem;
void say(Problem problem, std::string_view message);

}  // namespace vitamin::tools
