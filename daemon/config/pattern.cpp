// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/pattern.h"

#include <charconv>
#include <cstdint>
#include <vector>

namespace vitamin::config {
namespace {

struct Range {
  std::uint64_t first = 0, last = 0;
  std::size_t digits = 0;  // that are wanted; 0: any number of them
};

// An element of a pattern: a character, any one, any text, or a number.
struct Element {
  enum class Kind : std::uint8_t { kCharacter, kOne, kAny, kNumber } kind = Kind::kCharacter;
  char character = 0;
  std::vector<Range> ranges;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool read(std::string_view text, std::uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

// Calls function(part) for each part between commas that do not stand in brackets.
template <class F>
void each_alternative(std::string_view text, F function) {
  std::size_t begin = 0;
  bool inside = false;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && !inside)) {
      function(text.substr(begin, i - begin));
      begin = i + 1;
    } else if (text[i] == '[' || text[i] == ']') {
      inside = text[i] == '[';
    }
  }
}

std::optional<std::string> read_ranges(std::string_view list, std::vector<Range>& ranges) {
  std::optional<std::string> wrong;
  each_alternative(list, [&](std::string_view part) {
    const std::size_t dash = part.find('-');
    const std::string_view first = part.substr(0, dash);
    Range range;
    bool good = read(first, range.first);
    range.last = range.first;
    if (dash != part.npos) good = good && read(part.substr(dash + 1), range.last);
    if (!good || range.first > range.last)
      wrong = "'" + std::string(part) + "' is no range of numbers like 1-64";
    if (first.size() > 1 && first.front() == '0') range.digits = first.size();
    ranges.push_back(range);
  });
  return wrong;
}

std::optional<std::string> parse(std::string_view text, std::vector<Element>& elements) {
  using Kind = Element::Kind;
  if (text.empty()) return "an empty pattern matches nothing";
  for (std::size_t i = 0; i < text.size(); ++i) {
    Element element;
    element.character = text[i];
    if (text[i] == '*') element.kind = Kind::kAny;
    if (text[i] == '?') element.kind = Kind::kOne;
    if (text[i] == ']') return "']' without '['";
    if (text[i] == '[') {
      const std::size_t end = text.find(']', i);
      if (end == text.npos) return "'[' without ']'";
      element.kind = Kind::kNumber;
      if (auto wrong = read_ranges(text.substr(i + 1, end - i - 1), element.ranges)) return wrong;
      i = end;
    }
    elements.push_back(std::move(element));
  }
  return std::nullopt;
}

// How many characters of `text` the element takes; npos: it does not match.
std::size_t taken(const Element& element, std::string_view text) {
  if (text.empty()) return text.npos;
  if (element.kind == Element::Kind::kOne) return 1;
  if (element.kind == Element::Kind::kCharacter)
    return text.front() == element.character ? 1 : text.npos;
  std::size_t digits = 0;
  while (digits < text.size() && is_digit(text[digits])) ++digits;
  std::uint64_t number = 0;
  if (!read(text.substr(0, digits), number)) return text.npos;
  for (const Range& range : element.ranges)
    if (number >= range.first && number <= range.last &&
        (range.digits == 0 || range.digits == digits))
      return digits;
  return text.npos;
}

// What stands before the last '*' need not be tried again once what follows it has begun.
bool matches_all(const std::vector<Element>& elements, std::string_view text) {
  std::size_t at = 0, element = 0;
  std::size_t star = elements.size(), star_at = 0;
  while (at < text.size() || element < elements.size()) {
    if (element < elements.size() && elements[element].kind == Element::Kind::kAny) {
      star = element++;
      star_at = at;
      continue;
    }
    if (element < elements.size()) {
      if (const std::size_t length = taken(elements[element], text.substr(at));
          length != text.npos) {
        at += length;
        ++element;
        continue;
      }
    }
    if (star == elements.size() || star_at >= text.size()) return false;
    at = ++star_at;
    element = star + 1;
  }
  return true;
}

}  // namespace

std::optional<std::string> pattern_problem(std::string_view pattern) {
  std::optional<std::string> wrong;
  each_alternative(pattern, [&](std::string_view one) {
    std::vector<Element> elements;
    if (auto found = parse(one, elements); found && !wrong) wrong = std::move(found);
  });
  return wrong;
}

bool matches(std::string_view pattern, std::string_view text) {
  bool found = false;
  each_alternative(pattern, [&](std::string_view one) {
    std::vector<Element> elements;
    if (!found && !parse(one, elements)) found = matches_all(elements, text);
  });
  return found;
}

}  // namespace vitamin::config
