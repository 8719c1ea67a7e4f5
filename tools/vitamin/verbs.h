// SPDX-License-Identifier: Apache-2.0
//
// What each verb of the command line does. main.cpp reads the options, these do the work and answer
// with an exit code (exit_code.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace vitamin::tools {

struct RunOptions {
  std::string policy;                 // empty: vitamin.toml's
  std::optional<std::uint64_t> seed;  // unset: vitamin.toml's
  std::string workload_class;         // empty: the first of vitamin.toml that matches
  std::string config_file;            // instead of the usual vitamin.toml; empty: that
  std::vector<std::string> settings;  // KEY=VALUE over it
  bool daemon = false;                // the arbiter is vitamind's
  std::string socket;                 // where it listens; empty: the machine's, or the user's own
  std::string window;                 // as given: "0", "500us", "max"; empty: the policy's choice
  std::optional<std::uint64_t> graph_memory;  // bytes; 0: graphs stay on the whole device
  std::string memory;  // device memory of the run: "40GiB", "50%"; empty: no quota
  bool cautious = false;
  std::string wide_only;  // file of kernels that need their whole grid resident; "none"
  std::string profiles;   // directory; "none"; empty: the user's own, where the policy asks for it
  bool learns = false;    // the policy looks at kernels' times
  std::optional<std::uint32_t> profile_every;  // time one launch in so many
  bool strict = false;                         // full coverage or kExitCoverage
  bool quiet = false;                          // problems only
  bool json = false;                           // the report as JSON on stderr
  std::string report_file;                     // "-": stdout
  std::string trace;                           // directory of the traces; empty: none
  std::vector<std::string> command;
};
// Does not come back: ends as the command did.
[[noreturn]] void run(RunOptions options);

// `bundle`: a file for reports of bugs (node/bundle.h); empty: none.
int doctor(bool json, const std::string& bundle);
// `socket` empty: as for `vitamin run --daemon`.
int show_status(const std::string& socket, bool as_json);
// Every node and GPU that the Prometheus server at this http:// URL knows of.
int show_fleet(const std::string& url, bool as_json);
// What clients used that have ended.
int show_accounting(const std::string& socket, bool as_json);
// Why each client has what it has; `which` empty: all of them (explain.h).
int show_explanation(const std::string& socket, const std::string& which, bool as_json);
// Every `seconds`; `rounds` 0: until interrupted.
int top(const std::string& socket, double seconds, int rounds);
// `device`: a UUID, an index in the order of the PCI bus or "all".
int set_drained(const std::string& socket, const std::string& device, bool drained, bool as_json);
int list_policies(bool json);
int show_version(bool json);

// Decimal nanoseconds or "max" for VITAMIN_WINDOW_NS, or nothing when `text` is no duration.
std::optional<std::string> window_nanoseconds(const std::string& text);

}  // namespace vitamin::tools
