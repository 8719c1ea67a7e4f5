// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/run/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/interrupts.h"

namespace vitamin::tools {
namespace {

// What stops a process is here, too: the child may have another mind about it than the default.
// SIGCONT is waited for like them, as the kernel keeps the later one of it and a stop.
constexpr std::array kForwarded = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT, SIGUSR1, SIGUSR2,
                                   SIGALRM, SIGTSTP, SIGTTIN, SIGTTOU, SIGCONT};

volatile pid_t the_child = 0;  // for the handler of SIGCONT
char stat_of_child[32];        // /proc/<pid>/stat

// 'T' in /proc/<pid>/stat: stopped at this moment, not only when the kernel queued the news.
bool child_is_stopped() {
  std::array<char, 512> text{};
  const int file = ::open(stat_of_child, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t n = ::read(file, text.data(), text.size() - 1);
  ::close(file);
  const char* after_name = n > 0 ? std::strrchr(text.data(), ')') : nullptr;
  return after_name != nullptr && after_name[1] == ' ' && after_name[2] == 'T';
}

// While we stop: what is only pending then would be taken back by the stop. Here and elsewhere the
// waker's SIGCONT is passed on, too: while it is pending, the kernel merges another process's with
// it, which may be meant for a stop of the child that the child has not taken yet.
void pass_on_continue(int signal) {
  const int error = errno;
  if (the_child > 0) ::kill(the_child, signal);
  errno = error;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> list;
  list.reserve(strings.size() + 1);
  for (const std::string& s : strings) list.push_back(const_cast<char*>(s.c_str()));
  list.push_back(nullptr);
  return list;
}

// A process that continues us when the child does not stand any more, whichever process continued
// or ended it: a parent that is stopped does not see it. No signal for our group or terminal
// reaches it once it is started. Negative: there is none.
pid_t start_waker() {
  constexpr int kPauseMs = 10;
  std::array<int, 2> started{};  // closed by the waker when it is on its own
  if (::pipe2(started.data(), O_CLOEXEC) != 0) return -1;
  const pid_t stopped = ::getpid(), waker = ::fork();
  if (waker == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setsid();
    ::closefrom(0);  // who reads our output to its end waits for us only
    // Again and again: the first may come before the stop.
    for (; ::getppid() == stopped; ::poll(nullptr, 0, kPauseMs))
      if (!child_is_stopped()) ::kill(stopped, SIGCONT);
    ::_exit(0);
  }
  ::close(started[1]);
  pollfd is_started{started[0], POLLIN, 0};
  // A stop of our group may have met it before it left the group.
  while (waker > 0 && ::poll(&is_started, 1, kPauseMs) != 1) ::kill(waker, SIGCONT);
  ::close(started[0]);
  return waker;
}

// Stops us as the child is stopped, until one of both is continued.
void stop_like_child() {
  const pid_t waker = start_waker();
  if (waker < 0) return;  // then only it is stopped
  sigset_t passed{};
  sigemptyset(&passed);
  sigaddset(&passed, SIGCONT);
  ::sigprocmask(SIG_UNBLOCK, &passed, nullptr);
  // Not if it was continued meanwhile: a shell would take our stop for the job's.
  if (child_is_stopped()) ::kill(::getpid(), SIGSTOP);
  ::sigprocmask(SIG_BLOCK, &passed, nullptr);
  ::kill(waker, SIGKILL);
  while (::waitpid(waker, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// The signals that concern us, blocked for the time of one child, as before afterwards.
class SignalScope {
 public:
  SignalScope() {
    sigemptyset(&waited_);
    for (const int signal : kForwarded) sigaddset(&waited_, signal);
    sigaddset(&waited_, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &waited_, &before_);
    // Our parent may ignore SIGCHLD, which would make the kernel discard the child's code.
    struct sigaction normal {};
    normal.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &normal, &child_before_);
    struct sigaction passed_on {};
    passed_on.sa_handler = &pass_on_continue;
    passed_on.sa_flags = SA_RESTART;
    ::sigaction(SIGCONT, &passed_on, &continue_before_);
  }
  ~SignalScope() { restore(); }
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

  void restore() const {
    ::sigaction(SIGCONT, &continue_before_, nullptr);
    ::sigaction(SIGCHLD, &child_before_, nullptr);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  int next(siginfo_t& info) const {
    int signal = 0;
    do signal = ::sigwaitinfo(&waited_, &info);
    while (signal < 0 && errno == EINTR);
    return signal;
  }

 private:
  sigset_t waited_{}, before_{};
  struct sigaction child_before_ {
  }, continue_before_{};
};

// True when the child has ended and `end` says how.
bool reap(pid_t child, ChildEnd& end) {
  int status = 0;
  while (::waitpid(child, &status, WNOHANG | WUNTRACED) == child) {
    if (WIFSTOPPED(status)) {
      // The news may be old, and the child run again.
      if (child_is_stopped()) stop_like_child();
      continue;
    }
    the_child = 0;  // its number may now become another's
    if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
    if (WIFEXITED(status)) end.code = WEXITSTATUS(status);
    return true;
  }
  return false;
}

// A terminal signals the whole process group, but when it hangs up, the leader of the session only
// (SIGHUP, then SIGCONT). A timer that our caller set before it executed us is ours alone.
bool child_has_it(const siginfo_t& info) {
  if (info.si_code != SI_KERNEL || info.si_signo == SIGALRM) return false;
  const bool hang_up = info.si_signo == SIGHUP || info.si_signo == SIGCONT;
  return !hang_up || ::getsid(0) != ::getpid();
}

ChildEnd wait_for(pid_t child, const SignalScope& signals) {
  ChildEnd end;
  for (;;) {
    siginfo_t info{};
    const int signal = signals.next(info);
    if (signal == SIGCHLD) {
      if (reap(child, end)) return end;
    } else if (signal > 0 && !child_has_it(info)) {
      ::kill(child, signal);
    }
  }
}

}  // namespace

ChildEnd run_child(const std::vector<std::string>& command,
                   const std::vector<std::string>& environment) {
  const std::vector<char*> arguments = pointers(command);
  const std::vector<char*> variables = pointers(environment);
  std::array<int, 2> report{};  // closes by itself when exec succeeds
  if (::pipe2(report.data(), O_CLOEXEC) != 0) return {.exec_error = errno};
  const SignalScope signals;
  if (interrupted() != 0) {
    ::close(report[0]);
    ::close(report[1]);
    return {.signal = interrupted()};
  }
  int at_callers_death = 0;  // the signal that our caller asked for, which fork forgets
  ::prctl(PR_GET_PDEATHSIG, &at_callers_death);
  const pid_t self = ::getpid(), child = ::fork();
  if (child < 0) {
    const int error = errno;
    ::close(report[0]);
    ::close(report[1]);
    return {.exec_error = error};
  }
  if (child == 0) {
    forget_interrupts();
    ::prctl(PR_SET_PDEATHSIG, at_callers_death);
    if (at_callers_death != 0 && ::getppid() != self) ::raise(at_callers_death);
    signals.restore();
    ::execvpe(arguments[0], arguments.data(), variables.data());
    const int error = errno;
    const ssize_t written = ::write(report[1], &error, sizeof error);
    ::_exit(written == sizeof error ? kExitNotFound : kExitFailed);
  }
  std::snprintf(stat_of_child, sizeof stat_of_child, "/proc/%d/stat", static_cast<int>(child));
  the_child = child;
  ::close(report[1]);
  // Its exec is not waited for first: the child may be stopped before.
  ChildEnd end = wait_for(child, signals);
  int exec_error = 0;
  ssize_t n = 0;
  do n = ::read(report[0], &exec_error, sizeof exec_error);
  while (n < 0 && errno == EINTR);
  ::close(report[0]);
  if (n == sizeof exec_error) end.exec_error = exec_error;
  return end;
}

std::vector<std::string> environment_with(const std::vector<std::string>& changes) {
  std::vector<std::string> result = changes;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('=') + 1);
    bool replaced = false;
    for (const std::string& change : changes) replaced = replaced || change.starts_with(name);
    if (!replaced) result.emplace_back(text);
  }
  return result;
}

void end_like(const ChildEnd& end) {
  if (end.signal != 0) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::signal(end.signal, SIG_DFL);
    sigset_t only{};
    sigemptyset(&only);
    sigaddset(&only, end.signal);
    ::sigprocmask(SIG_UNBLOCK, &only, nullptr);
    ::raise(end.signal);
    std::exit(128 + end.signal);  // a signal that does not end a process
  }
  std::exit(end.code);
}

}  // namespace vitamin::tools
