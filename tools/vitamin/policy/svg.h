// SPDX-License-Identifier: Apache-2.0
//
// Line and area charts as SVG text, for reports: no script, no font, readable by any browser.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace vitamin::tools {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // ascending in x
};

struct Chart {
  std::string title, x_label, y_label;
  std::vector<Series> series;
  bool log_x = false, log_y = false;
  bool stacked = false;  // areas, one on the other; the series share their x values
  // Vertical line with a word, where x_mark > 0 (a limit that is met or not).
  double x_mark = 0;
  std::string x_mark_name{};
};

std::string svg(const Chart& chart);

}  // namespace vitamin::tools
