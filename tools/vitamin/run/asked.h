// SPDX-License-Identifier: Apache-2.0
//
// What a `vitamin run --daemon` asks of vitamind, held against what holds in the one that runs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/config/load.h"
#include "tools/vitamin/daemon_client.h"

namespace vitamin::tools {

struct AskedClass {
  std::string name;    // empty: none
  bool named = false;  // by --class
};

// Says in one line (VIT-303) which of the options, of the settings in `loaded` and of the class
// have no effect in the vitamind at `socket`. Settings count that a named file, the environment or
// the command line has, and that vitamind applies: not those that `vitamin run` applies itself, and
// not those of the daemon's own life (sections daemon and metrics).
void compare_with_daemon(const std::string& socket, const DaemonStart& asked,
                         const config::Loaded& loaded, const AskedClass& of);

// Names of the classes that the vitamind at `socket` has; nothing: it does not say, or none runs.
std::optional<std::vector<std::string>> classes_of_daemon(const std::string& socket);

}  // namespace vitamin::tools
