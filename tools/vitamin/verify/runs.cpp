// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/verify/runs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>

#include "daemon/config/value.h"
#include "hal/fnv1a.h"
#include "hal/read_file.h"
#include "runtime/environment.h"
#include "tools/vitamin/interrupts.h"
#include "tools/vitamin/preload.h"
#include "tools/vitamin/run/child.h"
#include "tools/vitamin/run/diagnosis.h"
#include "tools/vitamin/run/directory.h"
#include "tools/vitamin/run/report.h"

namespace vitamin::tools {

namespace fs = std::filesystem;

namespace {

// FNV-1a; two files agree exactly when their sizes and digests do, for our purpose.
void look_at_file(const std::string& path, fs::file_time_type before, Observation& seen) {
  std::error_code error;
  const auto written = fs::last_write_time(path, error);
  const char* why_not = error                               ? "missing"
                        : !fs::is_regular_file(path, error) ? "not a regular file"
                        : written <= before                 ? "not written by the run"
                                                            : nullptr;
  if (why_not != nullptr) {
    seen.files[path] = why_not;
    seen.unwritten.insert(path);
    return;
  }
  std::uint64_t hash = hal::kFnv1aBasis, size = 0;
  std::ifstream in(path, std::ios::binary);
  std::vector<char> piece(1 << 20);  // a checkpoint may be larger than memory
  do {
    in.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    for (std::streamsize i = 0; i < in.gcount(); ++i)
      hash = hal::fnv1a_add(hash, static_cast<unsigned char>(piece[static_cast<std::size_t>(i)]));
    size += static_cast<std::uint64_t>(in.gcount());
  } while (in);
  seen.files[path] = fmt::format("{:016x} of {} bytes", hash, size);
}

// Kills a process group when this process dies without having called it off, of SIGKILL say: a
// process of its own that waits for the end of a pipe which only we hold open.
class Guard {
 public:
  explicit Guard(pid_t group) {
    std::array<int, 2> alive{};
    if (::pipe2(alive.data(), O_CLOEXEC) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setpgid(0, 0);  // Ctrl-C is not meant for it
      ::close(alive[1]);
      char nothing = 0;
      while (::read(alive[0], &nothing, 1) < 0 && errno == EINTR) {
      }
      ::kill(-group, SIGKILL);
      ::_exit(0);
    }
    ::close(alive[0]);
    alive_ = alive[1];
  }
  ~Guard() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    if (alive_ >= 0) ::close(alive_);
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  pid_t pid_ = -1;
  int alive_ = -1;
};

// A session and process group that ends when we say so, and when we die.
class Group {
 public:
  Group(const std::vector<std::string>& command, const std::vector<std::string>& environment,
        const fs::path& output, const fs::path& errors) {
    std::array<int, 2> report{};
    if (::pipe2(report.data(), O_CLOEXEC) != 0) {
      exec_error_ = errno;
      return;
    }
    std::vector<char*> words, variables;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    for (const std::string& v : environment) variables.push_back(const_cast<char*>(v.c_str()));
    words.push_back(nullptr);
    variables.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) become(words, variables, output, errors, report[1]);
    ::close(report[1]);
    if (pid_ < 0)
      exec_error_ = errno;
    else if (::read(report[0], &exec_error_, sizeof exec_error_) <= 0)
      exec_error_ = 0;
    ::close(report[0]);
    if (pid_ > 0) guard_.emplace(pid_);  // the pipe was closed behind its setsid()
  }
  ~Group() { end(); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int exec_error() const { return exec_error_; }
  // True when the leader has ended; `status` is then waitpid's.
  bool ended(int& status) {
    if (reaped_) return status = status_, true;
    if (pid_ <= 0 || ::waitpid(pid_, &status_, WNOHANG | WUNTRACED) != pid_) return false;
    if (WIFSTOPPED(status_)) {
      stopped_ = WSTOPSIG(status_);
      return false;
    }
    reaped_ = true;
    status = status_;
    return true;
  }
  // The signal that stopped the leader, which no process will continue, or 0.
  int stopped() const { return stopped_; }
  // Asks everything in the group to end, then makes it.
  void end() {
    if (pid_ <= 0) return;
    int status = 0;
    ::kill(-pid_, SIGTERM);
    ::kill(-pid_, SIGCONT);  // what is stopped does not end
    for (int i = 0; i < 100 && !ended(status); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ::kill(-pid_, SIGKILL);
    if (!reaped_) ::waitpid(pid_, &status_, 0);
    reaped_ = true;
    pid_ = -1;
    guard_.reset();  // the number of the group may now become another's
  }

 private:
  [[noreturn]] static void become(const std::vector<char*>& words,
                                  const std::vector<char*>& variables, const fs::path& output,
                                  const fs::path& errors, int report) {
    ::setsid();  // no terminal: /dev/tty fails at once, and reading it does not stop us
    forget_interrupts();
    const int in = ::open("/dev/null", O_RDONLY);
    const int out = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    const int err = ::open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    if (in >= 0 && out >= 0 && err >= 0 && ::dup2(in, 0) == 0 && ::dup2(out, 1) == 1 &&
        ::dup2(err, 2) == 2)
      ::execvpe(words[0], words.data(), variables.data());
    const int error = errno;
    if (::write(report, &error, sizeof error) < 0) ::_exit(126);
    ::_exit(127);
  }

  pid_t pid_ = -1;
  int exec_error_ = 0, status_ = 0, stopped_ = 0;
  bool reaped_ = false;
  std::optional<Guard> guard_;
};

// `audit`: where the audit's logs go, or empty. `memory`: a quota, or empty.
std::vector<std::string> environment(const fs::path& directory, const std::string& policy,
                                     std::uint64_t seed, const fs::path& audit,
                                     const std::string& memory = {}) {
  namespace names = runtime::environment;
  const Libraries libraries = preloadable(preload_libraries(), directory);
  std::vector<std::string> changes = {
      "LD_PRELOAD=" + preload_variable(libraries, std::getenv("LD_PRELOAD")),
      fmt::format("{}={}", names::kRunDirectory, directory.native()),
      fmt::format("{}={}", names::kPolicy, policy),
      fmt::format("{}={}", names::kSeed, seed),
      fmt::format("{}=1", names::kQuiet),
  };
  if (const auto bound = config::memory_bound(memory))
    changes.push_back(bound->percent != 0 ? fmt::format("{}={}%", names::kMemory, bound->percent)
                                          : fmt::format("{}={}", names::kMemory, bound->bytes));
  if (!audit.empty()) changes.push_back(fmt::format("{}={}", names::kAudit, audit.native()));
  return environment_with(changes);
}

std::string tail(const std::string& text) {
  constexpr std::size_t kMost = 400;
  std::string end = text.size() > kMost ? text.substr(text.size() - kMost) : text;
  while (!end.empty() && end.back() == '\n') end.pop_back();
  return end;
}

// What runs beside the command, again and again until it is over.
class Tenant {
 public:
  Tenant(const std::string& command, std::uint64_t seed) : command_(command) {
    if (command_.empty()) return;
    environment_ = environment(directory_.path(), kTenantPolicy, tenant_seed(seed), {});
    start();
  }
  // Restarts it when it came to its end; a failure is said once and ends it.
  void look() {
    int status = 0;
    if (!group_ || !group_->ended(status)) return;
    group_.reset();
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return start();
    const std::string words = tail(hal::read_file(directory_.path() / "errors").value_or(""));
    message_ = WIFSIGNALED(status)
                   ? fmt::format("the tenant was ended by signal {}", WTERMSIG(status))
                   : fmt::format("the tenant ended with exit code {}", WEXITSTATUS(status));
    if (!words.empty()) message_ += ": " + words;
  }
  const std::string& message() const { return message_; }
  bool runs() const { return group_.has_value(); }
  std::uint64_t launches() const {
    return command_.empty() ? 0 : read_report(directory_.path()).launches();
  }

 private:
  void start() {
    group_.emplace(std::vector<std::string>{"sh", "-c", command_}, environment_,
                   directory_.path() / "output", directory_.path() / "errors");
  }
  RunDirectory directory_;
  std::string command_, message_;
  std::vector<std::string> environment_;
  std::optional<Group> group_;
};

// A command may be shorter than its tenant's start: until that is at work nothing is beside it.
void wait_for_tenant(Tenant& tenant, Observation& seen) {
  constexpr std::chrono::seconds kStart{20};
  if (!seen.tenant) return;
  const auto limit = std::chrono::steady_clock::now() + kStart;
  while (tenant.runs() && (seen.tenant_launches_before = tenant.launches()) == 0 &&
         interrupted() == 0 && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    tenant.look();
  }
  if (tenant.runs() && seen.tenant_launches_before == 0 && interrupted() == 0)
    seen.message = fmt::format("the tenant launched nothing in {} s", kStart.count());
}

void read_coverage(const fs::path& directory, const RunRequest& request, Observation& seen) {
  const Report report = read_report(directory);
  seen.launches = report.launches();
  seen.bound = report.bound();
  seen.moved = report.totals.launches.moved.get();
  ChildEnd end;
  end.code = seen.code;
  end.signal = seen.signal;
  seen.coverage = coverage_problem(report, request.command, end);
}

Observation observe_beside(Tenant& tenant, const RunRequest& request) {
  Observation seen;
  seen.name = request.name;
  seen.policy = request.policy;
  seen.seed = request.seed;
  seen.audited = !request.policy.empty();
  seen.tenant = !request.tenant.empty();
  if (seen.audited) seen.logs = std::make_shared<RunDirectory>(RunDirectory::Where::kDisk);
  const RunDirectory directory;
  const fs::path output = directory.path() / "output", errors = directory.path() / "errors";
  std::map<std::string, fs::file_time_type> before;
  for (const std::string& file : request.files) {
    std::error_code error;
    before[file] = fs::last_write_time(file, error);
    if (error) before[file] = fs::file_time_type::min();
  }
  wait_for_tenant(tenant, seen);
  const auto started = std::chrono::steady_clock::now();
  const auto spent = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  };
  {
    const std::string& policy = seen.audited ? request.policy : "fifo";
    Group group(request.command,
                seen.audited || !request.memory.empty()
                    ? environment(directory.path(), policy, request.seed,
                                  seen.audited ? seen.logs->path() : fs::path(), request.memory)
                    : environment_with({}),
                output, errors);
    seen.exec_error = group.exec_error();
    int status = 0;
    while (!group.ended(status)) {
      tenant.look();
      seen.interrupted = interrupted() != 0;
      seen.timed_out = request.limit_seconds > 0 && spent() > request.limit_seconds;
      seen.stopped = group.stopped();
      if (seen.interrupted || seen.timed_out || seen.stopped != 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (WIFSIGNALED(status))
      seen.signal = WTERMSIG(status);
    else if (WIFEXITED(status))
      seen.code = WEXITSTATUS(status);
  }
  seen.seconds = spent();
  seen.tenant_launches = tenant.launches() - seen.tenant_launches_before;
  tenant.look();
  if (!tenant.message().empty()) seen.message = tenant.message();
  seen.output = hal::read_file(output).value_or("");
  seen.last_words = tail(hal::read_file(errors).value_or(""));
  for (const std::string& file : request.files) look_at_file(file, before[file], seen);
  if (seen.audited) {
    read_coverage(directory.path(), request, seen);
    seen.processes = read_audit(seen.logs->path());
  }
  return seen;
}

}  // namespace

Observation observe(const RunRequest& request) {
  // A short command may fall into a pause of its tenant: it runs again, for so long at most from
  // the end of the first run on. How long a tenant takes to start says nothing of its pauses.
  constexpr std::chrono::seconds kAgainFor{3};
  Tenant tenant(request.tenant, request.seed);
  std::optional<std::chrono::steady_clock::time_point> limit;
  while (true) {
    Observation seen = observe_beside(tenant, request);
    const auto now = std::chrono::steady_clock::now();
    if (!limit) limit = now + kAgainFor;
    const bool in_a_pause = seen.ended_well() && tenant.runs() && seen.message.empty() &&
                            seen.tenant_launches_before > 0 && seen.tenant_launches == 0;
    if (!in_a_pause || now >= *limit) return seen;
  }
}

}  // namespace vitamin::tools
