// SPDX-License-Identifier: Apache-2.0
//
// What the daemon's parts want of the configuration, in their own terms.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "daemon/arbiter/device_arbiter.h"
#include "daemon/config/configuration.h"
#include "daemon/settings.h"

namespace vitamin::daemon {

ArbiterSettings arbiter_settings(const config::Configuration& configuration);
// `workload` null: of no class. `share`: percent of the device that something else leaves the
// process; the quotas of groups are not in it (daemon/jobs/groups.h).
Traits traits_of(const config::WorkloadClass* workload, std::uint32_t share,
                 std::uint32_t processors);

// Which class a program is of.
class Classes {
 public:
  explicit Classes(const Settings& settings) : settings_(settings) {}
  // Null: of none. `name`: what it says itself.
  const config::WorkloadClass* of(const std::string& name, const std::string& program, uid_t uid);
  // The quotas that these set for a group hold for every program of the user, whatever class the
  // program names.
  std::vector<const config::WorkloadClass*> binding(uid_t uid);

 private:
  const std::vector<std::string>& user_names(uid_t uid);

  const Settings& settings_;
  std::map<uid_t, std::vector<std::string>> user_names_;
};

}  // namespace vitamin::daemon
