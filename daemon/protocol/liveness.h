// SPDX-License-Identifier: Apache-2.0
//
// How the daemon learns at once that a client dies.
//
// A pidfd tells that a process is gone only after the kernel has freed its memory: 60 ms for each
// GiB. The kernel walks the list of robust futexes of each thread long before that (28-82 us after
// SIGKILL, whatever the memory), marks those that it held and wakes one waiter. So a thread of the
// client holds a robust futex in the client's segment for as long as the process lives.
//
//   the futex is marked        the client submits nothing more: its gates are closed
//   the pidfd is readable      its files are closed, the driver ends its work: its leases are freed
//
// The same happens at exec, with the socket closing instead of the pidfd (its descriptor is
// CLOEXEC). The list of the holding thread is replaced by one of ours, of one element in private
// memory, so nothing that glibc keeps lies in memory that the daemon reads, and the thread must
// hold no robust mutex of its own.
#pragma once

#include <linux/futex.h>

#include "daemon/protocol/shared.h"

namespace vitamin::protocol {

class LivenessFutex {
 public:
  // Called by the thread that holds the futex; the object is destroyed by the same thread.
  explicit LivenessFutex(Shared<std::uint32_t>& word);
  // Releases the futex without FUTEX_OWNER_DIED; closing the socket ends the session.
  ~LivenessFutex();
  LivenessFutex(const LivenessFutex&) = delete;
  LivenessFutex& operator=(const LivenessFutex&) = delete;

 private:
  Shared<std::uint32_t>& word_;
  struct robust_list node_;
  struct robust_list_head list_;
  void* before_ = nullptr;  // the thread's list before this object
  std::size_t before_size_ = 0;
};

inline bool owner_died(std::uint32_t word) { return (word & FUTEX_OWNER_DIED) != 0; }

}  // namespace vitamin::protocol
