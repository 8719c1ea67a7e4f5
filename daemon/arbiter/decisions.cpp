// SPDX-License-Identifier: Apache-2.0
#include "daemon/arbiter/decisions.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

namespace vitamin::daemon {

using nlohmann::json;

namespace {

const char* name_of(scheduler::Mode mode) {
  switch (mode) {
    case scheduler::Mode::kExclusive:
      return "exclusive";
    case scheduler::Mode::kShared:
      return "shared";
    case scheduler::Mode::kPaused:
      return "paused";
  }
  return "unknown";
}

const char* name_of(scheduler::ChoiceReason choice) {
  static constexpr const char* kNames[] = {"only",   "unmeasured", "uncounted", "short",
                                           "won",    "no lead",    "looked",    "remembered",
                                           "bounds", "late",       "tried",     "no slack"};
  return kNames[static_cast<std::size_t>(choice)];
}

std::uint32_t sms_of(const ServedDevice& device, PartitionId partition) {
  const runtime::PoolLayout& layout = device.arbiter->layout();
  return partition < layout.size() ? layout.at(partition).sms : 0;
}

// Rows of single streams; equal ones are counted together.
json streams_of(const ServedDevice& device, const std::vector<scheduler::Planned>& rows) {
  std::map<std::tuple<std::string, std::string, std::uint32_t>, std::size_t> alike;
  for (const scheduler::Planned& planned : rows)
    ++alike[{
        std::string(to_string(planned.reason)), name_of(planned.row.mode),
        planned.row.mode == scheduler::Mode::kPaused ? 0 : sms_of(device, planned.row.partition)}];
  json streams = json::array();
  for (const auto& [kind, count] : alike) {
    const auto& [why, mode, sms] = kind;
    streams.push_back({{"why", why}, {"mode", mode}, {"processors", sms}, {"streams", count}});
  }
  return streams;
}

json allocation_of(const ServedDevice& device, std::uint64_t now_ns) {
  json rows = json::array();
  std::vector<scheduler::Explanation> clients;
  device.arbiter->scheduler().explain(clients, now_ns);
  for (const scheduler::Explanation& of : clients) {
    json row{{"client", of.client},
             {"active", of.active},
             {"asked", of.busy_ns != 0},
             {"idle_ns", of.busy_ns != 0 ? now_ns - std::min(now_ns, of.busy_ns) : 0},
             {"waiting", of.waiting},
             {"open", of.open},
             {"draining", of.draining},
             {"longest_wait_ns", of.longest_wait_ns},
             {"why", to_string(of.planned.reason)},
             {"streams", streams_of(device, of.streams)}};
    if (of.planned.reason != scheduler::Reason::kNone) {
      const scheduler::Row& given = of.planned.row;
      const runtime::Partition& partition = device.arbiter->layout().at(given.partition);
      row["mode"] = name_of(given.mode);
      row["entry"] = partition.id;
      row["units"] = partition.compute.bits();
      row["processors"] = partition.sms;
      row["kept_while_idle"] = given.hold;
      row["for_ns"] = now_ns - std::min(now_ns, of.since_ns);
      if (of.planned.wished != scheduler::kNoPartition)
        row["wished"] = {{"mode", name_of(of.planned.wished_mode)},
                         {"processors", sms_of(device, of.planned.wished)}};
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

json json_of(const ServedDevice& device, const scheduler::CandidateReport& candidate) {
  json clients = json::array(), has = json::array();
  for (const scheduler::ClientReport& of : candidate.clients)
    clients.push_back({{"client", of.client},
                       {"speed", of.speed},
                       {"error", of.error},
                       {"rate", of.rate},
                       {"rate_error", of.rate_error},
                       {"costs", of.costs},
                       {"measured", of.measured}});
  for (const scheduler::Assignment& one : candidate.assignments)
    has.push_back({{"client", one.client},
                   {"processors", sms_of(device, one.partition)},
                   {"mode", name_of(one.mode)}});
  return {{"has", has},
          {"clients", clients},
          {"lead", candidate.lead},
          {"error", candidate.error},
          {"predicted", candidate.predicted},
          {"blocks", candidate.blocks},
          {"chosen", candidate.chosen},
          {"dropped", candidate.dropped},
          {"remembered", candidate.remembered},
          {"keeps_bounds", candidate.keeps_bounds}};
}

json json_of(const ServedDevice& device, const scheduler::Findings& found, std::uint64_t now_ns) {
  json candidates = json::array();
  for (const scheduler::CandidateReport& candidate : found.candidates)
    candidates.push_back(json_of(device, candidate));
  return {{"why", name_of(found.choice)},
          {"objective", found.objective},
          {"decided_s", found.decided_s},
          {"spent", found.spent},
          {"ago_ns", found.left_ns != 0 ? now_ns - std::min(now_ns, found.left_ns) : 0},
          {"candidates", candidates}};
}

json bounds_of(const ServedDevice& device) {
  json bounds = json::array();
  for (const scheduler::SloStatus& status : device.arbiter->slo_statuses())
    bounds.push_back({{"client", status.client},
                      {"of", bound_name(status.kind)},
                      {"bound_ns", status.bound_ns},
                      {"alone_ns", status.alone_ns},
                      {"refused", !status.feasible},
                      {"finished", status.finished},
                      {"late", status.late},
                      {"costs", status.costs},
                      {"standing", sms_of(device, status.kept_partition)}});
  return bounds;
}

}  // namespace

const char* bound_name(scheduler::StepKind kind) {
  switch (kind) {
    case scheduler::StepKind::kPrefill:
      return "ttft";
    case scheduler::StepKind::kDecode:
      return "tpot";
    case scheduler::StepKind::kIteration:
      return "step";
    default:
      return "latency";
  }
}

void add_decisions(const ServedDevice& device, std::uint64_t now_ns, json& status) {
  status["allocation"] = allocation_of(device, now_ns);
  scheduler::Findings found;
  device.arbiter->explain(found);
  status["found"] = json_of(device, found, now_ns);
  status["found_before"] = nullptr;
  if (found.candidates.size() < 2 && device.arbiter->estimator().explain_before(found))
    status["found_before"] = json_of(device, found, now_ns);
  status["bounds"] = bounds_of(device);
  status["measures"] = device.arbiter->scheduler().policy().uses_progress;
}

}  // namespace vitamin::daemon
