// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer over the path from layers of text to one Configuration.
//
// An input is layers with a record separator (0x1e) between: a layer that begins with '$' is a word
// of the environment or the command line ("$policy.quantum=2ms"), any other one is a file. Whatever
// stands there, every problem has a place and a message that can be shown, and what is valid can be
// used, matched, shown, and read again as it is shown, to the same values.
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/config/classes.h"
#include "daemon/config/load.h"

namespace config = vitamin::config;

namespace {

constexpr char kSeparator = '\x1e';
constexpr const char* kHost = "gpu7.cluster";

void require(bool condition) {
  if (!condition) std::abort();
}

void use(const config::Configuration& configuration) {
  const config::Configuration here = configuration.for_device("GPU-1", "NVIDIA H200");
  require(here.pool.leaf_units >= 1 && here.policy.quantum_ns != 0);
  const auto* match = config::class_of(here, {"/usr/bin/python3", {"1000", "user"}, [](auto& name) {
                                                return std::optional<std::string>(name);
                                              }});
  require(match == nullptr || !match->name.empty());
}

// Classes and devices are shown, too, but not as lines of a file.
bool is_plain(const config::Setting& setting) {
  return !setting.path.starts_with("class.") && !setting.path.starts_with("devices.");
}

void read_again(const config::Loaded& loaded) {
  std::string shown;
  for (const config::Setting& setting : loaded.settings)
    if (is_plain(setting)) shown += setting.path + " = " + setting.value + "\n";
  const config::Loaded again = config::load_text(shown, "shown.toml", kHost);
  require(again.valid());
  auto value = again.settings.begin();
  for (const config::Setting& setting : loaded.settings) {
    if (!is_plain(setting)) continue;
    require(value != again.settings.end() && value->path == setting.path &&
            value->value == setting.value);
    ++value;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::vector<config::ConfigText> files;
  std::vector<config::SettingOverride> words;
  for (bool more = true; more;) {
    const std::size_t end = std::min(rest.find(kSeparator), rest.size());
    const std::string_view layer = rest.substr(0, end);
    more = end < rest.size();
    rest.remove_prefix(more ? end + 1 : end);
    if (layer.starts_with('$')) {
      const std::size_t equal = std::min(layer.find('='), layer.size() - 1);
      words.push_back({std::string(layer.substr(1, equal > 0 ? equal - 1 : 0)),
                       std::string(layer.substr(equal + 1)), "the command line"});
    } else {
      files.push_back({std::to_string(files.size()) + ".toml", layer});
    }
  }
  const config::Loaded loaded = config::load_texts(files, words, kHost);
  for (const config::ConfigProblem& problem : loaded.problems)
    require(!problem.place.source.empty() && !problem.message.empty() &&
            !config::text_of(problem, true).empty());
  if (!loaded.valid()) return 0;
  use(loaded.configuration);
  read_again(loaded);
  return 0;
}
