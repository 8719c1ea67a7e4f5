// SPDX-License-Identifier: Apache-2.0
//
// Preloaded: writes down where the threads of a process are, at each tick of its CPU time. One
// Sample behind the other in the file $VITAMIN_SAMPLES/PID, which bench/compat/samples.py reads
// while the process lives. A child of a fork has no samples unless it executes a program. Linux on
// x86-64 and arm64.
#include <dlfcn.h>
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

volatile int file = -1;

void take(int, siginfo_t*, void* context) {
  const int before = errno, to = file;
  if (to < 0) return;
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
  if (write(to, &sample, sizeof sample) != sizeof sample) file = -1;  // no more of them
  errno = before;
}

[[gnu::constructor]] void begin() {
  const char* directory = std::getenv("VITAMIN_SAMPLES");
  if (directory == nullptr) return;
  char path[4096];
  std::snprintf(path, sizeof path, "%s/%d", directory, getpid());
  const int opened = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  if (opened < 0) return;
  file = opened;
  struct sigaction action {};
  action.sa_sigaction = take;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGPROF, &action, nullptr);
  const itimerval every = {{0, kMicroseconds}, {0, kMicroseconds}};
  setitimer(ITIMER_PROF, &every, nullptr);
}

// The timer would go on in the program that is executed, and its signal, which nothing handles
// there yet, would end it.
void stop() {
  const itimerval never{};
  setitimer(ITIMER_PROF, &never, nullptr);
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int execve(const char* path, char* const* arguments,
                                                  char* const* variables) noexcept {
  stop();
  return next<int(const char*, char* const*, char* const*)>("execve")(path, arguments, variables);
}
__attribute__((visibility("default"))) int execv(const char* path,
                                                 char* const* arguments) noexcept {
  stop();
  return next<int(const char*, char* const*)>("execv")(path, arguments);
}
__attribute__((visibility("default"))) int execvp(const char* file_name,
                                                  char* const* arguments) noexcept {
  stop();
  return next<int(const char*, char* const*)>("execvp")(file_name, arguments);
}
__attribute__((visibility("default"))) int execvpe(const char* file_name, char* const* arguments,
                                                   char* const* variables) noexcept {
  stop();
  return next<int(const char*, char* const*, char* const*)>("execvpe")(file_name, arguments,
                                                                       variables);
}

}  // extern "C"
