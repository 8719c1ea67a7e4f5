// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/death_watch.h"

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "daemon/protocol/life.h"

namespace vitamin::daemon {
namespace {

#ifndef SYS_futex_waitv
constexpr long SYS_futex_waitv = 449;
#endif
constexpr std::size_t kWaitMax = 128;  // FUTEX_WAITV_MAX
// An honest word changes when its thread takes it and when that ends. One that goes on changing is
// not waited for any more: its client's end is told by the pidfd.
constexpr unsigned kMostChanges = 64;

futex_waitv wait_for(const void* word, std::uint32_t value, std::uint32_t flags) {
  futex_waitv waiter{};
  waiter.uaddr = reinterpret_cast<std::uintptr_t>(word);
  waiter.val = value;
  waiter.flags = FUTEX_32 | flags;
  return waiter;
}

}  // namespace

DeathWatch::DeathWatch()
    : told_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), thread_([this] { run(); }) {}

DeathWatch::~DeathWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  change();
  thread_.join();
}

void DeathWatch::add(const Word* word) {
  {
    const std::lock_guard lock(mutex_);
    words_.push_back({word});
  }
  change();
}

void DeathWatch::remove(const Word* word) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(words_, [&](const Watched& watched) { return watched.word == word; });
  }
  // The thread may be about to look at it: wait until it has looked at the list without it. (The
  // kernel holds no reference to memory that it waits on.)
  const std::uint32_t wanted = changes_.load() + 1;
  change();
  while (static_cast<std::int32_t>(seen_.load() - wanted) < 0) ::usleep(10);
}

void DeathWatch::change() {
  changes_.fetch_add(1);
  ::syscall(SYS_futex, &changes_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void DeathWatch::run() {
  std::array<futex_waitv, kWaitMax> waiters;
  for (;;) {
    const std::uint32_t change = changes_.load();
    unsigned count = 0;
    waiters[count++] = wait_for(&changes_, change, FUTEX_PRIVATE_FLAG);
    bool news = false;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      for (Watched& watched : words_) {
        const std::uint32_t value = watched.word->load(std::memory_order_acquire);
        if (std::exchange(watched.value, value) != value) ++watched.changes;
        if (protocol::life_ended(value)) news = !std::exchange(watched.told, true) || news;
        if (!watched.told && watched.changes <= kMostChanges && count < kWaitMax)
          waiters[count++] = wait_for(watched.word, value, 0);
      }
    }
    seen_.store(change);
    if (news) ::eventfd_write(told_.get(), 1);
    // An old kernel has no such call, and a container's filter may refuse it (EPERM): then only
    // changes are waited for, and pidfds tell of deaths.
    if (::syscall(SYS_futex_waitv, waiters.data(), count, 0, nullptr, 0) < 0 && errno != EAGAIN &&
        errno != EINTR)
      ::syscall(SYS_futex, &changes_, FUTEX_WAIT_PRIVATE, change, nullptr, nullptr, 0);
  }
}

}  // namespace vitamin::daemon
