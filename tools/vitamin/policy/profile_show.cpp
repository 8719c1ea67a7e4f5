// SPDX-License-Identifier: Apache-2.0
//
// vitamin profile show: the scaling curves of a profile file.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/profile/file.h"
#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/policy/svg.h"
#include "tools/vitamin/policy/verbs.h"
#include "tools/vitamin/text.h"

namespace vitamin::tools {
namespace {

struct Row {
  std::uint64_t key;
  const runtime::KernelProfile* kernel;
  std::string name;
  double longest_ns = 0;
};

std::vector<Row> longest_first(const runtime::Profile& profile, std::size_t most) {
  std::vector<Row> rows;
  for (const auto& [key, kernel] : profile.kernels()) {
    Row row{key, &kernel, kernel.name.empty() ? fmt::format("{:016x}", key) : kernel.name};
    for (const runtime::ProfileCell& cell : kernel.cells)
      row.longest_ns = std::max(row.longest_ns, cell.undisturbed_ns());
    rows.push_back(std::move(row));
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.longest_ns != b.longest_ns ? a.longest_ns > b.longest_ns : a.key < b.key;
  });
  if (rows.size() > most) rows.resize(most);
  return rows;
}

std::vector<std::uint32_t> widths_of(const runtime::Profile& profile) {
  std::vector<std::uint32_t> widths;
  for (const auto& [key, kernel] : profile.kernels())
    for (const runtime::ProfileCell& cell : kernel.cells) widths.push_back(cell.sms);
  std::sort(widths.begin(), widths.end());
  widths.erase(std::unique(widths.begin(), widths.end()), widths.end());
  return widths;
}

// What was timed; nothing: a cell without launches.
runtime::ProfileCell cell_at(const runtime::KernelProfile& kernel, std::uint32_t sms) {
  for (const runtime::ProfileCell& cell : kernel.cells)
    if (cell.sms == sms) return cell;
  return {};
}

nlohmann::ordered_json timed(const runtime::ProfileCell& cell) {
  return {{"undisturbed_ns", cell.undisturbed_ns()},
          {"mean_ns", cell.mean_ns},
          {"some_ns", std::vector<float>(cell.some.begin(), cell.some.begin() + cell.kept)}};
}

bool plot(const std::string& path, const std::vector<Row>& rows, const runtime::Profile& profile,
          std::uint32_t widest) {
  Chart chart{"time by SMs", "SMs", "us", {}};
  chart.log_y = true;
  for (const Row& row : rows) {
    Series series{row.name.substr(0, 24), {}};
    for (std::uint32_t width = 1; width <= widest; ++width) {
      const bool measured = profile.predict(row.key, width).measured;
      if (width % 4 == 0 || measured)
        series.points.emplace_back(width, profile.predict(row.key, width).ns / 1e3);
    }
    chart.series.push_back(std::move(series));
  }
  std::ofstream file(path);
  file << svg(chart);
  if (!file.flush()) say(Problem::kCannotWrite, fmt::format("{} cannot be written.", path));
  return static_cast<bool>(file);
}

}  // namespace

int show_profile(const ProfileOptions& options) {
  std::string model;
  const auto profile = runtime::read_profile(options.file, options.model, &model);
  if (!profile) {
    say(Problem::kCannotRead, profile.error().message + ".");
    return kExitFailed;
  }
  const std::vector<Row> rows = longest_first(*profile, options.kernels);
  const std::vector<std::uint32_t> widths = widths_of(*profile);
  if (!options.plot.empty() &&
      !plot(options.plot, rows, *profile, widths.empty() ? 1 : widths.back()))
    return kExitFailed;
  if (options.json) {
    nlohmann::ordered_json out = {{"schema", 1}, {"model", model}};
    // Two events with nothing between them: what was taken off every time.
    out["bracket"] = timed(profile->bracket());
    out["bracket"]["samples"] = profile->bracket().count;
    out["kernels"] = nlohmann::json::array();
    for (const Row& row : rows) {
      auto curve = nlohmann::ordered_json::array();
      for (const std::uint32_t width : widths) {
        const runtime::Prediction prediction = profile->predict(row.key, width);
        const runtime::ProfileCell cell = cell_at(*row.kernel, width);
        nlohmann::ordered_json point = {{"processors", width},
                                        {"ns", prediction.ns},
                                        {"measured", prediction.measured},
                                        {"samples", cell.count},
                                        {"confidence", prediction.confidence}};
        if (cell.count > 0) point.update(timed(cell));
        curve.push_back(std::move(point));
      }
      out["kernels"].push_back({{"key", fmt::format("{:016x}", row.key)},
                                {"name", row.kernel->name},
                                {"blocks", row.kernel->blocks},
                                {"curve", curve}});
    }
    fmt::print("{}\n", out.dump(2));
    return 0;
  }
  fmt::print("{}: {} kernels; microseconds by SMs (~: predicted, not measured)\n\n{:<28}", model,
             grouped(profile->kernels().size()), "kernel");
  // As many widths as a line holds, the narrowest and the widest among them.
  std::vector<std::uint32_t> shown;
  const std::size_t columns = std::min<std::size_t>(widths.size(), 9);
  for (std::size_t i = 0; i < columns; ++i)
    shown.push_back(widths[columns == 1 ? 0 : i * (widths.size() - 1) / (columns - 1)]);
  for (const std::uint32_t width : shown) fmt::print("{:>11}", width);
  fmt::print("\n");
  for (const Row& row : rows) {
    fmt::print("{:<28}", row.name.substr(0, 27));
    for (const std::uint32_t width : shown) {
      const runtime::Prediction prediction = profile->predict(row.key, width);
      fmt::print("{:>11}",
                 fmt::format("{}{:.1f}", prediction.measured ? "" : "~", prediction.ns / 1e3));
    }
    fmt::print("\n");
  }
  return 0;
}

}  // namespace vitamin::tools
