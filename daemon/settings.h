// SPDX-License-Identifier: Apache-2.0
//
// Everything about vitamind that can be set. A plain value: the command line and the configuration
// file fill it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "daemon/device_arbiter.h"
#include "runtime/pool_layout.h"

namespace vitamin::daemon {

// What a user or a client may take, so that nobody can exhaust the daemon.
struct Budgets {
  std::size_t clients = 512;
  std::size_t clients_of_user = 128;
  // Connections that have not said Hello yet.
  std::size_t greetings = 128;
  std::size_t greetings_of_user = 32;
  std::chrono::milliseconds greeting{1000};
  // Records taken from one client before the next one's turn.
  std::size_t records_a_turn = 64;
  // A client that broke the protocol is not let in again for so long.
  std::chrono::milliseconds quarantine{60'000};
};

struct Settings {
  std::string socket;  // where it listens
  std::string trace;   // folder of the traces (runtime/trace.h); empty: none
  mode_t socket_mode = 0600;
  bool any_user = false;  // false: its own user and root only
  std::string policy = "fifo";
  std::uint64_t seed = 0;
  runtime::PoolLimits pool;
  ArbiterSettings arbiter;
  Budgets budgets;
  // Looks for work this long before it sleeps.
  std::chrono::nanoseconds spin{50'000};
  // Ends when it had no client for so long; 0: never.
  std::chrono::milliseconds exit_when_idle{0};
  // Where the locks of the devices lie: one folder for all users.
  std::string lock_directory = "/run/lock";
};

}  // namespace vitamin::daemon
