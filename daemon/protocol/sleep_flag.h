// SPDX-License-Identifier: Apache-2.0
//
// Sleeps without losing a wake-up; no system call while the peer is awake.
//
//     waiter                                   waker
//     1  sleeping = 1      (seq_cst)           1  publishes work        (seq_cst)
//     2  looks for work    (seq_cst)           2  looks at sleeping     (seq_cst)
//     3  sleeps until the doorbell rings       3  rings the doorbell if so
//
// Both write before they look, and all four accesses are sequentially consistent, so at least one
// sees the other (checked with relacy, tests/protocol/model_test.cpp). While the waiter is
// awake the waker makes no system call.
//
// The doorbell is the socket of the session: it lies in the poll set beside the peer's pidfd, one
// byte can be sent on it without blocking whatever the peer does, and unlike an eventfd its two
// ends are separate file descriptions: a client cannot make the daemon's end block.
#pragma once

#include <atomic>
#include <cstdint>

namespace vitamin::protocol {

template <class Platform>
struct SleepFlag {
  typename Platform::template Atomic<std::uint32_t> sleeping;  // 1: asleep, or about to be

  // Waiter. True: nothing to do, sleep now. `idle` must load with seq_cst.
  template <class Idle>
  bool try_sleep(Idle idle) {
    sleeping.store(1, std::memory_order_seq_cst);
    if (idle()) return true;
    sleeping.store(0, std::memory_order_relaxed);
    return false;
  }
  // Waiter: it looks for work again.
  void wake() { sleeping.store(0, std::memory_order_relaxed); }
  // Waker, after publishing with seq_cst.
  bool asleep() const { return sleeping.load(std::memory_order_seq_cst) != 0; }
};

}  // namespace vitamin::protocol
