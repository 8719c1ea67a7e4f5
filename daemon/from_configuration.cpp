// SPDX-License-Identifier: Apache-2.0
#include "daemon/from_configuration.h"

#include <algorithm>

#include "daemon/config/classes.h"
#include "daemon/jobs/groups.h"
#include "daemon/log.h"

namespace vitamin::daemon {

ArbiterSettings arbiter_settings(const config::Configuration& configuration) {
  ArbiterSettings settings;
  settings.scheduler.quantum_ns = configuration.policy.quantum_ns;
  settings.scheduler.starving_after_ns = configuration.policy.starving_after_ns;
  settings.answer_within_ns = configuration.daemon.answer_within_ns;
  return settings;
}

ClientTraits traits_of(const config::WorkloadClass* workload, std::uint32_t share,
                       std::uint32_t sms) {
  ClientTraits traits;
  if (workload != nullptr && workload->share_of == config::GroupOf::kProcess)
    share = std::min(share, workload->share);
  scheduler::Limits& limits = traits.terms.limits;
  limits.max_sms = sms_of_share(share, sms);
  if (workload == nullptr) return traits;
  limits.reserved_sms = workload->reservation;
  traits.terms.weight = static_cast<float>(workload->weight);
  scheduler::Slo& slo = traits.terms.slo;
  slo.ttft_ns = workload->ttft_ns;
  slo.tpot_ns = workload->tpot_ns;
  slo.step_ns = workload->step_ns;
  slo.quantile = static_cast<float>(workload->percentile) / 100;
  // For programs that announce no steps: a busy period without a pause is one step.
  for (const std::uint64_t bound :
       {workload->latency_ns, workload->tpot_ns, workload->ttft_ns, workload->step_ns})
    if (slo.latency_ns == 0) slo.latency_ns = bound;
  // A latency class without a bound: as if the client were alone (policies/service.h).
  if (workload->kind == config::ProgramKind::kLatency && !slo.any())
    slo.latency_ns = scheduler::kAsAloneNs;
  return traits;
}

// Looked up once for each user: the answer may come over a network.
const std::vector<std::string>& Classes::user_names(uid_t uid) {
  const auto known = user_names_.find(uid);
  if (known != user_names_.end()) return known->second;
  return user_names_.emplace(uid, config::names_of_user(uid)).first->second;
}

std::vector<const config::WorkloadClass*> Classes::binding(uid_t uid) {
  std::vector<const config::WorkloadClass*> found;
  for (const config::WorkloadClass& each : settings_.configuration.classes)
    if (config::binds_users(each) && config::may_be_in(each, user_names(uid)))
      found.push_back(&each);
  return found;
}

// The class that the program claims, if its user may be in it; else the class by its name alone.
const config::WorkloadClass* Classes::of(const std::string& name, const std::string& program,
                                         uid_t uid) {
  const config::Configuration& configuration = settings_.configuration;
  if (configuration.classes.empty()) return nullptr;
  if (!name.empty()) {
    const config::WorkloadClass* const named = configuration.find_class(name);
    if (named != nullptr && config::may_be_in(*named, user_names(uid))) return named;
    log::warn("a program of user {} claims the class '{}', {}", uid, name,
              named == nullptr ? "which is not configured" : "which is not for that user");
  }
  return config::class_of(
      configuration, {program, user_names(uid), [](const std::string&) { return std::nullopt; }});
}

}  // namespace vitamin::daemon
