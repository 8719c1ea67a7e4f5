// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/liveness_watcher.h"

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "daemon/protocol/liveness.h"

namespace vitamin::daemon {
namespace {

#ifndef SYS_futex_waitv
constexpr long SYS_futex_waitv = 449;
#endif
constexpr std::size_t kWaitMax = 128;  // FUTEX_WAITV_MAX
// A correct client changes its word twice: when its thread takes the futex and when that ends. A
// word that goes on changing is not watched any more; the pidfd tells of its client's end.
constexpr unsigned kMostChanges = 64;

futex_waitv wait_for(const void* word, std::uint32_t value, std::uint32_t flags) {
  futex_waitv waiter{};
  waiter.uaddr = reinterpret_cast<std::uintptr_t>(word);
  waiter.val = value;
  waiter.flags = FUTEX_32 | flags;
  return waiter;
}

}  // namespace

LivenessWatcher::LivenessWatcher()
    : death_seen_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), thread_([this] { run(); }) {}

LivenessWatcher::~LivenessWatcher() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  change();
  thread_.join();
}

void LivenessWatcher::add(const Word* word) {
  {
    const std::lock_guard lock(mutex_);
    words_.push_back({word});
  }
  change();
}

void LivenessWatcher::remove(const Word* word) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(words_, [&](const Watched& watched) { return watched.word == word; });
  }
  // The thread may be about to read the word: wait until it has read the list without it. (A
  // waiting kernel does not access the memory.)
  const std::uint32_t wanted = changes_.load() + 1;
  change();
  while (static_cast<std::int32_t>(seen_.load() - wanted) < 0) ::usleep(10);
}

void LivenessWatcher::change() {
  changes_.fetch_add(1);
  ::syscall(SYS_futex, &changes_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void LivenessWatcher::run() {
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
        if (protocol::owner_died(value)) news = !std::exchange(watched.reported, true) || news;
        if (!watched.reported && watched.changes <= kMostChanges && count < kWaitMax)
          waiters[count++] = wait_for(watched.word, value, 0);
      }
    }
    seen_.store(change);
    if (news) ::eventfd_write(death_seen_.get(), 1);
    // An old kernel has no such call, and a container's seccomp filter may refuse it (EPERM): then
    // wait for changes of the list only; pidfds tell of deaths.
    if (::syscall(SYS_futex_waitv, waiters.data(), count, 0, nullptr, 0) < 0 && errno != EAGAIN &&
        errno != EINTR)
      ::syscall(SYS_futex, &changes_, FUTEX_WAIT_PRIVATE, change, nullptr, nullptr, 0);
  }
}

}  // namespace vitamin::daemon
