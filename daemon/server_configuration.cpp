// SPDX-License-Identifier: Apache-2.0
//
// What follows from vitamin.toml: when a device or a client comes, and when it is read again.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "config/classes.h"
#include "daemon/from_configuration.h"
#include "daemon/server.h"
#include "policies/registry.h"

namespace vitamin::daemon {

ArbiterSettings arbiter_settings(const config::Configuration& configuration) {
  ArbiterSettings settings;
  settings.scheduler.quantum_ns = configuration.policy.quantum_ns;
  settings.scheduler.overdue_ns = configuration.policy.overdue_after_ns;
  settings.scheduler.reservation_ns = configuration.policy.reservation_ns;
  settings.answer_within_ns = configuration.daemon.answer_within_ns;
  return settings;
}

Traits traits_of(const config::WorkloadClass* workload, std::uint32_t share,
                 std::uint32_t processors) {
  Traits traits;
  if (workload != nullptr) share = std::min(share, workload->share);
  if (share < 100) traits.most = std::max(1U, processors * share / 100);
  if (workload == nullptr) return traits;
  if (workload->kind == config::Kind::kLatency) traits.kind = runtime::OperationClass::kDecode;
  if (workload->kind == config::Kind::kBatch) traits.kind = runtime::OperationClass::kBestEffort;
  traits.tpot_ns = workload->tpot_ns;
  traits.reserved = workload->reservation;
  return traits;
}

std::string seeded(const std::string& specification, std::uint64_t seed) {
  return specification + " of seed " + std::to_string(seed);
}

// Asked of the system once: its answer may come over a network.
const std::vector<std::string>& Server::user_names(uid_t uid) {
  const auto known = user_names_.find(uid);
  if (known != user_names_.end()) return known->second;
  return user_names_.emplace(uid, config::names_of_user(uid)).first->second;
}

// The one that is named, if the user may be in it; else what the program's name alone says.
const config::WorkloadClass* Server::class_for(const std::string& name, const std::string& program,
                                               uid_t uid) {
  const config::Configuration& configuration = settings_.configuration;
  if (configuration.classes.empty()) return nullptr;
  if (!name.empty()) {
    const config::WorkloadClass* const named = configuration.find_class(name);
    if (named != nullptr && config::may_be_in(*named, user_names(uid))) return named;
    spdlog::warn("a program of user {} says that it is of class '{}', {}", uid, name,
                 named == nullptr ? "which is not configured" : "which is not for that user");
  }
  return config::class_of(
      configuration, {program, user_names(uid), [](const std::string&) { return std::nullopt; }});
}

void Server::read_configuration() {
  if (!settings_.reload) return;
  const config::Loaded loaded = settings_.reload();
  hal::Status applied = {};
  if (loaded.valid()) applied = apply(loaded.configuration);
  configuration_problem_ = !loaded.valid() ? loaded.why() : applied ? "" : applied.error().message;
  if (configuration_problem_.empty()) {
    spdlog::info("the configuration was read again ({} files)", loaded.files.size());
    return;
  }
  for (const config::Problem& problem : loaded.problems)
    spdlog::error("{}", config::text_of(problem, false));
  if (!applied) spdlog::error("{}", applied.error().message);
  spdlog::error("the configuration is invalid: what held before goes on");
}

// What can fail comes first; then everything changes.
hal::Status Server::apply(const config::Configuration& configuration) {
  struct Change {
    Device& device;
    config::Configuration mine;
    std::unique_ptr<runtime::Policy> policy;  // null: the same as before
  };
  std::vector<Change> changes;
  for (auto& [uuid, device] : devices_) {
    Change change{device, configuration.for_device(uuid, device.info.name), nullptr};
    const std::string wanted = change.mine.policy.specification();
    if (wanted != device.policy || change.mine.policy.seed != device.seed) {
      auto policy = policies::make(wanted, change.mine.policy.seed);
      if (!policy) return tl::unexpected(policy.error());
      change.policy = std::move(*policy);
    }
    changes.push_back(std::move(change));
  }
  for (Change& change : changes) {
    Device& device = change.device;
    device.arbiter->set(arbiter_settings(change.mine));
    device.touched = true;
    if (change.mine.pool != device.pool)
      spdlog::warn(
          "device {}: the pool of clients that run cannot change; the new one is used by "
          "the next daemon",
          device.info.uuid);
    if (change.policy == nullptr) continue;
    device.policy = change.mine.policy.specification();
    device.seed = change.mine.policy.seed;
    device.bounded->replace(std::move(change.policy), seeded(device.policy, device.seed));
    device.arbiter->scheduler().policy_changed();
    spdlog::info("device {}: policy {}", device.info.uuid, device.policy);
  }
  settings_.configuration = configuration;
  return {};
}

}  // namespace vitamin::daemon
