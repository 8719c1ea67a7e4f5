// SPDX-License-Identifier: Apache-2.0
#include "daemon/protocol/liveness.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace vitamin::protocol {

LivenessFutex::LivenessFutex(Shared<std::uint32_t>& word) : word_(word), node_{}, list_{} {
  ::syscall(SYS_get_robust_list, 0, &before_, &before_size_);
  list_.list.next = &node_;
  node_.next = &list_.list;
  list_.futex_offset = reinterpret_cast<char*>(&word_) - reinterpret_cast<char*>(&node_);
  // The thread id of its own pid namespace, as the kernel compares it. FUTEX_WAITERS: the daemon
  // may be waiting, so the kernel wakes it.
  const auto thread = static_cast<std::uint32_t>(::gettid());
  word_.store(thread | FUTEX_WAITERS, std::memory_order_seq_cst);
  ::syscall(SYS_set_robust_list, &list_, sizeof list_);
}

LivenessFutex::~LivenessFutex() {
  ::syscall(SYS_set_robust_list, before_, before_size_);
  word_.store(0, std::memory_order_seq_cst);
}

}  // namespace vitamin::protocol
