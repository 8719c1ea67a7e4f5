// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/hardware_queues.h"

#include <algorithm>
#include <chrono>

namespace vitamin::soft::amdgpu {

bool HardwareQueues::map(const std::atomic<bool>& stopped) {
  // The thread that stops a queue does not notify `changed_`.
  constexpr auto kBetweenLooks = std::chrono::milliseconds(1);
  std::unique_lock lock(mutex_);
  const auto place = line_.insert(line_.end(), &stopped);
  waiting_ = line_.size();
  while (!stopped && (line_.begin() != place || mapped_ == count_))
    changed_.wait_for(lock, kBetweenLooks);
  line_.erase(place);
  waiting_ = line_.size();
  changed_.notify_all();
  if (stopped) return false;
  most_mapped_ = std::max(most_mapped_, ++mapped_);
  return true;
}

void HardwareQueues::unmap() {
  const std::lock_guard lock(mutex_);
  --mapped_;
  changed_.notify_all();
}

unsigned HardwareQueues::most_mapped() const {
  const std::lock_guard lock(mutex_);
  return most_mapped_;
}

}  // namespace vitamin::soft::amdgpu
