// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/prometheus_text.h"

#include <fmt/format.h>

namespace vitamin::daemon {
namespace {

std::string escaped(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') text += '\\';
    text += c;
  }
  return text;
}

}  // namespace

void PrometheusText::family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void PrometheusText::sample(const Labels& labels, double value) {
  line("", labels, fmt::format("{}", value));
}

void PrometheusText::sample(const Labels& labels, const WaitHistogram& waits) {
  std::uint64_t below = 0;
  for (unsigned i = 0; i <= WaitHistogram::kBounds; ++i) {
    Labels all = labels;
    all.emplace_back("le", i < WaitHistogram::kBounds
                               ? fmt::format("{}", WaitHistogram::bound_seconds(i))
                               : "+Inf");
    below += waits.count(i);
    line("_bucket", all, fmt::format("{}", below));
  }
  line("_sum", labels, fmt::format("{}", static_cast<double>(waits.sum_ns()) * 1e-9));
  line("_count", labels, fmt::format("{}", below));
}

void PrometheusText::line(std::string_view suffix, const Labels& labels, std::string_view value) {
  text_ += name_;
  text_ += suffix;
  char before = '{';
  for (const auto& [name, text] : labels) {
    text_ += fmt::format("{}{}=\"{}\"", before, name, escaped(text));
    before = ',';
  }
  text_ += fmt::format("{} {}\n", labels.empty() ? "" : "}", value);
}

}  // namespace vitamin::daemon
