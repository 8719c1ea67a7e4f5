// SPDX-License-Identifier: Apache-2.0
//
// Notices at once when a client's liveness futex is marked as dead (daemon/protocol/liveness.h),
// also while the daemon sleeps.
//
// A futex cannot be polled together with sockets, so a thread waits for all of them (futex_waitv,
// Linux 5.16) and makes a descriptor readable. If the kernel has no such call, and for more than
// 127 clients, the loop sees a death in its next turn, or by the pidfd.
#pragma once

#include <mutex>
#include <thread>
#include <vector>

#include "daemon/protocol/fd.h"
#include "daemon/protocol/shared.h"

namespace vitamin::daemon {

class LivenessWatcher {
 public:
  using Word = protocol::Shared<std::uint32_t>;
  LivenessWatcher();
  ~LivenessWatcher();
  LivenessWatcher(const LivenessWatcher&) = delete;
  LivenessWatcher& operator=(const LivenessWatcher&) = delete;

  // The word must stay mapped until remove() returns.
  void add(const Word* word);
  void remove(const Word* word);
  // An eventfd that becomes readable when a watched word is marked as dead. Any thread.
  int descriptor() const { return death_seen_.get(); }

 private:
  void run();
  void change();

  protocol::Fd death_seen_;
  std::mutex mutex_;
  struct Watched {
    const Word* word;
    std::uint32_t value = 0;  // as read last
    unsigned changes = 0;
    bool reported = false;  // its death
  };
  std::vector<Watched> words_;
  std::atomic<std::uint32_t> changes_{0};  // a futex that wakes the thread to read the list again
  std::atomic<std::uint32_t> seen_{0};     // the value of changes_ for which it has read the list
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace vitamin::daemon
