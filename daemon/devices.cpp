// SPDX-License-Identifier: Apache-2.0
#include "daemon/devices.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "daemon/device_lock.h"
#include "daemon/from_configuration.h"
#include "policies/registry.h"
#include "runtime/problem.h"

namespace vitamin::daemon {

Devices::Devices(const Settings& settings, std::uint32_t epoch, Outlet& outlet)
    : settings_(settings), epoch_(epoch), outlet_(outlet) {
  // Reading a large machine's topology takes tens of milliseconds: only where there is a choice.
  if (settings_.configuration.daemon.pin && ::access("/sys/devices/system/node/node1", F_OK) == 0) {
    placement_ = std::make_unique<Placement>();
    allowed_ = placement_->allowed();
  }
}

hal::Result<Device*> Devices::of(const protocol::Hello& hello) {
  auto info = protocol::device_of(hello);
  if (!info) return tl::unexpected(info.error());
  const auto known = known_.find(info->uuid);
  if (known != known_.end()) {
    if (known->second.info.processors_per_unit != info->processors_per_unit ||
        known->second.info.processors != info->processors)
      return hal::fail(hal::Errc::kUnsupported,
                       "this process sees device " + info->uuid +
                           " with other processors than the ones before: is an MPS thread "
                           "percentage set?");
    return &known->second;
  }
  Device device;
  const config::Configuration mine = settings_.configuration.for_device(info->uuid, info->name);
  auto lock = lock_device(mine.daemon.lock_directory, info->uuid);
  if (!lock) return tl::unexpected(lock.error());
  device.policy = mine.policy.specification();
  device.seed = mine.policy.seed;
  device.pool = mine.pool;
  auto policy = policies::make(device.policy, device.seed);
  if (!policy) return tl::unexpected(policy.error());
  auto bounded = std::make_unique<policies::Bounded>(std::move(*policy), info->processors_per_unit,
                                                     seeded(device.policy, device.seed));
  device.lock = std::move(*lock);
  device.bounded = bounded.get();
  device.arbiter =
      std::make_unique<DeviceArbiter>(runtime::PoolLayout::build(*info, device.pool),
                                      std::move(bounded), arbiter_settings(mine), epoch_, outlet_);
  spdlog::info("device {} ({}): {} processors in {} units, {} entries, policy {}", info->uuid,
               info->name, info->processors, info->units(), device.arbiter->layout().size(),
               device.policy);
  device.info = std::move(*info);
  start_trace(device, arbiter_settings(mine));
  const std::string uuid = device.info.uuid;
  Device* const added = &known_.emplace(uuid, std::move(device)).first->second;
  move_next_to_gpus();
  return added;
}

// Called by the loop, when it has heard of another GPU.
void Devices::move_next_to_gpus() {
  if (placement_ == nullptr) return;
  const auto addresses = pci_of_gpus();
  std::vector<unsigned> nodes;
  for (const auto& [uuid, device] : known_)
    if (const auto address = addresses.find(uuid); address != addresses.end())
      if (const auto node = placement_->node_of(address->second)) nodes.push_back(*node);
  const std::vector<unsigned> processors = placement_->choose(nodes, allowed_);
  if (!processors.empty() && placement_->bind(processors))
    spdlog::info("runs on {} processors from {}, next to the GPUs", processors.size(),
                 processors.front());
}

void Devices::start_trace(Device& device, const ArbiterSettings& settings) {
  if (settings_.trace.empty()) return;
  runtime::trace::Header header;
  header.writer = runtime::trace::Writer::kDaemon;
  header.epoch = epoch_;
  header.seed = device.seed;
  header.quantum_ns = settings.scheduler.quantum_ns;
  header.overdue_ns = settings.scheduler.overdue_ns;
  header.reservation_ns = settings.scheduler.reservation_ns;
  header.answer_within_ns = settings.answer_within_ns;
  device.policy.copy(header.policy, sizeof header.policy - 1);
  describe(header, device.info, device.pool);
  device.trace = runtime::trace::Recorder::create(settings_.trace.c_str(), header);
  if (device.trace == nullptr)
    spdlog::error("the trace cannot be written to {} ({}); nothing is recorded [{}]",
                  settings_.trace, std::strerror(errno),
                  runtime::code_of(runtime::Problem::kTraceFile));
  device.arbiter->record(device.trace.get());
}

// What can fail comes first; then everything changes.
hal::Status Devices::apply(const config::Configuration& configuration) {
  struct Change {
    Device& device;
    config::Configuration mine;
    std::unique_ptr<runtime::Policy> policy;  // null: the same as before
  };
  std::vector<Change> changes;
  for (auto& [uuid, device] : known_) {
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
  return {};
}

std::size_t Devices::drain(const std::string& which, bool drained) {
  std::size_t changed = 0;
  for (auto& [uuid, device] : known_) {
    if (which != "all" && uuid != which) continue;
    device.drained = drained;
    ++changed;
    spdlog::info("device {}: {}", uuid, drained ? "takes no new client" : "takes clients");
  }
  return changed;
}

bool Devices::somebody_waits() const {
  return std::any_of(known_.begin(), known_.end(), [](const auto& device) {
    return device.second.arbiter->scheduler().waiting() > 0;
  });
}

std::uint64_t Devices::wake_at() const {
  std::uint64_t next = runtime::kNever;
  for (const auto& [uuid, device] : known_) next = std::min(next, device.arbiter->wake_at());
  return next;
}

}  // namespace vitamin::daemon
