// SPDX-License-Identifier: Apache-2.0
#include "runtime/pool/physical_context_pool.h"

#include <algorithm>

namespace vitamin::runtime {

hal::Result<PhysicalContextPool> PhysicalContextPool::realise(hal::Device& device,
                                                              const PoolLayout& layout) {
  PhysicalContextPool pool;
  pool.contexts_.resize(layout.size());
  pool.queues_.resize(layout.size());
  pool.queues_made_max_ = device.info().pool_queues_max;
  pool.slots_ = pool.queues_made_max_ > 0;
  if (pool.slots_) pool.limit(device.pool_queues_now());
  pool.priorities_ = device.info().pool_priorities;
  hal::Error first_error;
  for (const Partition& partition : layout.partitions()) {
    if (partition.whole()) continue;
    auto context = device.create_context(partition.compute);
    if (!context) {
      if (first_error.message.empty()) first_error = context.error();
      continue;
    }
    pool.contexts_[partition.id] = std::move(*context);
    if (pool.slots_) continue;
    auto queue = pool.make_queue(partition.id, 0);
    if (queue) {
      pool.add(std::move(*queue));
    } else {
      if (first_error.message.empty()) first_error = queue.error();
      pool.contexts_[partition.id].reset();
    }
  }
  // A device of one unit has no partitions; that is no failure.
  if (pool.realised() == 0 && layout.size() > 1) return tl::unexpected(first_error);
  if (pool.slots_) pool.fill_slots(layout);
  return pool;
}

// Widths from the narrowest to the widest that is less than the whole device, which a lone job has
// on its own streams.
void PhysicalContextPool::fill_slots(const PoolLayout& layout) {
  std::vector<PartitionId> narrow;
  for (const Partition& partition : layout.partitions())
    if (!partition.whole() && has(partition.id) && partition.sms < layout.at(kWholeDevice).sms)
      narrow.push_back(partition.id);
  const std::size_t count = std::min(queues_max_, narrow.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t step = count > 1 ? i * (narrow.size() - 1) / (count - 1) : narrow.size() / 2;
    auto queue = make_queue(narrow[step], 0);
    if (!queue && queue.error().code == hal::Errc::kBusy) return;
    if (!queue) return shrink();
    add(std::move(*queue));
  }
}

hal::Result<std::unique_ptr<PhysicalQueue>> PhysicalContextPool::make_queue(PartitionId partition,
                                                                            int priority) {
  auto native = contexts_[partition]->create_queue(priority);
  if (!native) return tl::unexpected(native.error());
  auto queue = std::make_unique<PhysicalQueue>();
  queue->queue = std::move(*native);
  queue->partition = partition;
  queue->sms = contexts_[partition]->sms();
  queue->priority = priority;
  return queue;
}

std::unique_ptr<PhysicalQueue> PhysicalContextPool::take_idle(MarkerPool& markers) {
  std::unique_ptr<PhysicalQueue>* oldest = nullptr;
  for (auto& queues : queues_)
    for (auto& queue : queues)
      if (queue->owner == nullptr && queue->pins == 0 && markers.fired(queue->last) &&
          (oldest == nullptr || queue->made < (*oldest)->made))
        oldest = &queue;
  if (oldest == nullptr) return nullptr;
  std::unique_ptr<PhysicalQueue> taken = std::move(*oldest);
  taken->last.reset();
  auto& queues = queues_[taken->partition];
  std::erase(queues, nullptr);
  return taken;
}

bool PhysicalContextPool::all_owned() const {
  for (const auto& queues : queues_)
    for (const auto& queue : queues)
      if (queue->owner == nullptr) return false;
  return true;
}

std::size_t PhysicalContextPool::queue_count() const {
  std::size_t count = 0;
  for (const auto& queues : queues_) count += queues.size();
  return count;
}

std::size_t PhysicalContextPool::realised() const {
  return static_cast<std::size_t>(std::count_if(contexts_.begin(), contexts_.end(),
                                                [](const auto& c) { return c != nullptr; }));
}

}  // namespace vitamin::runtime
