// SPDX-License-Identifier: Apache-2.0
#include "runtime/submission/queue_manager.h"

#include <algorithm>
#include <memory>

#include "runtime/capture_safe_scope.h"

namespace vitamin::runtime {

namespace {
constexpr std::size_t kWantedMost = 64;
}

PhysicalQueue* QueueManager::free_queue(Stream& stream, PartitionId partition) {
  if (partition == kWholeDevice) return &stream.app_stream;
  PhysicalQueue* strangers = nullptr;
  for (const auto& queue : core_.pool.queues(partition)) {
    if (!core_.pool.serves(*queue, stream.priority)) continue;
    if (queue->owner == &stream) return queue.get();
    if (queue->owner != nullptr || queue->pins > 0) continue;
    if (queue->last_owner == nullptr || queue->last_owner == &stream) return queue.get();
    strangers = queue.get();
  }
  if (strangers != nullptr && core_.markers.fired(strangers->last)) return strangers;
  if (wanted_.size() < kWantedMost && core_.options.thread && may_want()) {
    const Wanted want(partition, stream.priority);
    if (std::find(wanted_.begin(), wanted_.end(), want) == wanted_.end()) {
      wanted_.push_back(want);
      core_.work.notify_one();
    }
  }
  return nullptr;
}

bool QueueManager::gives_up_slot(const Stream& stream) const {
  return core_.pool.slots() && core_.streams_share &&
         stream.placing.grant.launches != kUntilRevoked && core_.pool.all_owned();
}

bool QueueManager::awaits_queue(Stream& stream) const {
  if (!core_.pool.slots() || !core_.between_processes || !core_.options.thread) return false;
  auto& since = stream.placing.queue_wanted_since;
  const auto now = std::chrono::steady_clock::now();
  if (!since) since = now;
  return now - *since < DispatchOptions::kWaitForSlot * core_.options.slots_stay;
}

// The wish that is being granted stands in the list meanwhile.
bool QueueManager::may_want() const {
  if (!core_.pool.slots()) return true;
  return wanted_.empty() &&
         (!core_.pool.full() || std::chrono::steady_clock::now() >= slots_stay_until_);
}

void QueueManager::grow(Lock& lock) {
  PhysicalContextPool& pool = core_.pool;
  while (!wanted_.empty() && !core_.stopping) {
    const auto [partition, priority] = wanted_.back();
    std::unique_ptr<PhysicalQueue> replaced;
    if (pool.full()) {
      completion_.look_at_parts();
      replaced = pool.take_idle(core_.markers);
      // None is idle at this very moment: look again soon, but not at every launch.
      slots_stay_until_ =
          std::chrono::steady_clock::now() +
          (replaced != nullptr ? core_.options.slots_stay : core_.options.slots_stay / 50);
      if (replaced == nullptr) return wanted_.clear();
    }
    lock.unlock();
    replaced.reset();  // first, so that there are never more queues than slots
    hal::Result<std::unique_ptr<PhysicalQueue>> queue = [&, partition = partition,
                                                         priority = priority] {
      const CaptureSafeScope safe(core_.device);
      return pool.make_queue(partition, priority);
    }();
    lock.lock();
    std::erase(wanted_, Wanted(partition, priority));
    if (queue)
      pool.add(std::move(*queue));
    else if (queue.error().code == hal::Errc::kBusy)
      slots_stay_until_ = std::chrono::steady_clock::now() + core_.options.slots_stay;
    else if (pool.slots())
      pool.shrink();
    core_.page.pool.queues.set(pool.queue_count());
  }
}

void QueueManager::keep_to_share(Lock& lock) {
  PhysicalContextPool& pool = core_.pool;
  lock.unlock();
  const std::uint32_t share = core_.device.pool_queues_now();
  lock.lock();
  pool.limit(share);
  if (!pool.over_limit()) return;
  completion_.look_at_parts();
  while (pool.over_limit()) {
    std::unique_ptr<PhysicalQueue> beyond = pool.take_idle(core_.markers);
    if (beyond == nullptr) return;
    lock.unlock();
    beyond.reset();
    lock.lock();
    core_.page.pool.queues.set(pool.queue_count());
  }
}

}  // namespace vitamin::runtime
