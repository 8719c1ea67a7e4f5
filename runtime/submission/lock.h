// SPDX-License-Identifier: Apache-2.0
//
// Holds the lock of a device (Core::mutex).
//
// Most holders are inside a call of the vendor, which takes 1 to 30 us, and a thread that is woken
// runs 30 to 100 us later on a virtual machine: so one that finds the lock held looks again for
// some time before it sleeps.
#pragma once

#include <mutex>

namespace vitamin::runtime {

class Lock : public std::unique_lock<std::mutex> {
 public:
  explicit Lock(std::mutex& mutex) : unique_lock(mutex, std::defer_lock) { lock(); }
  void lock() {
    if (!try_lock()) lock_soon();
  }

 private:
  void lock_soon();
};

}  // namespace vitamin::runtime
