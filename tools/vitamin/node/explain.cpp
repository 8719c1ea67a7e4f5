// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/node/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace vitamin::tools {
namespace {

using nlohmann::json;

double seconds(const json& object, const char* name) { return object.value(name, 0.0) / 1e9; }

// 0 stands for "not known" in a status.
json known(double value) { return value == 0 || !std::isfinite(value) ? json() : json(value); }

const json* find(const json& list, std::uint64_t client) {
  for (const json& each : list)
    if (each.value("client", std::uint64_t{0}) == client) return &each;
  return nullptr;
}

std::uint64_t id_of(const json& object) { return object.value("client", std::uint64_t{0}); }

std::string label(const json& client) {
  return fmt::format("{} ({})", id_of(client), client.value("program", ""));
}

bool is_called(const json& client, const std::string& which) {
  const std::string job = client.value("job", ""), pod = client.value("pod", "");
  return which.empty() || which == std::to_string(id_of(client)) || which == job ||
         job.starts_with(which + ".") || which == client.value("program", "") ||
         (!pod.empty() && (which == pod || which == client.value("namespace", "") + "/" + pod));
}

// The number of a client comes before a job or a program of that name.
std::vector<std::uint64_t> wanted(const json& clients, const std::string& which) {
  std::vector<std::uint64_t> ids;
  for (const json& client : clients)
    if (which == std::to_string(id_of(client))) return {id_of(client)};
  for (const json& client : clients)
    if (is_called(client, which)) ids.push_back(id_of(client));
  return ids;
}

bool contains(const std::vector<std::uint64_t>& ids, std::uint64_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// --- candidates ------------------------------------------------------------------------------

json explained_candidate(const json& candidate, const json& known_clients) {
  const bool measured = candidate.value("blocks", 0) > 0, chosen = candidate.value("chosen", false);
  const bool remembered = candidate.value("remembered", false);
  json clients = json::array();
  for (const json& has : candidate["has"]) {
    const json* const of = find(candidate["clients"], id_of(has));
    const json* const client = find(known_clients, id_of(has));
    json row{{"client", id_of(has)},
             {"program", client != nullptr ? client->value("program", "") : ""},
             {"mode", has.value("mode", "")},
             {"sms", has.value("processors", 0)},
             {"measured", of != nullptr && of->value("measured", false)}};
    for (const char* name : {"speed", "error", "rate", "rate_error"})
      row[name] = of != nullptr ? known(of->value(name, 0.0)) : json();
    row["costs"] = of != nullptr ? json(of->value("costs", 0.0)) : json();
    clients.push_back(std::move(row));
  }
  const json error = known(candidate.value("error", 0.0));  // null: it was not compared
  const double lead = candidate.value("lead", 0.0);
  return {{"chosen", chosen},
          {"measured", measured},
          {"remembered", remembered},
          {"dropped", candidate.value("dropped", false)},
          {"keeps_bounds", candidate.value("keeps_bounds", true)},
          {"blocks", candidate.value("blocks", 0)},
          {"lead", chosen            ? json(0.0)
                   : error.is_null() ? json()
                                     : json(lead)},
          {"error", error},
          {"predicted_lead", candidate.value("predicted", 0.0)},
          {"clients", clients}};
}

// The one in force first, then by what is known to lead, then by what is predicted to.
json explained_candidates(const json& found, const json& clients) {
  std::vector<json> all;
  for (const json& candidate : found["candidates"])
    all.push_back(explained_candidate(candidate, clients));
  const auto order = [](const json& each) {
    const bool predicted = each["lead"].is_null();
    return std::tuple(!each.value("chosen", false), predicted,
                      predicted ? -each.value("predicted_lead", 0.0) : -each["lead"].get<double>());
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const json& a, const json& b) { return order(a) < order(b); });
  char name = 'A';
  for (json& each : all) each["name"] = std::string(1, name++);
  return all;
}

// Null: one client alone, or clients of it are gone.
json choice(const json& found, const json& clients) {
  if (!found.is_object() || found["candidates"].empty()) return {};
  const json& candidates = found["candidates"];
  if (candidates.size() == 1 && candidates.front()["has"].size() < 2) return {};
  for (const json& candidate : candidates)
    for (const json& has : candidate["has"])
      if (find(clients, id_of(has)) == nullptr) return {};
  return {{"why", found.value("why", "")},
          {"objective", found.value("objective", "")},
          {"decided_s", found.value("decided_s", 0.0)},
          {"spent", found.value("spent", 0.0)},
          {"ago_s", seconds(found, "ago_ns")},
          {"arrangements", explained_candidates(found, clients)}};
}

// --- clients ---------------------------------------------------------------------------------

json has(const json& device, const json* row, std::uint64_t client) {
  json has{{"mode", "none"}, {"sms", 0}, {"for_s", 0.0}};
  if (row == nullptr) return has;
  if (row->contains("mode")) {
    has["mode"] = (*row)["mode"];
    has["sms"] = row->value("mode", "") == "paused" ? json(0) : (*row)["processors"];
    has["for_s"] = seconds(*row, "for_ns");
  } else {  // a policy that places each launch
    std::uint64_t units = 0, shared = 0, sms = 0;
    for (const json& hold : device["held"]) {
      if (id_of(hold) != client || !hold.value("open", false)) continue;
      units |= hold.value("units", std::uint64_t{0});
      shared += hold.value("shared", false) ? 1 : 0;
    }
    const json& widths = device["processors_per_unit"];
    for (std::size_t unit = 0; unit < widths.size(); ++unit)
      if ((units >> unit & 1) != 0) sms += widths[unit].get<std::uint64_t>();
    if (sms != 0) has = {{"mode", shared != 0 ? "shared" : "exclusive"}, {"sms", sms}};
    has["for_s"] = nullptr;
  }
  has["kept_while_idle"] = row->value("kept_while_idle", false);
  has["active"] = row->value("active", false);
  has["asked"] = row->value("asked", true);
  has["idle_s"] = seconds(*row, "idle_ns");
  has["waiting"] = row->value("waiting", 0);
  has["longest_wait_s"] = seconds(*row, "longest_wait_ns");
  has["streams"] = json::array();
  for (const json& stream : row->value("streams", json::array()))
    has["streams"].push_back({{"why", stream.value("why", "")},
                              {"mode", stream.value("mode", "")},
                              {"sms", stream.value("processors", 0)},
                              {"streams", stream.value("streams", 0)}});
  return has;
}

json bounds(const json& device, const json& client) {
  json all = json::array();
  const json said = client.value("bounds", json::object());
  for (const json& bound : device.value("bounds", json::array())) {
    if (id_of(bound) != id_of(client)) continue;
    all.push_back({{"of", bound.value("of", "")},
                   {"bound_ms", known(bound.value("bound_ns", 0.0) / 1e6)},
                   {"percentile", said.value("percentile", 99)},
                   {"alone_ms", known(bound.value("alone_ns", 0.0) / 1e6)},
                   {"refused", bound.value("refused", false)},
                   {"finished", bound.value("finished", 0)},
                   {"late", bound.value("late", 0)},
                   {"costs", bound.value("costs", 0.0)},
                   {"kept_sms", bound.value("standing", 0)}});
  }
  return all;
}

// What the candidate in force costs the others, each against the one that is best for it.
json costs_others(const json& chosen, std::uint64_t client) {
  json costs = json::array();
  for (const json& other : chosen["clients"])
    if (id_of(other) != client && !other["costs"].is_null() && other.value("measured", false))
      costs.push_back({{"client", id_of(other)}, {"part", other["costs"]}});
  return costs;
}

json explain_client(const json& device, const json& client, const json& choice) {
  const json* const row = find(device["allocation"], id_of(client));
  json explained{{"client", id_of(client)},
                 {"program", client.value("program", "")},
                 {"class", client.value("class", "")},
                 {"job", client.value("job", "")},
                 {"domain", client.value("domain", "")},
                 {"parked", client.value("parked", false)},
                 {"process", client.value("process", 0)},
                 {"user", client.value("user", 0)},
                 {"has", has(device, row, id_of(client))},
                 {"why", row != nullptr ? row->value("why", "none") : "none"},
                 {"wished", nullptr},
                 {"limits",
                  {{"sms_most", client.value("processors_most", 0)},
                   {"sms_reserved", client.value("processors_reserved", 0)},
                   {"weight", client.value("weight", 1.0)}}},
                 {"bounds", bounds(device, client)},
                 {"lacks", nullptr},
                 {"costs_others", json::array()}};
  if (row != nullptr && row->contains("wished"))
    explained["wished"] = {{"mode", (*row)["wished"].value("mode", "")},
                           {"sms", (*row)["wished"].value("processors", 0)}};
  if (choice.is_null() || choice.value("ago_s", 0.0) > 0) return explained;
  const json& chosen = choice["arrangements"].front();
  if (const json* const own = find(chosen["clients"], id_of(client))) {
    if (own->value("measured", false)) explained["lacks"] = (*own)["costs"];
    explained["costs_others"] = costs_others(chosen, id_of(client));
  }
  return explained;
}

// --- the whole -------------------------------------------------------------------------------

hal::Error unknown(const json& clients, const std::string& which) {
  std::string names;
  for (const json& client : clients) {
    names += (names.empty() ? "" : ", ") + label(client);
    if (const std::string job = client.value("job", ""); !job.empty()) names += " of job " + job;
  }
  return {
      hal::Errc::kInvalidArgument, 0,
      fmt::format("vitamind knows no client, job or program '{}'. Name one of: {}", which, names)};
}

}  // namespace

hal::Result<json> explain(const json& status, const std::string& which) {
  const json& clients = status["clients"];
  if (clients.empty())
    return hal::fail(hal::Errc::kUnavailable,
                     "vitamind has decided nothing yet: it has no client. Start one: vitamin run "
                     "--daemon -- COMMAND");
  const std::vector<std::uint64_t> ids = wanted(clients, which);
  if (ids.empty()) return tl::unexpected(unknown(clients, which));
  json devices = json::array();
  bool any = false;
  for (const json& device : status["devices"]) {
    const json choice = tools::choice(device["found"], clients);
    json explained{{"uuid", device.value("uuid", "")},
                   {"view", device.value("view", 1)},
                   {"domain", device.value("domain", "")},
                   {"name", device.value("name", "")},
                   {"sms", device.value("processors", 0)},
                   {"policy", device.value("policy", "")},
                   {"fault", device.value("fault", "")},
                   {"measures", device.value("measures", false)},
                   {"choice", choice},
                   {"choice_before", tools::choice(device.value("found_before", json()), clients)},
                   {"clients", json::array()}};
    for (const json& client : clients) {
      if (!contains(ids, id_of(client))) continue;
      const json* const row = find(device["allocation"], id_of(client));
      if (row == nullptr) continue;  // it is on another device, or on another view of this one
      any = any || row->value("asked", true);
      explained["clients"].push_back(explain_client(device, client, choice));
    }
    if (!explained["clients"].empty()) devices.push_back(std::move(explained));
  }
  if (!any)
    return hal::fail(hal::Errc::kUnavailable,
                     fmt::format("vitamind has decided nothing yet: {} launched no kernel so far. "
                                 "Ask again when it has",
                                 ids.size() == 1 ? "client " + label(*find(clients, ids.front()))
                                                 : "no client has"));
  return json{{"schema", 1}, {"devices", std::move(devices)}};
}

}  // namespace vitamin::tools
