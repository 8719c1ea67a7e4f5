// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/run/report.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

namespace vitamin::tools {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

// Every counter by its key in the JSON report; adding up and printing go over the same lists.
constexpr std::pair<const char*, stats::Counter stats::Launches::*> kLaunchCounters[] = {
    {"seen", &stats::Launches::seen},
    {"bound", &stats::Launches::bound},
    {"bridged", &stats::Launches::bridged},
    {"passed", &stats::Launches::passed},
    {"failed", &stats::Launches::failed},
    {"moved", &stats::Launches::moved},
    {"successors", &stats::Launches::successors},
    {"narrow_eligible", &stats::Launches::narrow_eligible},
    {"narrow", &stats::Launches::narrow},
    {"deferred", &stats::Launches::deferred},
    {"retried", &stats::Launches::retried},
    {"captured", &stats::Launches::captured},
};
constexpr std::pair<const char*, stats::Counter stats::OtherWork::*> kOtherCounters[] = {
    {"graph_launches", &stats::OtherWork::graph_launches},
    {"graphs_timed", &stats::OtherWork::graphs_timed},
    {"graph_unleased_ns", &stats::OtherWork::graph_whole_ns},
    {"copies_queued", &stats::OtherWork::copies_queued},
    {"fills_queued", &stats::OtherWork::fills_queued},
    {"calls_bridged", &stats::OtherWork::calls_bridged},
    {"calls_passed", &stats::OtherWork::calls_passed},
    {"host_functions", &stats::OtherWork::host_functions},
    {"value_waits", &stats::OtherWork::value_waits},
    {"edges", &stats::OtherWork::edges},
};
constexpr std::pair<const char*, stats::Counter stats::Graphs::*> kGraphCounters[] = {
    {"bound", &stats::Graphs::bound},       {"narrow", &stats::Graphs::narrow},
    {"moved", &stats::Graphs::moved},       {"successors", &stats::Graphs::successors},
    {"deferred", &stats::Graphs::deferred}, {"made", &stats::Graphs::made},
    {"updated", &stats::Graphs::updated},   {"evicted", &stats::Graphs::evicted},
    {"held", &stats::Graphs::held},         {"held_bytes", &stats::Graphs::held_bytes},
};
static_assert(sizeof(stats::Graphs) == std::size(kGraphCounters) * sizeof(stats::Counter));
static_assert(sizeof(stats::Launches) == std::size(kLaunchCounters) * sizeof(stats::Counter));
static_assert(sizeof(stats::OtherWork) == std::size(kOtherCounters) * sizeof(stats::Counter));

template <std::size_t N>
std::string text(const stats::PageText<N>& text) {
  return std::string(text.bytes, ::strnlen(text.bytes, N));
}

Totals read_totals(const stats::DevicePage& page) {
  Totals totals;
  totals.launches = page.launches;
  totals.other = page.other;
  totals.graphs = page.graphs;
  for (unsigned i = 0; i < stats::kGraphReasons; ++i)
    totals.graph_whole[i] = page.graph_whole[i].get();
  for (unsigned i = 0; i < stats::kWholeReasons; ++i) totals.whole[i] = page.whole[i].get();
  for (unsigned i = 0; i < stats::kUnboundReasons; ++i) totals.unbound[i] = page.unbound[i].get();
  for (const stats::WidthSlot& slot : page.widths)
    if (const std::uint32_t processors = slot.sms.load(std::memory_order_relaxed)) {
      if (const std::uint64_t launches = slot.launches.get()) totals.widths[processors] += launches;
      if (const std::uint64_t graphs = slot.graphs.get()) totals.graph_widths[processors] += graphs;
    }
  for (const stats::LibrarySlot& slot : page.libraries) {
    if (slot.used.load(std::memory_order_acquire) == 0) continue;
    LibraryTotals& library = totals.libraries[text(slot.name)];
    library = {slot.seen.get(),          slot.bound.get(),
               slot.bridged.get(),       slot.passed.get(),
               slot.narrow.get(),        slot.moved.get(),
               slot.graph_kernels.get(), slot.graph_kernels_bound.get()};
  }
  return totals;
}

DeviceReport read_device(const stats::DevicePage& page) {
  DeviceReport device;
  device.ordinal = page.ordinal;
  device.name = text(page.pool.device_name);
  device.uuid = text(page.pool.device_uuid);
  device.processors = page.pool.sms.get();
  device.units = page.pool.units.get();
  device.entries = page.pool.partitions.get();
  device.queues = page.pool.queues.get();
  device.creation_ns = page.pool.creation_ns.get();
  device.device_bytes = page.pool.device_bytes.get();
  device.host_bytes = page.pool.host_bytes.get();
  device.totals = read_totals(page);
  return device;
}

ProcessReport read_process(const stats::ProcessPage& page) {
  ProcessReport process;
  process.pid = page.pid;
  process.parent = page.parent;
  process.program = text(page.program);
  process.policy = text(page.policy);
  process.message = text(page.message);
  process.stage = static_cast<stats::Stage>(page.stage.load(std::memory_order_relaxed));
  process.init_status = page.init_status.load(std::memory_order_relaxed);
  process.passed_unmanaged = page.passed_unmanaged.get();
  process.warnings_seen = page.warnings_seen.get();
  for (const stats::Warning& warning : page.warnings)
    if (warning.ready.load(std::memory_order_acquire) == 2)
      process.warnings.push_back(text(warning.text));
  for (const stats::DevicePage& device : page.devices)
    if (device.used.load(std::memory_order_acquire) != 0)
      process.devices.push_back(read_device(device));
  return process;
}

}  // namespace

void Totals::add(const Totals& more) {
  for (const auto& [key, counter] : kLaunchCounters)
    (launches.*counter).add((more.launches.*counter).get());
  for (const auto& [key, counter] : kOtherCounters)
    (other.*counter).add((more.other.*counter).get());
  for (const auto& [key, counter] : kGraphCounters)
    (graphs.*counter).add((more.graphs.*counter).get());
  for (std::size_t i = 0; i < graph_whole.size(); ++i) graph_whole[i] += more.graph_whole[i];
  for (const auto& [processors, count] : more.graph_widths) graph_widths[processors] += count;
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] += more.whole[i];
  for (std::size_t i = 0; i < unbound.size(); ++i) unbound[i] += more.unbound[i];
  for (const auto& [processors, count] : more.widths) widths[processors] += count;
  for (const auto& [name, theirs] : more.libraries) {
    LibraryTotals& ours = libraries[name];
    ours.seen += theirs.seen;
    ours.bound += theirs.bound;
    ours.bridged += theirs.bridged;
    ours.passed += theirs.passed;
    ours.narrow += theirs.narrow;
    ours.moved += theirs.moved;
    ours.graph_kernels += theirs.graph_kernels;
    ours.graph_kernels_bound += theirs.graph_kernels_bound;
  }
}

std::uint64_t ProcessReport::launches() const {
  std::uint64_t sum = passed_unmanaged;
  for (const DeviceReport& device : devices) sum += device.totals.launches.seen.get();
  return sum;
}

stats::Stage Report::furthest() const {
  stats::Stage stage = stats::Stage::kLoaded;
  for (const ProcessReport& process : processes) stage = std::max(stage, process.stage);
  return stage;
}

Report read_report(const fs::path& run_directory) {
  Report report;
  std::vector<std::pair<std::uint64_t, ProcessReport>> started;
  const auto page = std::make_unique<stats::ProcessPage>();
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(run_directory, error)) {
    if (entry.path().extension() != ".stats") continue;
    const stats::Read read = stats::read(entry.path().c_str(), *page);
    if (read == stats::Read::kGood)
      started.emplace_back(page->started_ns, read_process(*page));
    else
      ++(read == stats::Read::kEmpty ? report.unwritten : report.unreadable);
  }
  std::stable_sort(started.begin(), started.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  // Each vendor's library has a page of its own. One whose runtime was never used says nothing
  // beside another page of the same program.
  auto idle_twin = [&](const ProcessReport& process) {
    if (process.stage != stats::Stage::kLoaded || !process.devices.empty() ||
        process.passed_unmanaged > 0)
      return false;
    return std::any_of(started.begin(), started.end(), [&](const auto& other) {
      return other.second.stage != stats::Stage::kLoaded && other.second.pid == process.pid &&
             other.second.program == process.program;
    });
  };
  for (std::size_t i = started.size(); i-- > 0;)
    if (idle_twin(started[i].second))
      started.erase(started.begin() + static_cast<std::ptrdiff_t>(i));
  for (auto& [when, process] : started) {
    for (const DeviceReport& device : process.devices) report.totals.add(device.totals);
    report.passed_unmanaged += process.passed_unmanaged;
    report.processes.push_back(std::move(process));
  }
  return report;
}

namespace {

ordered_json json_of(const Totals& totals) {
  ordered_json result;
  for (const auto& [key, counter] : kLaunchCounters)
    result["launches"][key] = (totals.launches.*counter).get();
  for (const auto& [key, counter] : kOtherCounters)
    result["other"][key] = (totals.other.*counter).get();
  for (const auto& [key, counter] : kGraphCounters)
    result["graphs"][key] = (totals.graphs.*counter).get();
  result["graphs"]["whole_device"] = ordered_json::object();
  for (std::size_t i = 0; i < totals.graph_whole.size(); ++i)
    if (totals.graph_whole[i] > 0)
      result["graphs"]["whole_device"][stats::kGraphReasonKey[i]] = totals.graph_whole[i];
  result["graphs"]["widths"] = ordered_json::array();
  for (const auto& [processors, launches] : totals.graph_widths)
    result["graphs"]["widths"].push_back({{"processors", processors}, {"launches", launches}});
  result["whole_device"] = ordered_json::object();
  for (std::size_t i = 0; i < totals.whole.size(); ++i)
    if (totals.whole[i] > 0) result["whole_device"][stats::kWholeReasonKey[i]] = totals.whole[i];
  result["not_bound"] = ordered_json::object();
  for (std::size_t i = 0; i < totals.unbound.size(); ++i)
    if (totals.unbound[i] > 0) result["not_bound"][stats::kUnboundReasonKey[i]] = totals.unbound[i];
  result["widths"] = ordered_json::array();
  for (const auto& [processors, launches] : totals.widths)
    result["widths"].push_back({{"processors", processors}, {"launches", launches}});
  result["libraries"] = ordered_json::array();
  for (const auto& [name, library] : totals.libraries)
    result["libraries"].push_back({{"name", name},
                                   {"seen", library.seen},
                                   {"bound", library.bound},
                                   {"bridged", library.bridged},
                                   {"passed", library.passed},
                                   {"narrow", library.narrow},
                                   {"moved", library.moved},
                                   {"graph_kernels", library.graph_kernels},
                                   {"graph_kernels_bound", library.graph_kernels_bound}});
  return result;
}

ordered_json json_of(const DeviceReport& device) {
  ordered_json result = {{"ordinal", device.ordinal},
                         {"name", device.name},
                         {"uuid", device.uuid},
                         {"processors", device.processors},
                         {"pool",
                          {{"units", device.units},
                           {"entries", device.entries},
                           {"queues", device.queues},
                           {"creation_ns", device.creation_ns},
                           {"device_bytes", device.device_bytes},
                           {"host_bytes", device.host_bytes}}}};
  result.update(json_of(device.totals));
  return result;
}

constexpr const char* kStageKeys[] = {"loaded", "driver", "ready", "managed", "degraded"};

ordered_json json_of(const ProcessReport& process) {
  const auto stage =
      std::min<std::size_t>(static_cast<std::size_t>(process.stage), std::size(kStageKeys) - 1);
  ordered_json result = {{"pid", process.pid},
                         {"parent", process.parent},
                         {"program", process.program},
                         {"stage", kStageKeys[stage]},
                         {"policy", process.policy},
                         {"init_status", process.init_status},
                         {"message", process.message},
                         {"passed_unmanaged", process.passed_unmanaged},
                         {"warnings_seen", process.warnings_seen},
                         {"warnings", process.warnings},
                         {"devices", ordered_json::array()}};
  for (const DeviceReport& device : process.devices) result["devices"].push_back(json_of(device));
  return result;
}

}  // namespace

ordered_json to_json(const Report& report, const RunFacts& facts) {
  ordered_json result = {
      {"schema", kReportSchema},
      {"vitamin", VITAMIN_VERSION},
      {"command", facts.command},
      {"policy", facts.policy},
      {"seed", facts.seed ? ordered_json(*facts.seed) : ordered_json()},
      {"window", facts.window.empty() ? ordered_json() : ordered_json(facts.window)},
      {"wall_ns", facts.wall_ns},
      {"exit_code", facts.exit_code},
      {"signal", facts.signal},
      {"problem", facts.problem.empty() ? ordered_json() : ordered_json(facts.problem)},
      {"coverage",
       {{"launches", report.launches()},
        {"bound", report.bound()},
        {"graph_launches", report.graph_launches()},
        {"complete", report.complete()},
        {"passed_unmanaged", report.passed_unmanaged},
        {"unreadable_pages", report.unreadable}}},
      {"totals", json_of(report.totals)},
      {"profiles", ordered_json::array()},
      {"processes", ordered_json::array()}};
  for (const Learnt& learnt : facts.learnt)
    result["profiles"].push_back(
        {{"model", learnt.model},
         {"file", learnt.file.native()},
         {"kernels", learnt.kernels},
         {"samples", learnt.samples},
         {"problem", learnt.problem.empty() ? ordered_json() : ordered_json(learnt.problem)}});
  for (const ProcessReport& process : report.processes)
    result["processes"].push_back(json_of(process));
  return result;
}

}  // namespace vitamin::tools
