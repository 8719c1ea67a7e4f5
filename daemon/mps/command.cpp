// SPDX-License-Identifier: Apache-2.0
#include "daemon/mps/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "daemon/protocol/fd.h"

extern char** environ;

namespace vitamin::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kMostOutput = 64 * 1024;

std::vector<std::string> environment_with(const std::vector<std::string>& changes) {
  std::vector<std::string> all = changes;
  for (char** word = environ; *word != nullptr; ++word) {
    const std::string_view text = *word;
    const std::string_view name = text.substr(0, text.find('='));
    const bool changed = std::any_of(changes.begin(), changes.end(), [&](const std::string& other) {
      return other.size() > name.size() && other.compare(0, name.size(), name) == 0 &&
             other[name.size()] == '=';
    });
    if (!changed) all.emplace_back(text);
  }
  return all;
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

// Starts the program with `connection` as its standard streams. Returns 0 or an errno value.
int start(const std::vector<std::string>& words, const std::vector<std::string>& environment,
          int connection, pid_t& process) {
  const std::vector<std::string> all = environment_with(environment);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&attributes);
  // A process group of its own, so that the program can be killed with all that it started, and the
  // default action of every signal, since vitamind ignores some.
  sigset_t every, none;
  ::sigfillset(&every);
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigdefault(&attributes, &every);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(
      &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  for (const int target : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    ::posix_spawn_file_actions_adddup2(&files, connection, target);
  const int error = ::posix_spawnp(&process, words.front().c_str(), &files, &attributes,
                                   pointers(words).data(), pointers(all).data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  return error;
}

// Reads until the other end is closed, until the program has ended, or until `until`: a program
// that leaves a child behind keeps the connection open.
void read_output(int connection, pid_t process, std::string& output,
                 steady_clock::time_point until) {
  std::array<char, 4096> part;
  while (steady_clock::now() < until) {
    pollfd ready{connection, POLLIN, 0};
    if (::poll(&ready, 1, 20) > 0) {
      const ssize_t length = ::recv(connection, part.data(), part.size(), MSG_DONTWAIT);
      if (length <= 0) return;
      const auto taken = static_cast<std::size_t>(length);
      output.append(part.data(), std::min(taken, kMostOutput - output.size()));
      continue;
    }
    siginfo_t ended{};
    if (::waitid(P_PID, static_cast<id_t>(process), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        ended.si_pid == process)
      return;
  }
}

}  // namespace

hal::Result<CommandOutput> run_command(const std::vector<std::string>& words,
                                       const std::vector<std::string>& environment,
                                       const std::string& input, milliseconds timeout) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return hal::fail(hal::Errc::kOutOfMemory, "no more descriptors can be made", errno);
  const protocol::Fd mine(ends[0]);
  protocol::Fd theirs(ends[1]);
  pid_t process = 0;
  if (const int error = start(words, environment, theirs.get(), process); error != 0)
    return hal::fail(hal::Errc::kUnavailable,
                     words.front() + " cannot be started: " + std::strerror(error), error);
  theirs.reset();
  (void)::send(mine.get(), input.data(), input.size(), MSG_NOSIGNAL);
  ::shutdown(mine.get(), SHUT_WR);
  const auto until = steady_clock::now() + timeout;
  CommandOutput answer;
  read_output(mine.get(), process, answer.output, until);
  int status = 0;
  while (::waitpid(process, &status, WNOHANG) == 0) {
    if (steady_clock::now() >= until) {
      ::kill(-process, SIGKILL);
      ::waitpid(process, &status, 0);
      return hal::fail(hal::Errc::kUnavailable, words.front() + " does not answer");
    }
    ::usleep(1000);
  }
  answer.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return answer;
}

}  // namespace vitamin::daemon
