// SPDX-License-Identifier: Apache-2.0
#include "runtime/physical_context_pool.h"

#include <algorithm>

namespace vitamin::runtime {

hal::Result<PhysicalContextPool> PhysicalContextPool::realise(hal::Device& device,
                                                              const PoolLayout& layout) {
  PhysicalContextPool pool;
  pool.contexts_.resize(layout.size());
  pool.queues_.resize(layout.size());
  hal::Error first_error;
  for (const PoolEntry& entry : layout.entries()) {
    if (entry.whole()) continue;
    auto context = device.create_context(entry.compute);
    if (!context) {
      if (first_error.message.empty()) first_error = context.error();
      continue;
    }
    pool.contexts_[entry.id] = std::move(*context);
    auto queue = pool.make_queue(entry.id, 0);
    if (queue) {
      pool.add(std::move(*queue));
    } else {
      if (first_error.message.empty()) first_error = queue.error();
      pool.contexts_[entry.id].reset();
    }
  }
  // A device of one unit has no partitions; that is no failure.
  if (pool.realised() == 0 && layout.size() > 1) return tl::unexpected(first_error);
  return pool;
}

hal::Result<std::unique_ptr<PhysicalQueue>> PhysicalContextPool::make_queue(EntryId entry,
                                                                            int priority) {
  auto native = contexts_[entry]->create_queue(priority);
  if (!native) return tl::unexpected(native.error());
  auto queue = std::make_unique<PhysicalQueue>();
  queue->queue = std::move(*native);
  queue->entry = entry;
  queue->processors = contexts_[entry]->processors();
  queue->priority = priority;
  return queue;
}

std::size_t PhysicalContextPool::realised() const {
  return static_cast<std::size_t>(std::count_if(contexts_.begin(), contexts_.end(),
                                                [](const auto& c) { return c != nullptr; }));
}

}  // namespace vitamin::runtime
