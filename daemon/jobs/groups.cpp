// SPDX-License-Identifier: Apache-2.0
#include "daemon/jobs/groups.h"

#include <algorithm>
#include <cassert>

namespace vitamin::daemon {

std::string group_name(config::GroupOf of, const config::WorkloadClass& workload,
                       const Member& member) {
  const std::string user = "of user " + std::to_string(member.user);
  switch (of) {
    case config::GroupOf::kProcess:
      return member.process == 0 ? user : "of process " + std::to_string(member.process);
    case config::GroupOf::kUser:
      return user;
    case config::GroupOf::kContainer:
      return member.container.empty() ? user : "of container " + member.container.substr(0, 12);
    case config::GroupOf::kJob:
      return member.job.empty() ? user : "of job " + member.job;
    case config::GroupOf::kClass:
      break;
  }
  return "of class " + workload.name;
}

std::uint32_t sms_of_share(std::uint32_t share, std::uint32_t sms) {
  return share >= 100 ? 0 : std::max(1U, sms * share / 100);
}

void set_quotas(scheduler::Limits& limits, std::span<const GroupShare> shares, std::uint32_t sms,
                std::uint32_t alone) {
  assert(shares.size() <= 1 + limits.outer.size());
  limits.group = limits.max_sms = 0;
  limits.outer = {};
  if (shares.empty()) return;
  limits.group = shares.front().group;
  limits.max_sms = sms_of_share(shares.front().share, sms);
  std::size_t outer = 0;
  for (const GroupShare& each : shares.subspan(1))
    if (const std::uint32_t most = sms_of_share(each.share, sms); most != 0)
      limits.outer[outer++] = {each.group != 0 ? each.group : alone, most};
}

}  // namespace vitamin::daemon
