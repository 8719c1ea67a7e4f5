// SPDX-License-Identifier: Apache-2.0
//
// How the verbs reach vitamind: find its socket, ask it, start one of the user's own.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hal/result.h"

namespace vitamin::tools {

// The daemon that a command would join: `given`, else $VITAMIN_DAEMON, else the machine's when it
// answers, else the user's own.
std::string daemon_socket(const std::string& given);

// The daemon's answer to a verb: "status", "drain all", "resume GPU-...".
hal::Result<nlohmann::json> ask_daemon(const std::string& socket, const std::string& verb);

// The isolation domain of the program that this process starts, or becomes.
struct ProgramDomain {
  std::string name;
  std::string directory;  // CUDA_MPS_PIPE_DIRECTORY there
  std::string problem;    // of its MPS; empty: none
};
// Nothing: it is the shared one, or the daemon is of a release without domains. Waits, 10 s at
// most, while the domain takes no clients: MPS would refuse the program, or it would run outside of
// MPS. `job`: of $VITAMIN_JOB; `program`: a path.
std::optional<ProgramDomain> domain_of_program(const std::string& socket, const std::string& job,
                                               const std::string& program,
                                               const std::string& workload_class);
// What to say to who has set CUDA_MPS_PIPE_DIRECTORY in a program's environment.
std::string not_in_domain_text(const ProgramDomain& domain);

// Of a status: the pipe directory of the MPS that all programs share, unless they are isolated.
// Empty: vitamind has none, or it takes no clients.
std::string shared_mps_directory(const nlohmann::json& status);

// Of a status: what VITAMIN_ABSENT is for programs of that vitamind (runtime/environment.h); empty:
// unset, they may run without it.
std::string absence_code(const nlohmann::json& status);

// What people should know of the last fault under MPS, of a status' "mps"; empty: there was none.
std::string mps_fault_text(const nlohmann::json& mps);

// Users whose clients were evicted lately, a sentence each, of a status.
std::vector<std::string> eviction_texts(const nlohmann::json& status);

// What a daemon that is started is told beyond where it listens.
struct DaemonStart {
  std::string config_file;            // instead of the usual vitamin.toml; empty: that
  std::vector<std::string> settings;  // KEY=VALUE over it
  std::string policy;                 // over both; empty: theirs
  std::optional<std::uint64_t> seed;  // likewise
  std::string trace;                  // the directory where it records; empty: nowhere
};
// Starts the user's own daemon unless one listens; it ends by itself when it had no client for a
// while. An error says what to do.
hal::Status start_daemon(const std::string& socket, const DaemonStart& start);
// Whether a vitamind that listens also answers within 2 s: a stopped one does not.
hal::Status check_answers(const std::string& socket);
// Ends the daemon, which is ours, and waits until it has written everything.
void stop_daemon(const std::string& socket);

}  // namespace vitamin::tools
