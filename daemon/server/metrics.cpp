// SPDX-License-Identifier: Apache-2.0
//
// The metrics of the Prometheus endpoint. docs/metrics.md lists them, and a test compares.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "daemon/metrics/prometheus_text.h"
#include "daemon/server/server.h"
#include "hal/read_file.h"

namespace vitamin::daemon {
namespace {

namespace fs = std::filesystem;

// NVML's index of the device, which DCGM uses as label `gpu`: its place in the driver's list,
// sorted by PCI address. `otherwise` if there is no such driver; empty if the driver does not list
// it.
std::string gpu_index(const std::string& uuid, std::size_t otherwise) {
  std::error_code none;
  std::vector<fs::path> directories;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", none))
    directories.push_back(entry.path());
  if (directories.empty()) return std::to_string(otherwise);
  std::sort(directories.begin(), directories.end());
  for (std::size_t i = 0; i < directories.size(); ++i) {
    const std::string text = hal::read_file(directories[i] / "information").value_or("");
    if (text.find(uuid) != text.npos) return std::to_string(i);
  }
  return "";
}

}  // namespace

void Server::label_devices() {
  std::size_t order = 0;
  for (auto& [key, device] : devices_) {
    if (device.labels.empty()) {
      device.labels = {{"gpu", gpu_index(device.info.uuid, order)},
                       {"UUID", device.info.uuid},
                       {"model", device.info.name}};
      if (device.view > 1) device.labels.emplace_back("view", std::to_string(device.view));
      if (!device.domain.empty()) device.labels.emplace_back("domain", device.domain);
    }
    ++order;
  }
}

std::string Server::metrics() {
  PrometheusText out;
  // One sample for each device, value(device).
  auto each = [&](const char* name, const char* type, const char* help, auto value) {
    out.family(name, type, help);
    for (const auto& [key, device] : devices_) out.sample(device.labels, value(device));
  };
  auto counter = [&](const char* name, const char* help, std::uint64_t value) {
    out.family(name, "counter", help);
    out.sample({}, static_cast<double>(value));
  };
  label_devices();
  out.family("vitamind_build_info", "gauge", "1; the label says which release runs.");
  out.sample({{"version", VITAMIN_VERSION}}, 1);
  const double up = static_cast<double>(polled_ns_ - started_ns_) * 1e-9;
  out.family("vitamind_uptime_seconds", "gauge", "How long this vitamind has run.");
  out.sample({}, up);
  counter("vitamind_turns_total", "Rounds of the event loop.", turns_);
  counter("vitamind_sleeps_total", "Times that the event loop slept.", counters_.sleeps);
  counter("vitamind_doorbell_rings_total", "Times that a client woke the event loop.",
          counters_.rings);
  counter("vitamind_connections_total", "Connections, tools and scrapes included.",
          pending_->connections());
  counter("vitamind_refused_total", "Connections refused with a sentence.", pending_->refused());
  counter("vitamind_let_go_total", "Clients evicted for breaking the protocol.", counters_.evicted);
  counter("vitamind_mps_faults_total",
          "Faults on the GPU that took their contexts from MPS clients.", mps_->facts().faults);
  add_domain_metrics(out);
  out.family("vitamind_deaths_total", "counter", "Deaths of clients, by what reported them first.");
  out.sample({{"seen_by", "life_line"}}, static_cast<double>(counters_.deaths_by_life_line));
  out.sample({{"seen_by", "pidfd"}}, static_cast<double>(counters_.deaths_by_pidfd));

  add_memory_metrics(out);
  add_usage_metrics(out);
  each("vitamin_gpu_clients", "gauge", "Processes that share the GPU.",
       [&](const ServedDevice& device) {
         return static_cast<double>(
             std::count_if(sessions_.begin(), sessions_.end(),
                           [&](const auto& session) { return session.second->device == &device; }));
       });
  each("vitamin_gpu_processors", "gauge", "SMs (or CUs) of the GPU.",
       [](const ServedDevice& device) { return static_cast<double>(device.info.sms); });
  each("vitamin_gpu_leased_processors", "gauge", "SMs (or CUs) on which a client has a grant.",
       [](const ServedDevice& device) {
         hal::ComputeSet units;
         for (const DeviceArbiter::GrantStatus& held : device.arbiter->held())
           units |= device.arbiter->layout().at(held.partition).compute;
         std::uint32_t sms = 0;
         for (unsigned unit = 0; unit < device.info.units(); ++unit)
           if (units.has(unit)) sms += device.info.sms_per_unit[unit];
         return static_cast<double>(sms);
       });
  auto grants = [](bool open) {
    return [open](const ServedDevice& device) {
      const auto held = device.arbiter->held();
      return static_cast<double>(
          std::count_if(held.begin(), held.end(),
                        [&](const DeviceArbiter::GrantStatus& hold) { return hold.open == open; }));
    };
  };
  each("vitamin_gpu_open_grants", "gauge", "Grants under which clients submit.", grants(true));
  each("vitamin_gpu_draining_grants", "gauge", "Closed grants whose work has not ended.",
       grants(false));
  each("vitamin_gpu_waiting_lanes", "gauge", "Streams that wait for a grant.",
       [](const ServedDevice& device) {
         return static_cast<double>(device.arbiter->scheduler().waiting());
       });
  each("vitamin_gpu_drained", "gauge", "1 when the GPU takes no new client.",
       [](const ServedDevice& device) { return device.drained ? 1.0 : 0.0; });
  add_device_counters(out);
  each("vitamind_trace_dropped_total", "counter", "Records of the trace that found no room.",
       [](const ServedDevice& device) {
         return device.trace != nullptr ? static_cast<double>(device.trace->dropped()) : 0.0;
       });
  each("vitamin_gpu_wait_seconds", "histogram",
       "From the request of a stream, or the end of its grant, to its next grant.",
       [](const ServedDevice& device) { return device.arbiter->waits(); });
  return out.take();
}

UsageOwner Server::owner_of(const Session& session) const {
  const Entitlement& entitlement = session.entitlement;
  return {session.device->info.uuid,           std::to_string(session.peer.uid),
          entitlement.workload_class,          entitlement.job,
          entitlement.container.pod_namespace, entitlement.container.pod_name};
}

// Usage of connected clients and of clients that have ended, by owner.
void Server::add_usage_metrics(PrometheusText& out) {
  struct Now {
    UsageTotals totals;
    std::uint64_t clients = 0, sms = 0;
    std::optional<std::uint64_t> memory;
  };
  std::map<UsageOwner, Now> all;
  for (const auto& [id, session] : sessions_)
    accounting_.counted(owner_of(*session), polled_ns_);  // may change sums: before they are read
  for (const auto& [owner, ended] : accounting_.sums()) all[owner].totals = ended.totals;
  for (const auto& [id, session] : sessions_) {
    Now& now = all[accounting_.counted(owner_of(*session), polled_ns_)];
    now.totals += used_by(*session, polled_ns_);
    now.sms += session->device->arbiter->usage(id, polled_ns_).sms();
    ++now.clients;
    if (const auto memory = memory_of(*session)) now.memory = now.memory.value_or(0) + *memory;
  }
  const auto labels = [](const UsageOwner& owner) -> PrometheusText::Labels {
    return {{"UUID", owner.uuid},
            {"user", owner.user},
            {"class", owner.workload_class},
            {"hpc_job", owner.job},
            {"namespace", owner.pod_namespace},
            {"pod", owner.pod}};
  };
  const auto family = [&](const char* name, const char* type, const char* help, auto value) {
    out.family(name, type, help);
    for (const auto& [owner, now] : all) out.sample(labels(owner), value(now));
  };
  const auto seconds = [](std::uint64_t ns) { return static_cast<double>(ns) * 1e-9; };
  family("vitamin_usage_clients", "gauge", "Connected clients.",
         [](const Now& now) { return static_cast<double>(now.clients); });
  family("vitamin_usage_processors", "gauge",
         "SMs on which they have grants, of each client; shared SMs count for each.",
         [](const Now& now) { return static_cast<double>(now.sms); });
  out.family("vitamin_usage_memory_bytes", "gauge",
             "Device memory that they have, of those with a memory quota.");
  for (const auto& [owner, now] : all)
    if (now.memory) out.sample(labels(owner), static_cast<double>(*now.memory));
  family("vitamin_usage_sm_seconds_total", "counter",
         "SMs on which they had grants, times seconds.",
         [&](const Now& now) { return seconds(now.totals.sm_ns); });
  family("vitamin_usage_held_seconds_total", "counter", "Seconds during which they had grants.",
         [&](const Now& now) { return seconds(now.totals.held_ns); });
  family("vitamin_usage_wait_seconds_total", "counter",
         "Seconds that their streams waited for grants.",
         [&](const Now& now) { return seconds(now.totals.wait_ns); });
  family("vitamin_usage_measured_sm_seconds_total", "counter",
         "Of the SM-seconds: while the clients measured whether they were busy.",
         [&](const Now& now) { return seconds(now.totals.measured_sm_ns); });
  family("vitamin_usage_busy_sm_seconds_total", "counter",
         "Of these: while they had work outstanding.",
         [&](const Now& now) { return seconds(now.totals.busy_sm_ns); });
  family("vitamin_usage_grants_total", "counter", "Grants that they got.",
         [](const Now& now) { return static_cast<double>(now.totals.grants); });
  family("vitamin_usage_operations_total", "counter",
         "Launches and other operations that they submitted.",
         [](const Now& now) { return static_cast<double>(now.totals.operations); });
}

void Server::add_device_counters(PrometheusText& out) const {
  struct Family {
    const char* name;
    const char* help;
    std::uint64_t (*value)(const DeviceArbiter&);
  };
  using A = const DeviceArbiter&;
  static constexpr Family kFamilies[] = {
      {"vitamin_gpu_requests_total", "Records taken from clients.",
       [](A a) { return a.counters().requests; }},
      {"vitamin_gpu_grants_total", "Grants given.",
       [](A a) { return a.scheduler().counters().grants; }},
      {"vitamin_gpu_whole_device_launches_total",
       "Grants beside exclusive partitions because only the whole GPU runs the launch.",
       [](A a) { return a.scheduler().counters().exceptions; }},
      {"vitamin_gpu_moves_total", "Grants to a stream that held another partition.",
       [](A a) { return a.scheduler().ledger().counters().moved; }},
      {"vitamin_gpu_gates_closed_total", "Grants revoked for other clients.",
       [](A a) { return a.scheduler().counters().revoked; }},
      {"vitamin_gpu_plans_total", "Times that the policy was asked for an allocation.",
       [](A a) { return a.scheduler().counters().plans; }},
      {"vitamin_gpu_served_by_age_total", "Times that a stream became starving.",
       [](A a) { return a.scheduler().counters().starving; }},
      {"vitamin_gpu_policy_faults_total", "Policies that failed and were replaced by fifo.",
       [](A a) { return a.scheduler().counters().faults; }},
      {"vitamin_gpu_overdue_total", "Grants taken back from clients that did not answer.",
       [](A a) { return a.counters().overdue; }},
      {"vitamin_gpu_stale_returns_total", "Returns of grants that do not exist.",
       [](A a) { return a.counters().stale; }},
      {"vitamin_gpu_undelivered_total", "Grants for which a client's ring had no room.",
       [](A a) { return a.counters().undelivered; }},
      {"vitamin_gpu_overlaps_total", "Reports of earlier work on SMs that other clients hold.",
       [](A a) { return a.counters().overlaps; }},
  };
  for (const Family& family : kFamilies) {
    out.family(family.name, "counter", family.help);
    for (const auto& [key, device] : devices_)
      out.sample(device.labels, static_cast<double>(family.value(*device.arbiter)));
  }
}

}  // namespace vitamin::daemon
