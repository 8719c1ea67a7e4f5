// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "deploy/slurm/accounting.h"

namespace vitamin::slurm {
namespace {

constexpr std::string_view kName = "vitamin_sm_seconds=";

struct Parts {
  std::string_view before, after;
  std::map<std::string, double, std::less<>> nodes;
};

// What is no well-formed list of nodes, up to the next space, is in no part.
Parts parts_of(std::string_view comment) {
  const std::size_t begin = comment.find(kName);
  if (begin == comment.npos) return {comment, "", {}};
  const std::string_view text = comment.substr(begin, comment.find(' ', begin) - begin);
  Parts parts{comment.substr(0, begin), comment.substr(begin + text.size()), {}};
  const std::size_t open = text.find('(');
  if (open == text.npos || !text.ends_with(')')) return parts;
  std::string_view list = text.substr(open + 1, text.size() - open - 2);
  while (!list.empty()) {
    const std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(entry.size() + 1, list.size()));
    const std::size_t equals = std::min(entry.find('='), entry.size());
    const std::string_view value = entry.substr(std::min(equals + 1, entry.size()));
    double number = 0;
    const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error == std::errc() && stop == value.data() + value.size())
      parts.nodes[std::string(entry.substr(0, equals))] += number;
  }
  return parts;
}

}  // namespace

std::string with_use(std::string_view comment, std::string_view node, double sm_seconds) {
  Parts parts = parts_of(comment);
  parts.nodes[std::string(node)] += sm_seconds;
  double sum = 0;
  std::string list;
  for (const auto& [name, value] : parts.nodes) {
    sum += value;
    list += fmt::format("{}{}={:.3f}", list.empty() ? "" : ",", name, value);
  }
  const bool follows = !parts.before.empty() && !parts.before.ends_with(' ');
  return fmt::format("{}{}{}{:.3f}({}){}", parts.before, follows ? " " : "", kName, sum, list,
                     parts.after);
}

double use_of(std::string_view comment, std::string_view node) {
  const Parts parts = parts_of(comment);
  const auto found = parts.nodes.find(node);
  return found != parts.nodes.end() ? found->second : 0;
}

}  // namespace vitamin::slurm
