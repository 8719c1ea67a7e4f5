// SPDX-License-Identifier: Apache-2.0
//
// Preloaded: writes down where the threads of a process are, at each tick of its CPU time. One
// Sample behind the other in the file $VITAMIN_SAMPLES/PID, which bench/compat/samples.py reads
// while the process lives. Linux on x86-64 and arm64.
#include <fcntl.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

struct Sample {
  std::uint64_t ns;       // of CLOCK_MONOTONIC
  std::uint64_t address;  // of the next instruction
};

constexpr int kMicroseconds = 1000;  // or a tick of the kernel's, if that is longer

int file = -1;

void take(int, siginfo_t*, void* context) {
  const int before = errno;
  const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const Sample sample = {
    static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
        static_cast<std::uint64_t>(now.tv_nsec),
#if defined(__x86_64__)
    static_cast<std::uint64_t>(machine.gregs[REG_RIP])
#else
    machine.pc
#endif
  };
  if (write(file, &sample, sizeof sample) != sizeof sample) close(file);  // no more of them
  errno = before;
}

[[gnu::constructor]] void begin() {
  const char* directory = std::getenv("VITAMIN_SAMPLES");
  if (directory == nullptr) return;
  char path[4096];
  std::snprintf(path, sizeof path, "%s/%d", directory, getpid());
  file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return;
  struct sigaction action {};
  action.sa_sigaction = take;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGPROF, &action, nullptr);
  const itimerval every = {{0, kMicroseconds}, {0, kMicroseconds}};
  setitimer(ITIMER_PROF, &every, nullptr);
}

}  // namespace
