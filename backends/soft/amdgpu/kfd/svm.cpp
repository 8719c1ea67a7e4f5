// SPDX-License-Identifier: Apache-2.0
//
// Shared virtual memory: attributes of ranges of the process's own memory. All memory is where the
// GPUs reach it, so a location, a prefetch or an access changes nothing but what is told.
// Answers are those of Linux 6.1 (kfd_svm.c) with XNACK off.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iterator>

#include "backends/soft/amdgpu/kfd/driver.h"
#include "backends/soft/amdgpu/kfd/files.h"
#include "backends/soft/amdgpu/kfd/sysfs.h"

namespace vitamin::soft::amdgpu::kfd {
namespace {

constexpr std::uint32_t kUndefined = KFD_IOCTL_SVM_LOCATION_UNDEFINED;
constexpr std::uint8_t kGranularityMax = 0x3f;

std::atomic<bool> has_ranges;

bool is_there(std::uint64_t begin, std::uint64_t bytes) {
  return ::msync(reinterpret_cast<void*>(begin), bytes, MS_ASYNC) == 0;
}

// Of several ranges: the place on which they agree.
std::uint32_t common_place(std::uint32_t one, std::uint32_t other) {
  return one == other ? one : kUndefined;
}

void apply(SvmRange& range, const kfd_ioctl_svm_attribute& attribute, std::uint32_t gpu) {
  const std::uint32_t value = attribute.value;
  switch (attribute.type) {
    case KFD_IOCTL_SVM_ATTR_PREFERRED_LOC:
      range.preferred = value;
      break;
    case KFD_IOCTL_SVM_ATTR_PREFETCH_LOC:
      range.prefetched = value;
      break;
    case KFD_IOCTL_SVM_ATTR_SET_FLAGS:
      range.flags |= value;
      break;
    case KFD_IOCTL_SVM_ATTR_CLR_FLAGS:
      range.flags &= ~value;
      break;
    case KFD_IOCTL_SVM_ATTR_GRANULARITY:
      range.granularity =
          static_cast<std::uint8_t>(std::min<std::uint32_t>(value, kGranularityMax));
      break;
    default:  // one of the three accesses
      range.access &= ~gpu;
      range.in_place &= ~gpu;
      if (attribute.type == KFD_IOCTL_SVM_ATTR_ACCESS) range.access |= gpu;
      if (attribute.type == KFD_IOCTL_SVM_ATTR_ACCESS_IN_PLACE) range.in_place |= gpu;
  }
}

}  // namespace

void Driver::unmapped(std::uint64_t begin, std::uint64_t bytes) {
  if (!has_ranges.load(std::memory_order_relaxed) || bytes == 0 || begin % kPageBytes != 0) return;
  // The kernel unmaps nothing (EINVAL) when the range goes beyond the process's addresses.
  if (!may_be_user(begin) || bytes > kUserEnd - begin) return;
  // An allocator under the driver's own maps may unmap: what it gives back has no attributes.
  if (DriverScope::active()) return;
  const DriverScope scope;
  Driver& driver = instance();
  if (driver.is_of_parent()) return;  // the lock may be held by a thread that is not here
  const std::lock_guard lock(driver.mutex_);
  const auto [first, last] = driver.split_at(begin, begin + whole_pages(bytes));
  for (auto range = first; range != last; ++range) driver.machine_.memory.remove(range->first);
  driver.svm_.erase(first, last);
}

// The ranges that begin within [begin, end), with none across its bounds any more.
std::pair<Driver::SvmRanges::iterator, Driver::SvmRanges::iterator> Driver::split_at(
    std::uint64_t begin, std::uint64_t end) {
  for (const std::uint64_t at : {begin, end}) {
    const auto after = svm_.upper_bound(at);
    if (after == svm_.begin()) continue;
    const auto before = std::prev(after);
    const std::uint64_t its_end = before->first + before->second.bytes;
    if (before->first == at || its_end <= at) continue;
    SvmRange rest = before->second;
    rest.bytes = its_end - at;
    before->second.bytes = at - before->first;
    svm_.emplace(at, rest);
    machine_.memory.split(at);
  }
  return {svm_.lower_bound(begin), svm_.lower_bound(end)};
}

// Whether memory has attributes, so that no buffer may be there. kfd_chardev.c,
// kfd_ioctl_alloc_memory_of_gpu. Attributes of memory that cannot be read are dropped: the program
// has replaced it by addresses that it keeps for a buffer, which the driver is not told of.
bool Driver::has_attributes(std::uint64_t begin, std::uint64_t bytes) {
  if (svm_.empty() || !may_be_user(begin)) return false;
  const std::uint64_t first = begin & ~(kPageBytes - 1);
  const std::uint64_t end = whole_pages(begin + std::min(bytes, kUserEnd - begin));
  auto [range, last] = split_at(first, end);
  while (range != last) {
    std::uint8_t byte;
    if (copy_in(&byte, range->first, 1)) return true;
    machine_.memory.remove(range->first);
    range = svm_.erase(range);
  }
  return false;
}

// Whether the call may name this range: 0, or the kernel's answer.
IoctlResult Driver::svm_range_answer(std::uint64_t begin, std::uint64_t bytes) const {
  if (begin % kPageBytes != 0 || bytes % kPageBytes != 0 || begin == 0 || bytes == 0)
    return -EINVAL;
  if (!may_be_user(begin) || !may_be_user(begin + bytes) || !is_there(begin, bytes)) return -EFAULT;
  const bool is_of_buffer =
      std::any_of(buffers_.begin(), buffers_.end(), [&](const auto& handle_and_buffer) {
        const Buffer& buffer = handle_and_buffer.second;
        return buffer.mapped != 0 && buffer.va < begin + bytes && begin < buffer.va + buffer.bytes;
      });
  return is_of_buffer ? -EADDRINUSE : 0;
}

// The bit of the GPU that the attribute names; 0: it names none. Nothing: it is not valid.
std::optional<std::uint32_t> Driver::gpu_named_by(const kfd_ioctl_svm_attribute& attribute) const {
  switch (attribute.type) {
    case KFD_IOCTL_SVM_ATTR_SET_FLAGS:
    case KFD_IOCTL_SVM_ATTR_CLR_FLAGS:
    case KFD_IOCTL_SVM_ATTR_GRANULARITY:
      return 0;
    case KFD_IOCTL_SVM_ATTR_PREFERRED_LOC:
      if (attribute.value == kUndefined) return 0;
      [[fallthrough]];
    case KFD_IOCTL_SVM_ATTR_PREFETCH_LOC:
      if (attribute.value == KFD_IOCTL_SVM_LOCATION_SYSMEM) return 0;
      break;
    case KFD_IOCTL_SVM_ATTR_ACCESS:
    case KFD_IOCTL_SVM_ATTR_ACCESS_IN_PLACE:
    case KFD_IOCTL_SVM_ATTR_NO_ACCESS:
      break;
    default:
      return std::nullopt;
  }
  const Gpu* const gpu = find_gpu(attribute.value);
  if (gpu == nullptr) return std::nullopt;
  return 1u << gpu->number;
}

IoctlResult Driver::set_svm(const SvmCall& a) {
  for (std::uint32_t i = 0; i < a.nattr; ++i)
    if (!gpu_named_by(a.attributes[i])) return -EINVAL;
  if (const IoctlResult answer = svm_range_answer(a.start, a.size); answer != 0) return answer;
  const std::uint64_t end = a.start + a.size;
  auto [range, last] = split_at(a.start, end);
  for (std::uint64_t at = a.start; at < end; ++range) {  // what has no attributes yet gets its own
    if (range == last || range->first > at) {
      const std::uint64_t until = range == last ? end : range->first;
      range = svm_.emplace_hint(range, at, SvmRange{.bytes = until - at});
      machine_.memory.add(at, until - at);
    }
    for (std::uint32_t i = 0; i < a.nattr; ++i)
      apply(range->second, a.attributes[i], gpu_named_by(a.attributes[i]).value_or(0));
    at = range->first + range->second.bytes;
  }
  has_ranges.store(true, std::memory_order_relaxed);
  return 0;
}

// What all ranges within have in common.
SvmRange Driver::common_svm(std::uint64_t begin, std::uint64_t end, std::uint32_t& all_flags) {
  SvmRange common;
  all_flags = common.flags;
  auto range = svm_.upper_bound(begin);
  if (range != svm_.begin() && std::prev(range)->first + std::prev(range)->second.bytes > begin)
    --range;
  bool first = true;
  for (; range != svm_.end() && range->first < end; ++range, first = false) {
    const SvmRange& one = range->second;
    if (first) {
      common = one;
      all_flags = one.flags;
      continue;
    }
    common.preferred = common_place(common.preferred, one.preferred);
    common.prefetched = common_place(common.prefetched, one.prefetched);
    common.access &= one.access;
    common.in_place &= one.in_place;
    common.flags &= one.flags;
    all_flags |= one.flags;
    common.granularity = std::min(common.granularity, one.granularity);
  }
  return common;
}

IoctlResult Driver::get_svm(SvmCall& a) {
  if (const IoctlResult answer = svm_range_answer(a.start, a.size); answer != 0) return answer;
  std::uint32_t all_flags = 0;
  const SvmRange common = common_svm(a.start, a.start + a.size, all_flags);
  for (std::uint32_t i = 0; i < a.nattr; ++i) {
    kfd_ioctl_svm_attribute& attribute = a.attributes[i];
    switch (attribute.type) {
      case KFD_IOCTL_SVM_ATTR_PREFERRED_LOC:
        attribute.value = common.preferred;
        break;
      case KFD_IOCTL_SVM_ATTR_PREFETCH_LOC:
        attribute.value = common.prefetched;
        break;
      case KFD_IOCTL_SVM_ATTR_SET_FLAGS:
        attribute.value = common.flags;
        break;
      case KFD_IOCTL_SVM_ATTR_CLR_FLAGS:
        attribute.value = ~all_flags;
        break;
      case KFD_IOCTL_SVM_ATTR_GRANULARITY:
        attribute.value = common.granularity;
        break;
      case KFD_IOCTL_SVM_ATTR_ACCESS: {
        const auto gpu = gpu_named_by(attribute);
        if (!gpu) return -EINVAL;
        attribute.type = (common.access & *gpu) != 0     ? KFD_IOCTL_SVM_ATTR_ACCESS
                         : (common.in_place & *gpu) != 0 ? KFD_IOCTL_SVM_ATTR_ACCESS_IN_PLACE
                                                         : KFD_IOCTL_SVM_ATTR_NO_ACCESS;
        break;
      }
      default:
        return -EINVAL;
    }
  }
  return 0;
}

IoctlResult Driver::svm(SvmCall& a) {
  if (a.nattr > std::size(a.attributes)) return -EINVAL;
  const std::lock_guard lock(mutex_);
  if (a.op == KFD_IOCTL_SVM_OP_SET_ATTR) return set_svm(a);
  return a.op == KFD_IOCTL_SVM_OP_GET_ATTR ? get_svm(a) : -EINVAL;
}

}  // namespace vitamin::soft::amdgpu::kfd
