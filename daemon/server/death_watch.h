// SPDX-License-Identifier: Apache-2.0
//
// Learns at once when a client's life line breaks (daemon/protocol/life.h), also while the daemon
// sleeps.
//
// A futex cannot be polled beside sockets, so a thread waits for all of them (futex_waitv, Linux
// 5.16) and does nothing else: it decides nothing, it only makes a descriptor readable. Where the
// kernel has no such call, or beyond 127 clients, a death is seen at the daemon's next turn or by
// the pidfd.
#pragma once

#include <mutex>
#include <thread>
#include <vector>

#include "daemon/protocol/fd.h"
#include "daemon/protocol/shared.h"

namespace vitamin::daemon {

class DeathWatch {
 public:
  using Word = protocol::Shared<std::uint32_t>;
  DeathWatch();
  ~DeathWatch();
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;

  // The word stays mapped until remove() returns.
  void add(const Word* word);
  void remove(const Word* word);
  // An eventfd: readable when some word said that its thread has ended.
  int descriptor() const { return told_.get(); }

 private:
  void run();
  void change();

  protocol::Fd told_;
  std::mutex mutex_;
  struct Watched {
    const Word* word;
    std::uint32_t value = 0;  // when it was looked at last
    unsigned changes = 0;
    bool told = false;  // dead, and said so
  };
  std::vector<Watched> words_;
  std::atomic<std::uint32_t> changes_{0};  // a futex: the thread looks at the list again
  std::atomic<std::uint32_t> seen_{0};     // the change that the thread has looked at
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace vitamin::daemon
