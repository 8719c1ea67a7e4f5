// SPDX-License-Identifier: Apache-2.0
//
// vitamin verify: one run of the user's command, and what was seen of it.
//
// A run has its own session without a terminal, nothing on standard input, and standard output and
// error in files. SIGINT, SIGTERM and SIGHUP to vitamin end it with everything that it started.
//
// Threads: one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/vitamin/run/directory.h"
#include "tools/vitamin/verify/audit.h"

namespace vitamin::tools {

struct Observation {
  std::string name;    // "native", "random, seed 7"
  std::string policy;  // empty: natively
  std::uint64_t seed = 0;
  bool audited = false;
  bool tenant = false;
  int code = 0, signal = 0, exec_error = 0;
  int stopped = 0;  // the signal that stopped it, as a terminal's reader in the background is
  bool interrupted = false, timed_out = false;
  double seconds = 0;
  std::string output;                        // standard output, whole
  std::string last_words;                    // the end of standard error
  std::map<std::string, std::string> files;  // digest, or why there is none
  std::set<std::string> unwritten;           // of these files, those that the run did not write
  std::vector<AuditedProcess> processes;
  std::shared_ptr<RunDirectory> logs;  // of the processes, for as long as they may be read again
  std::uint64_t launches = 0, bound = 0, moved = 0;
  std::string coverage;  // one line when not every launch was bound
  std::string message;   // how the tenant failed, or empty
  // What the tenant launched before and while the command ran; a tenant that is no program for the
  // device launches nothing.
  std::uint64_t tenant_launches_before = 0, tenant_launches = 0;

  bool ended_well() const {
    return code == 0 && signal == 0 && stopped == 0 && !timed_out && !interrupted;
  }
};

struct RunRequest {
  std::string name, policy;  // policy empty: natively, without Vitamin
  std::uint64_t seed = 0;
  std::vector<std::string> command;
  std::vector<std::string> files;
  std::string tenant;  // a shell command, or empty
  // Quota of device memory; empty: none. Natively nothing would bound it: then the run is under
  // Vitamin on the whole device.
  std::string memory;
  double limit_seconds = 0;  // 0: none
};
// The tenant runs under this policy and seed.
inline constexpr const char* kTenantPolicy = "random";
constexpr std::uint64_t tenant_seed(std::uint64_t seed) { return seed + 1; }
Observation observe(const RunRequest& request);

}  // namespace vitamin::tools
