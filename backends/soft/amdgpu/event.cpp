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

// Packet processors store an event's id here before they raise it. Nobody reads it back.
constexpr std::size_t kMailboxes = 4096;
std::array<std::uint64_t, kMailboxes> mailboxes;

// A wait ends by then, as if woken: ROCr looks at its signals again after every wait. Without it
// ROCr 5.2.3 hangs now and then when it destroys a queue (seen here once in 100): two threads sleep
// on the one event that all queues share, and one of them consumes what the other was to be woken
// by.
constexpr std::chrono::milliseconds kLongestSleep{50};

}  // namespace

HsaEvent* Events::create(const HsaEventDescriptor& descriptor, bool manual_reset, bool signalled) {
  const std::lock_guard lock(mutex_);
  auto event = std::make_unique<Event>();
  event->manual_reset = manual_reset;
  event->signalled = signalled;
  HsaEvent& shared = event->shared;
  shared.EventId = next_id_++;
  shared.EventData.EventType = descriptor.EventType;
  shared.EventData.EventData.SyncVar = descriptor.SyncVar;
  shared.EventData.HWData2 = reinterpret_cast<HSAuint64>(&mailboxes[shared.EventId % kMailboxes]);
  shared.EventData.HWData3 = shared.EventId;
  return &events_.emplace(shared.EventId, std::move(event)).first->second->shared;
}

void Events::destroy(HsaEvent* event) {
  const std::lock_guard lock(mutex_);
  events_.erase(event->EventId);
}

void Events::raise(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(id);
  if (found == events_.end()) return;
  Event& event = *found->second;
  ++event.raised;
  event.signalled = event.manual_reset || event.waiters == 0;
  changed_.notify_all();
}

void Events::reset(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(id);
  if (found != events_.end()) found->second->signalled = false;
}

bool Events::wait(HsaEvent* const* events, std::uint32_t count, bool all,
                  std::uint32_t milliseconds) {
  struct Waited {
    std::uint32_t id;
    std::uint64_t raised_before;
    bool activated;
  };
  std::vector<Waited> waited;
  std::unique_lock lock(mutex_);
  const auto find = [&](std::uint32_t id) {
    const auto found = events_.find(id);
    return found == events_.end() ? nullptr : found->second.get();
  };
  for (std::uint32_t at = 0; at < count; ++at) {
    Event* const event = find(events[at]->EventId);
    if (event == nullptr) continue;
    waited.push_back({event->shared.EventId, event->raised, event->signalled});
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

using vitamin::soft::amdgpu::machine;

VITAMIN_THUNK hsaKmtCreateEvent(HsaEventDescriptor* descriptor, bool manual_reset, bool signalled,
                                HsaEvent** event) {
  *event = machine().events.create(*descriptor, manual_reset, signalled);
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtDestroyEvent(HsaEvent* event) {
  machine().events.destroy(event);
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
  return machine().events.wait(events, count, all, milliseconds) ? HSAKMT_STATUS_SUCCESS
                                                                 : HSAKMT_STATUS_WAIT_TIMEOUT;
}

VITAMIN_THUNK hsaKmtWaitOnEvent(HsaEvent* event, HSAuint32 milliseconds) {
  return hsaKmtWaitOnMultipleEvents(&event, 1, true, milliseconds);
}
