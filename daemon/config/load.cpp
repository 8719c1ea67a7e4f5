// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/load.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "daemon/config/checks.h"
#include "daemon/config/reader.h"
#include "daemon/config/schema.h"
#include "scheduler/policies/nearest.h"

extern char** environ;

namespace vitamin::config {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kLargestFile = 1 << 20;

// Merges layers; the later one wins.
class Merge {
 public:
  void add(Layer layer) {
    settle(settings_, layer.settings);
    for (Layer::Device& device : layer.devices) devices_.push_back(std::move(device));
    // Classes of a later layer come first, in their order, and replace those of the same name.
    std::erase_if(classes_, [&](const Layer::Class& old) {
      return std::any_of(layer.classes.begin(), layer.classes.end(),
                         [&](const Layer::Class& fresh) { return fresh.name == old.name; });
    });
    classes_.insert(classes_.begin(), std::make_move_iterator(layer.classes.begin()),
                    std::make_move_iterator(layer.classes.end()));
    for (Layer::Class& amended : layer.amended) amend(amended);
    for (ConfigProblem& one : layer.renamed) renamed_.push_back(std::move(one));
  }

  void finish(Loaded& loaded) {
    for (const SettingKey& key : setting_keys()) {
      const auto placed = settings_.find(key.path);
      if (placed != settings_.end()) key.write(loaded.configuration, placed->second.value);
      loaded.settings.push_back(
          {key.path, text_of(key, key.read(loaded.configuration)),
           placed == settings_.end() ? SettingPlace{"built in"} : placed->second.place});
    }
    for (const Layer::Class& read : classes_) finish_class(read, loaded);
    for (const Layer::Device& device : devices_) {
      DeviceRule& rule = loaded.configuration.devices.emplace_back();
      rule.pattern = device.pattern;
      for (const auto& [path, placed] : device.settings) {
        rule.settings[path] = placed.value;
        loaded.settings.push_back({"devices." + toml_text(device.pattern) + "." + path,
                                   text_of(*find_setting(path), placed.value), placed.place});
      }
    }
    for (ConfigProblem& problem : problems_) loaded.problems.push_back(std::move(problem));
    loaded.renamed = std::move(renamed_);
    check({settings_, classes_, devices_}, loaded);
  }

 private:
  void amend(Layer::Class& amended) {
    std::vector<std::string> known;
    for (Layer::Class& read : classes_) {
      known.push_back(read.name);
      if (read.name != amended.name) continue;
      for (auto& [path, placed] : amended.settings) read.settings[path] = std::move(placed);
      return;
    }
    problems_.push_back({amended.place,
                         "no file has a class '" + amended.name + "'" +
                             scheduler::did_you_mean(amended.name, known),
                         {}});
  }

  static void settle(PlacedValues& into, PlacedValues& from) {
    // Parameters belong to the policy that was named with them.
    if (from.contains("policy.name")) into.erase("policy.parameters");
    for (auto& [path, placed] : from) into[path] = std::move(placed);
  }

  static void finish_class(const Layer::Class& read, Loaded& loaded) {
    WorkloadClass& made = loaded.configuration.classes.emplace_back();
    made.name = read.name;
    for (const ClassKey& key : class_keys()) {
      const auto placed = read.settings.find(key.path);
      if (placed == read.settings.end()) continue;
      key.write(made, placed->second.value);
      loaded.settings.push_back({"class." + toml_text(read.name) + "." + key.path,
                                 text_of(key, placed->second.value), placed->second.place});
    }
    if (read.settings.empty())
      loaded.settings.push_back({"class." + toml_text(read.name), "{}", read.place});
  }

  PlacedValues settings_;
  std::vector<ConfigProblem> problems_;  // between layers
  std::vector<ConfigProblem> renamed_;
  std::vector<Layer::Class> classes_;
  std::vector<Layer::Device> devices_;
};

void read_file(const std::string& name, const Sources& sources, Merge& merge, Loaded& loaded) {
  auto fail = [&](std::string message) {
    loaded.problems.push_back({{name}, std::move(message), {}});
  };
  std::error_code unreadable;
  if (fs::is_directory(name, unreadable)) return fail("is a directory, not a file");
  std::ifstream file(name, std::ios::binary);
  if (!file) return fail(std::string("cannot be read: ") + std::strerror(errno));
  std::string text(kLargestFile + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kLargestFile) return fail("is larger than 1 MiB");
  loaded.files.push_back(name);
  merge.add(read_toml(text, name, sources.host, loaded.problems));
}

void add(std::vector<ConfigProblem>& problems, std::string source, std::string message) {
  ConfigProblem problem;
  problem.place.source = std::move(source);
  problem.message = std::move(message);
  problems.push_back(std::move(problem));
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

// VITAMIN_CONFIG_... that are no key are as wrong as unknown keys in a file.
void read_environment(Sources& sources) {
  const std::string prefix = environment_variable("");
  std::vector<std::string> known, paths;
  const auto add_name = [&](std::string_view path) {
    known.push_back(environment_variable(path));
    paths.emplace_back(path);
  };
  for (const SettingKey& key : setting_keys()) add_name(key.path);
  for (const Former& former : former_names())
    if (former.value.empty()) add_name(former.path);
  for (char** word = environ; *word != nullptr; ++word) {
    const std::string_view text = *word;
    const std::size_t equal = text.find('=');
    if (!text.starts_with(prefix) || equal == text.npos) continue;
    const std::string name(text.substr(0, equal));
    const std::string source = "the environment variable " + name;
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end())
      add(sources.problems, source, "is no setting" + scheduler::did_you_mean(name, known));
    else
      sources.assignments.push_back({paths[static_cast<std::size_t>(found - known.begin())],
                                     std::string(text.substr(equal + 1)), source});
  }
}

}  // namespace

Sources sources(const std::string& file, const std::vector<std::string>& overrides) {
  Sources sources;
  sources.host = host_name();
  const char* named = std::getenv(kFileVariable);
  std::string main = file;
  if (main.empty() && named != nullptr) main = named;
  const bool wanted = !main.empty();
  if (!wanted) main = kSystemFile;
  std::error_code unreadable;
  if (wanted || fs::exists(main, unreadable)) sources.files.push_back(main);
  std::vector<std::string> more;
  for (const auto& entry :
       fs::directory_iterator(fs::path(main).parent_path() / "conf.d", unreadable))
    if (entry.path().extension() == ".toml") more.push_back(entry.path().native());
  std::sort(more.begin(), more.end());
  sources.files.insert(sources.files.end(), more.begin(), more.end());
  read_environment(sources);
  for (const std::string& word : overrides) {
    const std::size_t equal = word.find('=');
    if (equal == word.npos)
      add(sources.problems, "the command line",
          "'" + word + "' is no KEY=VALUE like policy.quantum=2ms");
    else
      sources.assignments.push_back(
          {word.substr(0, equal), word.substr(equal + 1), "the command line"});
  }
  return sources;
}

Loaded load(const Sources& sources) {
  Loaded loaded;
  loaded.problems = sources.problems;
  Merge merge;
  for (const std::string& file : sources.files) read_file(file, sources, merge, loaded);
  for (const SettingOverride& assignment : sources.assignments)
    merge.add(read_assignment(assignment, loaded.problems));
  merge.finish(loaded);
  return loaded;
}

Loaded load_text(std::string_view text, const std::string& name, const std::string& host) {
  const ConfigText alone{name, text};
  return load_texts({&alone, 1}, {}, host);
}

Loaded load_texts(std::span<const ConfigText> files, std::span<const SettingOverride> assignments,
                  const std::string& host) {
  Loaded loaded;
  Merge merge;
  for (const ConfigText& file : files)
    merge.add(read_toml(file.text, file.name, host, loaded.problems));
  for (const SettingOverride& assignment : assignments)
    merge.add(read_assignment(assignment, loaded.problems));
  merge.finish(loaded);
  return loaded;
}

std::string Loaded::why() const {
  std::string text;
  for (const ConfigProblem& problem : problems) text += text_of(problem, false) + "\n";
  return text;
}

std::string text_of(const ConfigProblem& problem, bool with_line) {
  std::string text = problem.place.text() + ": " + problem.message;
  if (!with_line || problem.line.empty()) return text;
  const std::string number = std::to_string(problem.place.line);
  // Below the same tabs and as many characters, whatever they take in bytes.
  std::string margin;
  for (std::size_t i = 0; i + 1 < problem.place.column && i < problem.line.size(); ++i)
    margin += problem.line[i] == '\t' ? '\t' : ' ';
  return text + "\n  " + number + " | " + problem.line + "\n  " + std::string(number.size(), ' ') +
         " | " + margin + "^";
}

}  // namespace vitamin::config
