// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/event.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "backends/soft/amdgpu/machine.h"
#include "backends/soft/amdgpu/thunk.h"

namespace vitamin::soft::amdgpu {
namespace {

// A wait ends by then, as if woken: ROCr looks at its signals again after every wait. Without it
// ROCr 5.2.3 hangs now and then when it destroys a queue (seen here once in 100): two threads sleep
// on the one event that all queues share, and one of them consumes what the other was to be woken
// by.
constexpr std::chrono::milliseconds kLongestSleep{50};

}  // namespace

std::optional<std::uint32_t> Events::create(bool manual_reset, bool signalled,
                                            std::uint32_t limit) {
  const std::lock_guard lock(mutex_);
  std::uint32_t id = 1;
  for (const auto& [number, event] : events_) {
    if (number != id) break;
    ++id;
  }
  if (id >= limit) return std::nullopt;
  Event& event = events_[id];
  event.manual_reset = manual_reset;
  event.signalled = signalled;
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

namespace {

// Packet processors store an event's number here before they raise it. No code reads it back.
constexpr std::size_t kMailboxes = 4096;
std::array<std::uint64_t, kMailboxes> mailboxes;

}  // namespace

using vitamin::soft::amdgpu::machine;

VITAMIN_THUNK hsaKmtCreateEvent(HsaEventDescriptor* descriptor, bool manual_reset, bool signalled,
                                HsaEvent** event) {
  const auto id = machine().events.create(manual_reset, signalled, ~0u);
  if (!id) return HSAKMT_STATUS_NO_MEMORY;
  auto* const made = new HsaEvent{};
  made->EventId = *id;
  made->EventData.EventType = descriptor->EventType;
  made->EventData.EventData.SyncVar = descriptor->SyncVar;
  made->EventData.HWData2 = reinterpret_cast<HSAuint64>(&mailboxes[*id % kMailboxes]);
  made->EventData.HWData3 = *id;
  *event = made;
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtDestroyEvent(HsaEvent* event) {
  machine().events.destroy(event->EventId);
  delete event;
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtSetEvent(HsaEvent* event) {
  machine().events.raise(event->EventId);
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtResetEvent(HsaEvent* event) {
  machine().events.reset(event->EventId);
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtWaitOnMultipleEvents(HsaEvent* events[], HSAuint32 count, bool all,
                                         HSAuint32 milliseconds) {
  std::vector<std::uint32_t> ids;
  for (HSAuint32 at = 0; at < count; ++at) ids.push_back(events[at]->EventId);
  return machine().events.wait(ids, all, milliseconds) ? HSAKMT_STATUS_SUCCESS
                                                       : HSAKMT_STATUS_WAIT_TIMEOUT;
}

VITAMIN_THUNK hsaKmtWaitOnEvent(HsaEvent* event, HSAuint32 milliseconds) {
  return hsaKmtWaitOnMultipleEvents(&event, 1, true, milliseconds);
}
