// SPDX-License-Identifier: Apache-2.0
#include "daemon/mps/mps.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

#include "daemon/log.h"
#include "daemon/mps/command.h"
#include "runtime/clock.h"

namespace vitamin::daemon {
namespace {

using config::MpsMode;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr milliseconds kControlTimeout{10'000};  // for an answer of the control program
constexpr std::uint64_t kMostSkippedChecks = 60;

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// A restart ends every server of the control daemon, also one of another user.
bool servers_are_all(const std::string& list, const std::vector<std::string>& servers) {
  const std::vector<std::string> words = words_of(list);
  return static_cast<std::size_t>(std::count_if(words.begin(), words.end(), &is_number)) ==
         servers.size();
}

bool found_in_path(const std::string& program) {
  if (program.find('/') != program.npos) return ::access(program.c_str(), X_OK) == 0;
  const char* const path = std::getenv("PATH");
  std::istringstream directories(path != nullptr ? path : "/usr/bin");
  for (std::string directory; std::getline(directories, directory, ':');)
    if (::access((directory + "/" + program).c_str(), X_OK) == 0) return true;
  return false;
}

}  // namespace

const char* name_of(MpsState state) {
  constexpr const char* kNames[] = {"off", "starting", "ready", "fault", "failed"};
  return kNames[static_cast<int>(state)];
}

Mps::Mps(const config::MpsSettings& settings, const std::string& directory, MpsRole role,
         std::string name)
    : settings_(settings), role_(role), name_(std::move(name)) {
  if (settings.mode == MpsMode::kOff) return;
  if (!found_in_path(settings.control)) {
    // A machine without NVIDIA's driver is a problem only if the configuration says that MPS runs.
    if (role == MpsRole::kClass) facts_.directory = settings.directory;
    if (settings.mode == MpsMode::kExternal || role == MpsRole::kClass)
      fail(settings.control + " is not there: install NVIDIA's driver, or set mps.mode to off");
    return;
  }
  const char* const theirs = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  directory_ = settings.directory;
  if (directory_.empty() && settings.mode == MpsMode::kExternal)
    directory_ = theirs != nullptr ? theirs : "/tmp/nvidia-mps";  // NVIDIA's own default
  if (directory_.empty()) directory_ = directory;
  facts_.directory = directory_;
  if (settings.mode == MpsMode::kAuto) log_.emplace(directory_ + "/server.log");
  if (role == MpsRole::kShared)
    check();
  else
    facts_.state = MpsState::kStarting;
  thread_ = std::thread([this] { run(); });
}

Mps::~Mps() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (started_) (void)control("quit -t 2");
}

MpsFacts Mps::facts() const {
  const std::lock_guard lock(mutex_);
  return facts_;
}

MpsClients Mps::clients() const {
  const std::lock_guard lock(mutex_);
  return clients_;
}

void Mps::terminate(const std::vector<pid_t>& processes) {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    to_terminate_.insert(to_terminate_.end(), processes.begin(), processes.end());
  }
  wake_.notify_all();
}

void Mps::run() {
  if (role_ != MpsRole::kShared) check();
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait_for(lock, nanoseconds(settings_.check_every_ns),
                   [this] { return stopping_ || !to_terminate_.empty(); });
    if (stopping_) return;
    const std::vector<pid_t> processes = std::exchange(to_terminate_, {});
    lock.unlock();
    if (processes.empty())
      check();
    else
      terminate_clients(processes);
    lock.lock();
  }
}

void Mps::terminate_clients(const std::vector<pid_t>& processes) {
  const auto servers = control("get_server_list");
  if (!servers) return;
  for (const std::string& server : words_of(*servers)) {
    const auto list = is_number(server) ? control("get_client_list " + server)
                                        : hal::Result<std::string>(std::string());
    if (!list) continue;
    const std::vector<std::string> clients = words_of(*list);
    for (const pid_t process : processes) {
      const std::string client = std::to_string(process);
      if (std::find(clients.begin(), clients.end(), client) == clients.end()) continue;
      if (!control("terminate_client " + server + " " + client)) continue;
      log::info("{}: terminated the work of process {}, because its job has ended", name_, client);
      const std::lock_guard lock(mutex_);
      ++facts_.terminated;
    }
  }
}

// The control daemon's answer; an error if there is no control daemon.
hal::Result<std::string> Mps::control(const std::string& command) {
  const auto answer =
      run_command({settings_.control},
                  {"CUDA_MPS_PIPE_DIRECTORY=" + directory_, "CUDA_MPS_LOG_DIRECTORY=" + directory_},
                  command + "\n", kControlTimeout);
  if (!answer) return tl::unexpected(answer.error());
  if (answer->code != 0)
    return hal::fail(hal::Errc::kUnavailable, settings_.control + ": " + answer->output);
  return answer->output;
}

void Mps::fail(const std::string& problem) {
  const std::lock_guard lock(mutex_);
  if (facts_.problem != problem) log::warn("{}: {}", name_, problem);
  facts_.state = MpsState::kFailed;
  facts_.problem = problem;
}

void Mps::start() {
  // Retry less and less often: a failed start usually needs an operator.
  if (skip_checks_ > 0) {
    --skip_checks_;
    return;
  }
  if (::mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST)
    return fail(directory_ + " cannot be made: " + std::strerror(errno));
  struct stat facts {};
  if (::lstat(directory_.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode) ||
      facts.st_uid != ::getuid() || (facts.st_mode & 0022) != 0)
    return fail(directory_ +
                " is not a directory of this user alone: remove it, or set mps.directory");
  const auto started =
      run_command({settings_.control, "-d"},
                  {"CUDA_MPS_PIPE_DIRECTORY=" + directory_, "CUDA_MPS_LOG_DIRECTORY=" + directory_},
                  "", kControlTimeout);
  if (started && started->code == 0 && control("get_server_list")) {
    started_ = true;
    failures_ = 0;
    log::info("{} started in {}", name_, directory_);
    const std::lock_guard lock(mutex_);
    ++facts_.starts;
    facts_.last_start_ns = runtime::now_ns();
    facts_.state = MpsState::kReady;
    facts_.problem.clear();
    return;
  }
  skip_checks_ =
      std::min<std::uint64_t>(kMostSkippedChecks, std::uint64_t{1} << std::min(failures_, 6U));
  ++failures_;
  std::string why = started ? started->output : started.error().message;
  while (!why.empty() && why.back() == '\n') why.pop_back();
  fail("cannot be started (" + why +
       "): processes take turns on an NVIDIA GPU until it runs. In a sandbox without devices start "
       "it outside and set mps.mode to external");
}

// Called when all clients of a faulted server have ended or have lost their contexts.
void Mps::restart() {
  if (role_ == MpsRole::kClass) {
    const std::lock_guard lock(mutex_);
    facts_.state = MpsState::kStarting;
  }
  (void)control("quit -t 2");
  start();
}

bool Mps::all_have_lost_their_contexts(const std::vector<std::string>& clients) {
  const std::lock_guard lock(mutex_);
  return std::all_of(clients.begin(), clients.end(), [this](const std::string& client) {
    return std::find(facts_.affected.begin(), facts_.affected.end(), client) !=
           facts_.affected.end();
  });
}

void Mps::check_log() {
  if (!log_) return;
  for (const MpsFault& fault : log_->read_new()) {
    std::string processes;
    for (const std::string& process : fault.affected)
      processes += (processes.empty() ? "" : ", ") + process;
    log::warn(
        "{}: a client's fault on the GPU destroyed the contexts of all clients of server {}: "
        "processes {} get errors from now on; end them and start them again. MPS does not say "
        "which of them has failed: run each by itself to find out",
        name_, fault.server, processes.empty() ? "unknown" : processes);
    if (counted_by_status_.erase(fault.server) == 0) {
      counted_by_log_.insert(fault.server);
      count_fault(fault);
    } else {
      const std::lock_guard lock(mutex_);
      facts_.last_fault_ns = runtime::now_ns();
      facts_.affected = fault.affected;
    }
  }
}

void Mps::count_fault(const MpsFault& fault) {
  const std::lock_guard lock(mutex_);
  ++facts_.faults;
  facts_.last_fault_ns = runtime::now_ns();
  facts_.affected = fault.affected;
}

// Asks for the status of each server, and for its clients if they are watched or it has a fault.
Mps::Faulted Mps::ask_servers(const std::vector<std::string>& servers) {
  const bool watches = watches_clients_;
  Faulted result;
  MpsClients found;
  found.complete = true;
  for (const std::string& server : servers) {
    if (!is_number(server)) {
      found.complete = false;
      continue;
    }
    const auto status = control("get_server_status " + server);
    const bool faulted = status && status->find("FAULT") != status->npos;
    if (faulted) result.servers.push_back(server);
    if (!faulted && !watches) continue;
    const auto list = control("get_client_list " + server);
    if (!list) found.complete = false;
    for (const std::string& client : list ? words_of(*list) : std::vector<std::string>()) {
      if (is_number(client) && client.size() < 10)
        found.processes.push_back(std::atoi(client.c_str()));
      else
        found.complete = false;
      if (faulted && is_number(client)) result.clients.push_back(client);
    }
  }
  if (watches) {
    const std::lock_guard lock(mutex_);
    found.listings = clients_.listings + 1;
    clients_ = std::move(found);
  }
  return result;
}

void Mps::check() {
  check_log();
  const auto servers = control("get_server_list");
  {
    const std::lock_guard lock(mutex_);
    ++facts_.checks;
  }
  if (!servers) {
    if (settings_.mode == MpsMode::kAuto) return start();
    return fail("no control daemon answers in " + directory_ +
                (role_ == MpsRole::kClass
                     ? ": start one there (systemctl start vitamin-mps@CLASS has "
                       "/run/vitamin-mps.CLASS)"
                     : ": start one there (systemctl start vitamin-mps has /run/vitamin-mps)") +
                ", or let vitamind do it (mps.mode = \"auto\")");
  }
  started_ = settings_.mode == MpsMode::kAuto;  // even if an earlier vitamind has started it
  const auto [faulted, left] = ask_servers(words_of(*servers));
  for (const std::string& server : faulted) {
    if (std::find(faulted_.begin(), faulted_.end(), server) != faulted_.end()) continue;
    if (counted_by_log_.erase(server) > 0) continue;
    if (log_) counted_by_status_.insert(server);
    count_fault({server, {}});
  }
  faulted_ = faulted;
  // A fault is over by itself when its clients end, which takes some a moment.
  constexpr unsigned kChecksForTheirEnd = 3;
  const bool lost = role_ == MpsRole::kClass && !faulted.empty() && !left.empty() &&
                    servers_are_all(*servers, faulted) && all_have_lost_their_contexts(left);
  lost_checks_ = lost ? lost_checks_ + 1 : 0;
  if (!faulted.empty() && (left.empty() || lost_checks_ >= kChecksForTheirEnd)) {
    faulted_.clear();
    lost_checks_ = 0;
    if (settings_.mode == MpsMode::kAuto) return restart();
  }
  const auto share = control("get_default_active_thread_percentage");
  const bool narrowed = share && std::strtod(share->c_str(), nullptr) < 100 &&
                        share->find_first_of("0123456789") != share->npos;
  const std::lock_guard lock(mutex_);
  std::string problem;
  facts_.state = faulted.empty() ? MpsState::kReady : MpsState::kFault;
  if (!faulted.empty())
    problem = "a client's fault ended server " + faulted.front() +
              ": all its clients get errors, "
              "and no new one is admitted before the " +
              std::to_string(left.size()) + " that are left have ended; end them";
  else if (narrowed)
    problem = "its default thread percentage is " + words_of(*share).front() +
              ": programs see a smaller device and compute other bits; "
              "set_default_active_thread_percentage 100";
  if (problem != facts_.problem && !problem.empty()) log::warn("{}: {}", name_, problem);
  facts_.problem = problem;
}

}  // namespace vitamin::daemon
