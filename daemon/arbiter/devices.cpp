// SPDX-License-Identifier: Apache-2.0
#include "daemon/arbiter/devices.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "daemon/from_configuration.h"
#include "daemon/log.h"
#include "runtime/clock.h"
#include "runtime/problem.h"

namespace vitamin::daemon {

Devices::Devices(const Settings& settings, std::uint32_t epoch, GrantSink& sink)
    : settings_(settings), epoch_(epoch), sink_(sink) {
  // Reading a large machine's topology takes tens of milliseconds: only if there are two nodes.
  if (settings_.configuration.daemon.pin && ::access("/sys/devices/system/node/node1", F_OK) == 0) {
    numa_ = std::make_unique<NumaBinding>();
    allowed_ = numa_->allowed();
  }
}

namespace {

bool is_of_process(const std::string& domain) { return domain.starts_with("process "); }

// Equal for equal descriptions of a device in one domain.
std::string key_of(const hal::DeviceInfo& info, const std::string& domain) {
  std::string key = info.uuid + '\n' + info.name + '\n' +
                    std::to_string(static_cast<unsigned>(info.vendor)) + '\n' +
                    std::to_string(info.sms);
  for (const std::uint32_t unit : info.sms_per_unit) key += ',' + std::to_string(unit);
  if (!domain.empty()) key += '\n' + domain;
  return key;
}

}  // namespace

hal::Result<ServedDevice*> Devices::begin_session(const protocol::Hello& hello, uid_t user,
                                                  const std::string& domain) {
  auto info = protocol::device_of(hello);
  if (!info) return tl::unexpected(info.error());
  const std::string key = key_of(*info, domain);
  auto found = known_.find(key);
  for (const auto& [other, device] : known_)
    if (device.drained && device.info.uuid == info->uuid)
      return hal::fail(hal::Errc::kUnavailable, "the device is drained: vitamin resume ends that");
  std::shared_ptr<protocol::DeviceLock> lock;
  if (found == known_.end() || found->second.sessions == 0) {
    auto taken = lock_of(*info);
    if (!taken) return tl::unexpected(taken.error());
    lock = std::move(*taken);
  }
  if (found == known_.end()) {
    if (auto room = make_room(user, domain); !room) return tl::unexpected(room.error());
    auto made = make(std::move(*info), domain);
    if (!made) return tl::unexpected(made.error());
    for (const auto& [other, device] : known_)
      if (device.info.uuid == made->info.uuid && device.domain == domain)
        made->view = std::max(made->view, device.view + 1);
    found = known_.emplace(key, std::move(*made)).first;
    pin_near_gpus();
  }
  ServedDevice& device = found->second;
  if (device.sessions == 0) {
    device.user = user;
    if (lock.use_count() == 1)
      for (const pid_t process : lock->others().alone)
        log::warn(
            "device {}: {} uses it without vitamind, and leases do not restrain it: start it with "
            "vitamin run --daemon [{}]",
            device.info.uuid, protocol::name_of_process(process),
            runtime::code_of(runtime::Problem::kNotAlone));
    device.lock = std::move(lock);
    warn_of_other_view(device);
  }
  ++device.sessions;
  return &device;
}

// The lock that another view holds, or a new one.
hal::Result<std::shared_ptr<protocol::DeviceLock>> Devices::lock_of(const hal::DeviceInfo& info) {
  for (const auto& [key, device] : known_)
    if (device.info.uuid == info.uuid && device.lock != nullptr) return device.lock;
  const auto mine = settings_.configuration.for_device(info.uuid, info.name);
  auto taken = protocol::DeviceLock::between_processes(mine.daemon.lock_directory, info.uuid);
  if (!taken) return tl::unexpected(taken.error());
  return std::make_shared<protocol::DeviceLock>(std::move(*taken));
}

const ServedDevice* Devices::other_view(const ServedDevice& device) const {
  for (const auto& [key, other] : known_)
    if (&other != &device && other.info.uuid == device.info.uuid && other.domain == device.domain &&
        other.sessions > 0)
      return &other;
  return nullptr;
}

void Devices::warn_of_other_view(const ServedDevice& device) const {
  const ServedDevice* const other = other_view(device);
  if (other == nullptr) return;
  log::warn(
      "device {}: a process of user {} describes it as {} with {} SMs in {} units, other clients "
      "(the first one of user {}) as {} with {} in {}: leases do not separate the two groups; is "
      "an MPS thread percentage set? [{}]",
      device.info.uuid, device.user, device.info.name, device.info.sms, device.info.units(),
      other->user, other->info.name, other->info.sms, other->info.units(),
      runtime::code_of(runtime::Problem::kNotAlone));
}

void Devices::end_session(ServedDevice& device) {
  if (--device.sessions > 0) return;
  device.lock = nullptr;
  device.left = ++left_;
  const bool superseded = device.of_process || other_view(device) != nullptr;
  if (superseded && !device.drained && device.trace == nullptr)
    known_.erase(key_of(device.info, device.domain));
}

// Forgets the device whose last session ended longest ago: one of this user's if it has too many,
// else any if there are too many.
hal::Status Devices::make_room(uid_t user, const std::string& domain) {
  auto forget = [&](auto concerns) {
    auto oldest = known_.end();
    for (auto it = known_.begin(); it != known_.end(); ++it) {
      const ServedDevice& device = it->second;
      if (device.sessions > 0 || device.drained || device.trace != nullptr || !concerns(device))
        continue;
      if (oldest == known_.end() || device.left < oldest->second.left) oldest = it;
    }
    if (oldest == known_.end()) return false;
    known_.erase(oldest);
    return true;
  };
  // Domains of processes end with their sessions, of which a user may have only so many.
  const auto is_of_user = [&](const ServedDevice& device) {
    return device.user == user && !device.of_process;
  };
  const Budgets& budgets = settings_.budgets;
  const auto of_user = static_cast<std::size_t>(std::count_if(
      known_.begin(), known_.end(), [&](const auto& d) { return is_of_user(d.second); }));
  if (!is_of_process(domain) && of_user >= budgets.devices_of_user && !forget(is_of_user))
    return hal::fail(hal::Errc::kUnavailable, "user " + std::to_string(user) +
                                                  " uses as many devices (" +
                                                  std::to_string(of_user) + ") as one user may");
  if (known_.size() >= budgets.devices && !forget([](const ServedDevice&) { return true; }))
    return hal::fail(hal::Errc::kUnavailable, "vitamind has as many devices as it may have");
  return {};
}

hal::Result<ServedDevice> Devices::make(hal::DeviceInfo info, const std::string& domain) {
  ServedDevice device;
  device.domain = domain;
  device.of_process = is_of_process(domain);
  const config::Configuration mine = settings_.configuration.for_device(info.uuid, info.name);
  device.policy = mine.policy.specification();
  device.seed = mine.policy.seed;
  device.pool = mine.pool;
  device.arbiter = std::make_unique<DeviceArbiter>(runtime::PoolLayout::build(info, device.pool),
                                                   arbiter_settings(mine), epoch_, sink_);
  auto policy = scheduler::make(device.policy, device.arbiter->context(device.seed));
  if (!policy) return tl::unexpected(policy.error());
  device.arbiter->use(std::move(*policy));
  log::info("device {} ({}): {} SMs in {} units, {} partitions, policy {}{}", info.uuid, info.name,
            info.sms, info.units(), device.arbiter->layout().size(), device.policy,
            domain.empty() ? "" : ", isolation domain '" + domain + "'");
  for (const config::WorkloadClass& each : settings_.configuration.classes)
    if (each.reservation > info.sms)
      log::warn(
          "device {}: the class '{}' reserves {} SMs for each client, and the device has {} [{}]",
          info.uuid, each.name, each.reservation, info.sms,
          runtime::code_of(runtime::Problem::kConfiguration));
  device.info = std::move(info);
  start_trace(device, arbiter_settings(mine));
  return device;
}

// Called by the loop's thread for each new device.
void Devices::pin_near_gpus() {
  if (numa_ == nullptr) return;
  const auto addresses = pci_of_gpus();
  std::vector<unsigned> nodes;
  for (const auto& [key, device] : known_)
    if (const auto address = addresses.find(device.info.uuid); address != addresses.end())
      if (const auto node = numa_->node_of(address->second)) nodes.push_back(*node);
  const std::vector<unsigned> cpus = numa_->choose(nodes, allowed_);
  if (!cpus.empty() && numa_->bind(cpus))
    log::info("runs on {} processors from {}, next to the GPUs", cpus.size(), cpus.front());
}

void Devices::start_trace(ServedDevice& device, const ArbiterSettings& settings) {
  if (settings_.trace.empty()) return;
  runtime::trace::TraceHeader header;
  header.writer = runtime::trace::Writer::kDaemon;
  header.epoch = epoch_;
  header.seed = device.seed;
  header.quantum_ns = settings.scheduler.quantum_ns;
  header.starving_after_ns = settings.scheduler.starving_after_ns;
  header.answer_within_ns = settings.answer_within_ns;
  device.policy.copy(header.policy, sizeof header.policy - 1);
  describe(header, device.info, device.pool);
  ::mkdir(settings_.trace.c_str(), 0700);  // where it fails, create() says why
  device.trace = runtime::trace::Recorder::create(settings_.trace.c_str(), header);
  if (device.trace == nullptr)
    log::error("the trace cannot be written to {} ({}); nothing is recorded [{}]", settings_.trace,
               std::strerror(errno), runtime::code_of(runtime::Problem::kTraceFile));
  device.arbiter->record(device.trace.get());
}

// Does everything that can fail before it changes anything.
hal::Status Devices::apply(const config::Configuration& configuration) {
  struct Change {
    ServedDevice& device;
    config::Configuration mine;
    std::optional<scheduler::Policy> policy;  // none: the same as before
  };
  std::vector<Change> changes;
  for (auto& [key, device] : known_) {
    Change change{device, configuration.for_device(device.info.uuid, device.info.name), {}};
    const std::string wanted = change.mine.policy.specification();
    if (wanted != device.policy || change.mine.policy.seed != device.seed) {
      auto policy = scheduler::make(wanted, device.arbiter->context(change.mine.policy.seed));
      if (!policy) return tl::unexpected(policy.error());
      change.policy = std::move(*policy);
    }
    changes.push_back(std::move(change));
  }
  for (Change& change : changes) {
    ServedDevice& device = change.device;
    device.arbiter->set(arbiter_settings(change.mine));
    device.touched = true;
    if (change.mine.pool != device.pool)
      log::warn(
          "device {}: the pool of clients that run cannot change; the new one is used by "
          "the next daemon",
          device.info.uuid);
    if (!change.policy) continue;
    device.policy = change.mine.policy.specification();
    device.seed = change.mine.policy.seed;
    device.arbiter->use(std::move(*change.policy), runtime::now_ns());
    device.fault_reported = false;
    log::info("device {}: policy {}", device.info.uuid, device.policy);
  }
  return {};
}

void Devices::report_policy_fault(ServedDevice& device) const {
  const std::string& fault = device.arbiter->scheduler().fault();
  if (fault.empty() || std::exchange(device.fault_reported, true)) return;
  log::error("device {}: policy {}; fifo decides from now on [{}]", device.info.uuid, fault,
             runtime::code_of(runtime::Problem::kPolicy));
}

std::size_t Devices::drain(const std::string& which, bool drained) {
  std::size_t changed = 0;
  for (auto& [key, device] : known_) {
    if (which != "all" && device.info.uuid != which) continue;
    device.drained = drained;
    ++changed;
    log::info("device {}: {}", device.info.uuid, drained ? "takes no new client" : "takes clients");
  }
  return changed;
}

bool Devices::waits_for_answer() const {
  return std::any_of(known_.begin(), known_.end(), [](const auto& device) {
    return device.second.arbiter->scheduler().waits_for_answer();
  });
}

std::uint64_t Devices::wake_at() const {
  std::uint64_t next = kNever;
  for (const auto& [key, device] : known_) next = std::min(next, device.arbiter->wake_at());
  return next;
}

}  // namespace vitamin::daemon
