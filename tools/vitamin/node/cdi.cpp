// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/node/cdi.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <map>
#include <string_view>

#include "daemon/config/isolation.h"
#include "daemon/config/load.h"
#include "daemon/protocol/paths.h"
#include "runtime/environment.h"
#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/text.h"

namespace vitamin::tools {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

// The first version that every engine with CDI reads. 0.4 brought types of mounts, 0.5 devices
// whose names begin with a digit, 0.6 annotations: nothing that is needed here.
constexpr const char* kVersion = "0.3.0";
constexpr const char* kKind = "vitamin.dev/share";

constexpr const char* kCdiFooter = R"(
Examples:
  vitamin cdi generate                          writes /etc/cdi/vitamin.json
  vitamin cdi generate --mps /run/vitamin-mps --class latency --output -
  podman run --device vitamin.dev/share=percent-25 IMAGE COMMAND
  vitamin cdi check                             is what lies in /etc/cdi usable?
)";

std::string variable(const char* name, const std::string& value) {
  return std::string(name) + "=" + value;
}

ordered_json mount(const std::string& directory) {
  return {{"hostPath", directory},
          {"containerPath", directory},
          {"options", {"ro", "nosuid", "nodev", "rbind", "rprivate"}}};
}

ordered_json device(const std::string& name, std::vector<std::string> variables) {
  return {{"name", name}, {"containerEdits", {{"env", std::move(variables)}}}};
}

}  // namespace

ordered_json cdi_specification(const CdiOptions& options, const Libraries& libraries) {
  namespace names = runtime::environment;
  const std::string socket = options.socket.empty() ? protocol::kSystemSocket : options.socket;
  std::vector<std::string> variables = {
      variable("LD_PRELOAD", preload_variable(libraries, nullptr)),
  };
  if (options.closed) variables.push_back(variable(names::kAbsent, fmt::to_string(kExitNoDaemon)));
  ordered_json mounts = {mount(fs::path(socket).parent_path()),
                         mount(libraries.front().parent_path())};
  // Where a class has a directory of its own, the directory is each device's: an engine may keep
  // either of two values of one variable.
  const bool isolated = !options.isolated.empty();
  if (!options.mps.empty()) {
    if (!isolated) variables.push_back(variable("CUDA_MPS_PIPE_DIRECTORY", options.mps));
    mounts.push_back(mount(options.mps));
  }
  const auto made = [&](const std::string& name, std::vector<std::string> words,
                        const std::string& workload_class = {}) {
    const auto own = options.isolated.find(workload_class);
    const std::string directory =
        own != options.isolated.end() ? own->second.directory : options.mps;
    if (isolated && !directory.empty())
      words.push_back(variable("CUDA_MPS_PIPE_DIRECTORY", directory));
    ordered_json all = device(name, std::move(words));
    if (own != options.isolated.end() && own->second.mounted)
      all["containerEdits"]["mounts"] = {mount(directory)};
    return all;
  };
  // A device must change something. "all" says no share, for it would stand over one that the
  // container was given otherwise.
  const std::string daemon = variable(names::kDaemon, socket);
  ordered_json devices = ordered_json::array({made("all", {daemon})});
  for (const unsigned share : options.shares)
    devices.push_back(made(fmt::format("percent-{}", share),
                           {daemon, variable(names::kShare, fmt::to_string(share))}));
  for (const std::string& name : options.classes)
    devices.push_back(made("class-" + name, {daemon, variable(names::kClass, name)}, name));
  return {{"cdiVersion", kVersion},
          {"kind", kKind},
          {"containerEdits", {{"env", variables}, {"mounts", mounts}}},
          {"devices", devices}};
}

// --- checking --------------------------------------------------------------------------------

namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Begins and ends with a letter or a digit; between them `also` too.
bool is_name(std::string_view text, std::string_view also, bool letter_first) {
  const auto outer = [](char c) { return is_letter(c) || is_digit(c); };
  return !text.empty() && (letter_first ? is_letter(text.front()) : outer(text.front())) &&
         outer(text.back()) && std::all_of(text.begin(), text.end(), [&](char c) {
           return outer(c) || also.find(c) != std::string_view::npos;
         });
}

class Checker {
 public:
  std::vector<std::string> run(const json& specification) {
    if (!object("the file", specification,
                {"cdiVersion", "kind", "containerEdits", "devices", "annotations"}))
      return std::move(problems_);
    const std::string version = text(specification, "cdiVersion");
    if (!std::count(std::begin(kVersions), std::end(kVersions), version))
      add("cdiVersion '{}' is none that is known", version);
    const std::string kind = text(specification, "kind");
    const std::size_t slash = std::min(kind.find('/'), kind.size());
    if (!is_name(std::string_view(kind).substr(0, slash), "_-.", true) ||
        slash + 1 >= kind.size() || !is_name(std::string_view(kind).substr(slash + 1), "_-.", true))
      add("kind '{}' is not VENDOR/CLASS", kind);
    if (specification.contains("containerEdits")) edits("", specification["containerEdits"]);
    devices(specification);
    return std::move(problems_);
  }

 private:
  static constexpr std::string_view kVersions[] = {"0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0",
                                                   "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"};

  template <class... Words>
  void add(fmt::format_string<Words...> format, Words&&... words) {
    problems_.push_back(fmt::format(format, std::forward<Words>(words)...));
  }

  // An engine refuses the whole file for one field that it does not know.
  bool object(const std::string& where, const json& value,
              std::initializer_list<std::string_view> fields) {
    if (!value.is_object()) {
      add("{} is no object", where);
      return false;
    }
    for (const auto& [name, ignored] : value.items())
      if (std::find(fields.begin(), fields.end(), name) == fields.end())
        add("{} has the unknown field '{}'", where, name);
    return true;
  }

  static std::string text(const json& value, const char* field) {
    const auto found = value.find(field);
    return found != value.end() && found->is_string() ? found->get<std::string>() : "";
  }

  void devices(const json& specification) {
    const auto list = specification.find("devices");
    if (list == specification.end() || !list->is_array() || list->empty())
      return add("there is no device");
    std::vector<std::string> known;
    for (const json& each : *list) {
      if (!object("a device", each, {"name", "containerEdits", "annotations"})) continue;
      const std::string name = text(each, "name");
      if (!is_name(name, "_-.:", false)) add("'{}' is no name of a device", name);
      if (std::count(known.begin(), known.end(), name)) add("two devices are named '{}'", name);
      known.push_back(name);
      if (!each.contains("containerEdits") || each["containerEdits"].empty())
        add("device '{}' does nothing", name);
      else
        edits(fmt::format("device '{}': ", name), each["containerEdits"]);
    }
  }

  void edits(const std::string& whose, const json& value) {
    if (!object(
            whose + "containerEdits", value,
            {"env", "deviceNodes", "netDevices", "hooks", "mounts", "intelRdt", "additionalGids"}))
      return;
    for (const json& each : value.value("env", json::array()))
      if (!each.is_string() || each.get<std::string>().find('=') == std::string::npos ||
          each.get<std::string>().front() == '=')
        add("{}env {} is not NAME=VALUE", whose, each.dump());
    for (const json& each : value.value("mounts", json::array())) {
      if (!object(whose + "a mount", each, {"hostPath", "containerPath", "options", "type"}))
        continue;
      const std::string host = text(each, "hostPath"), inside = text(each, "containerPath");
      std::error_code unreadable;
      if (host.empty() || inside.empty())
        add("{}a mount lacks hostPath or containerPath", whose);
      else if (!fs::exists(host, unreadable))
        add("{}{} does not exist: no container with it would start", whose, host);
    }
  }

  std::vector<std::string> problems_;
};

std::vector<std::string> problems_of_file(const fs::path& file) {
  std::ifstream stream(file);
  std::vector<std::string> found;
  if (!stream.good()) {
    found = {fmt::format("cannot be read: {}", std::strerror(errno))};
  } else if (file.extension() != ".json") {
    found = {"is YAML, which is not checked here"};
  } else {
    const json specification = json::parse(stream, nullptr, false);
    found = specification.is_discarded() ? std::vector<std::string>{"is no JSON"}
                                         : cdi_problems(specification);
  }
  for (std::string& problem : found) problem = fmt::format("{}: {}", file.native(), problem);
  return found;
}

}  // namespace

std::vector<std::string> cdi_problems(const json& specification) {
  return Checker().run(specification);
}

std::vector<std::string> cdi_problems_at(const fs::path& path) {
  std::error_code failed;
  if (fs::is_regular_file(path, failed)) return problems_of_file(path);
  fs::directory_iterator directory(path, failed);
  if (failed) return {fmt::format("{}: {}", path.native(), failed.message())};
  std::vector<std::string> all;
  std::vector<fs::path> files;
  for (const auto& entry : directory)
    if (const auto kind = entry.path().extension(); kind == ".json" || kind == ".yaml")
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files)
    for (std::string& problem : problems_of_file(file)) all.push_back(std::move(problem));
  if (files.empty()) all.push_back(fmt::format("{}: no CDI file in it", path.native()));
  return all;
}

// --- the verbs -------------------------------------------------------------------------------

namespace {

// An engine may look while it is written: it sees the old file or the new one.
std::string write_whole(const fs::path& file, const std::string& text) {
  std::error_code failed;
  if (!file.parent_path().empty()) fs::create_directories(file.parent_path(), failed);
  if (failed) return failed.message();
  const fs::path half = file.native() + fmt::format(".{}", ::getpid());
  std::ofstream out(half, std::ios::trunc);
  out << text;
  out.close();
  if (!out.good()) return std::strerror(errno);
  fs::rename(half, file, failed);
  if (failed) fs::remove(half);
  return failed ? failed.message() : "";
}

// The directories of programs that vitamin.toml isolates from others.
std::map<std::string, CdiOptions::Isolated> isolated_by_configuration(
    const CdiOptions& options, const config::Configuration& configuration) {
  std::map<std::string, CdiOptions::Isolated> isolated;
  if (options.mps.empty()) return isolated;
  std::vector<std::string> names = {""};  // programs without a class
  names.insert(names.end(), options.classes.begin(), options.classes.end());
  for (const std::string& name : names) {
    const auto* const workload = configuration.find_class(name);
    switch (config::isolation_of(configuration, workload)) {
      case config::Isolation::kShared:
        break;
      case config::Isolation::kClass:
        isolated[name] = {config::directory_of_class(options.mps, name), true};
        break;
      case config::Isolation::kExclusive:
        isolated[name] = {config::directory_without_mps(options.mps), false};
        break;
    }
  }
  return isolated;
}

int generate(CdiOptions options) {
  // Problems of vitamin.toml are for `vitamin config check`.
  if (const config::Loaded loaded = config::load(config::sources("", {})); loaded.valid()) {
    options.isolated = isolated_by_configuration(options, loaded.configuration);
    options.closed = loaded.configuration.failure.absent == config::OnAbsence::kClosed;
  }
  const Libraries libraries = preload_libraries();
  const auto specification = cdi_specification(options, libraries);
  std::vector<std::string> problems = cdi_problems(specification);
  for (const unsigned share : options.shares)
    if (share < 1 || share > 100) problems.push_back(fmt::format("{} is no percentage", share));
  for (const fs::path& library : libraries)
    if (::access(library.c_str(), R_OK) != 0)
      problems.push_back(fmt::format("{}: {}", library.native(), std::strerror(errno)));
  for (const std::string& problem : problems) say(problem + ".");
  if (!problems.empty()) return kExitFailed;
  const std::string text = specification.dump(2) + "\n";
  if (options.output == "-") {
    fmt::print("{}", text);
    return 0;
  }
  if (const std::string why = write_whole(options.output, text); !why.empty()) {
    say(fmt::format("cannot write {}: {}.", options.output, why));
    return kExitFailed;
  }
  fmt::print("{}: {} devices, for example --device {}=all\n", options.output,
             specification["devices"].size(), kKind);
  return 0;
}

int check(const std::string& path) {
  const auto problems = cdi_problems_at(path);
  for (const std::string& problem : problems) say(problem + ".");
  return problems.empty() ? 0 : kExitUnhealthy;
}

}  // namespace

void CdiVerbs::add(CLI::App& app) {
  cdi_ = app.add_subcommand("cdi", "Tell container engines what a container needs");
  cdi_->footer(kCdiFooter);
  cdi_->require_subcommand(1);
  generate_ = cdi_->add_subcommand("generate", "Write the file that they read");
  generate_->add_option("--output", options_.output, "Where ('-': stdout)")
      ->capture_default_str()
      ->type_name("FILE");
  generate_
      ->add_option("--socket", options_.socket, "Where vitamind listens (default: the machine's)")
      ->type_name("PATH");
  generate_->add_option("--mps", options_.mps, "Directory of MPS's pipes, for containers to use it")
      ->type_name("DIRECTORY");
  generate_->add_option("--share", options_.shares, "Percent of a device at most: a device each")
      ->capture_default_str()
      ->delimiter(',');
  generate_->add_option("--class", options_.classes, "A class of vitamin.toml: a device each")
      ->delimiter(',');
  check_ = cdi_->add_subcommand("check", "Say what an engine would not take");
  check_->add_option("PATH", path_, "A directory or a file")->capture_default_str();
}

std::optional<int> CdiVerbs::run() const {
  if (generate_->parsed()) return generate(options_);
  if (check_->parsed()) return check(path_);
  return std::nullopt;
}

}  // namespace vitamin::tools
