// SPDX-License-Identifier: Apache-2.0
//
// vitamin explain: from a status to a document and to text.
#include "tools/vitamin/node/explain.h"

#include <doctest/doctest.h>

#include <string>

namespace vitamin::tools {
namespace {

using nlohmann::json;

// Two clients on one device: 1 serves and has a bound, 2 trains for job 17.
json status() {
  return json::parse(R"({
    "clients": [
      {"client": 1, "program": "serve", "class": "serving", "job": "", "process": 71, "user": 5,
       "processors_most": 0, "processors_reserved": 32, "weight": 1.0,
       "bounds": {"percentile": 99}},
      {"client": 2, "program": "train", "class": "", "job": "17.0", "pod": "p", "namespace": "n",
       "process": 72, "user": 5, "processors_most": 33, "processors_reserved": 0, "weight": 2.0,
       "bounds": {"percentile": 99}}],
    "devices": [{
      "uuid": "GPU-1", "view": 1, "name": "H200", "processors": 132, "policy": "throughput",
      "processors_per_unit": [66, 66], "fault": "", "measures": true, "held": [],
      "allocation": [
        {"client": 1, "active": true, "asked": true, "idle_ns": 0, "waiting": 0,
         "longest_wait_ns": 0, "why": "policy", "mode": "exclusive", "processors": 66,
         "kept_while_idle": false, "for_ns": 12000000000, "streams": [],
         "wished": {"mode": "exclusive", "processors": 66}},
        {"client": 2, "active": true, "asked": true, "idle_ns": 0, "waiting": 2,
         "longest_wait_ns": 5000000, "why": "quota", "mode": "exclusive", "processors": 33,
         "kept_while_idle": false, "for_ns": 3000000000,
         "streams": [{"why": "aged", "mode": "exclusive", "processors": 8, "streams": 1}],
         "wished": {"mode": "exclusive", "processors": 66}}],
      "found": {"why": "won", "objective": "proportional", "decided_s": 1.4, "spent": 0.01,
        "ago_ns": 0, "candidates": [
          {"has": [{"client": 1, "processors": 132, "mode": "shared"},
                   {"client": 2, "processors": 132, "mode": "shared"}],
           "clients": [
             {"client": 1, "speed": 0.5, "error": 0.01, "rate": 0.8, "rate_error": 0.02,
              "costs": 0.2, "measured": true},
             {"client": 2, "speed": 0, "error": 0, "rate": 1.25, "rate_error": 0.03, "costs": 0,
              "measured": true}],
           "lead": -0.08, "error": 0.01, "predicted": -0.02, "blocks": 9, "chosen": false,
           "dropped": true, "remembered": false, "keeps_bounds": true},
          {"has": [{"client": 1, "processors": 33, "mode": "exclusive"},
                   {"client": 2, "processors": 99, "mode": "exclusive"}],
           "clients": [
             {"client": 1, "speed": 0.3, "error": 0.1, "rate": 0, "rate_error": 0, "costs": 0,
              "measured": false},
             {"client": 2, "speed": 0.9, "error": 0.2, "rate": 0, "rate_error": 0, "costs": 0,
              "measured": false}],
           "lead": 0, "error": 0, "predicted": -0.12, "blocks": 0, "chosen": false,
           "dropped": false, "remembered": false, "keeps_bounds": true},
          {"has": [{"client": 1, "processors": 66, "mode": "exclusive"},
                   {"client": 2, "processors": 66, "mode": "exclusive"}],
           "clients": [
             {"client": 1, "speed": 0.62, "error": 0.01, "rate": 1, "rate_error": 0, "costs": 0,
              "measured": true},
             {"client": 2, "speed": 0, "error": 0, "rate": 1, "rate_error": 0, "costs": 0.2,
              "measured": true}],
           "lead": 0, "error": 0, "predicted": 0, "blocks": 12, "chosen": true, "dropped": false,
           "remembered": false, "keeps_bounds": true}]},
      "found_before": null,
      "bounds": [
        {"client": 1, "of": "tpot", "bound_ns": 5000000, "alone_ns": 8200000, "refused": true,
         "finished": 1204, "late": 7, "costs": 0.25, "standing": 0}]}]})");
}

json explained(const json& status, const std::string& which = "") {
  const auto answer = explain(status, which);
  REQUIRE(answer);
  return *answer;
}

TEST_CASE("the document has each client, what decided, and the candidates, best known first") {
  const json device = explained(status())["devices"][0];
  const json& arrangements = device["choice"]["arrangements"];
  REQUIRE(arrangements.size() == 3);
  CHECK(arrangements[0]["name"] == "A");
  CHECK(arrangements[0]["chosen"] == true);
  CHECK(arrangements[0]["lead"] == 0.0);
  CHECK(arrangements[1]["lead"] == -0.08);
  CHECK(arrangements[1]["measured"] == true);
  CHECK(arrangements[1]["clients"][0]["sms"] == 132);
  CHECK(arrangements[1]["clients"][1]["speed"].is_null());
  CHECK(arrangements[2]["measured"] == false);
  CHECK(arrangements[2]["lead"].is_null());
  CHECK(arrangements[2]["predicted_lead"] == -0.12);
  const json& serve = device["clients"][0];
  CHECK(serve["has"]["mode"] == "exclusive");
  CHECK(serve["has"]["sms"] == 66);
  CHECK(serve["has"]["for_s"] == 12.0);
  CHECK(serve["why"] == "policy");
  CHECK(serve["limits"]["sms_reserved"] == 32);
  CHECK(serve["lacks"] == 0.0);
  CHECK(serve["costs_others"] == json::parse(R"([{"client": 2, "part": 0.2}])"));
  CHECK(serve["bounds"][0]["bound_ms"] == 5.0);
  CHECK(serve["bounds"][0]["alone_ms"] == doctest::Approx(8.2));
  CHECK(serve["bounds"][0]["refused"] == true);
  const json& train = device["clients"][1];
  CHECK(train["why"] == "quota");
  CHECK(train["wished"]["sms"] == 66);
  CHECK(train["lacks"] == 0.2);
  CHECK(train["has"]["streams"][0]["why"] == "aged");
}

TEST_CASE("a client is asked for by its number, job, step, pod or program") {
  const auto asked = [](const std::string& which) {
    return explained(status(), which)["devices"][0]["clients"];
  };
  for (const char* which : {"2", "17", "17.0", "p", "n/p", "train"}) {
    CAPTURE(which);
    REQUIRE(asked(which).size() == 1);
    CHECK(asked(which)[0]["client"] == 2);
  }
  CHECK(asked("1")[0]["program"] == "serve");
  CHECK(asked("").size() == 2);
}

TEST_CASE("what cannot be explained is a line that says what to do") {
  const auto unknown = explain(status(), "sreve");
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().code == hal::Errc::kInvalidArgument);
  CHECK(unknown.error().message ==
        "vitamind knows no client, job or program 'sreve'. Name one of: 1 (serve), 2 (train) of "
        "job 17.0");
  json nothing = status();
  nothing["devices"][0]["allocation"][0]["asked"] = false;
  const auto early = explain(nothing, "serve");
  REQUIRE_FALSE(early);
  CHECK(early.error().code == hal::Errc::kUnavailable);
  CHECK(early.error().message ==
        "vitamind has decided nothing yet: client 1 (serve) launched no kernel so far. Ask again "
        "when it has");
  CHECK(explanation_text(explained(nothing))
            .find("client 1 (serve, class serving) has launched no "
                  "kernel so far") != std::string::npos);
  nothing["devices"][0]["allocation"][1]["asked"] = false;
  REQUIRE_FALSE(explain(nothing, ""));
  nothing["clients"].clear();
  CHECK(explain(nothing, "").error().message.find("it has no client. Start one: vitamin run") !=
        std::string::npos);
}

TEST_CASE("the text is a table for the device and a sentence for each client") {
  const std::string text = explanation_text(explained(status()));
  CAPTURE(text);
  CHECK(
      text ==
      "GPU-1  H200  132 SMs, policy throughput\n"
      "  objective: proportional progress (the geometric mean of speeds); A won when all were "
      "measured in turn, 1.40 s after the first block\n"
      "        objective        blocks  client 1 (serve)        client 2 (train)\n"
      "  >  A  in force         12      66 SMs  0.62 ± 0.01     66 SMs\n"
      "     B  -8.0 % ± 1.0     9       shared  0.50 ± 0.01     shared  × 1.25 ± 0.03   given up\n"
      "     C  -12 % predicted  –       33 SMs  0.30 predicted  99 SMs  0.90 predicted\n"
      "  client 1 (serve, class serving) has 66 of 132 SMs to itself for 12.00 s, as policy "
      "throughput decided (candidate A); others lack, against what is best for each: client 2 "
      "20.0 %\n"
      "    tpot = 5 ms is refused: alone it takes 8.2 ms at p99. It is served as if alone; 7 of "
      "1,204 late; bounds have cost the others 25.0 % of their progress\n"
      "  client 2 (train, job 17.0) has 33 of 132 SMs to itself for 3.00 s, since its quota is 33 "
      "SMs; throughput wanted 66 of 132 SMs to itself; 1 of its streams: 8 of 132 SMs to itself, "
      "starving: it had waited for too long; it lacks 20.0 % of what B gives it; 2 of its streams "
      "wait, the longest for 5.0 ms\n");
}

TEST_CASE("every reason has a sentence of its own") {
  const auto sentence = [](const char* why) {
    json changed = status();
    json& row = changed["devices"][0]["allocation"][1];
    row["why"] = why;
    row["streams"].clear();
    const std::string text = explanation_text(explained(changed, "2"));
    return text.substr(text.find("client 2 (train, job"));
  };
  for (const auto& [why, said] : {std::pair{"not shared", "a client with a quota shares no SMs"},
                                  {"overlap", "others came first on the same SMs"},
                                  {"reservation", "SMs are reserved for it"},
                                  {"needs width", "its next launch fits no narrower part"},
                                  {"needs the whole device", "its next launch fits no part"},
                                  {"fallback", "the policy failed and fifo decides"},
                                  {"paused", "policy throughput pauses it now"},
                                  {"no room", "quotas, reservations and others leave no part"},
                                  {"none", "policy throughput places each launch by itself"}}) {
    const std::string found = sentence(why);
    CHECK_MESSAGE(found.find(said) != std::string::npos, found);
  }
}

TEST_CASE("a policy that compares nothing, and a choice that has ended, are said") {
  json changed = status();
  json& device = changed["devices"][0];
  device["found_before"] = device["found"];
  device["found_before"]["ago_ns"] = 2000000000;
  device["found"]["candidates"].clear();
  std::string text = explanation_text(explained(changed));
  CHECK(text.find("no choice now: fewer than two clients have work. The last one, until 2.00 s "
                  "ago:\n") != std::string::npos);
  CHECK(text.find("> A") == std::string::npos);
  CHECK(text.find("measured in turn") != std::string::npos);
  // A client of that choice is gone.
  device["found_before"]["candidates"][0]["has"][0]["client"] = 9;
  CHECK(explained(changed)["devices"][0]["choice_before"].is_null());
  device["measures"] = false;
  CHECK(explanation_text(explained(changed)).find("compares no candidates") != std::string::npos);
}

TEST_CASE("a client that is idle is said to be, with what is kept for it") {
  json changed = status();
  json& row = changed["devices"][0]["allocation"][0];
  row["active"] = false;
  row["kept_while_idle"] = true;
  CHECK(explanation_text(explained(changed, "1")).find(", kept while it is idle, as policy") !=
        std::string::npos);
  row["why"] = "none";
  row.erase("mode");
  row["idle_ns"] = 4000000000;
  CHECK(explanation_text(explained(changed, "1"))
            .find("client 1 (serve, class serving) has had nothing to run for 4.00 s\n    tpot") !=
        std::string::npos);
}

TEST_CASE("where launches are placed one by one, what is held now is told") {
  json changed = status();
  json& device = changed["devices"][0];
  device["policy"] = "random:max_sms=4";
  device["found"]["candidates"].clear();
  device["measures"] = false;
  json& row = device["allocation"][0];
  row["why"] = "none";
  row.erase("mode");
  row.erase("wished");
  device["held"] = json::parse(
      R"([{"client": 1, "units": 2, "open": true, "shared": false},
          {"client": 1, "units": 1, "open": false, "shared": false}])");
  CHECK(
      explanation_text(explained(changed, "1"))
          .find("has 66 of 132 SMs to itself, since policy random places each launch by itself") !=
      std::string::npos);
}

}  // namespace
}  // namespace vitamin::tools
