// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/event.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace vitamin::soft::amdgpu {
namespace {

// A wait ends by then, as if woken: ROCr looks at its signals again after every wait. Without it
// ROCr 5.2.3 hangs now and then when it destroys a queue (seen here once in 100): two threads sleep
// on the one event that all queues share, and one of them consumes what the other was to be woken
// by.
constexpr std::chrono::milliseconds kLongestSleep{50};

}  // namespace

std::optional<std::uint32_t> Events::create(bool manual_reset, std::uint32_t limit) {
  const std::lock_guard lock(mutex_);
  std::uint32_t id = 1;
  for (const auto& [number, event] : events_) {
    if (number != id) break;
    ++id;
  }
  if (id >= limit) return std::nullopt;
  events_[id] = std::make_shared<Event>(Event{.manual_reset = manual_reset});
  return id;
}

bool Events::destroy(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(id);
  if (found == events_.end()) return false;
  found->second->destroyed = true;
  events_.erase(found);
  changed_.notify_all();
  return true;
}

bool Events::raise(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(id);
  if (found == events_.end()) return false;
  Event& event = *found->second;
  ++event.raised;
  event.signalled = event.manual_reset || event.waiters == 0;
  changed_.notify_all();
  return true;
}

bool Events::reset(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(id);
  if (found == events_.end()) return false;
  found->second->signalled = false;
  return true;
}

Events::Wait Events::wait(std::span<const std::uint32_t> events, bool all,
                          std::uint32_t milliseconds) {
  struct Waited {
    std::shared_ptr<Event> event;
    std::uint64_t raised_before = 0;
    bool activated = false;
  };
  std::vector<Waited> waited;
  std::unique_lock lock(mutex_);
  for (const std::uint32_t id : events) {
    const auto found = events_.find(id);
    if (found == events_.end()) return Wait::kNoEvent;
    waited.push_back({.event = found->second});
  }
  for (Waited& each : waited) {
    each.raised_before = each.event->raised;
    each.activated = each.event->signalled;
    if (!each.event->manual_reset) each.event->signalled = false;
    ++each.event->waiters;
  }
  // The kernel's test_event_condition: in the order in which the call names the events.
  const auto state = [&] {
    std::size_t activated = 0;
    for (Waited& each : waited) {
      if (each.event->destroyed) return Wait::kDestroyed;
      each.activated |= each.event->raised != each.raised_before;
      if (each.activated && !all) return Wait::kComplete;
      activated += each.activated ? 1 : 0;
    }
    return activated == waited.size() ? Wait::kComplete : Wait::kTimedOut;
  };
  const std::chrono::milliseconds asked(milliseconds);
  changed_.wait_for(lock, std::min(asked, kLongestSleep),
                    [&] { return state() != Wait::kTimedOut; });
  const Wait result = state();
  for (const Waited& each : waited) --each.event->waiters;
  return result == Wait::kTimedOut && asked > kLongestSleep ? Wait::kComplete : result;
}

}  // namespace vitamin::soft::amdgpu
