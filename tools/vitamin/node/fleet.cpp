// SPDX-License-Identifier: Apache-2.0
//
// vitamin status --prometheus: every node and GPU that a Prometheus server knows of. Its metrics
// are all that is asked; docs/metrics.md describes them.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/node/prometheus.h"
#include "tools/vitamin/text.h"
#include "tools/vitamin/verbs.h"

namespace vitamin::tools {
namespace {

using nlohmann::json;

// `job` is that of docs/metrics.md and of the chart's ServiceMonitor.
constexpr const char* kFleetNow =
    R"({__name__=~"vitamin_gpu_(clients|processors|leased_processors|waiting_lanes|drained)|)"
    R"(vitamind_build_info|up",job="vitamin"})";
constexpr const char* kFleetWaits =
    "histogram_quantile(0.9, sum by (instance, UUID, domain, view, le) "
    R"((rate(vitamin_gpu_wait_seconds_bucket{job="vitamin"}[5m]))))";

std::string label_of(const PrometheusSample& sample, const char* name) {
  const auto found = sample.labels.find(name);
  return found == sample.labels.end() ? std::string() : found->second;
}

struct FleetGpu {
  std::string index, model;
  std::map<std::string, double> values;  // by metric, without "vitamin_gpu_"
};
// NaN: it has none.
double value_of(const FleetGpu& gpu, const char* metric) {
  const auto found = gpu.values.find(metric);
  return found == gpu.values.end() ? std::nan("") : found->second;
}

struct FleetNode {
  bool answers = false;  // to the last scrape
  std::string release;
  std::map<std::pair<std::string, std::string>, FleetGpu> gpus;  // by key_of() their samples
};
using Fleet = std::map<std::string, FleetNode>;  // by instance: the address that is scraped

// UUID and view; the shared isolation domain comes first.
std::pair<std::string, std::string> key_of(const PrometheusSample& sample) {
  const std::string domain = label_of(sample, "domain"), view = label_of(sample, "view");
  return {label_of(sample, "UUID"), domain + (domain.empty() || view.empty() ? "" : ", ") + view};
}

void add_sample(Fleet& fleet, const PrometheusSample& sample) {
  constexpr std::string_view kOfGpu = "vitamin_gpu_";
  FleetNode& node = fleet[label_of(sample, "instance")];
  const std::string name = label_of(sample, "__name__");
  if (name == "up") node.answers = sample.value == 1;
  if (name == "vitamind_build_info") node.release = label_of(sample, "version");
  if (!name.starts_with(kOfGpu)) return;
  FleetGpu& gpu = node.gpus[key_of(sample)];
  gpu.index = label_of(sample, "gpu");
  gpu.model = label_of(sample, "model");
  gpu.values[name.substr(kOfGpu.size())] = sample.value;
}

hal::Result<Fleet> fleet_of(const std::string& url) {
  const auto now = ask_prometheus(url, kFleetNow);
  if (!now) return tl::unexpected(now.error());
  const auto waits = ask_prometheus(url, kFleetWaits);
  if (!waits) return tl::unexpected(waits.error());
  Fleet fleet;
  for (const PrometheusSample& sample : *now) add_sample(fleet, sample);
  for (const PrometheusSample& sample : *waits) {
    FleetNode& node = fleet[label_of(sample, "instance")];
    const auto gpu = node.gpus.find(key_of(sample));
    if (gpu != node.gpus.end() && std::isfinite(sample.value))  // NaN: no wait in that time
      gpu->second.values["wait_p90_seconds"] = sample.value;
  }
  return fleet;
}

json fleet_json(const Fleet& fleet) {
  json nodes = json::array();
  for (const auto& [name, node] : fleet) {
    json gpus = json::array();
    for (const auto& [key, gpu] : node.gpus) {
      json one = {{"gpu", gpu.index}, {"uuid", key.first}, {"model", gpu.model}};
      if (!key.second.empty()) one["view"] = key.second;
      for (const auto& [metric, value] : gpu.values) one[metric] = value;
      gpus.push_back(std::move(one));
    }
    nodes.push_back({{"node", name},
                     {"answers", node.answers},
                     {"release", node.release},
                     {"gpus", std::move(gpus)}});
  }
  return {{"schema", 1}, {"nodes", std::move(nodes)}};
}

std::string fleet_text(const Fleet& fleet) {
  // One format for the heading and the lines.
  constexpr std::string_view kLine =
      "{:<28}  {:<8}  {:>3}  {:>11}  {:>7}  {:>7}  {:>9}  {:<40}  {}\n";
  std::size_t answer = 0, gpus = 0;
  std::map<std::string, double> sum;
  std::string lines;
  for (const auto& [name, node] : fleet) {
    answer += node.answers ? 1 : 0;
    if (!node.answers || node.gpus.empty())
      lines +=
          fmt::format(kLine, name, node.release.empty() ? "-" : node.release, "-", "-", "-", "-",
                      "-", "-", node.answers ? "no client has used a GPU yet" : "does not answer");
    std::string uuid;
    for (const auto& [key, gpu] : node.gpus) {
      // The others are views of the same SMs.
      const bool first = std::exchange(uuid, key.first) != key.first;
      for (const auto& [metric, each] : gpu.values)
        if (first || metric != "processors") sum[metric] += each;
      gpus += first ? 1 : 0;
      const double wait = value_of(gpu, "wait_p90_seconds");
      lines += fmt::format(
          kLine, name, node.release, gpu.index,
          fmt::format("{} of {}", value_of(gpu, "leased_processors"), value_of(gpu, "processors")),
          value_of(gpu, "clients"), value_of(gpu, "waiting_lanes"),
          std::isnan(wait) ? "-" : duration(static_cast<std::uint64_t>(wait * 1e9)), key.first,
          gpu.model + (key.second.empty() ? "" : " (view " + key.second + ")") +
              (value_of(gpu, "drained") == 1 ? ", takes no new client" : ""));
    }
  }
  return fmt::format("{} of {} nodes answer; GPUs {}, clients {}, SMs leased {} of {}\n\n", answer,
                     fleet.size(), gpus, sum["clients"], sum["leased_processors"],
                     sum["processors"]) +
         fmt::format(kLine, "node", "release", "gpu", "SMs leased", "clients", "waiting",
                     "wait p90", "UUID", "model") +
         lines;
}

}  // namespace

int show_fleet(const std::string& url, bool as_json) {
  auto fleet = fleet_of(url);
  if (fleet && fleet->empty())
    fleet = hal::fail(hal::Errc::kUnavailable,
                      fmt::format("Prometheus at {} scrapes no vitamind: none of its jobs is named "
                                  "'vitamin'",
                                  url));
  if (!fleet) {
    say(fleet.error().code == hal::Errc::kInvalidArgument ? Problem::kUsage
                                                          : Problem::kDaemonUnreachable,
        fleet.error().message + ".");
    return kExitFailed;
  }
  fmt::print("{}", as_json ? fleet_json(*fleet).dump(2) + "\n" : fleet_text(*fleet));
  return 0;
}

}  // namespace vitamin::tools
