// SPDX-License-Identifier: Apache-2.0
//
// vitamind: options, log, signals; then the server's loop.
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "daemon/config/command_line.h"
#include "daemon/config/load.h"
#include "daemon/config/value.h"
#include "daemon/log.h"
#include "daemon/metrics/endpoint.h"
#include "daemon/protocol/paths.h"
#include "daemon/server/server.h"
#include "runtime/problem.h"

namespace {

namespace log = vitamin::daemon::log;

std::atomic<vitamin::daemon::Server*> running{nullptr};
volatile std::sig_atomic_t early_signal = 0;  // received before there was a server; 0: none

void on_signal(int signal) {
  vitamin::daemon::Server* const server = running;
  if (server == nullptr)
    early_signal = signal;
  else
    signal == SIGHUP ? server->reload() : server->stop();
}

// Options that override settings of vitamin.toml.
struct Shorthand {
  const char* option;
  const char* key;
  const char* unit;  // appended to a bare number
  const char* meaning;
};
constexpr Shorthand kShorthands[] = {
    {"--policy", "policy.name", "", "Scheduling policy: vitamin policy list names them"},
    {"--seed", "policy.seed", "", "Seed of the policy's random numbers"},
    {"--quantum", "policy.quantum", "ms", "Duration of a grant to a starving stream (ms)"},
    {"--answer-within", "daemon.answer_within", "s",
     "Time in which a client must answer a closed gate (s)"},
    {"--spin", "daemon.spin", "us", "Time to poll for work before sleeping (us)"},
    {"--exit-when-idle", "daemon.exit_when_idle", "s", "End after this time without a client (s)"},
    {"--lock-directory", "daemon.lock_directory", "", "Directory of the devices' locks"},
};

constexpr const char* kFooter = R"(
Examples:
  vitamind                                 your own, at $XDG_RUNTIME_DIR/vitamin/vitamind.sock
  vitamind --policy random --exit-when-idle 10
  vitamin run --daemon -- python train.py  a client of it
  vitamin status                           what it does

Clients that lose their daemon go on in a small fallback partition, and reconnect by themselves.
)";

// Null: it failed, and the reason was logged.
std::unique_ptr<vitamin::daemon::MetricsEndpoint> serve_metrics(const std::string& address,
                                                                const std::string& socket) {
  namespace runtime = vitamin::runtime;
  auto started = vitamin::daemon::MetricsEndpoint::start(address, socket);
  if (!started) {
    log::error("{} [{}]", started.error().message,
               runtime::code_of(runtime::Problem::kMetricsAddress));
    return nullptr;
  }
  log::info("metrics at {}", (*started)->where());
  return std::move(*started);
}

// Makes the socket's directory. An existing one is used, unless it is another user's.
bool make_directory(const std::string& socket, bool system) {
  const auto directory = std::filesystem::path(socket).parent_path();
  if (directory.empty() || ::mkdir(directory.c_str(), system ? 0755 : 0700) == 0) return true;
  struct stat facts {};
  const int error = errno;
  if (::stat(directory.c_str(), &facts) != 0) {
    log::error(
        "the directory {} of the socket cannot be made ({}): make it, or name another "
        "--socket [{}]",
        directory.native(), std::strerror(error),
        vitamin::runtime::code_of(vitamin::runtime::Problem::kDaemonDirectory));
    return false;
  }
  if (system || facts.st_uid == ::getuid()) return true;
  log::error("the directory {} belongs to another user [{}]", directory.native(),
             vitamin::runtime::code_of(vitamin::runtime::Problem::kDaemonDirectory));
  return false;
}

// Two commands that start one at once (`if_none`): one of them listens, the other is not needed.
int not_started(const vitamin::hal::Error& error, bool if_none) {
  if (if_none && error.native == EADDRINUSE && error.code == vitamin::hal::Errc::kUnavailable) {
    log::info("{}, this one is not needed", error.message);
    return 0;
  }
  log::error("{} [{}]", error.message,
             vitamin::runtime::code_of(vitamin::runtime::Problem::kDaemonStart));
  return 1;
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): what escapes ends the process with its text
int main(int argc, char** argv) {
  using namespace vitamin;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) std::signal(signal, &on_signal);
  // A peer that has hung up and a log at its size limit are errors of the call, not signals.
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  daemon::Settings settings;
  CLI::App app("Shares the GPUs of this machine among the processes of `vitamin run --daemon`.",
               "vitamind");
  app.footer(kFooter);
  bool system = false, quiet = false, if_none = false;
  std::string file;
  std::vector<std::string> overrides;
  app.add_option("--socket", settings.socket, "Where to listen (default: your own)");
  app.add_flag("--system", system, "For all users, at /run/vitamin/vitamind.sock");
  app.add_option("--config", file, "Instead of /etc/vitamin/vitamin.toml ($VITAMIN_CONFIG)");
  app.add_option("--set", overrides, "KEY=VALUE over the file: vitamin config show names them");
  for (const Shorthand& shorthand : kShorthands)
    app.add_option_function<std::string>(
           shorthand.option,
           [&overrides, &shorthand](const std::string& text) {
             const bool bare = text.find_first_not_of("0123456789.") == text.npos;
             if (*shorthand.unit != '\0' &&
                 !config::duration_ns(text + (bare ? shorthand.unit : "")))
               throw CLI::ValidationError(
                   shorthand.option, "'" + text + "' is no time: write a number (of " +
                                         shorthand.unit + "), or one with its unit, like 500ms");
             overrides.push_back(std::string(shorthand.key) + "=" + text +
                                 (bare ? shorthand.unit : ""));
           },
           shorthand.meaning)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  std::string metrics, format = "text";
  app.add_option("--metrics", metrics,
                 "Serve Prometheus at PORT (loopback), HOST:PORT, a Unix socket, or systemd");
  app.add_option("--trace", settings.trace,
                 "Record every message and decision into this directory");
  app.add_option("--log", format, "text, or json: one object a line")
      ->check(CLI::IsMember({"text", "json"}));
  app.add_flag("--if-none", if_none)->group("");  // hidden: `vitamin run` starts it so
  app.add_flag("--quiet", quiet, "Warnings and errors only");
  if (const auto ended = config::read_command_line(app, argc, argv, VITAMIN_VERSION)) return *ended;

  log::start(format == "json" ? log::Format::kJson : log::Format::kText,
             quiet ? log::Level::kWarning : log::Level::kInfo);
  if (system) {
    settings.any_user = true;
    settings.socket_mode = 0666;  // permissions depend on the peer that the kernel reports
    if (settings.socket.empty()) settings.socket = protocol::kSystemSocket;
  }
  if (settings.socket.empty()) settings.socket = protocol::user_socket();
  // A reload reads the files again, with the same environment and command line.
  settings.reload = [=] { return config::load(config::sources(file, overrides)); };
  const config::Loaded loaded = settings.reload();
  const char* const code = runtime::code_of(runtime::Problem::kConfiguration);
  for (const config::ConfigProblem& problem : loaded.problems)
    log::error("{} [{}]", config::text_of(problem, false), code);
  if (!loaded.valid()) return 1;
  for (const auto* notices : {&loaded.no_effect, &loaded.renamed})
    for (const config::ConfigProblem& notice : *notices)
      log::warn("{} [{}]", config::text_of(notice, false), code);
  for (const std::string& read : loaded.files) log::info("configuration: {}", read);
  settings.configuration = loaded.configuration;
  settings.files = loaded.files;
  if (metrics.empty()) metrics = loaded.configuration.metrics.listen;

  if (!make_directory(settings.socket, system)) return 1;
  auto server = daemon::Server::create(settings);
  if (!server) return not_started(server.error(), if_none);
  std::unique_ptr<daemon::MetricsEndpoint> scraped;
  if (!metrics.empty()) {
    scraped = serve_metrics(metrics, settings.socket);
    if (scraped == nullptr) return 1;
  }
  running = server->get();
  if (early_signal != 0) on_signal(early_signal);
  log::info("listens at {}, policy {}", settings.socket,
            settings.configuration.policy.specification());
  return (*server)->run();
}
