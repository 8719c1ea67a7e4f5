// SPDX-License-Identifier: Apache-2.0
//
// What vitamin.toml says to the plugin on one node.
#pragma once

#include <string>
#include <vector>

#include "hal/result.h"

namespace vitamin::slurm {

struct Rules {
  bool closed = false;               // a task that cannot be shared does not run
  std::vector<std::string> classes;  // names

  // Fails with a sentence when there is no such class. Empty is no class, and fine.
  hal::Status check_class(const std::string& name) const;
};

// `file` empty: /etc/vitamin/vitamin.toml, and what goes with it (daemon/config/load.h). `node`:
// whom [nodes."..."] is for. The error is a sentence: a file that is wrong decides nothing.
hal::Result<Rules> rules_for(const std::string& file, const std::string& node);

}  // namespace vitamin::slurm
