// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/node/config_verbs.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "daemon/config/load.h"
#include "daemon/config/man.h"
#include "daemon/config/schema.h"
#include "tools/vitamin/daemon_client.h"
#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/node/probe.h"
#include "tools/vitamin/text.h"

namespace vitamin::tools {

using nlohmann::ordered_json;

namespace {

constexpr const char* kConfigFooter = R"(
Built-in values, then /etc/vitamin/vitamin.toml (or $VITAMIN_CONFIG), then conf.d/*.toml beside it,
then variables like VITAMIN_CONFIG_POLICY_QUANTUM=2ms, then --set: the later wins.

Examples:
  vitamin config check --config vitamin.toml     every problem, and what is said in vain, with
                                                 its line; exit code 1 if any
  vitamin config check --host gpu17              as that node would read it
  vitamin config show --origin                   what holds here, and who said it
  vitamin config schema > vitamin.schema.json    for editors
)";

ordered_json as_json(const config::SettingPlace& place) {
  ordered_json result = {{"source", place.source}};
  if (place.line != 0) result.update({{"line", place.line}, {"column", place.column}});
  return result;
}

ordered_json as_json(const std::vector<config::ConfigProblem>& problems) {
  ordered_json all = ordered_json::array();
  for (const config::ConfigProblem& problem : problems) {
    ordered_json one = as_json(problem.place);
    one["message"] = problem.message;
    all.push_back(std::move(one));
  }
  return all;
}

// SMs of the widest device here that is known, and its name. Zero: none is.
std::pair<std::uint64_t, std::string> widest_device() {
  std::pair<std::uint64_t, std::string> widest;
  if (const auto status = ask_daemon(daemon_socket(""), "status"); status)
    for (const auto& device : (*status)["devices"])
      widest = std::max(widest,
                        {device.value("processors", std::uint64_t{0}), device.value("name", "")});
  for (const DeviceFacts& device : probe_driver().devices)
    widest = std::max(widest, {static_cast<std::uint64_t>(device.processors), device.name});
  return widest;
}

// What only a machine with devices can say; `here`: this is the node. Returns what was not checked.
std::vector<std::string> compare_with_devices(config::Loaded& loaded, bool here) {
  const auto& classes = loaded.configuration.classes;
  if (std::none_of(classes.begin(), classes.end(), [](const auto& c) { return c.reservation > 0; }))
    return {};
  const auto [processors, name] = here ? widest_device() : std::pair<std::uint64_t, std::string>();
  if (processors == 0)
    return {fmt::format("whether the device has the SMs of `reservation`: {}",
                        here ? "no device and no vitamind with a client was found here"
                             : "the devices of another node are not known")};
  for (const config::WorkloadClass& made : classes) {
    const std::uint64_t share = processors * made.share / 100;
    if (made.reservation <= share) continue;
    const std::string path = "class." + config::toml_text(made.name) + ".reservation";
    const auto said =
        std::find_if(loaded.settings.begin(), loaded.settings.end(),
                     [&](const config::Setting& setting) { return setting.path == path; });
    loaded.no_effect.push_back(
        {said != loaded.settings.end() ? said->place : config::SettingPlace{"here"},
         made.reservation > processors
             ? fmt::format("the class '{}' reserves {} SMs for each client, and the widest "
                           "device here, {}, has {}",
                           made.name, made.reservation, name, processors)
             : fmt::format("the class '{}' reserves {} SMs for each client and bounds it to "
                           "{} (share = {}, on {}): raise share or reserve less",
                           made.name, made.reservation, share, made.share, name),
         {}});
  }
  return {};
}

int show_check(const config::Loaded& loaded, const std::vector<std::string>& not_checked,
               bool json) {
  const int code = loaded.valid() && loaded.no_effect.empty() ? 0 : kExitUnhealthy;
  if (json) {
    fmt::print("{}\n", ordered_json{{"schema", 1},
                                    {"valid", loaded.valid()},
                                    {"files", loaded.files},
                                    {"problems", as_json(loaded.problems)},
                                    {"no_effect", as_json(loaded.no_effect)},
                                    {"renamed", as_json(loaded.renamed)},
                                    {"not_checked", not_checked}}
                           .dump(2));
    return code;
  }
  for (const config::ConfigProblem& problem : loaded.problems)
    fmt::print("{}\n", config::text_of(problem, true));
  for (const auto* notices : {&loaded.no_effect, &loaded.renamed})
    for (const config::ConfigProblem& problem : *notices)
      fmt::print("{}\n", config::text_of(problem, true));
  if (!loaded.valid())
    fmt::print("\n{} problem{}: nothing of it is used. [{}]\n", loaded.problems.size(),
               loaded.problems.size() == 1 ? "" : "s", runtime::code_of(Problem::kConfiguration));
  else if (!loaded.no_effect.empty())
    fmt::print("\n{} without effect: the rest is used. [{}]\n", loaded.no_effect.size(),
               runtime::code_of(Problem::kConfiguration));
  else if (loaded.files.empty())
    fmt::print("No file: the built-in values hold.\n");
  else
    for (const std::string& file : loaded.files) fmt::print("ok {}\n", file);
  for (const std::string& each : not_checked) fmt::print("not checked: {}\n", each);
  return code;
}

int show_settings(const config::Loaded& loaded, bool origin, bool json) {
  if (!loaded.valid()) {
    for (const config::ConfigProblem& problem : loaded.problems)
      say(Problem::kConfiguration, config::text_of(problem, false));
    return kExitUnhealthy;
  }
  if (json) {
    ordered_json settings = ordered_json::array();
    for (const config::Setting& setting : loaded.settings) {
      ordered_json one = {{"key", setting.path}, {"value", setting.value}};
      if (origin) one["origin"] = as_json(setting.place);
      settings.push_back(std::move(one));
    }
    fmt::print("{}\n", ordered_json{{"schema", 1}, {"settings", settings}}.dump(2));
    return 0;
  }
  std::size_t width = 0;
  for (const config::Setting& setting : loaded.settings)
    width = std::max(width, setting.path.size() + setting.value.size() + 3);
  for (const config::Setting& setting : loaded.settings) {
    const std::string line = setting.path + " = " + setting.value;
    if (origin)
      fmt::print("{:<{}}  # {}\n", line, std::min<std::size_t>(width, 60), setting.place.text());
    else
      fmt::print("{}\n", line);
  }
  return 0;
}

}  // namespace

void ConfigVerbs::add(CLI::App& app) {
  config_ = app.add_subcommand("config", "Check and show vitamin.toml");
  config_->require_subcommand(0, 1);
  config_->footer(kConfigFooter);
  check_ = config_->add_subcommand("check", "Say everything that is wrong with it");
  show_ = config_->add_subcommand("show", "Show what holds on this node");
  show_->add_flag("--origin", origin_, "And who said so");
  schema_ = config_->add_subcommand("schema", "Print its JSON schema");
  schema_->add_flag("--man", man_, "As a manual page instead: vitamin.toml(5)");
  for (CLI::App* verb : {check_, show_}) {
    verb->add_option("--config", file_, "Instead of /etc/vitamin/vitamin.toml")->type_name("FILE");
    verb->add_option("--host", host_, "As this node would read it")->type_name("NAME");
    verb->add_option("--set", overrides_, "KEY=VALUE, over all files");
    verb->add_flag("--json", json_, "Answer as JSON");
  }
}

std::optional<int> ConfigVerbs::run() {
  if (schema_->parsed()) {
    fmt::print("{}", man_ ? config::man_page() : config::json_schema().dump(2) + "\n");
    return 0;
  }
  if (check_->parsed() || show_->parsed()) {
    config::Sources sources = config::sources(file_, overrides_);
    if (!host_.empty()) sources.host = host_;
    config::Loaded loaded = config::load(sources);
    if (!check_->parsed()) return show_settings(loaded, origin_, json_);
    return show_check(loaded, compare_with_devices(loaded, host_.empty()), json_);
  }
  if (!config_->parsed()) return std::nullopt;
  fmt::print("{}", config_->help());
  return kExitFailed;
}

}  // namespace vitamin::tools
