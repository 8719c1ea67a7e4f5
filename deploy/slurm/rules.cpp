// SPDX-License-Identifier: Apache-2.0
#include "deploy/slurm/rules.h"

#include <algorithm>

#include "daemon/config/load.h"

namespace vitamin::slurm {

hal::Result<Rules> rules_for(const std::string& file, const std::string& node) {
  config::Sources sources = config::sources(file, {});
  sources.host = node;
  const config::Loaded loaded = config::load(sources);
  if (!loaded.valid()) {
    const std::string why = loaded.why();
    return hal::fail(hal::Errc::kInvalidArgument, why.substr(0, why.find('\n')));
  }
  Rules rules;
  rules.closed = loaded.configuration.failure.absent == config::OnAbsence::kClosed;
  for (const config::WorkloadClass& each : loaded.configuration.classes)
    rules.classes.push_back(each.name);
  return rules;
}

hal::Status Rules::check_class(const std::string& name) const {
  if (name.empty() || std::find(classes.begin(), classes.end(), name) != classes.end()) return {};
  std::string known;
  for (const std::string& each : classes) known += (known.empty() ? "" : ", ") + each;
  return hal::fail(hal::Errc::kInvalidArgument,
                   "vitamin.toml has no class '" + name + "'" +
                       (known.empty() ? "; it has none" : "; it has " + known));
}

}  // namespace vitamin::slurm
