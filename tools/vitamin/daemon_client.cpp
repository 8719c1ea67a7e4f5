// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/daemon_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/protocol/answer.h"
#include "daemon/protocol/paths.h"
#include "daemon/protocol/socket.h"
#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/interrupts.h"
#include "tools/vitamin/text.h"

namespace vitamin::tools {

using std::chrono::milliseconds;

namespace {

// How long a vitamind that was started may take until it listens, and until that is said.
constexpr std::chrono::seconds kStartWithin{30}, kStartSoon{5};

}  // namespace

std::string daemon_socket(const std::string& given) {
  if (!given.empty()) return given;
  const char* const named = std::getenv("VITAMIN_DAEMON");
  if (named != nullptr && *named != '\0') return named;
  if (protocol::connect_to(protocol::kSystemSocket)) return protocol::kSystemSocket;
  return protocol::user_socket();
}

hal::Result<nlohmann::json> ask_daemon(const std::string& socket, const std::string& verb) {
  const auto text = protocol::ask(socket, verb, milliseconds(2000));
  if (!text) return tl::unexpected(text.error());
  auto answer = nlohmann::json::parse(*text, nullptr, false);
  if (answer.is_discarded())
    return hal::fail(hal::Errc::kInternal, "vitamind answered something that is no JSON");
  if (answer.contains("error"))
    return hal::fail(hal::Errc::kInvalidArgument, answer["error"].get<std::string>());
  return answer;
}

std::string mps_fault_text(const nlohmann::json& mps) {
  const auto faults = mps.value("faults", std::uint64_t{0});
  if (faults == 0) return {};
  const auto affected = mps.value("affected", std::vector<std::string>{});
  return fmt::format(
      "{} fault{} on the GPU so far, the last one {} s ago: it took their contexts from {}; what "
      "still runs of those must be started again. MPS does not say which of them it was: run each "
      "by itself to find out",
      faults, faults == 1 ? "" : "s", mps.value("since_fault_ns", std::uint64_t{0}) / 1'000'000'000,
      affected.empty() ? "all clients of its server"
                       : fmt::format("processes {}", fmt::join(affected, ", ")));
}

std::optional<ProgramDomain> domain_of_program(const std::string& socket, const std::string& job,
                                               const std::string& program,
                                               const std::string& workload_class) {
  const std::string verb =
      fmt::format("isolation {}/{}/{}", job,
                  std::filesystem::path(program).filename().native().substr(0, 63), workload_class);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (;;) {
    const auto answer = ask_daemon(socket, verb);
    if (!answer || !answer->value("isolated", false)) return std::nullopt;
    const std::string state = answer->value("state", "");
    const bool comes = state == "starting" || state == "fault";
    if (!comes || std::chrono::steady_clock::now() >= until || interrupted() != 0)
      return ProgramDomain{answer->value("domain", ""), answer->value("directory", ""),
                           answer->value("problem", "")};
    std::this_thread::sleep_for(milliseconds(20));
  }
}

std::string shared_mps_directory(const nlohmann::json& status) {
  const auto mps = status.find("mps");
  if (mps == status.end() || !mps->is_object()) return {};
  const std::string state = mps->value("state", "");
  return state == "ready" || state == "fault" ? mps->value("directory", "") : "";
}

std::string absence_code(const nlohmann::json& status) {
  const auto settings =
      status.value(nlohmann::json::json_pointer("/configuration/settings"), nlohmann::json());
  const bool closed = settings.is_object() && settings.value("failure.absent", "") == "\"closed\"";
  return closed ? fmt::to_string(kExitNoDaemon) : "";
}

std::string not_in_domain_text(const ProgramDomain& domain) {
  return fmt::format(
      "CUDA_MPS_PIPE_DIRECTORY is set, so the program is not in its isolation domain '{}', whose "
      "directory is {}: a fault may spread between it and others. Unset the variable.",
      domain.name, domain.directory);
}

std::vector<std::string> eviction_texts(const nlohmann::json& status) {
  std::vector<std::string> texts;
  const auto users = status.find("let_go_users");
  if (users == status.end()) return texts;
  for (const auto& user : *users)
    texts.push_back(fmt::format(
        "user {}: {} clients evicted lately for breaking the protocol, the last one was {}{}: end "
        "that program",
        user.value("user", 0U), user.value("let_go", std::uint64_t{0}), user.value("last", ""),
        user.value("waits_ns", std::uint64_t{0}) > 0 ? "; the user's new ones wait" : ""));
  return texts;
}

void stop_daemon(const std::string& socket) {
  const auto status = ask_daemon(socket, "status");
  if (!status) return;
  const auto process = (*status)["daemon"].value("process", pid_t{0});
  if (process <= 0 || ::kill(process, SIGTERM) != 0) return;
  // It may be our child, which has to be waited for, or not ours any more.
  for (int i = 0; i < 1000 && ::kill(process, 0) == 0; ++i) {
    ::waitpid(process, nullptr, WNOHANG);
    std::this_thread::sleep_for(milliseconds(5));
  }
}

hal::Status check_answers(const std::string& socket) {
  const auto answer = ask_daemon(socket, "ping");
  if (answer || answer.error().native != ETIMEDOUT) return {};
  return hal::fail(hal::Errc::kUnavailable,
                   fmt::format("vitamind at {} does not answer within 2 s: if it is stopped, send "
                               "it SIGCONT or restart it",
                               socket),
                   ETIMEDOUT);
}

hal::Status start_daemon(const std::string& socket, const DaemonStart& start) {
  if (protocol::connect_to(socket)) return {};
  std::error_code unreadable;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", unreadable);
  const std::string program = (self.parent_path() / "vitamind").native();
  std::vector<std::string> words = {program, "--socket", socket,     "--exit-when-idle",
                                    "30",    "--quiet",  "--if-none"};
  if (!start.config_file.empty()) words.insert(words.end(), {"--config", start.config_file});
  for (const std::string& setting : start.settings) words.insert(words.end(), {"--set", setting});
  if (!start.policy.empty()) words.insert(words.end(), {"--policy", start.policy});
  if (start.seed) words.insert(words.end(), {"--seed", fmt::format("{}", *start.seed)});
  if (!start.trace.empty()) words.insert(words.end(), {"--trace", start.trace});
  const std::string log = socket + ".log";
  ::mkdir(std::filesystem::path(socket).parent_path().c_str(), 0700);  // there already: fine
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  // A session of its own: a Ctrl-C for the command is not for the daemon, which others may use. It
  // keeps nothing of ours open: who reads our output to its end must not wait for the daemon's.
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  pid_t process = 0;
  const int error =
      ::posix_spawn(&process, program.c_str(), &files, &attributes, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0)
    return hal::fail(hal::Errc::kUnavailable, fmt::format("vitamind cannot be started ({}: {})",
                                                          program, std::strerror(error)));
  const auto begin = std::chrono::steady_clock::now();
  bool said = false;
  for (auto passed = begin - begin; passed < kStartWithin && interrupted() == 0;
       std::this_thread::sleep_for(milliseconds(5)),
            passed = std::chrono::steady_clock::now() - begin) {
    if (protocol::connect_to(socket)) return {};
    if (passed > kStartSoon && !std::exchange(said, true))
      say(fmt::format(
          "vitamind was started and does not answer yet: waiting up to {} s; its log is {}",
          kStartWithin.count(), log));
    // Two at once: one listens, the other ends, and that is fine too.
    int status = 0;
    if (::waitpid(process, &status, WNOHANG) == process && !protocol::connect_to(socket))
      return hal::fail(hal::Errc::kUnavailable,
                       fmt::format("vitamind ended at once; {} says why", log));
  }
  return hal::fail(hal::Errc::kUnavailable,
                   fmt::format("vitamind was started and does not answer; its log is {}", log));
}

}  // namespace vitamin::tools
