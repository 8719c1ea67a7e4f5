// SPDX-License-Identifier: Apache-2.0
//
// Events that the runtime sleeps on, with the kernel driver's rule (kfd_events.c): raising an event
// wakes everybody who waits for it; one that resets itself stays raised only if nobody did.
// Thread-safe.
#pragma once

#include <hsakmt.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace vitamin::soft::amdgpu {

class Events {
 public:
  HsaEvent* create(const HsaEventDescriptor& descriptor, bool manual_reset, bool signalled);
  void destroy(HsaEvent* event);
  void raise(std::uint32_t id);
  void reset(std::uint32_t id);
  // False: timed out. May return true before an event was raised, as after a signal.
  bool wait(HsaEvent* const* events, std::uint32_t count, bool all, std::uint32_t milliseconds);

 private:
  struct Event {
    HsaEvent shared{};  // first: the runtime holds its address
    bool manual_reset = false, signalled = false;
    std::uint64_t raised = 0;  // times
    unsigned waiters = 0;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint32_t, std::unique_ptr<Event>> events_;
  std::uint32_t next_id_ = 1;
};

}  // namespace vitamin::soft::amdgpu
