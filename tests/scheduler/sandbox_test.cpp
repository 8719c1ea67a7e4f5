// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policies/sandbox.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <ctime>
#include <memory>
#include <stdexcept>
#include <thread>

namespace vitamin::scheduler {
namespace {

using std::chrono::milliseconds;
using Outcome = Sandbox::Outcome;

double processor_ms(clockid_t clock = CLOCK_PROCESS_CPUTIME_ID) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}
double processor_ms_of_thread() { return processor_ms(CLOCK_THREAD_CPUTIME_ID); }

TEST_CASE("a call that loops is given up after 8 ms of processor time") {
  const SandboxLimits patient{milliseconds(8), milliseconds(60'000)};
  Sandbox thread;
  int answer = 0;
  CHECK(thread.run([&] { answer = 42; }, patient) == Outcome::kReturned);
  CHECK(answer == 42);
  CHECK_THROWS_AS(thread.run([] { throw std::runtime_error("x"); }, patient), std::runtime_error);
  // The caller may be woken late on a busy machine: more often than not, at worst, and so not sixty
  // times in a row.
  double least = 1e9;  // both threads', however busy the machine is
  for (int i = 0; i < 60 && least >= 12; ++i) {
    const double before = processor_ms();
    Sandbox fresh;
    auto stop = std::make_shared<std::atomic<bool>>(false);
    CHECK(fresh.run(
              [stop] {
                while (!stop->load()) {
                }
              },
              patient) == Outcome::kProcessorTime);
    const double used = processor_ms() - before;
    CHECK(used >= 8);
    least = std::min(least, used);
    CHECK(fresh.run([] {}, patient) == Outcome::kEnded);
    stop->store(true);
  }
  CHECK(least < 12);
}

TEST_CASE("a call that sleeps is given up by the clock") {
  Sandbox thread;
  auto awake = std::make_shared<std::atomic<bool>>(false);
  const auto start = std::chrono::steady_clock::now();
  CHECK(thread.run(
            [awake] {
              while (!awake->load()) std::this_thread::sleep_for(milliseconds(1));
            },
            {milliseconds(1000), milliseconds(30)}) == Outcome::kClock);
  CHECK(std::chrono::steady_clock::now() - start >= milliseconds(30));
  awake->store(true);
}

// A child stands still for twice as long as its call may take by the clock, as a virtual machine
// does that moves to another host.
TEST_CASE("a call during which the machine stands still is waited for") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    Sandbox thread;
    const Outcome outcome = thread.run(
        [&] {
          ::raise(SIGSTOP);                               // both threads
          std::this_thread::sleep_for(milliseconds(20));  // the caller looks at the clock meanwhile
        },
        {milliseconds(60'000), milliseconds(2000)});
    ::_exit(outcome == Outcome::kReturned ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, WUNTRACED) == child);
  REQUIRE(WIFSTOPPED(status));
  std::this_thread::sleep_for(milliseconds(4000));
  ::kill(child, SIGCONT);
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

// On one processor with a thread that never gives it up, at the lowest priority.
TEST_CASE("a call that is starved of processor time is waited for") {
  cpu_set_t allowed, one;
  REQUIRE(::sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i)
    if (CPU_ISSET(i, &allowed)) CPU_SET(i, &one);
  std::atomic<bool> stop{false};
  std::thread hog([&] {
    ::sched_setaffinity(0, sizeof one, &one);
    while (!stop) {
    }
  });
  Sandbox thread;
  bool starved = false;  // not before the other one runs
  for (int attempt = 0; attempt < 500 && !starved; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    const Outcome outcome = thread.run(
        [&] {
          ::sched_setaffinity(0, sizeof one, &one);
          sched_param lowest{};
          ::sched_setscheduler(0, SCHED_IDLE, &lowest);
          for (const double until = processor_ms_of_thread() + 1;
               processor_ms_of_thread() < until;) {
          }
        },
        {milliseconds(8), milliseconds(60'000)});
    starved = std::chrono::steady_clock::now() - start > milliseconds(8);
    REQUIRE(outcome == Outcome::kReturned);
  }
  stop = true;
  hog.join();
  CHECK(starved);
}

}  // namespace
}  // namespace vitamin::scheduler
