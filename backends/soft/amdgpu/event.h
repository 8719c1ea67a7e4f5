// SPDX-License-Identifier: Apache-2.0
//
// Events that the runtime sleeps on, with the kernel driver's rule (kfd_events.c): raising an event
// wakes every waiter; one that resets itself stays raised only if there was no waiter.
// Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

namespace vitamin::soft::amdgpu {

class Events {
 public:
  // The lowest number from 1 that no event has; none below `limit`: nothing.
  std::optional<std::uint32_t> create(bool manual_reset, std::uint32_t limit);
  // False: there is no such event.
  bool destroy(std::uint32_t id);
  bool raise(std::uint32_t id);
  bool reset(std::uint32_t id);
  enum class Wait : std::uint8_t {
    kComplete,  // also before an event was raised, as after a signal
    kTimedOut,
    kDestroyed,  // one of the events, during the wait
    kNoEvent,    // one of the numbers names none
  };
  Wait wait(std::span<const std::uint32_t> events, bool all, std::uint32_t milliseconds);

 private:
  struct Event {
    bool manual_reset = false, signalled = false;
    std::uint64_t raised = 0;  // times
    unsigned waiters = 0;
    bool destroyed = false;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint32_t, std::shared_ptr<Event>> events_;  // waits hold what they wait for
};

}  // namespace vitamin::soft::amdgpu
