// SPDX-License-Identifier: Apache-2.0
//
// What `vitamin status` and `vitamin top` show. Schema 1: fields are only ever added.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "daemon/arbiter/decisions.h"
#include "daemon/config/schema.h"
#include "daemon/protocol/quota_file.h"
#include "daemon/server/server.h"
#include "runtime/clock.h"

namespace vitamin::daemon {

using nlohmann::json;

namespace {

auto key_of(const DeviceArbiter::GrantStatus& hold) {
  return std::tuple(hold.client, hold.partition, !hold.open, hold.adopted);
}

// Grants of a client's lanes on one partition are shown as one: there may be hundreds, and all
// clients wait while this is written.
std::vector<DeviceArbiter::GrantStatus> grouped(std::vector<DeviceArbiter::GrantStatus> holds) {
  std::stable_sort(holds.begin(), holds.end(),
                   [](const auto& a, const auto& b) { return key_of(a) < key_of(b); });
  return holds;
}

// The latency bounds of a client's class.
json bounds_status(const scheduler::Slo& slo) {
  const bool as_alone = scheduler::is_as_alone(slo.latency_ns);
  return {{"ttft_ns", slo.ttft_ns},
          {"tpot_ns", slo.tpot_ns},
          {"latency_ns", as_alone ? 0 : slo.latency_ns},
          {"step_ns", slo.step_ns},
          {"as_alone", as_alone},
          {"percentile", std::lround(100 * slo.quantile)}};
}

// The SM quotas of the groups that a client is in.
json shares_status(const std::vector<GroupShare>& shares, std::uint32_t sms) {
  json all = json::array();
  for (const GroupShare& share : shares)
    if (share.share < 100)
      all.push_back({{"whose", share.name.empty() ? "of the process" : share.name},
                     {"share", share.share},
                     {"processors", sms_of_share(share.share, sms)}});
  return all;
}

// The grants on a device.
json held_status(const DeviceArbiter& arbiter, std::uint64_t now_ns) {
  json held = json::array();
  const std::vector<DeviceArbiter::GrantStatus> holds = grouped(arbiter.held());
  for (auto hold = holds.begin(); hold != holds.end();) {
    const auto next = std::find_if(hold, holds.end(), [&](const DeviceArbiter::GrantStatus& other) {
      return key_of(other) != key_of(*hold);
    });
    const std::uint64_t newest_ns = std::max_element(hold, next, [](const auto& a, const auto& b) {
                                      return a.opened_ns < b.opened_ns;
                                    })->opened_ns;
    const runtime::Partition& partition = arbiter.layout().at(hold->partition);
    held.push_back({{"client", hold->client},
                    {"lane", hold->lane},  // the first of them
                    {"lanes", next - hold},
                    {"entry", hold->partition},
                    {"whole", partition.whole()},
                    {"units", partition.compute.bits()},
                    {"processors", partition.sms},
                    {"shared", hold->shared},
                    {"open", hold->open},
                    {"adopted", hold->adopted},
                    // Of the newest of them; of earlier work, since it was reported.
                    {"age_ms", static_cast<double>(now_ns - std::min(now_ns, newest_ns)) * 1e-6}});
    hold = next;
  }
  return held;
}

std::vector<pid_t> others_alone(const ServedDevice& device) {
  return device.lock != nullptr ? device.lock->others().alone : std::vector<pid_t>();
}

}  // namespace

// Users whose clients were evicted lately. The names of the fields are published.
json Server::evicted_users() const {
  json users = json::array();
  AbuseLimiter& limiter = pending_->abuse_limiter();
  for (const auto& [uid, user] : limiter.users(polled_ns_))
    users.push_back({{"user", uid},
                     {"let_go", user.evictions},
                     {"last", user.last},
                     {"waits_ns", limiter.admits_at(uid, polled_ns_) - polled_ns_}});
  return users;
}

namespace {

json usage_status(const UsageTotals& used) {
  const auto seconds = [](std::uint64_t ns) { return static_cast<double>(ns) * 1e-9; };
  const bool measured = used.measured_sm_ns != 0;  // else its busy time is unknown
  return {{"sm_seconds", seconds(used.sm_ns)},
          {"measured_sm_seconds", seconds(used.measured_sm_ns)},
          {"busy_sm_seconds", measured ? json(seconds(used.busy_sm_ns)) : json()},
          {"held_seconds", seconds(used.held_ns)},
          {"wait_seconds", seconds(used.wait_ns)},
          {"grants", used.grants},
          {"operations", used.operations}};
}

}  // namespace

// What is in force, and why the last reload failed. Releases before 0.2 have no files and times.
json Server::configuration_status() const {
  json result{{"valid", configuration_problem_.empty()},
              {"problem", configuration_problem_},
              {"files", settings_.files},
              {"since_read_ns", polled_ns_ - configured_ns_},
              {"settings", config::settings_of(settings_.configuration)}};
  if (!configuration_problem_.empty()) result["since_problem_ns"] = polled_ns_ - reload_failed_ns_;
  return result;
}

UsageTotals Server::used_by(const Session& session, std::uint64_t now_ns) const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  Usage usage = session.device->arbiter->usage(session.id, now_ns);
  usage.busy(session.memory.client->busy_ns.load(kRelaxed), now_ns);
  UsageTotals used = usage.totals(now_ns);
  used.operations = session.memory.client->operations.load(kRelaxed);
  return used;
}

// Of a process in ledgers of device memory; 0: it cannot be seen.
std::uint64_t Server::owner_number(const ProcessIdentity& process) {
  return process ? protocol::owner_of(static_cast<pid_t>(process.process), process.started) : 0;
}

// Bytes of its device that the session's process has; known of processes with a memory quota.
std::optional<std::uint64_t> Server::memory_of(const Session& session) const {
  return memory_quotas_.used_by(owner_number(session.process), session.device->info.uuid);
}

// The record of a client that ends (Accounting::ended() adds calendar times).
json Server::usage_record(const Session& session, std::uint64_t now_ns) const {
  const Entitlement& entitlement = session.entitlement;
  json record{{"client", session.id},
              {"program", session.program},
              {"process", session.peer.pid},
              {"user", session.peer.uid},
              {"class", entitlement.workload_class},
              {"shares", shares_status(entitlement.shares, session.device->info.sms)},
              {"job", entitlement.job},
              {"namespace", entitlement.container.pod_namespace},
              {"pod", entitlement.container.pod_name},
              {"container_id", entitlement.container.id},
              {"device", session.device->info.uuid},
              {"seconds", static_cast<double>(now_ns - session.since_ns) * 1e-9}};
  record.update(usage_status(used_by(session, now_ns)));
  // The most since its process began; null: not known, it has no memory quota.
  const auto peak =
      memory_quotas_.peak_of(owner_number(session.process), session.device->info.uuid);
  record["memory_peak_bytes"] = peak ? json(*peak) : json();
  return record;
}

json Server::client_status(const Session& session) const {
  const Entitlement& entitlement = session.entitlement;
  const auto memory = memory_of(session);
  return {{"client", session.id},
          {"program", session.program},
          {"class", entitlement.workload_class},
          {"job", entitlement.job},
          {"namespace", entitlement.container.pod_namespace},
          {"pod", entitlement.container.pod_name},
          {"pod_uid", entitlement.container.pod},
          {"container", entitlement.container.name},
          {"container_id", entitlement.container.id},
          {"processors_most", entitlement.traits.terms.limits.most_sms()},
          {"shares", shares_status(entitlement.shares, session.device->info.sms)},
          {"processors_reserved", entitlement.traits.terms.limits.reserved_sms},
          {"processors_now", session.device->arbiter->usage(session.id, polled_ns_).sms()},
          {"usage", usage_status(used_by(session, polled_ns_))},
          {"memory_bytes", memory ? json(*memory) : json()},
          {"weight", entitlement.traits.terms.weight},
          {"bounds", bounds_status(entitlement.traits.terms.slo)},
          {"process", session.peer.pid},
          {"user", session.peer.uid},
          {"device", session.device->info.uuid},
          {"view", session.device->view},
          {"domain", session.device->domain},
          {"dying", session.dying},
          {"parked", is_parked(session)},
          {"completed", session.memory.client->launches.load(std::memory_order_relaxed)},
          {"up_ns", polled_ns_ - session.since_ns}};
}

json Server::status() const {
  json result{{"schema", 1},
              {"daemon",
               {{"process", ::getpid()},
                {"epoch", epoch_},
                {"socket", settings_.socket},
                {"policy", settings_.configuration.policy.specification()},
                {"seed", settings_.configuration.policy.seed},
                {"up_ns", polled_ns_ - started_ns_},
                {"turns", turns_},
                {"connections", pending_->connections()},
                {"refused", pending_->refused()},
                {"let_go", counters_.evicted},
                {"deaths_by_life_line", counters_.deaths_by_life_line},
                {"deaths_by_pidfd", counters_.deaths_by_pidfd},
                {"rings", counters_.rings},
                {"sleeps", counters_.sleeps}}},
              {"mps", mps_status()},
              {"domains", domains_status()},
              {"configuration", configuration_status()},
              {"devices", json::array()},
              {"clients", json::array()},
              {"jobs", jobs_.status()},
              {"claims", claims_.status()},
              {"memory", memory_quotas_.status()},
              {"let_go_users", evicted_users()}};
  // Views of each device in each domain.
  std::map<std::pair<std::string, std::string>, std::size_t> in_use;
  for (const auto& [key, device] : devices_)
    in_use[{device.info.uuid, device.domain}] += device.sessions > 0 ? 1 : 0;
  for (const auto& [key, device] : devices_) {
    const DeviceArbiter& arbiter = *device.arbiter;
    const scheduler::SchedulerCounters& decided = arbiter.scheduler().counters();
    const scheduler::LedgerCounters& moved = arbiter.scheduler().ledger().counters();
    json shown{{"uuid", device.info.uuid},
               {"view", device.view},
               {"views_in_use", in_use[{device.info.uuid, device.domain}]},
               {"domain", device.domain},
               {"name", device.info.name},
               {"processors", device.info.sms},
               {"processors_per_unit", device.info.sms_per_unit},
               {"policy", device.policy},
               {"drained", device.drained},
               {"not_clients", others_alone(device)},
               {"waiting", arbiter.scheduler().waiting()},
               {"held", held_status(arbiter, polled_ns_)},
               {"fault", arbiter.scheduler().fault()},
               {"requests", arbiter.counters().requests},
               {"grants", decided.grants},
               {"moves", moved.moved},
               {"gates_closed", decided.revoked},
               {"plans", decided.plans},
               {"served_by_age", decided.starving},
               {"overdue", arbiter.counters().overdue},
               {"stale", arbiter.counters().stale},
               {"undelivered", arbiter.counters().undelivered},
               {"overlaps", arbiter.counters().overlaps}};
    add_decisions(device, polled_ns_, shown);
    result["devices"].push_back(std::move(shown));
  }
  for (const auto& [id, session] : sessions_) result["clients"].push_back(client_status(*session));
  return result;
}

}  // namespace vitamin::daemon
