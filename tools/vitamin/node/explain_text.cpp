// SPDX-License-Identifier: Apache-2.0
//
// vitamin explain for people: a table of the candidates for each device, a sentence for each
// client.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "tools/vitamin/node/explain.h"
#include "tools/vitamin/text.h"

namespace vitamin::tools {
namespace {

using nlohmann::json;

constexpr std::size_t kColumns = 5;  // clients in a table; further ones are in --json

double number(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

std::string word(const json& object, const char* name) { return object.value(name, ""); }

std::string time_text(double seconds) {
  return duration(static_cast<std::uint64_t>(std::max(0.0, seconds) * 1e9));
}

std::string percent_text(double part) { return fmt::format("{:.1f} %", 100 * part); }

// "66 of 132 SMs to itself", "all 132 SMs with others", "nothing".
std::string share_text(const std::string& mode, double sms, double whole) {
  if (mode == "paused" || mode == "none" || sms == 0) return "nothing";
  const std::string part =
      sms == whole ? fmt::format("all {} SMs", whole) : fmt::format("{} of {} SMs", sms, whole);
  return part + (mode == "exclusive" ? " to itself" : " with others");
}

// --- the table -------------------------------------------------------------------------------

std::string lead_text(const json& each) {
  if (each.value("chosen", false)) return "in force";
  if (!each["lead"].is_null()) {
    std::string text = fmt::format("{:+.1f} %", 100 * number(each, "lead"));
    if (!each["error"].is_null()) text += fmt::format(" ± {:.1f}", 100 * number(each, "error"));
    return text;
  }
  return fmt::format("{:+.0f} % predicted", 100 * number(each, "predicted_lead"));
}

std::string blocks_text(const json& each) {
  if (each.value("measured", false)) return fmt::format("{}", each.value("blocks", 0));
  return each.value("remembered", false) ? "earlier" : "–";
}

std::string cell_text(const json& each, const json& column, double whole) {
  for (const json& of : each["clients"]) {
    if (of["client"] != column) continue;
    const double sms = number(of, "sms");
    std::string text =
        sms == whole && word(of, "mode") == "shared"
            ? std::string("shared")
            : fmt::format("{} SMs{}", sms, word(of, "mode") == "shared" ? " shared" : "");
    if (!of["speed"].is_null())
      text += fmt::format("  {:.2f}", number(of, "speed")) +
              (of.value("measured", false) ? fmt::format(" ± {:.2f}", number(of, "error"))
                                           : " predicted");
    else if (!of["rate"].is_null() && !each.value("chosen", false))
      text += fmt::format("  × {:.2f} ± {:.2f}", number(of, "rate"), number(of, "rate_error"));
    return text;
  }
  return "paused";
}

std::size_t width_of(const std::string& text) {  // in characters
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string lines_of(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths.resize(std::max(widths.size(), row.size()));
      widths[i] = std::max(widths[i], width_of(row[i]));
    }
  std::string text;
  for (const auto& row : rows) {
    std::string line = " ";
    for (std::size_t i = 0; i < row.size(); ++i)
      line += " " + row[i] + std::string(widths[i] - width_of(row[i]) + 1, ' ');
    while (line.ends_with(' ')) line.pop_back();
    text += line + "\n";
  }
  return text;
}

// Clients of a table: those that were asked for come first.
std::vector<std::pair<json, std::string>> columns_of(const json& choice, const json& device) {
  std::vector<std::pair<json, std::string>> in;
  for (const json& each : choice["arrangements"])
    for (const json& of : each["clients"])
      if (std::none_of(in.begin(), in.end(),
                       [&](const auto& c) { return c.first == of["client"]; }))
        in.emplace_back(of["client"], word(of, "program"));
  const auto asked_for = [&](const auto& column) {
    return std::any_of(device["clients"].begin(), device["clients"].end(),
                       [&](const json& client) { return client["client"] == column.first; });
  };
  std::stable_partition(in.begin(), in.end(), asked_for);
  return in;
}

std::string table_text(const json& choice, const json& device) {
  auto columns = columns_of(choice, device);
  const std::size_t all = columns.size();
  columns.resize(std::min(all, kColumns));
  std::vector<std::vector<std::string>> rows = {{" ", "", "objective", "blocks"}};
  for (const auto& [client, program] : columns)
    rows.front().push_back(fmt::format("client {} ({})", client.get<std::uint64_t>(), program));
  for (const json& each : choice["arrangements"]) {
    std::vector<std::string>& row = rows.emplace_back();
    row = {each.value("chosen", false) ? ">" : " ", word(each, "name"), lead_text(each),
           blocks_text(each)};
    for (const auto& [client, program] : columns)
      row.push_back(cell_text(each, client, number(device, "sms")));
    if (!each.value("keeps_bounds", true)) row.emplace_back("misses a bound");
    if (each.value("dropped", false)) row.emplace_back("given up");
  }
  std::string text = lines_of(rows);
  if (all > kColumns) text += fmt::format("  and {} more clients: --json\n", all - kColumns);
  return text;
}

std::string objective_text(const std::string& objective) {
  if (objective == "sum") return "the sum of speeds";
  if (objective == "fair") return "the speed of the slowest client";
  if (objective == "others") return "the progress of the clients without a bound";
  return "proportional progress (the geometric mean of speeds)";
}

// Why the first candidate is in force.
std::string why_text(const json& choice) {
  static const std::map<std::string, std::string> kTexts = {
      {"only", "there is no other"},
      {"unmeasured", "not decided yet: each is measured in turn, now A"},
      {"uncounted", "a client reports no progress, so nothing can be measured"},
      {"short", "these clients run together for too short a time to measure another"},
      {"won", "A won when all were measured in turn"},
      {"no lead", "no other leads A beyond doubt"},
      {"looked", "a later look showed A to be better than the winner before"},
      {"remembered", "A won when these programs ran together before"},
      {"bounds", "of those that keep every bound, A gives the others most"},
      {"late", "none keeps every bound: A misses the worst by least"},
      {"tried", "how fast a client with a bound is with A is being measured"},
      {"no slack", "a client with a bound has no time left to lose: the others are paused"}};
  const auto found = kTexts.find(word(choice, "why"));
  std::string text = found != kTexts.end() ? found->second : word(choice, "why");
  if (const double decided = number(choice, "decided_s");
      decided > 0 && word(choice, "why") != "unmeasured")
    text += fmt::format(", {} after the first block", time_text(decided));
  return text;
}

std::string choice_text(const json& choice, const json& device) {
  return fmt::format("  objective: {}; {}\n", objective_text(word(choice, "objective")),
                     why_text(choice)) +
         table_text(choice, device);
}

// --- clients ---------------------------------------------------------------------------------

// What decided, as the end of "client 1 (x) has ..., ".
std::string reason_text(const json& client, const json& device) {
  const json &limits = client["limits"], &wished = client["wished"];
  const std::string policy = word(device, "policy").substr(0, word(device, "policy").find(':'));
  const std::string wish = wished.is_null()
                               ? std::string()
                               : fmt::format("; {} wanted {}", policy,
                                             share_text(word(wished, "mode"), number(wished, "sms"),
                                                        number(device, "sms")));
  const std::string why = word(client, "why");
  if (why == "policy") {
    const bool compared =
        !device["choice"].is_null() && device["choice"]["arrangements"].size() > 1;
    return fmt::format("as policy {} decided{}", policy, compared ? " (candidate A)" : "");
  }
  if (why == "quota")
    return fmt::format("since its quota is {} SMs{}", number(limits, "sms_most"), wish);
  if (why == "not shared") return "since a client with a quota shares no SMs" + wish;
  if (why == "overlap") return "since others came first on the same SMs" + wish;
  if (why == "reservation")
    return fmt::format("since {} SMs are reserved for it{}", number(limits, "sms_reserved"), wish);
  if (why == "aged") return "since it had waited for longer than policy.starving_after";
  if (why == "needs width") return "since its next launch fits no narrower part" + wish;
  if (why == "needs the whole device") return "since its next launch fits no part" + wish;
  if (why == "fallback") return "since the policy failed and fifo decides";
  if (why == "paused") return fmt::format("since policy {} pauses it now", policy);
  if (why == "no room") return "since quotas, reservations and others leave no part" + wish;
  return fmt::format("since policy {} places each launch by itself", policy);
}

std::string streams_text(const json& has, double whole) {
  std::string text;
  for (const json& stream : has["streams"])
    text += fmt::format(
        "{}{} of its streams: {}{}", text.empty() ? "; " : ", ", stream.value("streams", 0),
        share_text(word(stream, "mode"), number(stream, "sms"), whole),
        word(stream, "why") == "aged" ? ", starving: it had waited for too long" : "");
  return text;
}

std::string cost_text(const json& client, const json& choice) {
  std::string text;
  if (const double lacks = number(client, "lacks"); lacks >= 0.005)
    for (const json& each : choice["arrangements"])
      for (const json& of : each["clients"])
        if (of["client"] == client["client"] && of.value("measured", false) && of["costs"] == 0.0)
          text = fmt::format("; it lacks {} of what {} gives it", percent_text(lacks),
                             word(each, "name"));
  std::string others;
  for (const json& cost : client["costs_others"])
    if (number(cost, "part") >= 0.005)
      others += fmt::format("{}client {} {}", others.empty() ? "" : ", ", cost.value("client", 0),
                            percent_text(number(cost, "part")));
  if (!others.empty()) text += "; others lack, against what is best for each: " + others;
  return text;
}

std::string bound_text(const json& bound) {
  const std::string alone =
      bound["alone_ms"].is_null()
          ? std::string("what it takes alone is not known yet")
          : fmt::format("alone it takes {:.3g} ms", number(bound, "alone_ms"));
  const std::string cost = number(bound, "costs") >= 0.005
                               ? fmt::format("; bounds have cost the others {} of their progress",
                                             percent_text(number(bound, "costs")))
                               : std::string();
  std::string late;
  if (bound.value("finished", 0) > 0)
    late = fmt::format("; {} of {} late", grouped(bound.value("late", std::uint64_t{0})),
                       grouped(bound.value("finished", std::uint64_t{0})));
  if (bound["bound_ms"].is_null())
    return fmt::format("    no bound: latencies as if alone; {}{}\n", alone, cost);
  if (bound.value("refused", false))
    return fmt::format("    {} = {:.3g} ms is refused: {} at p{}. It is served as if alone{}{}\n",
                       word(bound, "of"), number(bound, "bound_ms"), alone,
                       bound.value("percentile", 99), late, cost);
  return fmt::format("    {} = {:.3g} ms for p{}: {}{}{}\n", word(bound, "of"),
                     number(bound, "bound_ms"), bound.value("percentile", 99), alone, late, cost);
}

std::string client_text(const json& client, const json& device) {
  const json& has = client["has"];
  const double whole = number(device, "sms");
  std::string name =
      fmt::format("client {} ({}{}{})", client.value("client", 0), word(client, "program"),
                  word(client, "class").empty() ? "" : ", class " + word(client, "class"),
                  word(client, "job").empty() ? "" : ", job " + word(client, "job"));
  std::string text = "  " + name + " ";
  if (client.value("parked", false)) text += "is parked (vitamin resume ends that) and ";
  const bool idle = !has.value("active", false);
  if (!has.value("asked", true)) return text + "has launched no kernel so far\n";
  if (idle && word(client, "why") == "none")
    return text + fmt::format("has had nothing to run for {}\n", time_text(number(has, "idle_s"))) +
           [&] {
             std::string bounds;
             for (const json& bound : client["bounds"]) bounds += bound_text(bound);
             return bounds;
           }();
  text += "has " + share_text(word(has, "mode"), number(has, "sms"), whole);
  if (!has["for_s"].is_null() && word(client, "why") != "none")
    text += " for " + time_text(number(has, "for_s"));
  if (idle) text += ", kept while it is idle";
  text += ", " + reason_text(client, device) + streams_text(has, whole) +
          cost_text(client, device["choice"]);
  if (const int waiting = has.value("waiting", 0); waiting > 0)
    text += fmt::format("; {} of its streams wait, the longest for {}", waiting,
                        time_text(number(has, "longest_wait_s")));
  text += "\n";
  for (const json& bound : client["bounds"]) text += bound_text(bound);
  return text;
}

}  // namespace

std::string domain_text(const json& device) {
  const std::string domain = word(device, "domain");
  return domain.empty() ? "" : fmt::format(", isolation domain '{}'", domain);
}

std::string explanation_text(const json& explained) {
  std::string text;
  for (const json& device : explained["devices"]) {
    text += fmt::format("{}{}  {}  {} SMs, policy {}{}\n", text.empty() ? "" : "\n",
                        word(device, "uuid"), word(device, "name"), number(device, "sms"),
                        word(device, "policy"), domain_text(device));
    if (const std::string fault = word(device, "fault"); !fault.empty())
      text += fmt::format("  the policy failed ({}): fifo decides\n", fault);
    if (!device["choice"].is_null())
      text += choice_text(device["choice"], device);
    else if (!device.value("measures", false))
      text += "  the policy compares no candidates: vitamin policy list names those that do\n";
    else if (!device["choice_before"].is_null())
      text += fmt::format(
                  "  no choice now: fewer than two clients have work. The last one, until "
                  "{} ago:\n",
                  time_text(number(device["choice_before"], "ago_s"))) +
              choice_text(device["choice_before"], device);
    else
      text += "  no choice so far: fewer than two clients had work at a time\n";
    for (const json& client : device["clients"]) text += client_text(client, device);
  }
  return text;
}

}  // namespace vitamin::tools
