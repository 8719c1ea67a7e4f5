// SPDX-License-Identifier: Apache-2.0
//
// All settings of vitamind: the configuration, and what only its command line sets.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "daemon/config/configuration.h"
#include "daemon/config/load.h"

namespace vitamin::daemon {

// Bounds on what clients and tools can make the daemon allocate. The number of clients is bounded
// by the configuration.
struct Budgets {
  // Connections that have no session yet, of all users and of one, and how long they may have none.
  std::size_t greetings = 128;
  std::size_t greetings_of_user = 32;
  std::chrono::milliseconds greeting{1000};
  // Views of devices (arbiter/devices.h), of all users and of one.
  std::size_t devices = 256;
  std::size_t devices_of_user = 64;
  // Records taken from one client in a turn of the loop (server/record_budget.h).
  std::size_t records_a_turn = 64;
};

struct Settings {
  std::string socket;  // where it listens
  std::string trace;   // directory for traces (runtime/trace/trace.h); empty: none
  mode_t socket_mode = 0600;
  bool any_user = false;  // false: its own user and root only
  config::Configuration configuration;
  std::vector<std::string> files;  // that `configuration` was read from, in order
  Budgets budgets;
  // Reads the configuration again (SIGHUP). Unset: reloading does nothing.
  std::function<config::Loaded()> reload;
};

}  // namespace vitamin::daemon
