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
  events_[id].manual_reset = manual_reset;
  return id;
}

bool Events::destroy(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  return events_.erase(id) != 0;
}

bool Events::exists(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  return events_.contains(id);
}

bool Events::raise(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(id);
  if (found == events_.end()) return false;
  Event& event = found->second;
  ++event.raised;
  event.signalled = event.manual_reset || event.waiters == 0;
  changed_.notify_all();
  return true;
}

bool Events::reset(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(id);
  if (found == events_.end()) return false;
  found->second.signalled = false;
  return true;
}

bool Events::wait(std::span<const std::uint32_t> events, bool all, std::uint32_t milliseconds) {
  struct Waited {
    std::uint32_t id;
    std::uint64_t raised_before;
    bool activated;
  };
  std::vector<Waited> waited;
  std::unique_lock lock(mutex_);
  const auto find = [&](std::uint32_t id) {
    const auto found = events_.find(id);
    return found == events_.end() ? nullptr : &found->second;
  };
  for (const std::uint32_t id : events) {
    Event* const event = find(id);
    if (event == nullptr) continue;
    waited.push_back({id, event->raised, event->signalled});
    if (!event->manual_reset) event->signalled = false;
    ++event->waiters;
  }
  const auto activated = [&](Waited& each) {
    const Event* const event = find(each.id);  // null: destroyed meanwhile
    each.activated |= event != nullptr && event->raised != each.raised_before;
    return each.activated;
  };
  const auto ready = [&] {
    return all ? std::all_of(waited.begin(), waited.end(), activated)
               : std::any_of(waited.begin(), waited.end(), activated);
  };
  const std::chrono::milliseconds asked(milliseconds);
  const bool woken = changed_.wait_for(lock, std::min(asked, kLongestSleep), ready);
  for (const Waited& each : waited)
    if (Event* const event = find(each.id)) --event->waiters;
  return woken || asked > kLongestSleep;
}

}  // namespace vitamin::soft::amdgpu
