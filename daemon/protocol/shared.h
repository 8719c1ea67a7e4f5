// SPDX-License-Identifier: Apache-2.0
//
// A word that two processes share.
//
// In a build with VITAMIN_FAULT_POINTS (tests only) every write that changes something is first
// counted by fault_point(), which can end the process right there. What the other side finds of a
// process that was killed between two of its changes does not depend on what it read meanwhile: so
// killing it before each change is killing it at every access. In every other build Shared<T> is
// std::atomic<T>.
//
// Native is what the templates of ring.h and sleep_flag.h are instantiated with in the programs;
// the model checker's tests put another one in its place.
#pragma once

#if defined(VITAMIN_NO_SHARED_MEMORY)
#error "This file is compiled once, with and without fault points: see its CMakeLists.txt."
#endif

#include <atomic>
#include <cstdint>

namespace vitamin::protocol {

#ifdef VITAMIN_FAULT_POINTS

void fault_point();

template <class T>
class Shared {
 public:
  constexpr Shared() = default;
  T load(std::memory_order order) const { return value_.load(order); }
  void store(T value, std::memory_order order) {
    if (value_.load(std::memory_order_relaxed) != value) fault_point();  // store(): the only writer
    value_.store(value, order);
  }
  // Other processes write the word, too, so the kill may come before a write that changes nothing.
  bool compare_exchange_strong(T& expected, T value, std::memory_order order) {
    fault_point();
    return value_.compare_exchange_strong(expected, value, order);
  }
  T fetch_add(T value, std::memory_order order) {
    fault_point();
    return value_.fetch_add(value, order);
  }
  T fetch_sub(T value, std::memory_order order) {
    fault_point();
    return value_.fetch_sub(value, order);
  }

 private:
  std::atomic<T> value_{};
};

#else

inline void fault_point() {}

template <class T>
using Shared = std::atomic<T>;

#endif

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct Native {
  template <class T>
  using Atomic = Shared<T>;
};

}  // namespace vitamin::protocol
