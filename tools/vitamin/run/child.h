// SPDX-License-Identifier: Apache-2.0
//
// The command of `vitamin run` as a child process that behaves as if its caller had started it.
//
// Signals. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT sent to vitamin go
// to the child; those that a terminal sent to the whole process group have reached it already. A
// child that stops stops vitamin too, so that the shell sees one job. What the caller asked the
// kernel to send when the caller ends (PR_SET_PDEATHSIG), the child gets when vitamin ends.
#pragma once

#include <string>
#include <vector>

namespace vitamin::tools {

struct ChildEnd {
  int exec_error = 0;  // errno of a failed exec; the other fields mean nothing then
  int signal = 0;      // the signal that ended it, 0 if it exited
  int code = 0;        // its exit code

  bool succeeded() const { return exec_error == 0 && signal == 0 && code == 0; }
};

// Runs `command` (looked up in PATH) with `environment` and waits for its end. Nothing else of the
// process may have been started from other threads.
ChildEnd run_child(const std::vector<std::string>& command,
                   const std::vector<std::string>& environment);

// The current environment, with each "NAME=value" of `changes` set.
std::vector<std::string> environment_with(const std::vector<std::string>& changes);

// Ends this process as the child ended: same code, or same signal (without a second core file).
[[noreturn]] void end_like(const ChildEnd& end);

}  // namespace vitamin::tools
