// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/policy/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

namespace vitamin::tools {
namespace {

constexpr double kWidth = 720, kHeight = 420, kLeft = 70, kRight = 170, kTop = 40, kBottom = 55;
// Distinguishable without colour vision (Okabe and Ito).
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#000000", "#999999"};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else
      result += c;
  }
  return result;
}

struct Axis {
  double low = 0, high = 1, from = 0, to = 1;
  bool log = false;
  double at(double value) const {
    if (log) {
      value = std::log10(std::max(value, std::pow(10, low)));
    }
    return from + (value - low) / (high - low) * (to - from);
  }
  std::vector<double> ticks() const {
    std::vector<double> values;
    if (log) {
      for (double power = std::floor(low); power <= high; ++power)
        for (const double digit : {1.0, 2.0, 5.0}) {
          const double exponent = power + std::log10(digit);
          if (exponent >= low - 1e-9 && exponent <= high + 1e-9 && (high - low < 3 || digit == 1))
            values.push_back(std::pow(10, exponent));
        }
      return values;
    }
    const double raw = (high - low) / 6, power = std::pow(10, std::floor(std::log10(raw)));
    double step = power;
    for (const double factor : {2.0, 5.0, 10.0})
      if (raw > step) step = factor * power;
    for (double value = std::ceil(low / step) * step; value <= high + 1e-9; value += step)
      values.push_back(std::abs(value) < step / 1e6 ? 0 : value);
    return values;
  }
};

Axis make_axis(double least, double most, bool log, double from, double to) {
  Axis axis{least, most, from, to, log};
  if (log) {
    axis.low = std::log10(std::max(least, 1e-9));
    axis.high = std::log10(std::max(most, 1e-9));
  }
  if (!(axis.high > axis.low)) axis.high = axis.low + 1;
  return axis;
}

std::vector<Series> stacked(std::vector<Series> series) {
  for (std::size_t i = 1; i < series.size(); ++i)
    for (std::size_t k = 0; k < series[i].points.size(); ++k)
      series[i].points[k].second += series[i - 1].points[k].second;
  return series;
}

std::string path(const Series& series, const Axis& x, const Axis& y) {
  std::string text;
  for (const auto& [at, value] : series.points)
    fmt::format_to(std::back_inserter(text), "{}{:.1f} {:.1f}", text.empty() ? "M" : "L", x.at(at),
                   y.at(value));
  return text;
}

void draw_axes(const Chart& chart, const Axis& x, const Axis& y, std::string& out) {
  auto to = std::back_inserter(out);
  for (const double tick : x.ticks())
    fmt::format_to(to,
                   "<line x1='{0:.1f}' y1='{1}' x2='{0:.1f}' y2='{2}' stroke='#ddd'/>"
                   "<text x='{0:.1f}' y='{3}' text-anchor='middle'>{4:g}</text>\n",
                   x.at(tick), kTop, kHeight - kBottom, kHeight - kBottom + 16, tick);
  for (const double tick : y.ticks())
    fmt::format_to(to,
                   "<line x1='{1}' y1='{0:.1f}' x2='{2}' y2='{0:.1f}' stroke='#ddd'/>"
                   "<text x='{3}' y='{4:.1f}' text-anchor='end'>{5:g}</text>\n",
                   y.at(tick), kLeft, kWidth - kRight, kLeft - 6, y.at(tick) + 4, tick);
  fmt::format_to(to, "<text x='{}' y='22' font-size='15'>{}</text>\n", kLeft, escaped(chart.title));
  fmt::format_to(to, "<text x='{}' y='{}' text-anchor='middle'>{}</text>\n",
                 (kLeft + kWidth - kRight) / 2, kHeight - 14, escaped(chart.x_label));
  fmt::format_to(to,
                 "<text x='16' y='{0}' text-anchor='middle' transform='rotate(-90 16 {0})'>{1}"
                 "</text>\n",
                 (kTop + kHeight - kBottom) / 2, escaped(chart.y_label));
}

}  // namespace

std::string svg(const Chart& chart) {
  const std::vector<Series> series = chart.stacked ? stacked(chart.series) : chart.series;
  double x_least = 1e300, x_most = -1e300, y_least = chart.log_y ? 1e300 : 0, y_most = -1e300;
  for (const Series& one : series)
    for (const auto& [x, y] : one.points) {
      x_least = std::min(x_least, x), x_most = std::max(x_most, x);
      y_least = std::min(y_least, y), y_most = std::max(y_most, y);
    }
  if (x_most < x_least) x_least = 0, x_most = 1, y_least = 0, y_most = 1;
  if (chart.x_mark > 0) x_most = std::max(x_most, chart.x_mark);
  const Axis x = make_axis(x_least, x_most, chart.log_x, kLeft, kWidth - kRight);
  const Axis y = make_axis(y_least, y_most, chart.log_y, kHeight - kBottom, kTop);

  std::string out = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='{1}' viewBox='0 0 {0} {1}' "
      "font-family='sans-serif' font-size='12'>\n<rect width='{0}' height='{1}' fill='white'/>\n",
      kWidth, kHeight);
  draw_axes(chart, x, y, out);
  auto to = std::back_inserter(out);
  for (std::size_t i = series.size(); i-- > 0;) {
    const char* colour = kColours[i % kColours.size()];
    if (series[i].points.empty()) continue;
    if (chart.stacked)
      fmt::format_to(to, "<path d='{}L{:.1f} {:.1f}L{:.1f} {:.1f}Z' fill='{}'/>\n",
                     path(series[i], x, y), x.at(series[i].points.back().first), y.at(0),
                     x.at(series[i].points.front().first), y.at(0), colour);
    else
      fmt::format_to(to, "<path d='{}' fill='none' stroke='{}' stroke-width='1.8'/>\n",
                     path(series[i], x, y), colour);
  }
  if (chart.x_mark > 0)
    fmt::format_to(to,
                   "<line x1='{0:.1f}' y1='{1}' x2='{0:.1f}' y2='{2}' stroke='#555' "
                   "stroke-dasharray='4 3'/><text x='{0:.1f}' y='{3}'>{4}</text>\n",
                   x.at(chart.x_mark), kTop, kHeight - kBottom, kTop - 4,
                   escaped(chart.x_mark_name));
  for (std::size_t i = 0; i < series.size(); ++i)
    fmt::format_to(to,
                   "<rect x='{}' y='{}' width='12' height='12' fill='{}'/>"
                   "<text x='{}' y='{}'>{}</text>\n",
                   kWidth - kRight + 12, kTop + 18.0 * static_cast<double>(i),
                   kColours[i % kColours.size()], kWidth - kRight + 30,
                   kTop + 10 + 18.0 * static_cast<double>(i), escaped(series[i].name));
  return out + "</svg>\n";
}

}  // namespace vitamin::tools
