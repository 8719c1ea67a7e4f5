// SPDX-License-Identifier: Apache-2.0
//
// vitamin run: start a command under the preloaded library, wait, report.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "daemon/config/classes.h"
#include "daemon/config/load.h"
#include "daemon/config/mps_hazards.h"
#include "daemon/config/value.h"
#include "runtime/environment.h"
#include "scheduler/policies/registry.h"
#include "tools/vitamin/daemon_client.h"
#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/interrupts.h"
#include "tools/vitamin/preload.h"
#include "tools/vitamin/run/asked.h"
#include "tools/vitamin/run/child.h"
#include "tools/vitamin/run/diagnosis.h"
#include "tools/vitamin/run/directory.h"
#include "tools/vitamin/run/profiles.h"
#include "tools/vitamin/run/report.h"
#include "tools/vitamin/text.h"
#include "tools/vitamin/trace/read.h"
#include "tools/vitamin/verbs.h"

namespace vitamin::tools {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void stop(int code, Problem problem, std::string_view message) {
  say(problem, message);
  std::exit(code);
}

// The command could not be started: say which of the usual reasons it is.
[[noreturn]] void stop_not_started(const std::string& command, int error) {
  if (error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE)
    stop(kExitFailed, Problem::kNoProcess,
         fmt::format("cannot start a process: {}.", std::strerror(error)));
  struct stat facts {};
  const bool exists =
      command.find('/') != std::string::npos && ::stat(command.c_str(), &facts) == 0;
  if (error == ENOENT && exists)
    stop(kExitNotFound, Problem::kCommandNotFound,
         fmt::format("'{}' exists, but the interpreter that it names does not: look "
                     "at its first line.",
                     command));
  if (error == ENOENT || error == ENOTDIR)
    stop(kExitNotFound, Problem::kCommandNotFound,
         fmt::format("command not found: '{}'. Check the spelling, or give its path "
                     "(./{}).",
                     command, fs::path(command).filename().native()));
  if (exists && S_ISDIR(facts.st_mode))
    stop(kExitNotExecutable, Problem::kCommandNotExecutable,
         fmt::format("'{}' is a directory, not a program.", command));
  if (error == ENOEXEC)
    stop(kExitNotExecutable, Problem::kCommandNotExecutable,
         fmt::format("'{}' is not a program that this machine can execute.", command));
  stop(kExitNotExecutable, Problem::kCommandNotExecutable,
       fmt::format("cannot execute '{}': {}. For a file of yours: chmod +x.", command,
                   std::strerror(error)));
}

// Where kernels are remembered that wait for their own blocks; empty: nowhere. A list that cannot
// be kept costs a warning of the watchdog in each run, so it is no reason to stop.
fs::path wide_only_file(const std::string& asked) {
  if (asked == "none") return {};
  if (!asked.empty()) return fs::absolute(asked);
  const fs::path directory = state_directory();
  return directory.empty() ? fs::path() : directory / "wide-only";
}

// Where times of kernels are known from and kept; empty: they are not looked at in this run.
fs::path profiles_of(const RunOptions& options) {
  return options.profiles.empty() && !options.learns ? fs::path()
                                                     : profiles_directory(options.profiles);
}

// The command that checks what this one reads.
std::string check_command(const RunOptions& options) {
  std::string command = "vitamin config check";
  if (!options.config_file.empty()) command += " --config " + shell_word(options.config_file);
  for (const std::string& setting : options.settings) command += " --set " + shell_word(setting);
  return command;
}

// Ends where neither this command's configuration nor that of the vitamind that runs has the class.
// A trace gets a vitamind of its own, with this command's configuration.
void check_class(const RunOptions& options, const config::Loaded& loaded) {
  const std::string& wanted = options.workload_class;
  std::vector<std::string> names;
  for (const config::WorkloadClass& each : loaded.configuration.classes) names.push_back(each.name);
  std::string where;
  if (options.daemon && options.trace.empty()) {
    const std::string socket = daemon_socket(options.socket);
    if (const auto theirs = classes_of_daemon(socket)) {
      if (std::find(theirs->begin(), theirs->end(), wanted) != theirs->end()) return;
      names.insert(names.end(), theirs->begin(), theirs->end());
      where = fmt::format(" here or in the vitamind at {}", socket);
    }
  }
  stop(kExitFailed, Problem::kConfiguration,
       fmt::format("no class '{}' is configured{}.{} See `vitamin config show`.", wanted, where,
                   did_you_mean(wanted, names)));
}

// What of vitamin.toml the command line leaves open. An invalid one is not guessed at.
config::Loaded configure(RunOptions& options) {
  config::Loaded loaded = config::load(config::sources(options.config_file, options.settings));
  for (const config::ConfigProblem& problem : loaded.problems)
    say(Problem::kConfiguration, config::text_of(problem, false));
  if (!loaded.valid())
    stop(kExitFailed, Problem::kConfiguration,
         fmt::format("the configuration is invalid, nothing was run. See `{}`.",
                     check_command(options)));
  const config::Configuration& configuration = loaded.configuration;
  if (options.policy.empty()) {
    options.policy = configuration.policy.specification();
    if (!options.seed && configuration.policy.seed != 0) options.seed = configuration.policy.seed;
  }
  const std::string& wanted = options.workload_class;
  if (!wanted.empty() && configuration.find_class(wanted) == nullptr) check_class(options, loaded);
  if (wanted.empty())
    if (const auto* match =
            config::class_of(configuration, config::program_here(options.command.front())))
      options.workload_class = match->name;
  if (const auto policy = scheduler::check(options.policy); policy)
    options.learns = options.learns || options.daemon || policy->uses_kernel_times;
  return loaded;
}

// The pipe directory of the program's isolation domain; nothing for the shared one.
std::optional<std::string> directory_of_domain(const RunOptions& options) {
  const char* const job = std::getenv(runtime::environment::kJob);
  const auto domain = domain_of_program(daemon_socket(options.socket), job != nullptr ? job : "",
                                        options.command.front(), options.workload_class);
  if (!domain) return std::nullopt;
  if (!domain->problem.empty())
    say(fmt::format("MPS of the isolation domain '{}': {}.", domain->name, domain->problem));
  if (std::getenv("CUDA_MPS_PIPE_DIRECTORY") == nullptr) return domain->directory;
  say(Problem::kNotIsolated, not_in_domain_text(*domain));
  return std::string();
}

// Processes overlap on an NVIDIA GPU only as clients of one MPS: the daemon's, where it has one.
// Empty: the environment stays as it is.
std::string mps_directory(const RunOptions& options) {
  for (const std::string& hazard : config::mps_hazards([](auto name) { return std::getenv(name); }))
    say(hazard);
  if (auto directory = directory_of_domain(options)) return *directory;
  if (std::getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr) return {};
  const auto status = ask_daemon(daemon_socket(options.socket), "status");
  if (!status || !status->contains("mps")) return {};
  const auto& mps = (*status)["mps"];
  if (const std::string problem = mps.value("problem", ""); !problem.empty())
    say("MPS: " + problem + ".");
  return shared_mps_directory(*status);
}

// The policies that decided for the processes of the run; empty: it is not known.
std::string policies_of(const Report& report) {
  std::vector<std::string> found;
  for (const ProcessReport& process : report.processes)
    if (!process.policy.empty() &&
        std::find(found.begin(), found.end(), process.policy) == found.end())
      found.push_back(process.policy);
  return fmt::format("{}", fmt::join(found, " and "));
}

// MPS's own order among kernels that share processors: batch work behind the rest. A user who
// set it has been told what it does and keeps it.
bool lower_priority(const RunOptions& options, const config::Configuration& configuration) {
  const config::WorkloadClass* const workload = configuration.find_class(options.workload_class);
  return options.daemon && configuration.mps.mode != config::MpsMode::kOff &&
         configuration.mps.priorities && workload != nullptr &&
         workload->kind == config::ProgramKind::kBatch &&
         std::getenv("CUDA_MPS_CLIENT_PRIORITY") == nullptr;
}

std::vector<std::string> child_environment(const RunOptions& options, const Libraries& libraries,
                                           const config::Configuration& configuration,
                                           const fs::path& run_directory) {
  namespace names = runtime::environment;
  std::vector<std::string> changes = {
      "LD_PRELOAD=" + preload_variable(libraries, std::getenv("LD_PRELOAD")),
      fmt::format("{}={}", names::kRunDirectory, run_directory.native()),
      fmt::format("{}={}", names::kPolicy, options.policy),
      // The same warnings come in the report.
      fmt::format("{}={}", names::kQuiet, options.quiet ? 1 : 0),
  };
  // NVTX ranges become advice (interpose/nvtx.h), unless a profiler of the user's listens.
  if (std::getenv("NVTX_INJECTION64_PATH") == nullptr && !libraries.empty())
    changes.push_back("NVTX_INJECTION64_PATH=" + libraries.front().native());
  if (options.daemon) {
    changes.push_back(fmt::format("{}={}", names::kDaemon, daemon_socket(options.socket)));
    if (configuration.failure.absent == config::OnAbsence::kClosed)
      changes.push_back(fmt::format("{}={}", names::kAbsent, kExitNoDaemon));
  }
  if (std::getenv(names::kLockDirectory) == nullptr)
    changes.push_back(
        fmt::format("{}={}", names::kLockDirectory, configuration.daemon.lock_directory));
  if (!options.trace.empty()) changes.push_back(fmt::format("{}={}", names::kTrace, options.trace));
  if (options.daemon)
    if (const std::string mps = mps_directory(options); !mps.empty())
      changes.push_back("CUDA_MPS_PIPE_DIRECTORY=" + mps);
  if (lower_priority(options, configuration)) changes.push_back("CUDA_MPS_CLIENT_PRIORITY=1");
  if (options.daemon && configuration.mps.mode != config::MpsMode::kOff &&
      configuration.mps.connections > 0 && std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") == nullptr)
    changes.push_back(fmt::format("CUDA_DEVICE_MAX_CONNECTIONS={}", configuration.mps.connections));
  if (!options.workload_class.empty())
    changes.push_back(fmt::format("{}={}", names::kClass, options.workload_class));
  const config::Collectives& collectives = configuration.collectives;
  if (!collectives.kernels.empty())
    changes.push_back(
        fmt::format("{}={}", names::kCollectives, fmt::join(collectives.kernels, ",")));
  if (!collectives.cooperative) changes.push_back(fmt::format("{}=0", names::kCooperative));
  if (options.seed) changes.push_back(fmt::format("{}={}", names::kSeed, *options.seed));
  if (const auto window = window_nanoseconds(options.window))
    changes.push_back(fmt::format("{}={}", names::kWindow, *window));
  if (options.graph_memory)
    changes.push_back(fmt::format("{}={}", names::kGraphMemory, *options.graph_memory));
  if (const auto bound = config::memory_bound(options.memory))
    changes.push_back(bound->percent != 0 ? fmt::format("{}={}%", names::kMemory, bound->percent)
                                          : fmt::format("{}={}", names::kMemory, bound->bytes));
  if (options.cautious) changes.push_back(fmt::format("{}=1", names::kCautious));
  if (const fs::path list = wide_only_file(options.wide_only); !list.empty())
    changes.push_back(fmt::format("{}={}", names::kWideOnly, list.native()));
  if (const fs::path profiles = profiles_of(options); !profiles.empty()) {
    changes.push_back(fmt::format("{}={}", names::kProfiles, profiles.native()));
    if (options.profile_every)
      changes.push_back(fmt::format("{}={}", names::kProfileEvery, *options.profile_every));
  }
  return environment_with(changes);
}

// What was asked of vitamin while it had not started the command, or not to the end.
void end_if_interrupted(RunDirectory& directory) {
  if (interrupted() == 0) return;
  directory.remove();
  end_like({.signal = interrupted()});
}

Libraries libraries_for(RunDirectory& directory) {
  end_if_interrupted(directory);
  if (directory.path().empty())
    stop(kExitFailed, Problem::kRunDirectory,
         "cannot make a directory for this run in $XDG_RUNTIME_DIR, /dev/shm, $TMPDIR or /tmp: is "
         "every one of them full or read-only?");
  Libraries libraries = preloadable(preload_libraries(), directory.path());
  const auto usable = check_preload(libraries);
  end_if_interrupted(directory);
  if (usable) return libraries;
  directory.remove();
  stop(kExitFailed, Problem::kPreload, usable.error().message);
}

bool write_report(const std::string& file, const std::string& text) {
  if (file == "-") return std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  std::ofstream out(file, std::ios::trunc);
  out << text;
  out.close();
  return out.good();
}

// A report that cannot be written should stop the run before hours of work, not after.
void check_report_file(const std::string& file) {
  if (file.empty() || file == "-") return;
  if (!std::ofstream(file, std::ios::app).good())
    stop(kExitFailed, Problem::kCannotWrite,
         fmt::format("cannot write the report '{}': {}.", file, std::strerror(errno)));
}

// Another user's daemon is not ours to start; without one the program runs all the same, or ends
// with failure.absent = "closed".
void join_daemon(const RunOptions& options, const DaemonStart& daemon, const config::Loaded& loaded,
                 bool class_named, RunDirectory& directory) {
  const std::string socket = daemon_socket(options.socket);
  auto ready = start_daemon(socket, daemon);
  if (ready) ready = check_answers(socket);
  end_if_interrupted(directory);
  if (ready)
    return compare_with_daemon(socket, daemon, loaded, {options.workload_class, class_named});
  if (loaded.configuration.failure.absent == config::OnAbsence::kClosed) {
    directory.remove();
    stop(kExitNoDaemon, Problem::kDaemonUnreachable,
         fmt::format("{}; vitamin.toml says that nothing runs without it (failure.absent).",
                     ready.error().message));
  }
  say(Problem::kUncoordinated,
      fmt::format("{}; the program {}runs without coordination.", ready.error().message,
                  ready.error().native == ETIMEDOUT
                      ? "waits for it for about 10 s for each device, then "
                      : ""));
}

}  // namespace

std::optional<std::string> window_nanoseconds(const std::string& text) {
  if (text.empty()) return std::nullopt;
  if (text == "max") return text;
  const auto ns = config::duration_ns(text);
  return ns ? std::optional(fmt::format("{}", *ns)) : std::nullopt;
}

void run(RunOptions options) {
  // The process that starts the daemon leaves its policy to the configuration unless told
  // otherwise.
  const DaemonStart daemon = {options.config_file, options.settings, options.policy, options.seed,
                              options.trace};
  const bool class_named = !options.workload_class.empty();
  const config::Loaded loaded = configure(options);
  const config::Configuration& configuration = loaded.configuration;
  check_report_file(options.report_file);
  watch_interrupts();
  outlive_failed_writes();
  RunDirectory directory;
  const Libraries libraries = libraries_for(directory);

  // A trace is of a daemon of its own: others' work does not belong into it. So is its socket's
  // directory: a daemon locks that while it binds, and ours is locked already.
  RunOptions given = options;
  if (options.daemon && !options.trace.empty())
    given.socket = (directory.path() / "daemon" / "socket").native();
  if (options.daemon) join_daemon(given, daemon, loaded, class_named, directory);

  const auto started = std::chrono::steady_clock::now();
  const ChildEnd end = run_child(
      options.command, child_environment(given, libraries, configuration, directory.path()));
  const auto ended = std::chrono::steady_clock::now();
  if (end.exec_error != 0) {
    directory.remove();
    stop_not_started(options.command.front(), end.exec_error);
  }

  if (options.daemon && !options.trace.empty()) stop_daemon(given.socket);
  const Report report = read_report(directory.path());
  RunFacts facts;
  if (const fs::path profiles = profiles_of(options); !profiles.empty())
    facts.learnt = keep_learnt(directory.path(), profiles);
  directory.remove();
  facts.command = options.command;
  facts.policy = policies_of(report);
  if (facts.policy.empty()) facts.policy = options.policy;
  facts.seed = options.seed;
  facts.window = options.window;
  facts.wall_ns = static_cast<std::uint64_t>((ended - started) / std::chrono::nanoseconds(1));
  facts.exit_code = end.code;
  facts.signal = end.signal;
  facts.problem = coverage_problem(report, options.command, end);

  const std::string json = to_json(report, facts).dump(2) + "\n";
  if (options.json)
    std::fputs(json.c_str(), stderr);
  else if (!options.quiet && report.launched())
    std::fputs(to_table(report, facts, locale_is_utf8()).c_str(), stderr);
  if (!facts.problem.empty() && !options.json)
    say(report.launched() ? Problem::kNotAllBound : Problem::kNoLaunch, facts.problem);
  for (const Learnt& learnt : facts.learnt)
    if (!learnt.problem.empty()) say(Problem::kCannotWrite, learnt.problem + ".");
  const bool written = options.report_file.empty() || write_report(options.report_file, json);
  if (!written)
    say(Problem::kCannotWrite, fmt::format("cannot write the report '{}'.", options.report_file));

  const bool traced = options.trace.empty() || say_what_was_traced(options.trace, options.daemon);
  if (!end.succeeded()) end_like(end);
  if (!written || !traced) std::exit(kExitFailed);
  std::exit(options.strict && !report.complete() ? kExitCoverage : 0);
}

}  // namespace vitamin::tools
