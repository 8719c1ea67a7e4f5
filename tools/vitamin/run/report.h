// SPDX-License-Identifier: Apache-2.0
//
// The coverage report: the statistics pages of one run, added up, as a table and as JSON.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/stats.h"
#include "tools/vitamin/run/profiles.h"

namespace vitamin::tools {

namespace stats = runtime::stats;

struct LibraryTotals {
  std::uint64_t seen = 0, bound = 0, bridged = 0, passed = 0, narrow = 0, moved = 0;
  std::uint64_t graph_kernels = 0, graph_kernels_bound = 0;
};

// What can be added over devices and processes.
struct Totals {
  stats::Launches launches;
  stats::OtherWork other;
  stats::Graphs graphs;
  std::array<std::uint64_t, stats::kGraphReasons> graph_whole{};
  std::map<std::uint32_t, std::uint64_t> graph_widths;  // processors -> launches of graphs
  std::array<std::uint64_t, stats::kWholeReasons> whole{};
  std::array<std::uint64_t, stats::kUnboundReasons> unbound{};
  std::map<std::uint32_t, std::uint64_t> widths;  // processors -> launches
  std::map<std::string, LibraryTotals> libraries;

  void add(const Totals& more);
};

struct DeviceReport {
  std::uint32_t ordinal = 0;
  std::string name, uuid;
  std::uint64_t processors = 0, units = 0, entries = 0, queues = 0;
  std::uint64_t creation_ns = 0, device_bytes = 0, host_bytes = 0;
  Totals totals;
};

struct ProcessReport {
  std::uint32_t pid = 0, parent = 0;
  std::string program, policy, message;
  stats::Stage stage = stats::Stage::kLoaded;
  int init_status = 0;
  std::uint64_t passed_unmanaged = 0;
  std::uint64_t warnings_seen = 0;
  std::vector<std::string> warnings;
  std::vector<DeviceReport> devices;

  std::uint64_t launches() const;  // seen on every device, and unmanaged ones
};

struct Report {
  std::vector<ProcessReport> processes;  // by time of start
  std::uint64_t unreadable = 0;          // pages of another version, or broken
  std::uint64_t unwritten = 0;           // pages that found no room in the directory
  Totals totals;
  std::uint64_t passed_unmanaged = 0;

  std::uint64_t launches() const { return totals.launches.seen.get() + passed_unmanaged; }
  std::uint64_t bound() const { return totals.launches.bound.get(); }
  std::uint64_t graph_launches() const { return totals.other.graph_launches.get(); }
  bool launched() const { return launches() > 0 || graph_launches() > 0; }
  // A launch of a graph is complete wherever it ran, as one of a kernel is on the whole device.
  bool complete() const { return unwritten == 0 && launched() && bound() == launches(); }
  stats::Stage furthest() const;
};

Report read_report(const std::filesystem::path& run_directory);

// What `vitamin run` knows itself.
struct RunFacts {
  std::vector<std::string> command;
  std::string policy;
  std::optional<std::uint64_t> seed;
  std::string window;  // as given; empty: the policy's choice
  std::uint64_t wall_ns = 0;
  int exit_code = 0;
  int signal = 0;
  std::string problem;  // one line, empty when coverage is complete
  std::vector<Learnt> learnt;
};

// Version of the JSON document; grows when a key changes its meaning or goes away.
inline constexpr int kReportSchema = 1;

nlohmann::ordered_json to_json(const Report& report, const RunFacts& facts);

// One screen. `utf8`: bars and lines of block characters.
std::string to_table(const Report& report, const RunFacts& facts, bool utf8);

}  // namespace vitamin::tools
