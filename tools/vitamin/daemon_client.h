// SPDX-License-Identifier: Apache-2.0
//
// How the verbs reach vitamind: find its socket, ask it, start one of the user's own.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "hal/result.h"

namespace vitamin::tools {

// The daemon that a command would join: `given`, else $VITAMIN_DAEMON, else the machine's when it
// answers, else the user's own.
std::string daemon_socket(const std::string& given);

// The daemon's answer to a verb: "status", "drain all", "resume GPU-...".
hal::Result<nlohmann::json> ask_daemon(const std::string& socket, const std::string& verb);

// What people should know of the last fault under MPS, of a status' "mps"; empty: there was none.
std::string mps_fault_text(const nlohmann::json& mps);

// Starts the user's own daemon unless one listens; it ends by itself when it had no client for a
// while. `policy` and `seed`: over vitamin.toml's, where given. `trace`: the folder where it
// records; empty: nowhere. An error says what to do.
hal::Status start_daemon(const std::string& socket, const std::string& policy,
                         std::optional<std::uint64_t> seed, const std::string& trace = "");
// Ends the daemon, which is ours, and waits until it has written everything.
void stop_daemon(const std::string& socket);

}  // namespace vitamin::tools
