// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/run/asked.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "daemon/config/schema.h"
#include "tools/vitamin/text.h"

namespace vitamin::tools {
namespace {

using InForce = std::map<std::string, std::string>;  // config::settings_of()

constexpr std::size_t kMostNamed = 4;

// A file that this command names, and not the machine's, which is vitamind's own.
bool names_a_file(const DaemonStart& asked) {
  const char* const variable = std::getenv(config::kFileVariable);
  return !asked.config_file.empty() || (variable != nullptr && *variable != '\0');
}

bool applied_by_vitamind(std::string_view path) {
  constexpr std::string_view kBegins[] = {"policy.",   "pool.",    "failure.lost", "mps.mode",
                                          "isolation", "devices.", "mps.directory"};
  return std::any_of(std::begin(kBegins), std::end(kBegins),
                     [&](std::string_view begin) { return path.starts_with(begin); });
}

// Keys of a class that choose its programs are applied by `vitamin run`.
bool applied_by_vitamind(const config::ClassKey& key) {
  return key.type != config::SettingType::kPatterns && key.type != config::SettingType::kTable;
}

class Comparison {
 public:
  Comparison(const DaemonStart& asked, const config::Loaded& loaded, const nlohmann::json& status)
      : asked_(asked), loaded_(loaded), file_(names_a_file(asked)) {
    policy_ = status.at("daemon").value("policy", "");
    seed_ = status.at("daemon").value("seed", std::uint64_t{0});
    const auto configuration = status.find("configuration");
    if (configuration != status.end()) in_force_ = configuration->value("settings", InForce());
  }

  void compare(const AskedClass& of) {
    if (!asked_.policy.empty() && asked_.policy != policy_)
      ignored_.push_back("--policy " + asked_.policy);
    if (asked_.seed && *asked_.seed != seed_) {
      ignored_.push_back(fmt::format("--seed {}", *asked_.seed));
      has_ += fmt::format(" of seed {}", seed_);
    }
    if (in_force_.empty()) return;  // a release that does not tell
    if (!of.name.empty()) compare_class(of);
    for (const config::Setting& setting : loaded_.settings)
      if (applied_by_vitamind(setting.path) && !told_by_options(setting.path)) compare(setting);
  }

  // Empty: all that was asked for holds.
  std::string text(const std::string& socket) const {
    if (ignored_.empty()) return {};
    const std::size_t named = std::min(ignored_.size(), kMostNamed);
    std::string what = fmt::format("{}", fmt::join(std::span(ignored_).first(named), ", "));
    if (named < ignored_.size()) what += fmt::format(" and {} more", ignored_.size() - named);
    return fmt::format(
        "{} {} no effect: vitamind at {} runs already, with policy {}{}. Change its "
        "vitamin.toml and send it SIGHUP, or take another --socket.",
        what, ignored_.size() == 1 ? "has" : "have", socket, policy_, has_);
  }

 private:
  void compare_class(const AskedClass& of) {
    const std::string prefix = "class." + config::toml_text(of.name) + ".";
    const auto first = in_force_.lower_bound(prefix);
    if (first == in_force_.end() || !first->first.starts_with(prefix)) {
      // A quota of memory is not lost silently, whichever file sets it.
      const auto* const own = loaded_.configuration.find_class(of.name);
      if (of.named || file_ || (own != nullptr && !own->memory.empty())) {
        ignored_.push_back((of.named ? "--class " : "the class ") + of.name);
        has_ += fmt::format(" and without a class '{}'", of.name);
      }
      return;
    }
    for (const config::Setting& setting : loaded_.settings)
      for (const config::ClassKey& key : config::class_keys())
        if (setting.path == prefix + key.path && applied_by_vitamind(key)) compare(setting);
  }

  // Whether --policy or --seed stands for it. A policy is compared with its parameters.
  bool told_by_options(const std::string& path) {
    if (path == "policy.seed") return asked_.seed.has_value();
    if (path != "policy.name" && path != "policy.parameters") return false;
    return !asked_.policy.empty() || loaded_.configuration.policy.specification() == policy_;
  }

  void compare(const config::Setting& setting) {
    const config::SettingPlace& place = setting.place;
    if (place.line == 0 ? place.source == "built in" : !file_) return;
    const auto held = in_force_.find(setting.path);
    if (held != in_force_.end() && held->second == setting.value) return;
    ignored_.push_back(fmt::format("{} = {} ({})", setting.path, setting.value, place.text()));
  }

  const DaemonStart& asked_;
  const config::Loaded& loaded_;
  const bool file_;
  std::string policy_;
  std::uint64_t seed_ = 0;
  InForce in_force_;
  std::vector<std::string> ignored_;
  std::string has_;  // what else that vitamind has instead
};

}  // namespace

std::optional<std::vector<std::string>> classes_of_daemon(const std::string& socket) {
  const auto status = ask_daemon(socket, "status");
  if (!status || !status->contains("configuration")) return std::nullopt;
  // Keys are class."NAME".KEY; every class has a `kind`.
  constexpr std::string_view kBegin = "class.", kEnd = ".kind";
  std::vector<std::string> names;
  for (const auto& [path, value] : status->at("configuration").value("settings", InForce())) {
    if (!path.starts_with(kBegin) || !path.ends_with(kEnd)) continue;
    const std::string quoted =
        path.substr(kBegin.size(), path.size() - kBegin.size() - kEnd.size());
    // A name in TOML's quotes is one in JSON's.
    const auto name = nlohmann::json::parse(quoted, nullptr, false);
    names.push_back(name.is_string() ? name.get<std::string>() : quoted);
  }
  return names;
}

void compare_with_daemon(const std::string& socket, const DaemonStart& asked,
                         const config::Loaded& loaded, const AskedClass& of) {
  const auto status = ask_daemon(socket, "status");
  if (!status || !status->contains("daemon")) return;
  Comparison comparison(asked, loaded, *status);
  comparison.compare(of);
  if (const std::string text = comparison.text(socket); !text.empty())
    say(Problem::kDaemonDecides, text);
}

}  // namespace vitamin::tools
