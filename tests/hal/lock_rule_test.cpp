// SPDX-License-Identifier: Apache-2.0
//
// The lock rule's check fires, and only where the rule is broken.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "hal/lock_rule.h"

namespace vitamin::hal {
namespace {

int answer() { return 7; }
void* address() { return reinterpret_cast<void*>(&answer); }

// How a process ends that does it: 0, or the signal.
int ends_with(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("VITAMIN_LOCK_RULE", "1", 1);
    ::signal(SIGABRT, SIG_DFL);
    static_cast<void>(std::freopen("/dev/null", "w", stderr));
    work();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

TEST_CASE("A call that can wait aborts under a lock of ours") {
  const TableEntry<int (*)(), Blocks::kWaits> waits("waits", address());
  CHECK(ends_with([&] {
          std::mutex mutex;
          const LockRule::Watched watched(mutex, "a lock is held");
          const std::lock_guard lock(mutex);
          waits();
        }) == SIGABRT);
  CHECK(ends_with([&] {
          std::mutex mutex;
          const LockRule::Watched watched(mutex, "a lock is held");
          const std::lock_guard lock(mutex);
          LockRule::waits("a call of the application");
        }) == SIGABRT);
}

TEST_CASE("A call that can wait is made without a lock, or under another object's") {
  const TableEntry<int (*)(), Blocks::kWaits> waits("waits", address());
  CHECK(ends_with([&] {
          std::mutex mutex;
          const LockRule::Watched watched(mutex, "a lock is held");
          { const std::lock_guard lock(mutex); }
          if (waits() != 7) ::_exit(1);
          std::thread([&] { mutex.lock(); }).join();  // held by a thread that has ended
          if (waits() != 7) ::_exit(2);
        }) == 0);
  CHECK(ends_with([&] {
          std::mutex others;
          const std::lock_guard lock(others);
          if (waits() != 7) ::_exit(1);
        }) == 0);
  CHECK(ends_with([&] {
          std::mutex mutex;
          { const LockRule::Watched watched(mutex, "a lock is held"); }
          const std::lock_guard lock(mutex);
          if (waits() != 7) ::_exit(1);
        }) == 0);
}

TEST_CASE("Locks end while other threads look at them") {
  const TableEntry<int (*)(), Blocks::kWaits> waits("waits", address());
  CHECK(ends_with([&] {
          std::thread ends([] {
            for (int i = 0; i < 5000; ++i) {
              const auto mutex = std::make_unique<std::mutex>();
              const LockRule::Watched watched(*mutex, "a lock is held");
              const std::lock_guard lock(*mutex);
            }
          });
          for (int i = 0; i < 5000; ++i) waits();
          ends.join();
        }) == 0);
}

TEST_CASE("The thread that moves deferred work makes no call that can wait") {
  const TableEntry<int (*)(), Blocks::kWaits> waits("waits", address());
  const TableEntry<int (*)(), Blocks::kWhenFull> full("full", address());
  CHECK(ends_with([&] {
          LockRule::moves_deferred_work();
          if (full() != 7) ::_exit(1);
          waits();
        }) == SIGABRT);
}

TEST_CASE("Calls that wait for nothing, or for room that there is, are made under locks") {
  const TableEntry<int (*)(), Blocks::kNever> never("never", address());
  const TableEntry<int (*)(), Blocks::kWhenFull> full("full", address());
  CHECK(ends_with([&] {
          std::mutex mutex;
          const LockRule::Watched watched(mutex, "a lock is held");
          const std::lock_guard lock(mutex);
          if (never() != 7 || full() != 7) ::_exit(1);
        }) == 0);
}

}  // namespace
}  // namespace vitamin::hal
