// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policies/parameters.h"

#include <algorithm>

namespace vitamin::scheduler {
namespace {

struct TimeUnit {
  std::string_view name;
  std::uint64_t ns;
};
constexpr TimeUnit kTimeUnits[] = {{"us", 1000}, {"ms", 1'000'000}, {"s", 1'000'000'000}};
constexpr std::uint64_t kLongestNs = 1'000'000'000'000;

bool read(std::string_view text, std::uint32_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// Calls function(part) for each part of the text between separators.
template <class F>
void split(std::string_view text, char separator, F function) {
  while (!text.empty()) {
    const std::size_t at = std::min(text.find(separator), text.size());
    if (at > 0) function(text.substr(0, at));
    text.remove_prefix(std::min(at + 1, text.size()));
  }
}

// A run of units behind a comma is taken for a parameter.
std::string joined_hint(std::string_view name) {
  const std::size_t dash = name.find('-');
  std::uint32_t unit = 0;
  const bool run = read(name.substr(0, dash), &unit) &&
                   (dash == name.npos || read(name.substr(dash + 1), &unit));
  return run ? ": a comma ends a parameter; join runs of units by '+', as in units=0-3+8-15" : "";
}

}  // namespace

std::string units_text(hal::ComputeSet units) {
  std::string text;
  for (unsigned unit = 0; unit < hal::ComputeSet::kMaxUnits; ++unit) {
    const auto has = [&](unsigned which) {
      return which < hal::ComputeSet::kMaxUnits && units.contains(hal::ComputeSet::range(which, 1));
    };
    if (!has(unit)) continue;
    text += (text.empty() ? "" : "+") + std::to_string(unit);
    const unsigned first = unit;
    while (has(unit + 1)) ++unit;
    if (unit != first) text += "-" + std::to_string(unit);
  }
  return text;
}

Parameters Parameters::parse(std::string_view text) {
  Parameters parameters;
  split(text, ',', [&](std::string_view part) {
    const std::size_t equal = part.find('=');
    const std::string name(part.substr(0, equal));
    const std::string value(equal == part.npos ? "1" : part.substr(equal + 1));
    parameters.given_.push_back(name);
    if (!parameters.values_.emplace(name, value).second && parameters.error_.empty())
      parameters.error_ = "parameter '" + name + "' is given twice";
  });
  return parameters;
}

std::optional<std::string> Parameters::take(const std::string& name) {
  const auto found = values_.find(name);
  if (found == values_.end()) return std::nullopt;
  std::string value = found->second;
  values_.erase(found);
  return value;
}

void Parameters::number(const std::string& name, std::uint32_t low, std::uint32_t high,
                        std::uint32_t* value) {
  const std::optional<std::string> text = take(name);
  if (!text) return;
  std::uint32_t number = 0;
  if (read(*text, &number) && number >= low && number <= high) {
    *value = number;
  } else if (error_.empty()) {
    error_ = "parameter '" + name + "' is '" + *text + "', not a number from " +
             std::to_string(low) + " to " + std::to_string(high);
  }
}

void Parameters::flag(const std::string& name, bool* value) {
  const std::optional<std::string> text = take(name);
  if (!text) return;
  if (*text == "1" || *text == "true")
    *value = true;
  else if (*text == "0" || *text == "false")
    *value = false;
  else
    refuse("parameter '" + name + "' is '" + *text + "', not 1 or true, 0 or false");
}

bool Parameters::given(const std::string& name) const {
  return std::find(given_.begin(), given_.end(), name) != given_.end();
}

void Parameters::refuse(std::string why) {
  if (error_.empty()) error_ = std::move(why);
}

void Parameters::word(const std::string& name, std::initializer_list<std::string_view> known,
                      std::size_t* value) {
  const std::optional<std::string> text = take(name);
  if (!text) return;
  const auto at = std::find(known.begin(), known.end(), *text);
  if (at != known.end()) {
    *value = static_cast<std::size_t>(at - known.begin());
  } else if (error_.empty()) {
    error_ = "parameter '" + name + "' is '" + *text + "', not one of";
    for (const std::string_view one : known)
      error_ += std::string(one == *known.begin() ? " " : ", ") + std::string(one);
  }
}

void Parameters::duration(const std::string& name, std::uint64_t* ns) {
  const std::optional<std::string> text = take(name);
  if (!text) return;
  std::uint64_t number = 0;
  const auto [unit, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  const std::string_view suffix =
      std::string_view(*text).substr(static_cast<std::size_t>(unit - text->data()));
  for (const TimeUnit& known : kTimeUnits)
    if (error == std::errc() && suffix == known.name && number > 0 &&
        number <= kLongestNs / known.ns) {
      *ns = number * known.ns;
      return;
    }
  if (error_.empty())
    error_ =
        "parameter '" + name + "' is '" + *text + "', not a duration from 1us to 1000s, like 2ms";
}

void Parameters::units(const std::string& name, hal::ComputeSet* value) {
  const std::optional<std::string> text = take(name);
  if (!text) return;
  hal::ComputeSet set;
  bool good = true;
  split(*text, '+', [&](std::string_view run) {
    const std::size_t dash = run.find('-');
    std::uint32_t first = 0, last = 0;
    good = good && read(run.substr(0, dash), &first);
    last = first;
    if (dash != run.npos) good = good && read(run.substr(dash + 1), &last);
    good = good && first <= last && last < hal::ComputeSet::kMaxUnits;
    if (good) set |= hal::ComputeSet::range(first, last - first + 1);
  });
  if (good && !set.empty()) {
    *value = set;
  } else if (error_.empty()) {
    error_ = "parameter '" + name + "' is '" + *text + "', not units like 0-7 or 0-3+8-15";
  }
}

std::string Parameters::error(std::span<const Parameter> described) const {
  if (!error_.empty()) return error_;
  for (const std::string& name : given_)
    if (values_.contains(name) ||
        std::none_of(described.begin(), described.end(),
                     [&](const Parameter& parameter) { return parameter.name == name; }))
      return "parameter '" + name + "' is unknown" + joined_hint(name);
  return "";
}

}  // namespace vitamin::scheduler
