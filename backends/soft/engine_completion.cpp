// SPDX-License-Identifier: Apache-2.0
//
// What of the enqueued work has ended: queries, waits, and the turns of virtual time.
#include <algorithm>
#include <utility>
#include <vector>

#include "backends/soft/engine.h"
#include "backends/soft/engine_state.h"

namespace vitamin::soft {

bool Engine::Impl::queue_done(const Queue& queue) const {
  if (queue.completed != queue.submitted) return false;
  return queue.options.sync != SyncClass::kLegacy || group_done(*queue.group, true);
}

bool Engine::Impl::group_done(const SyncGroup& group, bool blocking_only) const {
  return std::all_of(group.members.begin(), group.members.end(), [&](const Queue* queue) {
    return queue->completed == queue->submitted ||
           (blocking_only && queue->options.sync == SyncClass::kNonBlocking);
  });
}

template <class Done>
Status Engine::Impl::wait_until(Lock& lock, Done done) {
  if (real) {
    ++waiting_threads;
    done_changed.wait(lock, [&] { return fault != kOk || done(); });
    --waiting_threads;
    return fault;
  }
  while (fault == kOk && !done())
    if (advance_one(lock) != AdvanceResult::kMoved && fault == kOk && !done()) return kStuck;
  return fault;
}

Status Engine::query(Queue* queue) {
  const Lock lock(impl_->mutex);
  if (impl_->fault != kOk) return impl_->fault;
  return impl_->queue_done(*queue) ? kOk : kNotReady;
}

Status Engine::synchronize(Queue* queue) {
  Lock lock(impl_->mutex);
  // What is enqueued later, by other threads, is not waited for.
  std::vector<std::pair<Queue*, std::uint64_t>> targets{{queue, queue->submitted}};
  if (queue->options.sync == SyncClass::kLegacy)
    for (Queue* other : queue->group->members)
      if (other->options.sync == SyncClass::kBlocking && other->completed != other->submitted)
        targets.emplace_back(other, other->submitted);
  for (const auto& target : targets) ++target.first->references;
  const Status status = impl_->wait_until(lock, [&] {
    return std::all_of(targets.begin(), targets.end(),
                       [](const auto& t) { return t.first->completed >= t.second; });
  });
  for (const auto& target : targets) {
    --target.first->references;
    impl_->retire_if_drained(*target.first);
  }
  return status;
}

Status Engine::query(Event* event) {
  const Lock lock(impl_->mutex);
  if (impl_->fault != kOk) return impl_->fault;
  return event->newest == nullptr || event->newest->done ? kOk : kNotReady;
}

Status Engine::synchronize(Event* event) {
  Lock lock(impl_->mutex);
  if (event->newest == nullptr) return impl_->fault;
  EventRecording* const record = event->newest;
  ++record->references;
  const Status status = impl_->wait_until(lock, [record] { return record->done; });
  impl_->drop(record);
  return status;
}

std::uint64_t Engine::last_ticket(const Queue* queue) const {
  const Lock lock(impl_->mutex);
  return queue->submitted;
}

Status Engine::query(Queue* queue, std::uint64_t ticket) {
  const Lock lock(impl_->mutex);
  if (impl_->fault != kOk) return impl_->fault;
  return queue->completed >= ticket ? kOk : kNotReady;
}

Status Engine::synchronize(Queue* queue, std::uint64_t ticket) {
  Lock lock(impl_->mutex);
  return impl_->wait_until(lock, [&] { return queue->completed >= ticket; });
}

Status Engine::query_group(std::uint32_t sync_group) {
  const Lock lock(impl_->mutex);
  if (impl_->fault != kOk) return impl_->fault;
  const auto found = impl_->groups.find(sync_group);
  if (found == impl_->groups.end()) return kOk;
  return impl_->group_done(*found->second, false) ? kOk : kNotReady;
}

Status Engine::synchronize_group(std::uint32_t sync_group) {
  Lock lock(impl_->mutex);
  const auto found = impl_->groups.find(sync_group);
  if (found == impl_->groups.end()) return impl_->fault;
  const SyncGroup& group = *found->second;
  return impl_->wait_until(lock, [&] { return impl_->group_done(group, false); });
}

Status Engine::event_time(const Event* event, Nanoseconds* at) const {
  const Lock lock(impl_->mutex);
  if (event->newest == nullptr) return kInvalidArgument;
  if (!event->newest->done) return kNotReady;
  *at = event->newest->at;
  return kOk;
}

AdvanceResult Engine::advance() {
  Lock lock(impl_->mutex);
  if (impl_->real) return impl_->outstanding == 0 ? AdvanceResult::kIdle : AdvanceResult::kMoved;
  return impl_->advance_one(lock);
}

AdvanceResult Engine::drain() {
  Lock lock(impl_->mutex);
  if (impl_->real) {
    ++impl_->waiting_threads;
    impl_->done_changed.wait(lock, [this] { return impl_->outstanding == 0; });
    --impl_->waiting_threads;
    return AdvanceResult::kIdle;
  }
  AdvanceResult progress = AdvanceResult::kMoved;
  while (progress == AdvanceResult::kMoved) progress = impl_->advance_one(lock);
  return progress;
}

std::uint64_t Engine::outstanding() const {
  const Lock lock(impl_->mutex);
  return impl_->outstanding;
}

}  // namespace vitamin::soft
