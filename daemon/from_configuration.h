// SPDX-License-Identifier: Apache-2.0
//
// Translates the configuration into the types of the arbiter and the server.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "daemon/arbiter/device_arbiter.h"
#include "daemon/config/configuration.h"
#include "daemon/settings.h"

namespace vitamin::daemon {

ArbiterSettings arbiter_settings(const config::Configuration& configuration);
// `workload`: the client's class; null: none. `share`: a further bound in percent of the device.
// Quotas of groups are not included (daemon/jobs/groups.h).
ClientTraits traits_of(const config::WorkloadClass* workload, std::uint32_t share,
                       std::uint32_t sms);

// Finds the class of a program. Threads: one at a time.
class Classes {
 public:
  explicit Classes(const Settings& settings) : settings_(settings) {}
  // Null: none. `name`: the class that the program claims.
  const config::WorkloadClass* of(const std::string& name, const std::string& program, uid_t uid);
  // Classes whose group quotas apply to every program of the user, whatever class it claims.
  std::vector<const config::WorkloadClass*> binding(uid_t uid);

 private:
  const std::vector<std::string>& user_names(uid_t uid);

  const Settings& settings_;
  std::map<uid_t, std::vector<std::string>> user_names_;
};

}  // namespace vitamin::daemon
