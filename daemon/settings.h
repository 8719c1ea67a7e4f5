// SPDX-License-Identifier: Apache-2.0
//
// Everything about vitamind that can be set: the configuration, and what only its command line
// says.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>

#include "daemon/config/configuration.h"
#include "daemon/config/load.h"

namespace vitamin::daemon {

// What may be taken of the daemon, so that nobody can exhaust it. How many clients there may be is
// configuration.
struct Budgets {
  // Connections that have not said Hello yet.
  std::size_t greetings = 128;
  std::size_t greetings_of_user = 32;
  std::chrono::milliseconds greeting{1000};
  // Devices that clients told of.
  std::size_t devices = 256;
  std::size_t devices_of_user = 64;
  // Records taken from one client before the next one's turn; fewer from one that goes on
  // (server/budget.h).
  std::size_t records_a_turn = 64;
};

struct Settings {
  std::string socket;  // where it listens
  std::string trace;   // directory of the traces (runtime/trace/trace.h); empty: none
  mode_t socket_mode = 0600;
  bool any_user = false;  // false: its own user and root only
  config::Configuration configuration;
  Budgets budgets;
  // Reads the configuration again (SIGHUP). Unset: it cannot be.
  std::function<config::Loaded()> reload;
};

}  // namespace vitamin::daemon
