// SPDX-License-Identifier: Apache-2.0
//
// Ioctls about events. A packet processor stores an event's number in its word of the event page
// and raises it; the page belongs to the program where there is a GPU with memory of its own, and
// is named by its handle when the first event is created.
#include <cerrno>

#include "backends/soft/amdgpu/kfd/driver.h"
#include "backends/soft/amdgpu/kfd/files.h"

namespace vitamin::soft::amdgpu::kfd {
namespace {

constexpr std::size_t kWaiterBytes = 56;  // the kernel's struct kfd_event_waiter
constexpr std::size_t kEventsOfWaitMax = kKernelArrayBytes / kWaiterBytes;

}  // namespace

IoctlResult Driver::create_event(kfd_ioctl_create_event_args& a) {
  const std::lock_guard lock(mutex_);
  if (a.event_page_offset != 0) {
    const Buffer* const page = find_buffer(a.event_page_offset);
    if (event_page_ != 0 || own_event_page_ || page == nullptr || page->bytes < kEventPageBytes)
      return -EINVAL;
    event_page_ = a.event_page_offset;
  }
  const bool signal =
      a.event_type == KFD_IOC_EVENT_SIGNAL || a.event_type == KFD_IOC_EVENT_DEBUG_EVENT;
  own_event_page_ |= signal && event_page_ == 0;
  const auto id = machine_.events.create(a.auto_reset == 0, KFD_SIGNAL_EVENT_LIMIT);
  if (!id) return -ENOSPC;
  a.event_id = *id;
  if (!signal) return 0;
  a.event_page_offset = kEventPage;
  a.event_slot_index = a.event_trigger_data = *id;
  return 0;
}

IoctlResult Driver::destroy_event(kfd_ioctl_destroy_event_args& a) {
  return machine_.events.destroy(a.event_id) ? 0 : -EINVAL;
}

IoctlResult Driver::set_event(kfd_ioctl_set_event_args& a) {
  return machine_.events.raise(a.event_id) ? 0 : -EINVAL;
}

IoctlResult Driver::reset_event(kfd_ioctl_reset_event_args& a) {
  return machine_.events.reset(a.event_id) ? 0 : -EINVAL;
}

IoctlResult Driver::wait_events(kfd_ioctl_wait_events_args& a) {
  if (a.num_events > kEventsOfWaitMax) return -ENOMEM;
  std::vector<kfd_event_data> data(a.num_events);
  if (!copy_in(data.data(), a.events_ptr, data.size() * sizeof data[0])) return -EFAULT;
  std::vector<std::uint32_t> ids;
  for (const kfd_event_data& each : data) ids.push_back(each.event_id);
  switch (machine_.events.wait(ids, a.wait_for_all != 0, a.timeout)) {
    case Events::Wait::kComplete:
      a.wait_result = KFD_IOC_WAIT_RESULT_COMPLETE;
      return 0;
    case Events::Wait::kTimedOut:
      a.wait_result = KFD_IOC_WAIT_RESULT_TIMEOUT;
      return 0;
    case Events::Wait::kDestroyed:
      a.wait_result = KFD_IOC_WAIT_RESULT_FAIL;
      return -EIO;
    case Events::Wait::kNoEvent:
      break;
  }
  a.wait_result = KFD_IOC_WAIT_RESULT_FAIL;
  return -EINVAL;
}

}  // namespace vitamin::soft::amdgpu::kfd
