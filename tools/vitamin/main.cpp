// SPDX-License-Identifier: Apache-2.0
//
// The vitamin program: reads the command line, calls a verb.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>

#include "daemon/config/schema.h"
#include "daemon/config/value.h"
#include "runtime/environment.h"
#include "scheduler/policies/registry.h"
#include "tools/vitamin/completion.h"
#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/footers.h"
#include "tools/vitamin/node/cdi.h"
#include "tools/vitamin/node/config_verbs.h"
#include "tools/vitamin/node/park.h"
#include "tools/vitamin/option_values.h"
#include "tools/vitamin/policy/verbs.h"
#include "tools/vitamin/preload.h"
#include "tools/vitamin/text.h"
#include "tools/vitamin/trace/verbs.h"
#include "tools/vitamin/verbs.h"
#include "tools/vitamin/verify/verify.h"

namespace vitamin::tools {
namespace {

struct VerifyHelp : CLI::Formatter {
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "Usage: vitamin verify [OPTIONS] -- COMMAND [ARGUMENTS...]\n";
  }
};

struct RunHelp : CLI::Formatter {
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "Usage: vitamin run [OPTIONS] -- COMMAND [ARGUMENTS...]\n";
  }
};

struct CommandLine {
  CLI::App app{"Shares one GPU between unmodified programs, launch by launch."};
  CLI::App* run = nullptr;
  CLI::App* verify = nullptr;
  CLI::App* doctor = nullptr;
  CLI::App* policy = nullptr;
  CLI::App* policy_list = nullptr;
  CLI::App* version = nullptr;
  CLI::App* status = nullptr;
  CLI::App* explain = nullptr;
  CLI::App* accounting = nullptr;
  CLI::App* top = nullptr;
  CLI::App* drain = nullptr;
  CLI::App* resume = nullptr;
  CLI::App* park = nullptr;
  CLI::App* completion = nullptr;
  RunOptions options;
  VerifyOptions verification;
  PolicyVerbs policy_verbs;
  CdiVerbs cdi_verbs;
  TraceVerbs trace_verbs;
  ConfigVerbs config_verbs;
  ParkOptions parking;
  double park_seconds = 30;
  bool json = false;
  std::string device = "all", client;
  std::string shell;
  std::string prometheus;
  std::string bundle;
  double seconds = 0.5;
  int rounds = 0;

  CommandLine() {
    app.name("vitamin");
    app.require_subcommand(0, 1);
    app.set_help_flag("-h,--help", "Show this help");
    app.set_version_flag("--version", "vitamin " VITAMIN_VERSION, "Show the version");
    add_run();
    add_verify();
    doctor = app.add_subcommand("doctor", "Say what was found on this machine and what is missing");
    doctor->add_option("--bundle", bundle, "Also write what a report of a bug needs")
        ->type_name("FILE");
    policy = app.add_subcommand("policy", "Show the policies");
    policy->footer(kPolicyFooter);
    policy_list = policy->add_subcommand("list", "Name every policy, one a line");
    policy_verbs.add(app, *policy);
    cdi_verbs.add(app);
    trace_verbs.add(app, options);
    config_verbs.add(app);
    version = app.add_subcommand("version", "Show the version");
    add_daemon_verbs();
    completion = app.add_subcommand("completion", "Print a completion script for a shell");
    completion->add_option("SHELL", shell, "bash, zsh or fish")->required();
    for (CLI::App* verb : {doctor, policy_list, version, status, accounting, explain, park, resume})
      verb->add_flag("--json", json, "Answer as JSON");
    // Last: a verb begins with the footer that the program has at that time.
    app.footer(kMainFooter);
    doctor->footer(kDoctorFooter);
    version->footer(kVersionFooter);
    completion->footer(kCompletionFooter);
  }
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

 private:
  void add_daemon_verbs() {
    status = app.add_subcommand("status", "Show what vitamind does: devices, leases, clients");
    accounting = app.add_subcommand("accounting", "Show what clients used that have ended");
    explain = app.add_subcommand("explain", "Show why each client has what it has");
    explain->add_option("CLIENT", client, "A client, job, pod or program (default: all)");
    top = app.add_subcommand("top", "The same, live: a cell for each unit of each device");
    drain = app.add_subcommand("drain", "Let no new client onto a device");
    parking.which = "all";
    park = app.add_subcommand("park", "Move the device memory of an idle process to the host");
    resume = app.add_subcommand("resume", "End drain or park");
    for (CLI::App* verb : {status, accounting, explain, top, drain, park, resume})
      verb->add_option("--socket", options.socket, "Where vitamind listens (default: as for run)");
    status->add_option("--prometheus", prometheus, "Show all nodes that this server scrapes")
        ->type_name("URL")
        ->excludes("--socket");
    top->add_option("--every", seconds, "Seconds between two looks")
        ->check(seconds_from(false))
        ->capture_default_str();
    top->add_option("--rounds", rounds, "How many looks (0: until interrupted)")
        ->check(whole_number());
    drain->add_option("DEVICE", device, "Its UUID or index, or all")->capture_default_str();
    park->add_option("PROCESS", parking.which, "Its number, or a job, pod or program")->required();
    park->add_option("--timeout", park_seconds, "Seconds that its outstanding work may take")
        ->check(seconds_from(false))
        ->capture_default_str();
    resume->add_option("WHICH", parking.which, "A device, or a parked process or job")
        ->capture_default_str();
    resume->add_option("--timeout", parking.seconds, "Seconds to wait for room on the device")
        ->check(seconds_from(true))
        ->capture_default_str();
    status->footer(kStatusFooter);
    accounting->footer(kAccountingFooter);
    explain->footer(kExplainFooter);
    top->footer(kTopFooter);
    drain->footer(kDrainFooter);
    park->footer(kParkFooter);
    resume->footer(kResumeFooter);
  }
  void add_verify() {
    verify =
        app.add_subcommand("verify", "Show that a program's bits do not depend on the allocation");
    verify->footer(kVerifyFooter);
    verify->formatter(std::make_shared<VerifyHelp>());
    verify->prefix_command();
    verify->add_option("--runs", verification.runs, "How many schedules")->capture_default_str();
    verify->add_option("--seed", verification.seed, "Seed of the schedules")
        ->check(seed_number())
        ->capture_default_str();
    verify->add_option("--tenant", verification.tenant,
                       "Shell command that runs beside it ('': none; default: the demo)");
    verify->add_option("--check", verification.checks, "stdout, files, memory (default: stdout)")
        ->delimiter(',');
    verify->add_option("--file", verification.files, "A file that COMMAND writes, to compare");
    verify->add_option("--scan", verification.scan, "GPU code to look into with cuobjdump");
    verify
        ->add_option("--memory", verification.memory,
                     "Quota of device memory in every run, as of vitamin run; none is native")
        ->type_name("SIZE");
    verify->add_option("--limit", verification.limit_seconds, "Seconds that one run may take");
    verify->add_flag("--json", verification.json, "Print the result as JSON");
    verify->add_option("--report", verification.report_file, "Write a page of HTML")
        ->type_name("FILE");
  }
  void add_run() {
    run = app.add_subcommand("run", "Run a program with every launch late-bound");
    run->footer(kRunFooter);
    run->formatter(std::make_shared<RunHelp>());
    run->prefix_command();
    run->add_option("--policy", options.policy,
                    "Who decides where a launch goes (default: vitamin.toml's, or fifo)")
        ->type_name("NAME");
    run->add_option("--seed", options.seed, "Seed of a random policy")
        ->type_name("N")
        ->check(seed_number());
    run->add_option("--config", options.config_file,
                    "Instead of /etc/vitamin/vitamin.toml ($VITAMIN_CONFIG)")
        ->type_name("FILE");
    run->add_option("--set", options.settings,
                    "KEY=VALUE over the file, for this run: vitamin config show names them")
        ->type_name("KEY=VALUE");
    run->add_flag("--daemon", options.daemon,
                  "Share the device with others: vitamind decides (started if none runs)");
    run->add_option("--socket", options.socket, "Where that vitamind listens")->type_name("PATH");
    run->add_option("--class", options.workload_class,
                    "Its workload class there (default: the first of vitamin.toml that matches)")
        ->type_name("NAME");
    run->add_option("--window", options.window,
                    "How far submission may run ahead of completion: 0, 500us, max")
        ->type_name("TIME");
    run->add_option("--graph-memory", options.graph_memory,
                    "Device memory that graphs' executables for parts of the device may take: "
                    "64MiB; 0: graphs stay on the whole device (default: 256MiB)")
        ->transform(CLI::AsSizeValue(true))
        ->type_name("SIZE");
    run->add_option("--memory", options.memory,
                    "Device memory that the run's processes may have together on each device: "
                    "40GiB, or 50% of it (default: as much as there is)")
        ->type_name("SIZE");
    run->add_option(
           "--wide-only", options.wide_only,
           "Kernels that wait for their own blocks: read, and added to when one is caught; "
           "'none': forget them (default: vitamin/wide-only in the state directory)")
        ->type_name("FILE");
    run->add_flag("--cautious", options.cautious,
                  "A grid that the device holds at once runs only where all of it is: no "
                  "grid-wide barrier hangs, known or not; small parts serve less");
    run->add_option(
           "--profiles", options.profiles,
           "Directory where times of kernels are known from and kept; 'none': they are not "
           "measured (default: for policies that look at them, vitamin/profiles in the "
           "state directory)")
        ->type_name("DIRECTORY");
    run->add_flag("--strict", options.strict, "Exit with 123 unless every launch was bound");
    run->add_option("--report", options.report_file, "Write the report as JSON ('-': stdout)")
        ->type_name("FILE");
    run->add_flag("--json", options.json, "Print the report as JSON instead of a table (stderr)");
    run->add_flag("--quiet", options.quiet, "Print problems only");
  }
};

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

// `see`: the command that says more.
int usage_error(std::string_view message, std::string_view see, Problem problem = Problem::kUsage) {
  say(problem, fmt::format("{} See `{}`.", sentence(std::string(message)), see));
  return kExitFailed;
}

// An option that is a key of vitamin.toml, said as one can; else the nearest option.
std::string hint(const std::string& option, const CLI::App& app) {
  if (option == "--ahead") return " Did you mean '--window'?";  // its name before
  std::string word = option.substr(std::min<std::size_t>(2, option.size()));
  std::replace(word.begin(), word.end(), '-', '_');
  for (const config::ClassKey& key : config::class_keys())
    if (key.path == word)
      return fmt::format(" '{0}' is a key of a class: --set class.NAME.{0}=VALUE.", word);
  for (const config::SettingKey& key : config::setting_keys())
    if (key.path.ends_with("." + word))
      return fmt::format(" '{0}' is a setting: --set {0}=VALUE.", key.path);
  return did_you_mean(option, option_names(app));
}

int unknown_option(const std::string& word, const CLI::App& app, std::string_view see) {
  const std::string name = word.substr(0, word.find('='));
  const bool sets = app.get_option_no_throw("--set") != nullptr;
  return usage_error(fmt::format("unknown option '{}'.{}", name,
                                 sets ? hint(name, app) : did_you_mean(name, option_names(app))),
                     see);
}

// Where none is named, the configuration's is used.
std::optional<int> wrong_policy(const RunOptions& options) {
  if (options.policy.empty()) return std::nullopt;
  const auto policy = scheduler::check(options.policy);
  if (policy) return std::nullopt;
  return usage_error("--policy: " + policy.error().message, "vitamin policy list",
                     Problem::kPolicy);
}

// An option that nothing would read; empty: none. A program reads $VITAMIN_DAEMON by itself.
std::string needs_daemon(const RunOptions& options) {
  if (options.daemon) return {};
  const char* const named = std::getenv(runtime::environment::kDaemon);
  const bool joins = named != nullptr && *named != '\0';
  const char* const option = !options.socket.empty()                     ? "--socket"
                             : !options.workload_class.empty() && !joins ? "--class"
                                                                         : nullptr;
  if (option == nullptr) return {};
  return fmt::format(
      "{} is for programs that share through vitamind: add --daemon, or leave it out", option);
}

int checked_run(CommandLine& line) {
  RunOptions& options = line.options;
  const std::vector<std::string> words = line.run->remaining();
  if (!words.empty() && words.front().starts_with("-"))
    return unknown_option(words.front(), *line.run, "vitamin run --help");
  options.command.insert(options.command.begin(), words.begin(), words.end());
  if (options.command.empty() || options.command.front().empty())
    return usage_error("no command to run: vitamin run [OPTIONS] -- COMMAND.",
                       "vitamin run --help");
  if (const auto wrong = wrong_policy(options)) return *wrong;
  if (const std::string wrong = needs_daemon(options); !wrong.empty())
    return usage_error(wrong, "vitamin run --help");
  if (!options.memory.empty() && !config::memory_bound(options.memory))
    return usage_error(fmt::format("--memory: '{}' {}.", options.memory, config::kNoMemoryBound),
                       "vitamin run --help");
  if (!options.window.empty() && !window_nanoseconds(options.window))
    return usage_error(fmt::format("'{}' is no window: use 0, a time with its unit (500us, 2ms) or "
                                   "max.",
                                   options.window),
                       "vitamin run --help");
  if (options.quiet && options.json)
    return usage_error("--quiet and --json exclude each other.", "vitamin run --help");
  run(options);
}

int checked_record(CommandLine& line) {
  RunOptions& options = line.options;
  constexpr const char* kSee = "vitamin trace record --help";
  const std::vector<std::string> words = line.trace_verbs.remaining();
  if (!words.empty() && words.front().starts_with("-"))
    return unknown_option(words.front(), line.trace_verbs.record(), kSee);
  options.command.insert(options.command.begin(), words.begin(), words.end());
  if (options.command.empty() || options.command.front().empty())
    return usage_error("no command to record: vitamin trace record [OPTIONS] -- COMMAND.", kSee);
  if (const auto wrong = wrong_policy(options)) return *wrong;
  return line.trace_verbs.start(options);
}

int checked_verify(CommandLine& line) {
  VerifyOptions& options = line.verification;
  std::vector<std::string> words = line.verify->remaining();
  if (!words.empty() && words.front().starts_with("-"))
    return unknown_option(words.front(), *line.verify, "vitamin verify --help");
  words.insert(words.end(), line.options.command.begin(), line.options.command.end());
  options.command = std::move(words);
  if (const std::string wrong = problem(options); !wrong.empty())
    return usage_error(wrong, "vitamin verify --help");
  return verify(options);
}

int checked_park(CommandLine& line) {
  ParkOptions& options = line.parking;
  options.socket = line.options.socket;
  options.json = line.json;
  if (line.park->parsed()) {
    options.seconds = line.park_seconds;
    return park(options);
  }
  return names_device(options) ? set_drained(options.socket, options.which, false, options.json)
                               : unpark(options);
}

int unknown_words(const CLI::App& app, std::string_view see) {
  const std::string word = app.remaining().front();
  if (word.starts_with("-")) return unknown_option(word, app, see);
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) verbs.push_back(verb->get_name());
  const std::string hint =
      app.get_parent() != nullptr ? "" : fmt::format(" To run a program: vitamin run -- {}.", word);
  return usage_error(fmt::format("unknown word '{}'.{}{}", word, did_you_mean(word, verbs), hint),
                     see);
}

int show_help(const CLI::App& app) {
  fmt::print("{}", app.help());
  return kExitFailed;  // nothing was asked for, as far as a script can tell
}

int print_completion(const CommandLine& line) {
  const auto script = completion_script(line.app, line.shell);
  if (!script)
    return usage_error(fmt::format("completion scripts are made for bash, zsh and fish, not for "
                                   "'{}'.",
                                   line.shell),
                       "vitamin completion --help");
  fmt::print("{}", *script);
  return 0;
}

int dispatch(CommandLine& line) {
  if (line.run->parsed()) return checked_run(line);
  if (line.verify->parsed()) return checked_verify(line);
  if (line.trace_verbs.records()) return checked_record(line);
  if (line.policy_verbs.learns(line.options)) run(line.options);
  if (!line.options.command.empty())
    return usage_error("'--' belongs to `vitamin run -- COMMAND` only.", "vitamin --help");
  for (const CLI::App* verb :
       {line.doctor, line.policy_list, line.policy, line.version, line.status, line.accounting,
        line.explain, line.top, line.drain, line.park, line.resume, line.completion})
    if (verb->parsed() && !verb->remaining().empty())
      return unknown_words(*verb, fmt::format("vitamin {} --help", verb->get_name()));
  if (line.doctor->parsed()) return doctor(line.json, line.bundle);
  if (const auto code = line.policy_verbs.run()) return *code;
  if (const auto code = line.cdi_verbs.run()) return *code;
  if (const auto code = line.trace_verbs.run()) return *code;
  if (const auto code = line.config_verbs.run()) return *code;
  if (line.policy_list->parsed()) return list_policies(line.json);
  if (line.version->parsed()) return show_version(line.json);
  if (line.status->parsed())
    return line.prometheus.empty() ? show_status(line.options.socket, line.json)
                                   : show_fleet(line.prometheus, line.json);
  if (line.accounting->parsed()) return show_accounting(line.options.socket, line.json);
  if (line.explain->parsed()) return show_explanation(line.options.socket, line.client, line.json);
  if (line.top->parsed()) return top(line.options.socket, line.seconds, line.rounds);
  if (line.drain->parsed()) return set_drained(line.options.socket, line.device, true, false);
  if (line.park->parsed() || line.resume->parsed()) return checked_park(line);
  if (line.completion->parsed()) return print_completion(line);
  if (line.policy->parsed()) return show_help(*line.policy);
  return line.app.remaining().empty() ? show_help(line.app)
                                      : unknown_words(line.app, "vitamin --help");
}

int parse_and_dispatch(int argc, char** argv) {
  CommandLine line;
  line.app.allow_extras();
  for (CLI::App* verb :
       {line.doctor, line.policy, line.policy_list, line.version, line.status, line.accounting,
        line.explain, line.top, line.drain, line.park, line.resume})
    verb->allow_extras();
  // What stands behind "--" is the command, whatever it looks like.
  char** const mark = std::find_if(argv + std::min(argc, 1), argv + argc,
                                   [](const char* word) { return std::strcmp(word, "--") == 0; });
  if (mark != argv + argc) line.options.command.assign(mark + 1, argv + argc);
  try {
    line.app.parse(static_cast<int>(mark - argv), argv);
    return dispatch(line);
  } catch (const CLI::Success& shown) {  // help or version
    return line.app.exit(shown);
  } catch (const CLI::ParseError& error) {
    const auto [app, name] = parsed_verb(line.app);
    if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !app->remaining().empty())
      return unknown_words(*app, name + " --help");
    return usage_error(error.what(), name + " --help");
  }
}

}  // namespace

int show_version(bool json) {
  if (json)
    fmt::print("{}\n", nlohmann::json{{"schema", 1}, {"version", VITAMIN_VERSION}}.dump(2));
  else
    fmt::print("vitamin {}\n", VITAMIN_VERSION);
  return 0;
}

}  // namespace vitamin::tools

int main(int argc, char** argv) {
  using namespace vitamin;
  std::setlocale(LC_CTYPE, "");
  if (argc == 3 && std::strcmp(argv[1], tools::kPreloadCheckVerb) == 0)
    return tools::answer_preload_check(argv[2]);
  try {
    return tools::parse_and_dispatch(argc, argv);
  } catch (const std::exception& error) {  // out of memory, at worst
    std::fprintf(stderr, "vitamin: internal error: %s. [%s]\n", error.what(),
                 runtime::code_of(runtime::Problem::kInternal));
    return tools::kExitFailed;
  }
}
